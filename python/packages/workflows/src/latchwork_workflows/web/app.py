"""The web app: static files, sign-in, error documents and pages, and response headers. Routes are added to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from latchwork_workflows.web import problems
from latchwork_workflows.web.identity import Accounts, Role
from latchwork_workflows.web.live import LiveHub
from latchwork_workflows.web.problems import HttpProblem
from latchwork_workflows.web.safety import HEADERS, SafetyMiddleware

if TYPE_CHECKING:
    from latchwork_workflows.web.pages import Pages

_log = logging.getLogger(__name__)
_HERE = Path(__file__).parent
#: The path prefix of the API. All other paths are pages.
API = "/api/"
_OURS = "internal error; see the log of the server"


class NavigationEntry(NamedTuple):
    """An entry of the navigation, shown to users who have the role in some project.

    Attributes:
        path: The address. The entry also covers the pages below it.
        label: Its text.
        role: The lowest role that sees it.
        also: Further path prefixes of its pages.
    """

    path: str
    label: str
    role: Role = Role.VIEWER
    also: tuple[str, ...] = ()

    def contains(self, path: str) -> bool:
        """Return whether a page belongs to this navigation entry, by the path of the page."""
        mine = (self.path, *self.also)
        return path in mine or (self.path != "/" and path.startswith(tuple(f"{each}/" for each in mine)))


@dataclass(eq=False)
class SiteConfig:
    """The settings of an app besides its routes.

    Attributes:
        title: The title of all pages.
        accounts: The accounts that can sign in.
        pages: Renders the pages. None: there are no pages and no sign-in.
        navigation: The navigation of all pages.
        live: The hub for live updates. None: no live pages.
        expected: Exceptions of the system behind that are shown as problems.
        to_http_problem: Converts such an exception to a problem. None: it is shown as an internal error.
        cookie: The name of the session cookie. Browsers share cookies between ports, so two servers on a host need two
            names.
    """

    title: str
    accounts: Accounts
    pages: Pages | None = None
    navigation: Sequence[NavigationEntry] = ()
    live: LiveHub | None = None
    expected: tuple[type[Exception], ...] = ()
    to_http_problem: Callable[[Exception], HttpProblem | None] = lambda _: None
    cookie: str = "latchwork"


def make_app(
    site: SiteConfig,
    *,
    hosts: Iterable[str],
    version: str,
    description: str = "",
    larger: Mapping[str, int] | None = None,
) -> FastAPI:
    """Create an app that has sign-in and static files, to which the caller adds routes.

    Args:
        site: The settings of the app.
        hosts: The host names that requests may use, without port. ``*``: any.
        version: The version of the API.
        description: The description of the API.
        larger: Paths that accept larger requests, each with its limit in bytes.
    """
    app = FastAPI(
        title=site.title,
        version=version,
        description=description,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # it would load files from another server
        redoc_url=None,
    )
    app.state.site = site
    if site.pages is not None:
        from latchwork_workflows.web import sign_in

        app.include_router(sign_in.router)
        app.mount("/static", _Static(directory=_HERE / "static"), name="static")
    app.add_middleware(SafetyMiddleware, hosts=list(hosts), larger=larger or {})
    app.add_exception_handler(Exception, _handle_unexpected)
    for kind in (HttpProblem, HTTPException, RequestValidationError, *site.expected):
        app.add_exception_handler(kind, _handle_error)
    return app


class _Static(StaticFiles):
    """Static files that browsers may cache: the query of their address changes with the content."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["cache-control"] = "public, max-age=604800"
        return response


async def _handle_error(request: Request, error: Exception) -> Response:
    return await _respond(request, _to_problem(request, error))


async def _handle_unexpected(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    response = await _respond(request, HttpProblem(500, _OURS))
    response.headers.update(HEADERS)  # this response bypasses the middleware that adds them
    return response


def _to_problem(request: Request, error: Exception) -> HttpProblem:
    if isinstance(error, HttpProblem):
        return error
    if isinstance(error, RequestValidationError):
        return problems.from_validation_error(error)
    if isinstance(error, HTTPException):
        return problems.from_http_error(error)
    site: SiteConfig = request.app.state.site
    return site.to_http_problem(error) or HttpProblem(500, _OURS)


async def _respond(request: Request, problem: HttpProblem) -> Response:
    site: SiteConfig = request.app.state.site
    if site.pages is None or request.url.path.startswith(API) or not _wants_page(request):
        return problem.to_response()
    if problem.status == 401:
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        target = f"/sign-in?next={quote(here if request.method == 'GET' else '/')}"
        if "hx-request" in request.headers:
            return Response(status_code=401, headers={"HX-Redirect": target})
        return RedirectResponse(target, 303)
    # Without the navigation of the user: identifying the user may be what failed.
    return await run_in_threadpool(
        site.pages.render, request, "problem.html", problem.status, headers=problem.headers, problem=problem
    )


def _wants_page(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "text/html" in accept or "hx-request" in request.headers
