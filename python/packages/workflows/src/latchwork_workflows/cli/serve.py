"""`latchwork workflows serve` and `api`: everything in one process, or only the API and the web UI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latchwork.clock import SYSTEM_CLOCK
from latchwork.spi import UsageError, say
from latchwork_workflows.cli.nodes import (
    Groups,
    KeepDays,
    KeepRuns,
    SessionTtl,
    Slots,
    TakeOrder,
    Tenants,
    WorkDir,
    build_worker_options,
    check_order,
    node_command,
)
from latchwork_workflows.cli.options import (
    DatabaseUrl,
    HomeDir,
    LogsUrl,
    StoreUrl,
    log_to_stderr,
    open_database,
    resolve_home,
    stop_on_signal,
)

if TYPE_CHECKING:
    from latchwork_workflows import ServeOptions

Host = Annotated[str, typer.Option(metavar="ADDRESS", help="The address on which the web UI and the API listen.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port of the web UI and the API. 0 selects a free one.")]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        metavar="HOST",
        show_default=False,
        help="A host name that browsers may use. Repeatable.  [default: names of this machine]",
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        show_default=False,
        help="PEM file with the certificate chain, for HTTPS. Needs --tls-key.  [default: plain HTTP]",
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        show_default=False,
        help="PEM file with the key of --tls-cert, without a passphrase.",
    ),
]
ProxyHeaders = Annotated[
    bool,
    typer.Option(
        "--proxy-headers",
        help="Trust X-Forwarded-For and X-Forwarded-Proto from the trusted proxies only.",
    ),
]
TrustedProxies = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        metavar="ADDRESS",
        show_default=False,
        help="The address or network of a proxy for --proxy-headers. Repeatable.  [default: this machine]",
    ),
]


@node_command(
    "latchwork workflows serve",
    "latchwork workflows serve --port 9000 --slots 8",
    "latchwork workflows serve --host 0.0.0.0 --name flows.example.org --tls-cert cert.pem --tls-key key.pem",
    "latchwork workflows serve --name flows.example.org --proxy-headers",
)
def serve_all(
    *,
    host: Host = "127.0.0.1",
    port: Port = 8770,
    names: Names = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    proxy_headers: ProxyHeaders = False,
    trusted_proxies: TrustedProxies = None,
    slots: Slots = None,
    groups: Groups = None,
    session_ttl_s: SessionTtl = None,
    order: TakeOrder = "run",
    keep_days: KeepDays = 180.0,
    keep_runs: KeepRuns = 32,
    work_dir: WorkDir = None,
    tenants: Tenants = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    logs: LogsUrl = None,
) -> None:
    """Run database, master, worker, API and web UI in this process. Missing files are created.

    It prints a one-time sign-in link for an administrator. Ctrl-C stops it: it stops the running tasks, and those that
    do not end in time run again after the next start.
    """
    where = resolve_home(home, database, store, logs)
    from latchwork_workflows import Serve
    from latchwork_workflows.master import Retention

    log_to_stderr()
    more = {"session_ttl_s": session_ttl_s, "work_dir": work_dir, "tenants": tuple(tenants or ())}
    runs = build_worker_options(slots, groups, **more)
    keep = Retention(runs_days=keep_days, keep_runs=keep_runs)
    pages = _build_page_options(names, tls_cert, tls_key, proxy_headers, trusted_proxies)
    options = _build_server_options(host=host, port=port, order=check_order(order), worker=runs, keep=keep, **pages)
    served = Serve(where, options)
    with stop_on_signal(served.skip_waiting) as stop, served:
        say(f"workflows of {where.folder} at {served.url}")
        say(f"one-time sign-in link: {served.admin_link()}")
        sys.stdout.flush()
        SYSTEM_CLOCK.wait(stop)
        say("shutting down: stopping tasks")


@node_command(
    "latchwork workflows api --database postgresql://flows@db/flows --store etcd://e1:2379/flows "
    "--logs s3://bucket/flows --host 10.0.0.5 --name flows.example.org --proxy-headers --trusted-proxy 10.0.0.7",
)
def serve_api(
    *,
    host: Host = "127.0.0.1",
    port: Port = 8770,
    names: Names = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    proxy_headers: ProxyHeaders = False,
    trusted_proxies: TrustedProxies = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    logs: LogsUrl = None,
) -> None:
    """Serve the API and the web UI. Any number of servers may run, because they share nothing but the database.

    They change no runs: each action becomes a command for a master. `latchwork workflows users` manages the accounts.
    """
    where = resolve_home(home, database, store, logs)
    from latchwork_workflows import Serve, load_installation

    only: dict[str, Any] = {"worker": None, "has_master": False, "makes_database": False}
    pages = _build_page_options(names, tls_cert, tls_key, proxy_headers, trusted_proxies)
    options = _build_server_options(host=host, port=port, **only, **pages)
    with open_database(where) as opened:  # first: a file that is not there would be made
        load_installation(opened)
        place = opened.url
    log_to_stderr()
    served = Serve(where, options)
    with stop_on_signal(served.skip_waiting) as stop, served:
        say(f"web UI and API of {place} at {served.url}")
        if not served.can_sign_in():
            say(
                "no account has a password yet; create one with `latchwork workflows users set NAME --role admin`, "
                "then `latchwork workflows users link NAME` prints a link that signs in"
            )
        sys.stdout.flush()
        SYSTEM_CLOCK.wait(stop)


def _build_page_options(
    names: list[str] | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    proxy_headers: bool,
    trusted_proxies: list[str] | None,
) -> dict[str, Any]:
    """Return the options for requests from browsers, as fields of ``ServeOptions``.


    Raises:
        UsageError: There are trusted proxies without --proxy-headers.
    """
    if trusted_proxies and not proxy_headers:
        raise UsageError("--trusted-proxy needs --proxy-headers: without it, no proxy is trusted")
    found: dict[str, Any] = {"tls_cert": tls_cert, "tls_key": tls_key, "proxy_headers": proxy_headers}
    if names:
        found["names"] = tuple(names)
    if trusted_proxies:
        found["trusted_proxies"] = tuple(trusted_proxies)
    return found


def _build_server_options(**fields: Any) -> ServeOptions:
    """Return the options of the server.


    Raises:
        UsageError: The options contradict each other.
    """
    from latchwork_workflows import ServeOptions

    try:
        return ServeOptions(**fields)
    except ValueError as error:
        raise UsageError(str(error)) from None
