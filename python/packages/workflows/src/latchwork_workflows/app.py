"""The web app of workflows: the API and the pages.

    app = make_web_app(database, logs=open_logs(url), cluster=cluster)
    server = HttpServer(app, "127.0.0.1", 8080); server.start()

Any number of processes may run one, because they keep no state that the others need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any

from fastapi import FastAPI

from latchwork.errors import LatchworkError
from latchwork_workflows.api import make_api
from latchwork_workflows.db import Database, overview, run_queries
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.logs import LogStore
from latchwork_workflows.services import EXPECTED, Cluster, ServiceContext, to_http_problem
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.ui import NAVIGATION, PAGES, ui_routers
from latchwork_workflows.web import LiveHub, Role, SiteConfig

LOCAL = ("127.0.0.1", "localhost", "[::1]")


def make_web_app(
    database: Database,
    *,
    logs: LogStore | None = None,
    cluster: Cluster | None = None,
    types: TaskTypes | None = None,
    hosts: Iterable[str] = LOCAL,
    cookie: str = "latchwork",
) -> FastAPI:
    """Return the web app with the API and the pages.

    Args:
        database: A database with the schema of this version.
        logs: The log store. None: logs cannot be read.
        cluster: The store. None: masters are not notified and workers are not shown.
        types: The available task types. None: all installed types.
        hosts: The host names that requests may use, without port. ``*``: any.
        cookie: The name of the session cookie. Two servers on one host need different names.
    """
    context = ServiceContext(database, DatabaseAccounts(database), types or TaskTypes(), logs, cluster)
    live = LiveHub(lambda topics: _compute_fingerprints(database, topics))
    site = SiteConfig(
        "latchwork workflows",
        context.accounts,
        PAGES,
        navigation=NAVIGATION,
        live=live,
        expected=EXPECTED,
        to_http_problem=to_http_problem,
        cookie=cookie,
    )
    app = make_api(context, site, hosts=hosts)
    for router in ui_routers:
        app.include_router(router, include_in_schema=False)
    return app


def create_admin_link(app: FastAPI, base_url: str, name: str = "admin") -> str:
    """Return a one-time link that signs a browser in as administrator. It is valid for an hour.

    The account is created if needed.

    Args:
        app: The app.
        base_url: The URL of its pages.
        name: The name of the account.
    """
    accounts: DatabaseAccounts = app.state.context.accounts
    accounts.ensure_account(name, Role.ADMIN)
    return f"{base_url}/sign-in?link={accounts.create_sign_in_link(name, by=name)}"


def require_password_if_public(app: FastAPI, host: str) -> None:
    """Refuse to listen on an address that other machines can reach while no account has a password.

    Without passwords, only users of this machine can sign in, with a link.

    Args:
        app: The app.
        host: The address on which it listens.
    Raises:
        LatchworkError: No account has a password, and the address is not local.
    """
    accounts: DatabaseAccounts = app.state.context.accounts
    if not is_local(host) and not accounts.has_password():
        raise LatchworkError(
            f"--host {host} lets other machines connect, but no account has a password yet: set one with "
            "`latchwork workflows users set NAME --role admin --password`, or serve on 127.0.0.1 first and set one on "
            "your account page"
        )


def is_local(host: str) -> bool:
    """Return whether a listening address is reachable only from this machine."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _compute_fingerprints(database: Database, topics: Iterable[str]) -> Mapping[str, Any]:
    """Return a value for each topic that differs whenever its data has changed.

    All topics are read in one short transaction, which all live streams share.
    """
    found: dict[str, Any] = {}
    with database.read() as connection:
        for topic in topics:
            kind, _, key = topic.partition(":")
            found[topic] = (
                run_queries.compute_fingerprint(connection, int(key))
                if kind == "run"
                else overview.compute_fingerprint(connection)
            )
    return found
