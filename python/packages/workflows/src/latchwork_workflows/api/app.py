"""The API as an app."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI

from latchwork_workflows.api.routes import routers
from latchwork_workflows.bundles import MOST_BYTES
from latchwork_workflows.schemas.problems import ProblemDocument
from latchwork_workflows.services import EXPECTED, Parts, problem_of
from latchwork_workflows.web import Site, make_app


def make_api(parts: Parts, site: Site | None = None, *, hosts: Iterable[str]) -> FastAPI:
    """Return an app with the routes of the API.

    Args:
        parts: The database, and the store and logs as far as there are any.
        site: What the app needs for pages. None: it has no pages.
        hosts: The host names that requests may use, without port; ``*``: any.
    """
    site = site or Site("latchwork workflows", parts.accounts, expected=EXPECTED, problem_of=problem_of)
    larger = {"/api/v1/bundles": MOST_BYTES}
    app = make_app(site, hosts=hosts, version=_version(), description=_DESCRIPTION, larger=larger)
    app.state.parts = parts
    problems: dict[int | str, dict[str, Any]] = {
        status: {"model": ProblemDocument, "content": {"application/problem+json": {}}, "description": text}
        for status, text in _PROBLEMS.items()
    }
    for router in routers:
        app.include_router(router, responses=problems)
    return app


def _version() -> str:
    try:
        return version("latchwork")
    except PackageNotFoundError:
        return "0"


_DESCRIPTION = (
    "Workflows, their runs and logs. Moments are seconds since the epoch. Send a token as `Authorization: Bearer ...`; "
    "errors are problem documents (RFC 9457). Lists go by key: ask for what is `before` the last id that you have."
)
_PROBLEMS = {
    400: "malformed",
    401: "nobody that we know",
    403: "not allowed",
    404: "not there",
    409: "its state does not take this; `possible` names what it would take",
    413: "too large",
    422: "a field is wrong; `errors` names each",
    503: "database, store or logs are out of reach; try again",
}
