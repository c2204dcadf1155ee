"""Commands: requests that masters carry out."""

from __future__ import annotations

from latchwork_workflows.schemas.base import Document


class Command(Document):
    """A request to a master.

    Attributes:
        id: The ID of the command.
        type: Such as ``start`` or ``pause``.
        run: The ID of the run that it is about, or that it started. None: not known yet.
        backfill: The ID of the backfill that it is about, or that it started.
        by: The account that sent it.
        created_at: When it was sent.
        done_at: When a master carried it out. None: not yet.
        error: Why it was refused.
    """

    id: int
    type: str
    run: int | None
    backfill: int | None
    by: str
    created_at: float
    done_at: float | None
    error: str | None


class CommandSent(Document):
    """A command that was stored for its master.


    Attributes:
        command: The ID of the command.
        is_new: False: the same command with the same key had been sent before.
        run: The ID of the run that it is about. None: not known yet.
    """

    command: int
    is_new: bool
    run: int | None = None
