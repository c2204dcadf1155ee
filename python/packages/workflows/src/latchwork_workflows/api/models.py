"""The documents of the API. Moments are seconds since the epoch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query
from pydantic import Field, StringConstraints

from latchwork.spi import MAX_WHOLE
from latchwork_workflows.model.model import Name
from latchwork_workflows.schemas.base import Document as Document  # noqa: PLC0414 - of the schemas in this package
from latchwork_workflows.schemas.values import Plain as Plain  # noqa: PLC0414
from latchwork_workflows.schemas.values import RoleWord, Text

MOST_ID = MAX_WHOLE
Id = Annotated[int, Path(ge=1, le=MOST_ID)]
Before = Annotated[int | None, Query(ge=1, le=MOST_ID, description="only what is older than this id")]
Limit = Annotated[int, Query(ge=1, le=1000, description="how many at most")]
NamePath = Annotated[Name, Path(description="letters, digits, `_`, `-` and `.`")]
UniqueKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="the same key with the same command again starts nothing more, also after the run",
    ),
]
RunState = Literal[
    "", "submitted", "serial_wait", "running", "ready_pause", "paused", "ready_stop", "stopped", "success", "failure"
]


class EventRow(Document):
    """What somebody did, or what happened."""

    id: int
    at: float
    kind: str
    by: str
    project: str
    instance: int | None
    task: str
    details: Any


class AccountRow(Document):
    """An account; roles by project, the empty one stands for all."""

    name: str
    enabled: bool
    has_password: bool
    roles: dict[str, str]
    created_at: float


class NewAccount(Document):
    """An account to make."""

    name: Name
    password: Annotated[str, StringConstraints(min_length=10, max_length=200)] | None = None


class AccountChange(Document):
    """What of an account is to change; what is not given stays."""

    enabled: bool | None = None
    password: Annotated[str, StringConstraints(min_length=10, max_length=200)] | None = None
    current: Annotated[
        str, StringConstraints(max_length=200), Field(description="one's own password; needed with `password`")
    ] = ""


class RoleChange(Document):
    """What an account may do in a project; the empty one stands for all, no role takes it away."""

    project: Name | Literal[""] = ""
    role: RoleWord | None


class TokenRow(Document):
    """A token, without its text."""

    id: int
    account: str
    name: str
    role: str | None
    created_at: float
    expires_at: float | None
    used_at: float | None


class NewToken(Document):
    """A token to make for oneself; ``role``: no more than this, whatever the account may do."""

    name: Text
    role: RoleWord | None = None
    lasts_s: Annotated[float | None, Field(gt=0, le=10 * 366 * 86_400, allow_inf_nan=False)] = None


class TokenMade(Document):
    """A new token; its text is told this once."""

    id: int
    token: str
