"""Accounts, roles, tokens, and the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from latchwork_workflows.api import models as m
from latchwork_workflows.db import history
from latchwork_workflows.schemas.accounts import (
    Account,
    AccountChange,
    ApiToken,
    NewAccount,
    NewToken,
    RoleChange,
    TokenMade,
)
from latchwork_workflows.services import accounts as service
from latchwork_workflows.services.context import get_context, require_role
from latchwork_workflows.web import CurrentUser, Role

router = APIRouter(prefix="/api/v1", tags=["accounts"])


@router.get("/users")
def list_accounts(request: Request, user: CurrentUser) -> list[Account]:
    """List the accounts, sorted by name."""
    require_role(user, Role.ADMIN)
    return get_context(request).accounts.list_accounts()


@router.post("/users", status_code=201)
def create_account(request: Request, user: CurrentUser, body: NewAccount) -> None:
    """Create an account without roles. Requires a session, not a token."""
    service.create_account(get_context(request), user, body.name, body.password)


@router.patch("/users/{name}", status_code=204)
def change_account(request: Request, user: CurrentUser, name: m.NamePath, body: AccountChange) -> None:
    """Enable or disable an account, or change its password. Requires a session, not a token."""
    service.change_account(
        get_context(request), user, name, enabled=body.enabled, password=body.password, current=body.current
    )


@router.put("/users/{name}/role", status_code=204)
def set_role(request: Request, user: CurrentUser, name: m.NamePath, body: RoleChange) -> None:
    """Set the role of an account in a project that you administer. Requires a session, not a token."""
    service.set_role(get_context(request), user, name, body.project, Role.from_label(body.role) if body.role else None)


@router.get("/tokens")
def list_tokens(request: Request, user: CurrentUser) -> list[ApiToken]:
    """List your own tokens. An administrator of all projects sees the tokens of all accounts."""
    return get_context(request).accounts.list_tokens(None if user.has_role(Role.ADMIN) else user.name)


@router.post("/tokens", status_code=201)
def create_token(request: Request, user: CurrentUser, body: NewToken) -> TokenMade:
    """Create a token for your own account. Requires a session, not a token.

    Only this response contains the text of the token, because the text is not stored.
    """
    role = Role.from_label(body.role) if body.role else None
    token_id, token = service.create_token(get_context(request), user, body.name, role=role, lasts_s=body.lasts_s)
    return TokenMade(id=token_id, token=token)


@router.delete("/tokens/{token_id}", status_code=204)
def revoke_token(request: Request, user: CurrentUser, token_id: m.Id) -> None:
    """Revoke one of your tokens, or as an administrator any token."""
    service.revoke_token(get_context(request), user, token_id)


@router.get("/audit")
def list_user_actions(
    request: Request,
    user: CurrentUser,
    by: Annotated[str, Query(max_length=100)] = "",
    before: m.Before = None,
    limit: m.Limit = 100,
) -> list[m.EventRow]:
    """List actions of users from the audit log, newest first, in the projects that you administer."""
    rows = service.list_user_actions(get_context(request), user, by=by.replace("\x00", ""), before=before, limit=limit)
    return [_row(each) for each in rows]


def _row(each: history.HistoryEvent) -> m.EventRow:
    return m.EventRow(**{name: getattr(each, name) for name in m.EventRow.model_fields})
