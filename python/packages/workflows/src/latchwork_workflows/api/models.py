"""The documents of the API. Times are in seconds since the epoch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query

from latchwork.spi import MAX_WHOLE
from latchwork_workflows.model.definition import Name
from latchwork_workflows.schemas.base import Document as Document  # noqa: PLC0414 - of the schemas in this package
from latchwork_workflows.schemas.values import Plain as Plain  # noqa: PLC0414

MAX_ID = MAX_WHOLE
Id = Annotated[int, Path(ge=1, le=MAX_ID)]
Before = Annotated[int | None, Query(ge=1, le=MAX_ID, description="only entries with lower IDs")]
Limit = Annotated[int, Query(ge=1, le=1000, description="how many at most")]
NamePath = Annotated[Name, Path(description="letters, digits, `_`, `-` and `.`")]
UniqueKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="idempotency key: repeating a command with its key does nothing, even after the run has ended",
    ),
]
RunState = Literal[
    "", "submitted", "serial_wait", "running", "ready_pause", "paused", "ready_stop", "stopped", "success", "failure"
]


class EventRow(Document):
    """An action of a user, or an event of a run."""

    id: int
    at: float
    kind: str
    by: str
    project: str
    run_id: int | None
    task: str
    details: Any
