"""Sign-in and sign-out with forms that work without JavaScript: by password or one-time link."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse
from starlette.responses import Response

from latchwork_workflows.web.identity import CurrentUser, SignedIn, check_origin
from latchwork_workflows.web.passwords import TooManyAttempts
from latchwork_workflows.web.problems import HttpProblem

router = APIRouter(include_in_schema=False)
_Word = Annotated[str, Form(max_length=300)]


def require_local_path(path: str) -> str:
    """Return the path if it belongs to this site, otherwise ``/``. A link can then not redirect to another site."""
    is_plain = path.startswith("/") and not path.startswith("//") and path.isprintable() and "\\" not in path
    return path if is_plain else "/"


@router.get("/sign-in")
def show_sign_in_form(request: Request, next: str = "/", link: str = "") -> Response:  # noqa: A002 - the name in the query
    """Show the sign-in form. For a one-time link, show a button instead, because a browser may prefetch the link."""
    return _page(request, next, link=link)


@router.post("/sign-in")
def sign_in(
    request: Request,
    name: _Word = "",
    password: _Word = "",
    link: _Word = "",
    next: Annotated[str, Form(max_length=2000)] = "/",  # noqa: A002 - the name in the form
) -> Response:
    """Sign in by password or by one-time link."""
    check_origin(request)
    site = request.app.state.site
    if link:
        found = site.accounts.sign_in_by_link(link)
        return _signed_in(request, found, next) if found else _page(request, next, "This link was used or has expired.")
    try:
        found = site.accounts.sign_in(name, password)
    except TooManyAttempts as error:
        wait_s = math.ceil(error.wait_s)
        return _page(
            request, next, f"Too many failed attempts; try again in {wait_s} s.", status=429, retry_s=wait_s, name=name
        )
    if found is None:
        return _page(request, next, "Wrong name or password.", status=401, name=name)
    return _signed_in(request, found, next)


@router.post("/sign-out")
def sign_out(request: Request, identity: CurrentUser) -> Response:  # noqa: ARG001 - requires a signed-in user
    """End the session of the browser and redirect to the sign-in form."""
    site = request.app.state.site
    site.accounts.sign_out(request.cookies.get(site.cookie, ""))
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(site.cookie)
    return response


def _signed_in(request: Request, found: SignedIn, target: str) -> Response:
    response = RedirectResponse(require_local_path(target), 303)
    response.set_cookie(
        request.app.state.site.cookie,
        found.cookie,
        max_age=int(found.lasts_s),
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return response


def _page(
    request: Request,
    target: str,
    error: str = "",
    *,
    status: int = 200,
    link: str = "",
    name: str = "",
    retry_s: int = 0,
) -> Response:
    if error and status == 200:
        status = 401
    if not isinstance(target, str):
        raise HttpProblem(422, "next: this must be a path")
    headers = {"Retry-After": str(retry_s)} if retry_s else {}
    pages = request.app.state.site.pages
    made: Response = pages.render(
        request,
        "sign_in.html",
        status,
        headers=headers,
        next=require_local_path(target),
        error=error,
        link=link,
        name=name,
    )
    return made
