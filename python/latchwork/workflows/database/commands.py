"""Commands: what people and schedules want of instances. Written by anybody, done once, by the shard's master.

A command is never deleted while it counts: done is a time in its row, so that a key given twice is known however late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork.workflows.database.tables import command
from latchwork.workflows.errors import NotAllowed, UnknownWorkflow

#: What people may ask for.
PUBLIC = frozenset({"start", "pause", "resume", "stop", "recover", "rerun", "force_success", "force_start", "backfill"})
#: What masters tell each other.
INTERNAL = frozenset({"wake", "fire", "failover", "waiting_thread"})


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
        done_at: None while it is open.
        error: why it was not done; None if it was.
    """

    id: int
    shard: int
    type: str
    instance: int | None
    args: Mapping[str, Any]
    by: str
    done_at: float | None
    error: str | None


_COLUMNS = (
    command.c.id,
    command.c.shard,
    command.c.type,
    command.c.instance,
    command.c.args,
    command.c.by,
    command.c.done_at,
    command.c.error,
)


def check_public(kind: str) -> str:
    """Let a command of people pass.

    Raises:
        NotAllowed: masters alone give it.
        UnknownWorkflow: there is none of this name.
    """
    if kind in INTERNAL:
        raise NotAllowed(f"{kind} is a command of masters to each other; nobody else may give it")
    if kind not in PUBLIC:
        raise UnknownWorkflow(f"there is no command {kind!r}; there are {', '.join(sorted(PUBLIC))}")
    return kind


def send(
    connection: sa.Connection,
    shard: int,
    kind: str,
    now: float,
    *,
    instance: int | None = None,
    args: Mapping[str, Any] | None = None,
    unique_key: str | None = None,
    by: str = "",
) -> int:
    """Write a command; its number. With a key that was used before: that of the first one, and nothing is written."""
    insert = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(command)
    values = {
        "shard": shard,
        "type": kind,
        "instance": instance,
        "args": dict(args or {}),
        "unique_key": unique_key,
        "by": by[:200],
        "created_at": now,
    }
    made = insert.values(**values).on_conflict_do_nothing(index_elements=["unique_key"]).returning(command.c.id)
    number = connection.execute(made).scalar_one_or_none()
    if number is None:
        there = sa.select(command.c.id).where(command.c.unique_key == unique_key)
        number = connection.execute(there).scalar_one()
    return int(number)


def open_of(connection: sa.Connection, shard: int, most: int) -> list[CommandRow]:
    """The open commands of a shard, the oldest first."""
    chosen = sa.select(*_COLUMNS).where(command.c.shard == shard, command.c.done_at.is_(None))
    return [CommandRow(*row) for row in connection.execute(chosen.order_by(command.c.id).limit(most))]


def is_any_open(connection: sa.Connection, shard: int) -> bool:
    """Whether a shard has open commands."""
    chosen = sa.select(command.c.id).where(command.c.shard == shard, command.c.done_at.is_(None)).limit(1)
    return connection.execute(chosen).first() is not None


def done(connection: sa.Connection, number: int, now: float, *, instance: int | None, error: str | None) -> None:
    """It is done, or cannot be."""
    values: dict[str, Any] = {"done_at": now, "error": error}
    if instance is not None:
        values["instance"] = instance
    connection.execute(sa.update(command).where(command.c.id == number).values(**values))


def find(connection: sa.Connection, number: int) -> CommandRow:
    """A command.

    Raises:
        UnknownWorkflow: there is none of this number.
    """
    row = connection.execute(sa.select(*_COLUMNS).where(command.c.id == number)).first()
    if row is None:
        raise UnknownWorkflow(f"there is no command {number}")
    return CommandRow(*row)
