"""The API as an app."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI

from latchwork_workflows.api.routes import routers
from latchwork_workflows.bundles import MAX_BYTES
from latchwork_workflows.schemas.problems import ProblemDocument
from latchwork_workflows.services import EXPECTED, ServiceContext, to_http_problem
from latchwork_workflows.web import SiteConfig, make_app


def make_api(context: ServiceContext, site: SiteConfig | None = None, *, hosts: Iterable[str]) -> FastAPI:
    """Return an app with the routes of the API.

    Args:
        context: The database, and the store and logs if there are any.
        site: The settings of the pages. None: no pages.
        hosts: The host names that requests may use, without port. ``*`` accepts any.
    """
    site = site or SiteConfig(
        "latchwork workflows", context.accounts, expected=EXPECTED, to_http_problem=to_http_problem
    )
    larger = {"/api/v1/bundles": MAX_BYTES}
    app = make_app(site, hosts=hosts, version=_version(), description=_DESCRIPTION, larger=larger)
    app.state.context = context
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
    "Workflows, their runs and logs. Times are in seconds since the epoch. Send a token as `Authorization: "
    "Bearer ...`; errors are problem documents (RFC 9457). Lists are paged: pass the last ID "
    "of a page as `before`."
)
_PROBLEMS = {
    400: "malformed",
    401: "not signed in",
    403: "not allowed",
    404: "not found",
    409: "its state does not allow this; `possible` lists what it allows",
    413: "too large",
    422: "invalid fields, listed in `errors`",
    503: "database, store or logs are not reachable; try again",
}
