"""The whole web side of workflows as one app: the API, and the pages on it.

    app = make_site(database, logs=open_logs(url), cluster=cluster)
    server = HttpServer(app, "127.0.0.1", 8080); server.start()

Any number of processes may have one: nothing is kept in them that another would miss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any

from fastapi import FastAPI

from latchwork.errors import LatchworkError
from latchwork_workflows.api import make_api
from latchwork_workflows.db import Database, overview
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.db.views import instances
from latchwork_workflows.logs import LogStore
from latchwork_workflows.services import EXPECTED, Cluster, Parts, problem_of
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.ui import NAVIGATION, PAGES, ui_routers
from latchwork_workflows.web import Hub, Role, Site

LOCAL = ("127.0.0.1", "localhost", "[::1]")


def make_site(
    database: Database,
    *,
    logs: LogStore | None = None,
    cluster: Cluster | None = None,
    types: TaskTypes | None = None,
    hosts: Iterable[str] = LOCAL,
    cookie: str = "latchwork",
) -> FastAPI:
    """The app.

    Args:
        database: upgraded to the schema of this version.
        logs: where attempts write; None: logs cannot be read.
        cluster: the store; None: masters are not poked, workers not seen.
        types: the task types that may be applied; None: all that are installed.
        hosts: by whose names it may be asked, without port; ``*``: any.
        cookie: name of the session's cookie; two servers of one host need two.
    """
    parts = Parts(database, DatabaseAccounts(database), types or TaskTypes(), logs, cluster)
    live = Hub(lambda topics: _fingerprints(database, topics))
    site = Site(
        "latchwork workflows",
        parts.accounts,
        PAGES,
        navigation=NAVIGATION,
        live=live,
        expected=EXPECTED,
        problem_of=problem_of,
        cookie=cookie,
    )
    app = make_api(parts, site, hosts=hosts)
    for router in ui_routers:
        app.include_router(router, include_in_schema=False)
    return app


def admin_link(app: FastAPI, base_url: str, name: str = "admin") -> str:
    """An address that signs a browser in as an administrator, once, within an hour; makes the account if needed."""
    accounts: DatabaseAccounts = app.state.parts.accounts
    accounts.ensure(name, Role.ADMIN)
    return f"{base_url}/sign-in?link={accounts.new_link(name, by=name)}"


def check_reach(app: FastAPI, host: str) -> None:
    """Refuse to be reached from other machines while nobody has a password: a link alone is for whoever sits here.

    Raises:
        LatchworkError: nobody has one, and this host is not this machine alone.
    """
    accounts: DatabaseAccounts = app.state.parts.accounts
    if not is_local(host) and not accounts.has_password():
        raise LatchworkError(
            f"--host {host} lets other machines ask, and no account has a password yet: give one to somebody with "
            "`latchwork workflows users set NAME --role admin --password`, or serve on 127.0.0.1 first, and set one on "
            "the page of your account"
        )


def is_local(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _fingerprints(database: Database, topics: Iterable[str]) -> Mapping[str, Any]:
    """One short transaction for all that anybody watches; nobody keeps one open."""
    found: dict[str, Any] = {}
    with database.read() as connection:
        for topic in topics:
            kind, _, key = topic.partition(":")
            found[topic] = (
                instances.fingerprint(connection, int(key)) if kind == "run" else overview.fingerprint(connection)
            )
    return found
