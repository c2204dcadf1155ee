"""Pages of accounts, of your own account, and of the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from latchwork_workflows.api.models import MOST_ID, Id
from latchwork_workflows.db import workflow_queries
from latchwork_workflows.model.model import NAME_PATTERN
from latchwork_workflows.services import accounts as desk
from latchwork_workflows.services.parts import need, parts_of
from latchwork_workflows.ui.frame import led, older, page, role_of
from latchwork_workflows.web import Problem, Role, Who

router = APIRouter()
_MOST = 100
_Word = Annotated[str, Form(max_length=200)]
_Name = Annotated[str, Form(pattern=NAME_PATTERN)]
_DAY_S = 86_400.0


@router.get("/account", response_class=HTMLResponse)
def account(request: Request, who: Who) -> HTMLResponse:
    """Show your role, tokens and password form."""
    return _account(request, who)


@router.post("/account/token", response_class=HTMLResponse)
def make_token(
    request: Request, who: Who, name: _Word, role: _Word = "", days: Annotated[int, Form(ge=0, le=3660)] = 90
) -> HTMLResponse:
    """Create a token. Only this page shows its text."""
    parts = parts_of(request)
    lasts_s = days * _DAY_S if days else None
    _, made = desk.new_token(parts, who, name.replace("\x00", "") or "token", role=_role(role), lasts_s=lasts_s)
    return _account(request, who, made)


@router.post("/account/token/{token_id}/revoke")
def revoke_token(request: Request, who: Who, token_id: Id) -> Response:
    """Revoke your own token."""
    desk.revoke(parts_of(request), who, token_id)
    return led("/account")


@router.post("/account/password")
def own_password(request: Request, who: Who, password: _Word, again: _Word, current: _Word = "") -> Response:
    """Change your own password. Ends all your sessions and tokens."""
    if password != again:
        raise Problem(422, "the two passwords differ; nothing was changed", errors=[("again", "differs")])
    desk.change(parts_of(request), who, who.name, password=password, current=current)
    return led("/sign-in")


@router.get("/users", response_class=HTMLResponse)
def users(request: Request, who: Who) -> HTMLResponse:
    """Show all accounts and their roles."""
    need(who, Role.ADMIN)
    parts = parts_of(request)
    with parts.database.read() as connection:
        projects = workflow_queries.projects(connection)
    values = {"accounts": parts.accounts.accounts(), "projects": projects, "roles": [each.word for each in Role]}
    return page(request, who, "users.html", link=None, **values)


@router.post("/users")
def create_user(request: Request, who: Who, name: _Name, password: _Word = "") -> Response:
    """Create an account."""
    desk.create(parts_of(request), who, name, password or None)
    return led("/users")


@router.post("/users/{name}/role")
def set_role(request: Request, who: Who, name: str, project: _Word = "", role: _Word = "") -> Response:
    """Set the role of an account in a project, or in all."""
    desk.set_role(parts_of(request), who, name[:100], project, _role(role))
    return led("/users")


@router.post("/users/{name}/enabled")
def set_enabled(request: Request, who: Who, name: str, enabled: _Word = "") -> Response:
    """Enable or disable an account."""
    desk.change(parts_of(request), who, name[:100], enabled=enabled == "yes")
    return led("/users")


@router.post("/users/{name}/link", response_class=HTMLResponse)
def make_link(request: Request, who: Who, name: str) -> HTMLResponse:
    """Create a one-time sign-in link for an account."""
    parts = parts_of(request)
    link = f"{str(request.base_url).rstrip('/')}/sign-in?link={desk.new_link(parts, who, name[:100])}"
    with parts.database.read() as connection:
        projects = workflow_queries.projects(connection)
    values = {"accounts": parts.accounts.accounts(), "projects": projects, "roles": [each.word for each in Role]}
    return page(request, who, "users.html", link=(name, link), **values)


@router.get("/audit", response_class=HTMLResponse)
def audit(
    request: Request,
    who: Who,
    by: Annotated[str, Query(max_length=100)] = "",
    before: Annotated[int | None, Query(ge=1, le=MOST_ID)] = None,
) -> HTMLResponse:
    """Show the actions of users, newest first."""
    rows = desk.audit(parts_of(request), who, by=by.replace("\x00", ""), before=before, most=_MOST + 1)
    shown, more = older(rows, _MOST, "/audit", by=by)
    return page(request, who, "audit.html", rows=shown, older=more, by=by, before=before)


def _account(request: Request, who: Who, made: str | None = None) -> HTMLResponse:
    accounts = parts_of(request).accounts
    values = {"tokens": accounts.tokens(who.name), "has_password": accounts.asks_password(who.name), "made": made}
    return page(request, who, "account.html", **values)


def _role(word: str) -> Role | None:
    return role_of(word) if word else None
