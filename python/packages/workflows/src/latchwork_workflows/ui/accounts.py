"""Pages of accounts, of your own account, and of the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from latchwork_workflows.api.models import MAX_ID, Id
from latchwork_workflows.db import workflow_queries
from latchwork_workflows.model.definition import NAME_PATTERN
from latchwork_workflows.services import accounts as service
from latchwork_workflows.services.context import get_context, require_role
from latchwork_workflows.ui.page_helpers import paginate, parse_role, redirect, render_page
from latchwork_workflows.web import CurrentUser, HttpProblem, Role

router = APIRouter()
_MAX = 100
_Word = Annotated[str, Form(max_length=200)]
_Name = Annotated[str, Form(pattern=NAME_PATTERN)]
_DAY_S = 86_400.0


@router.get("/account", response_class=HTMLResponse)
def show_account(request: Request, user: CurrentUser) -> HTMLResponse:
    """Show the page of the user's own account: its roles, its tokens and the form to change the password."""
    return _account(request, user)


@router.post("/account/token", response_class=HTMLResponse)
def create_token(
    request: Request, user: CurrentUser, name: _Word, role: _Word = "", days: Annotated[int, Form(ge=0, le=3660)] = 90
) -> HTMLResponse:
    """Create an API token. Its text is only shown on the resulting page.

    Args:
        request: The request.
        user: The signed-in user.
        name: A description of the token.
        role: The highest role that the token has. Empty: the roles of the account.
        days: Days until the token expires. 0: never.
    """
    context = get_context(request)
    lasts_s = days * _DAY_S if days else None
    _, made = service.create_token(
        context, user, name.replace("\x00", "") or "token", role=_parse_role(role), lasts_s=lasts_s
    )
    return _account(request, user, made)


@router.post("/account/token/{token_id}/revoke")
def revoke_token(request: Request, user: CurrentUser, token_id: Id) -> Response:
    """Revoke one of your own API tokens."""
    service.revoke_token(get_context(request), user, token_id)
    return redirect("/account")


@router.post("/account/password")
def change_own_password(
    request: Request, user: CurrentUser, password: _Word, again: _Word, current: _Word = ""
) -> Response:
    """Change the user's own password. This ends all sessions and tokens of the account.

    Args:
        request: The request.
        user: The signed-in user.
        password: The new password.
        again: The new password once more.
        current: The current password.
    """
    if password != again:
        raise HttpProblem(422, "the two passwords differ; nothing was changed", errors=[("again", "differs")])
    service.change_account(get_context(request), user, user.name, password=password, current=current)
    return redirect("/sign-in")


@router.get("/users", response_class=HTMLResponse)
def show_accounts(request: Request, user: CurrentUser) -> HTMLResponse:
    """Show all accounts and their roles."""
    require_role(user, Role.ADMIN)
    context = get_context(request)
    with context.database.read() as connection:
        projects = workflow_queries.list_projects(connection)
    values = {
        "accounts": context.accounts.list_accounts(),
        "projects": projects,
        "roles": [each.label for each in Role],
    }
    return render_page(request, user, "users.html", link=None, **values)


@router.post("/users")
def create_account(request: Request, user: CurrentUser, name: _Name, password: _Word = "") -> Response:
    """Create an account."""
    service.create_account(get_context(request), user, name, password or None)
    return redirect("/users")


@router.post("/users/{name}/role")
def set_role(request: Request, user: CurrentUser, name: str, project: _Word = "", role: _Word = "") -> Response:
    """Set or remove the role of an account in a project.

    Args:
        request: The request.
        user: The signed-in user.
        name: Name of the account.
        project: The project. Empty: all projects.
        role: The role. Empty: remove it.
    """
    service.set_role(get_context(request), user, name[:100], project, _parse_role(role))
    return redirect("/users")


@router.post("/users/{name}/enabled")
def set_enabled(request: Request, user: CurrentUser, name: str, enabled: _Word = "") -> Response:
    """Enable or disable an account.

    Args:
        request: The request.
        user: The signed-in user.
        name: Name of the account.
        enabled: ``yes`` to enable it. Otherwise it is disabled.
    """
    service.change_account(get_context(request), user, name[:100], enabled=enabled == "yes")
    return redirect("/users")


@router.post("/users/{name}/link", response_class=HTMLResponse)
def create_sign_in_link(request: Request, user: CurrentUser, name: str) -> HTMLResponse:
    """Create a one-time sign-in link for an account."""
    context = get_context(request)
    link = f"{str(request.base_url).rstrip('/')}/sign-in?link={service.create_sign_in_link(context, user, name[:100])}"
    with context.database.read() as connection:
        projects = workflow_queries.list_projects(connection)
    values = {
        "accounts": context.accounts.list_accounts(),
        "projects": projects,
        "roles": [each.label for each in Role],
    }
    return render_page(request, user, "users.html", link=(name, link), **values)


@router.get("/audit", response_class=HTMLResponse)
def show_audit_log(
    request: Request,
    user: CurrentUser,
    by: Annotated[str, Query(max_length=100)] = "",
    before: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
) -> HTMLResponse:
    """Show the audit log: the actions of users, newest first.

    Args:
        request: The request.
        user: The signed-in user.
        by: Show only actions of this account. Empty: any account.
        before: Show only actions with lower IDs, for the next page.
    """
    rows = service.list_user_actions(
        get_context(request), user, by=by.replace("\x00", ""), before=before, limit=_MAX + 1
    )
    shown, more = paginate(rows, _MAX, "/audit", by=by)
    return render_page(request, user, "audit.html", rows=shown, older=more, by=by, before=before)


def _account(request: Request, user: CurrentUser, made: str | None = None) -> HTMLResponse:
    accounts = get_context(request).accounts
    values = {
        "tokens": accounts.list_tokens(user.name),
        "has_password": accounts.has_own_password(user.name),
        "made": made,
    }
    return render_page(request, user, "account.html", **values)


def _parse_role(word: str) -> Role | None:
    return parse_role(word) if word else None
