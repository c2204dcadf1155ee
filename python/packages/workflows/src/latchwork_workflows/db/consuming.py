"""Commands as the shard's master does them: read in their order, done once. Who writes has the guard of the shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from latchwork_workflows.db.commands import CommandType
from latchwork_workflows.db.tables import command
from latchwork_workflows.errors import UnknownWorkflow


@dataclass(frozen=True, slots=True)
class CommandRow:
    """One command.

    Attributes:
        id: its number.
        shard: whose master does it.
        type: in a word.
        instance: what it is for; of a start, what came of it; None before.
        args: what it takes.
        by: who asked.
        created_at: seconds since the epoch.
        done_at: None while it is open.
        error: why it was not done; None if it was.
    """

    id: int
    shard: int
    type: str
    instance: int | None
    args: Mapping[str, Any]
    by: str
    created_at: float
    done_at: float | None
    error: str | None


_COLUMNS = (
    command.c.id,
    command.c.shard,
    command.c.type,
    command.c.instance,
    command.c.args,
    command.c.by,
    command.c.created_at,
    command.c.done_at,
    command.c.error,
)
_STARTS = [each.value for each in (CommandType.START, CommandType.TIMER, CommandType.BACKFILL)]
_RESTARTS = [each.value for each in (CommandType.RESUME, CommandType.RECOVER, CommandType.RERUN)]
_OPEN = sa.and_(command.c.shard == sa.bindparam("shard"), command.c.done_at.is_(None))
_OPEN_OF = sa.select(*_COLUMNS).where(_OPEN).order_by(command.c.id).limit(sa.bindparam("most"))
_OPEN_OF = _OPEN_OF.with_for_update(key_share=True)
_ANY_OPEN = sa.select(command.c.id).where(_OPEN).limit(1)


def open_of(connection: sa.Connection, shard: int, most: int) -> list[CommandRow]:
    """The open commands of a shard, the oldest first; nobody withdraws them before the end of the transaction."""
    return [CommandRow(*row) for row in connection.execute(_OPEN_OF, {"shard": shard, "most": most})]


def is_any_open(connection: sa.Connection, shard: int) -> bool:
    """Whether a shard has open commands."""
    return connection.execute(_ANY_OPEN, {"shard": shard}).first() is not None


def open_wakes(connection: sa.Connection, shard: int, code: int, *, but: int) -> dict[int, int]:
    """The other open commands of a shard that have look who waits for a workflow, and behind which run each begins."""
    chosen = sa.select(command.c.id, command.c.args).where(
        command.c.shard == shard, command.c.done_at.is_(None), command.c.type == CommandType.WAKE.value
    )
    found = connection.execute(chosen.where(command.c.id != but).order_by(command.c.id))
    return {row.id: row.args.get("after") or 0 for row in found if row.args.get("code") == code}


def done(
    connection: sa.Connection,
    number: int,
    now: float,
    *,
    instance: int | None,
    error: str | None,
    backfill: int | None = None,
) -> None:
    """It is done, or cannot be."""
    values: dict[str, Any] = {"done_at": now, "error": error}
    if instance is not None:
        values["instance"] = instance
    if backfill is not None:
        values["backfill"] = backfill
    connection.execute(sa.update(command).where(command.c.id == number).values(**values))


def withdraw(connection: sa.Connection, number: int, now: float, *, by: str) -> bool:
    """End a command that starts something, if no master has done it: none will."""
    mine = sa.and_(command.c.id == number, command.c.done_at.is_(None), command.c.type.in_(_STARTS))
    ended = {"done_at": now, "error": f"it was stopped before it began, by {by}"}
    return bool(connection.execute(sa.update(command).where(mine).values(**ended)).rowcount)


def is_restarting(connection: sa.Connection, number: int) -> bool:
    """Whether an open command asks that a run goes on again."""
    mine = sa.and_(command.c.instance == number, command.c.done_at.is_(None), command.c.type.in_(_RESTARTS))
    return connection.execute(sa.select(command.c.id).where(mine).limit(1)).first() is not None


def find(connection: sa.Connection, number: int) -> CommandRow:
    """A command.

    Raises:
        UnknownWorkflow: there is none of this number.
    """
    row = connection.execute(sa.select(*_COLUMNS).where(command.c.id == number)).first()
    if row is None:
        raise UnknownWorkflow(f"there is no command {number}")
    return CommandRow(*row)
