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
from latchwork_workflows.services import accounts as desk
from latchwork_workflows.services.parts import need, parts_of
from latchwork_workflows.web import Role, Who

router = APIRouter(prefix="/api/v1", tags=["accounts"])


@router.get("/users")
def list_users(request: Request, who: Who) -> list[Account]:
    """List the accounts, sorted by name."""
    need(who, Role.ADMIN)
    return parts_of(request).accounts.accounts()


@router.post("/users", status_code=201)
def create_user(request: Request, who: Who, given: NewAccount) -> None:
    """Make an account; it may do nothing yet. Not with a token."""
    desk.create(parts_of(request), who, given.name, given.password)


@router.patch("/users/{name}", status_code=204)
def change_user(request: Request, who: Who, name: m.NamePath, given: AccountChange) -> None:
    """Switch an account on or off, or give it another password: one's own, or as an administrator. Not with a token."""
    desk.change(parts_of(request), who, name, enabled=given.enabled, password=given.password, current=given.current)


@router.put("/users/{name}/role", status_code=204)
def set_role(request: Request, who: Who, name: m.NamePath, given: RoleChange) -> None:
    """What an account may do in a project. Administrators of the project may say so. Not with a token."""
    desk.set_role(parts_of(request), who, name, given.project, Role.of(given.role) if given.role else None)


@router.get("/tokens")
def list_tokens(request: Request, who: Who) -> list[ApiToken]:
    """List your own tokens. An administrator sees all."""
    return parts_of(request).accounts.tokens(None if who.may(Role.ADMIN) else who.name)


@router.post("/tokens", status_code=201)
def create_token(request: Request, who: Who, given: NewToken) -> TokenMade:
    """Make a token for oneself; its text is told this once. Not with a token."""
    role = Role.of(given.role) if given.role else None
    token_id, token = desk.new_token(parts_of(request), who, given.name, role=role, lasts_s=given.lasts_s)
    return TokenMade(id=token_id, token=token)


@router.delete("/tokens/{token_id}", status_code=204)
def revoke_token(request: Request, who: Who, token_id: m.Id) -> None:
    """End a token: one's own, or as an administrator. Not with a token."""
    desk.revoke(parts_of(request), who, token_id)


@router.get("/audit")
def audit(
    request: Request,
    who: Who,
    by: Annotated[str, Query(max_length=100)] = "",
    before: m.Before = None,
    limit: m.Limit = 100,
) -> list[m.EventRow]:
    """What people did, the newest first, in the projects that one administers."""
    rows = desk.audit(parts_of(request), who, by=by.replace("\x00", ""), before=before, most=limit)
    return [_row(each) for each in rows]


def _row(each: history.Told) -> m.EventRow:
    return m.EventRow(**{name: getattr(each, name) for name in m.EventRow.model_fields})
