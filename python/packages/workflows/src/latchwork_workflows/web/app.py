"""An app: static files, sign-in, errors as documents or pages, headers of every answer. Routes are added to it."""

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
from latchwork_workflows.web.live import Hub
from latchwork_workflows.web.problems import Problem
from latchwork_workflows.web.safety import HEADERS, Safety

if TYPE_CHECKING:
    from latchwork_workflows.web.pages import Pages

_log = logging.getLogger(__name__)
_HERE = Path(__file__).parent
#: What programs ask for; everything else is a page.
API = "/api/"
_OURS = "something went wrong here; the log of the server has the details"


class Link(NamedTuple):
    """An entry of the navigation, shown to those who have the role somewhere.

    Attributes:
        path: where it leads; pages below it are its own.
        label: its text.
        role: who has less, anywhere, does not see it.
        also: what else its pages begin with.
    """

    path: str
    label: str
    role: Role = Role.VIEWER
    also: tuple[str, ...] = ()

    def has(self, path: str) -> bool:
        """Whether a page belongs to it."""
        mine = (self.path, *self.also)
        return path in mine or (self.path != "/" and path.startswith(tuple(f"{each}/" for each in mine)))


@dataclass(eq=False)
class Site:
    """What an app knows besides its routes.

    Attributes:
        title: of all pages.
        accounts: who may sign in.
        pages: how pages are made. None: there are none, and nobody signs in.
        navigation: of all pages.
        live: who is told of changes; None: no page is live.
        expected: errors of the system behind.
        problem_of: one of these as a problem; None: something went wrong here.
        cookie: name of the session's cookie. Browsers do not tell ports apart, so two servers of one host need two.
    """

    title: str
    accounts: Accounts
    pages: Pages | None = None
    navigation: Sequence[Link] = ()
    live: Hub | None = None
    expected: tuple[type[Exception], ...] = ()
    problem_of: Callable[[Exception], Problem | None] = lambda _: None
    cookie: str = "latchwork"


def make_app(
    site: Site,
    *,
    hosts: Iterable[str],
    version: str,
    description: str = "",
    larger: Mapping[str, int] | None = None,
) -> FastAPI:
    """An app without routes of its own but sign-in and static files.

    Args:
        site: what it knows.
        hosts: by whose names it may be asked, without port; ``*``: any.
        version: of the API.
        description: of the API.
        larger: paths whose requests may be larger than others, with their most bytes.
    """
    app = FastAPI(
        title=site.title,
        version=version,
        description=description,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # it would come from somebody else's server
        redoc_url=None,
    )
    app.state.site = site
    if site.pages is not None:
        from latchwork_workflows.web import sign_in

        app.include_router(sign_in.router)
        app.mount("/static", _Static(directory=_HERE / "static"), name="static")
    app.add_middleware(Safety, hosts=list(hosts), larger=larger or {})
    app.add_exception_handler(Exception, _unexpected)
    for kind in (Problem, HTTPException, RequestValidationError, *site.expected):
        app.add_exception_handler(kind, _told)
    return app


class _Static(StaticFiles):
    """Files that a browser may keep: a new version has a new query."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["cache-control"] = "public, max-age=604800"
        return response


async def _told(request: Request, error: Exception) -> Response:
    return await _answer(request, _problem(request, error))


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    response = await _answer(request, Problem(500, _OURS))
    response.headers.update(HEADERS)  # this answer is made outside of what adds them
    return response


def _problem(request: Request, error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return problems.of_validation(error)
    if isinstance(error, HTTPException):
        return problems.of_http(error)
    site: Site = request.app.state.site
    return site.problem_of(error) or Problem(500, _OURS)


async def _answer(request: Request, problem: Problem) -> Response:
    site: Site = request.app.state.site
    if site.pages is None or request.url.path.startswith(API) or not _wants_page(request):
        return problem.response()
    if problem.status == 401:
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        target = f"/sign-in?next={quote(here if request.method == 'GET' else '/')}"
        if "hx-request" in request.headers:
            return Response(status_code=401, headers={"HX-Redirect": target})
        return RedirectResponse(target, 303)
    # Without the navigation of whoever asks: to find out who that is may be what failed.
    return await run_in_threadpool(
        site.pages.render, request, "problem.html", problem.status, headers=problem.headers, problem=problem
    )


def _wants_page(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "text/html" in accept or "hx-request" in request.headers
