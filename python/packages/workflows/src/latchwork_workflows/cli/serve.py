"""`latchwork workflows serve` and `api`: everything in one process, or the API and the pages alone."""

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
    node,
    order_of,
    worker_options,
)
from latchwork_workflows.cli.options import (
    DatabaseUrl,
    HomeDir,
    LogsUrl,
    StoreUrl,
    home_of,
    log_to_stderr,
    opened_database,
    until_signal,
)

if TYPE_CHECKING:
    from latchwork_workflows import ServeOptions

Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Where the pages listen.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Of the pages; 0 takes a free one.")]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        metavar="HOST",
        show_default=False,
        help="A name by which browsers may ask for the pages; may be given several times.  [unless given: this "
        "machine's own]",
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        show_default=False,
        help="PEM file with the certificate chain, to serve HTTPS; needs --tls-key.  [unless given: plain HTTP]",
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        "--tls-key", metavar="FILE", show_default=False, help="PEM file with the key of --tls-cert, no passphrase."
    ),
]
ProxyHeaders = Annotated[
    bool,
    typer.Option(
        "--proxy-headers",
        help="Believe X-Forwarded-For and X-Forwarded-Proto of the trusted proxies, and of no other client.",
    ),
]
TrustedProxies = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        metavar="ADDRESS",
        show_default=False,
        help="The address or network of a proxy for --proxy-headers; may be given several times.  [unless given: this "
        "machine]",
    ),
]


@node(
    "latchwork workflows serve",
    "latchwork workflows serve --port 9000 --slots 8",
    "latchwork workflows serve --host 0.0.0.0 --name flows.example.org --tls-cert cert.pem --tls-key key.pem",
    "latchwork workflows serve --name flows.example.org --proxy-headers",
)
def serve(
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
    order: TakeOrder = "instance",
    keep_days: KeepDays = 180.0,
    keep_runs: KeepRuns = 32,
    work_dir: WorkDir = None,
    tenants: Tenants = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    logs: LogsUrl = None,
) -> None:
    """Run everything in this process: database, master, worker, API and pages. What is missing is made.

    It prints an address that signs a browser in as an administrator, once. Ctrl-C ends it: tasks are told to end, what
    did not end runs again at the next start.
    """
    where = home_of(home, database, store, logs)
    from latchwork_workflows import Serve
    from latchwork_workflows.master import Retention

    log_to_stderr()
    more = {"session_ttl_s": session_ttl_s, "work_dir": work_dir, "tenants": tuple(tenants or ())}
    runs = worker_options(slots, groups, **more)
    keep = Retention(runs_days=keep_days, keep_runs=keep_runs)
    pages = _pages(names, tls_cert, tls_key, proxy_headers, trusted_proxies)
    options = _options(host=host, port=port, order=order_of(order), worker=runs, keep=keep, **pages)
    served = Serve(where, options)
    with until_signal(served.hurry) as stop, served:
        say(f"workflows of {where.folder} at {served.url}")
        say(f"sign in, once: {served.admin_link()}")
        sys.stdout.flush()
        SYSTEM_CLOCK.wait(stop)
        say("ending: tasks are told to end")


@node(
    "latchwork workflows api --database postgresql://flows@db/flows --store etcd://e1:2379/flows "
    "--logs s3://bucket/flows --host 10.0.0.5 --name flows.example.org --proxy-headers --trusted-proxy 10.0.0.7",
)
def api(
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
    """Serve the API and the pages alone, for a fleet. Any number may run: none has anything that another would miss.

    It changes no run: what is asked of one becomes a command for its master. Who may sign in is said by
    `latchwork workflows users`.
    """
    where = home_of(home, database, store, logs)
    from latchwork_workflows import Serve, installation_of

    only: dict[str, Any] = {"worker": None, "has_master": False, "makes_database": False}
    pages = _pages(names, tls_cert, tls_key, proxy_headers, trusted_proxies)
    options = _options(host=host, port=port, **only, **pages)
    with opened_database(where) as opened:  # first: a file that is not there would be made
        installation_of(opened)
        place = opened.url
    log_to_stderr()
    served = Serve(where, options)
    with until_signal(served.hurry) as stop, served:
        say(f"pages of {place} at {served.url}")
        if not served.can_sign_in():
            say("nobody can sign in yet: `latchwork workflows users set NAME --role admin --password`")
        sys.stdout.flush()
        SYSTEM_CLOCK.wait(stop)


def _pages(
    names: list[str] | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    proxy_headers: bool,
    trusted_proxies: list[str] | None,
) -> dict[str, Any]:
    """Return how browsers reach the pages, as fields of ``ServeOptions``.

    Raises:
        UsageError: proxies are named that are not believed.
    """
    if trusted_proxies and not proxy_headers:
        raise UsageError("--trusted-proxy needs --proxy-headers: without it, no proxy is believed")
    found: dict[str, Any] = {"tls_cert": tls_cert, "tls_key": tls_key, "proxy_headers": proxy_headers}
    if names:
        found["names"] = tuple(names)
    if trusted_proxies:
        found["trusted_proxies"] = tuple(trusted_proxies)
    return found


def _options(**fields: Any) -> ServeOptions:
    """Return the options.

    Raises:
        UsageError: they contradict each other.
    """
    from latchwork_workflows import ServeOptions

    try:
        return ServeOptions(**fields)
    except ValueError as error:
        raise UsageError(str(error)) from None
