"""Accounts, their roles and their tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from latchwork_workflows.model.definition import Name
from latchwork_workflows.schemas.base import Document
from latchwork_workflows.schemas.values import RoleWord, Text

_Password = Annotated[str, StringConstraints(min_length=10, max_length=200)]


class Account(Document):
    """An account.

    Attributes:
        name: Its name.
        enabled: Whether anyone can sign in with it.
        has_password: Whether it has a password. If not, it has tokens and links only.
        roles: Its role by project. The empty project stands for all.
        created_at: When it was created.
    """

    name: str
    enabled: bool
    has_password: bool
    roles: dict[str, RoleWord]
    created_at: float


class NewAccount(Document):
    """An account to create. It has no role."""

    name: Name
    password: _Password | None = None


class AccountChange(Document):
    """A change of an account. Omitted fields are kept."""

    enabled: bool | None = None
    password: _Password | None = None
    current: Annotated[
        str, StringConstraints(max_length=200), Field(description="your current password; required with `password`")
    ] = ""


class RoleChange(Document):
    """The role of an account in a project. The empty project stands for all. None removes the role."""

    project: Name | Literal[""] = ""
    role: RoleWord | None


class ApiToken(Document):
    """A token without its text.

    Attributes:
        id: The ID of the token.
        account: Its account.
        name: The name that its account gave it.
        role: The highest role that it has. None: that of its account.
        created_at: When it was created.
        expires_at: When it expires. None: never.
        used_at: When it was last used. None: never.
    """

    id: int
    account: str
    name: str
    role: RoleWord | None
    created_at: float
    expires_at: float | None
    used_at: float | None


class NewToken(Document):
    """A token to create for your own account, with at most this role."""

    name: Text
    role: RoleWord | None = None
    lasts_s: Annotated[float | None, Field(gt=0, le=10 * 366 * 86_400, allow_inf_nan=False)] = None


class TokenMade(Document):
    """A new token. Its text is shown only once."""

    id: int
    token: str
