"""Commands: requests to the master of a shard, which executes each once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa

from latchwork.errors import LatchworkError
from latchwork_workflows.db.tables import command, shard
from latchwork_workflows.errors import KeyReused, NotFound


class CommandType(StrEnum):
    """The types of commands."""

    START = "start"
    RECOVER = "recover"
    RERUN = "rerun"
    RESUME = "resume"
    PAUSE = "pause"
    STOP = "stop"
    FORCE_SUCCESS = "force_success"
    FORCE_START = "force_start"
    BACKFILL = "backfill"
    BACKFILL_STOP = "backfill_stop"
    TIMER = "timer"
    WAKE = "wake"
    FAILOVER = "failover"
    WAITING_THREAD = "waiting_thread"
    REPAIR = "repair"


#: The types that only masters and ``doctor`` write. Requests of users for these are refused.
INTERNAL = frozenset(
    {CommandType.TIMER, CommandType.WAKE, CommandType.FAILOVER, CommandType.WAITING_THREAD, CommandType.REPAIR}
)


class SentCommand(NamedTuple):
    """A stored command.

    Attributes:
        id: The ID of the command.
        shard: The shard whose owner executes it.
        is_new: Whether it was written by this call. False: a command with its unique key existed.
    """

    id: int
    shard: int
    is_new: bool


def send_command(
    connection: sa.Connection,
    command_type: CommandType,
    *,
    shard_id: int,
    run_id: int | None = None,
    args: Mapping[str, Any] | None = None,
    project: str = "",
    unique_key: str | None = None,
    by: str = "",
) -> SentCommand:
    """Store a command for the master that owns a shard.

    A command that repeats an earlier one with the same unique key is not stored again.

    Args:
        connection: A transaction.
        command_type: The type of the command.
        shard_id: The shard of the run. For a start command any shard will do: see ``choose_random_shard``.
        run_id: The run. None for a start command.
        args: The arguments of the command.
        project: The project of the unique key. Other projects may use the same key.
        unique_key: At most 200 characters. Repeating the same command with this key returns the stored command.
        by: The account that sends the command.
    Raises:
        KeyReused: The key was used for a different command.
    """
    given = dict(args or {})
    row = {"type": command_type.value, "args": given, "project": project, "unique_key": unique_key, "by": by[:200]}
    new = sa.insert(command).values(**row, shard=shard_id, run_id=run_id, created_at=time.time())
    if unique_key is None:
        return SentCommand(int(connection.execute(new.returning(command.c.id)).scalar_one()), shard_id, is_new=True)
    try:
        with connection.begin_nested():
            return SentCommand(int(connection.execute(new.returning(command.c.id)).scalar_one()), shard_id, is_new=True)
    except sa.exc.IntegrityError:
        there = connection.execute(sa.select(command).where(_has_key(project, unique_key))).one()
    is_same = there.type == command_type.value and _get_comparable_args(there.args) == _get_comparable_args(given)
    makes = command_type in {CommandType.START, CommandType.BACKFILL}
    if not is_same or (not makes and there.run_id != run_id):
        raise KeyReused(
            f"the key {unique_key!r} was used for command {there.id}, which is different; use one key per command"
        )
    return SentCommand(int(there.id), int(there.shard), is_new=False)


def is_unique_key_used(connection: sa.Connection, project: str, unique_key: str | None) -> bool:
    """Return whether a command with this unique key was stored before.

    A repeated request then skips the checks of the current state.
    """
    if unique_key is None:
        return False
    return connection.execute(sa.select(command.c.id).where(_has_key(project, unique_key))).first() is not None


def _has_key(project: str, unique_key: str) -> sa.ColumnElement[bool]:
    return sa.and_(command.c.project == project, command.c.unique_key == unique_key)


def choose_random_shard(connection: sa.Connection) -> int:
    """Return a random shard for a new run.

    Raises:
        LatchworkError: The database has no shards, because it has not been initialized.
    """
    ids: list[int] = list(connection.execute(sa.select(shard.c.id)).scalars())
    if not ids:
        raise LatchworkError("the database has no shards; run `latchwork workflows init` first")
    return secrets.choice(ids)


def _get_comparable_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command without the workflow version, which may change before a request is repeated."""
    return {name: value for name, value in args.items() if name != "version"}


@dataclass(frozen=True, slots=True)
class CommandRow:
    """A command.

    Attributes:
        id: The ID of the command.
        shard: The shard whose master executes it.
        type: The type, one word.
        run: The target run. For a start, the created run, or None before that.
        args: The arguments.
        by: The account that requested it.
        created_at: Seconds since the epoch.
        done_at: Seconds since the epoch. None while the command is open.
        error: Why it was not executed. None if it was.
    """

    id: int
    shard: int
    type: str
    run_id: int | None
    args: Mapping[str, Any]
    by: str
    created_at: float
    done_at: float | None
    error: str | None


_COLUMNS = (
    command.c.id,
    command.c.shard,
    command.c.type,
    command.c.run_id,
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


def list_unfinished_commands(connection: sa.Connection, shard: int, limit: int) -> list[CommandRow]:
    """Return the unfinished commands of a shard, oldest first, and lock their rows so that they cannot be withdrawn
    meanwhile.
    """
    return [CommandRow(*row) for row in connection.execute(_OPEN_OF, {"shard": shard, "most": limit})]


def has_unfinished_commands(connection: sa.Connection, shard: int) -> bool:
    """Return whether a shard has unfinished commands."""
    return connection.execute(_ANY_OPEN, {"shard": shard}).first() is not None


def find_other_wake_up_commands(connection: sa.Connection, shard: int, code: int, *, exclude: int) -> dict[int, int]:
    """Return the other unfinished wake-up commands that a shard has for a workflow.

    Args:
        connection: A transaction.
        shard: The shard.
        code: The ID of the workflow that has progressed.
        exclude: The ID of the command to leave out.
    Returns:
        The position of each command, by command ID: the ID of the last run that was woken. 0 at the start.
    """
    chosen = sa.select(command.c.id, command.c.args).where(
        command.c.shard == shard, command.c.done_at.is_(None), command.c.type == CommandType.WAKE.value
    )
    found = connection.execute(chosen.where(command.c.id != exclude).order_by(command.c.id))
    return {row.id: row.args.get("after") or 0 for row in found if row.args.get("code") == code}


def record_command_result(
    connection: sa.Connection,
    command_id: int,
    now: float,
    *,
    run_id: int | None,
    error: str | None,
    backfill: int | None = None,
) -> None:
    """Mark a command as executed, or as failed with an error.

    Args:
        connection: A transaction.
        command_id: The command.
        now: Seconds since the epoch.
        run_id: The run that a start command created. None: none.
        error: Why the command failed. None: it was executed.
        backfill: The backfill that the command created. None: none.
    """
    values: dict[str, Any] = {"done_at": now, "error": error}
    if run_id is not None:
        values["run_id"] = run_id
    if backfill is not None:
        values["backfill"] = backfill
    connection.execute(sa.update(command).where(command.c.id == command_id).values(**values))


def withdraw_command(connection: sa.Connection, command_id: int, now: float, *, by: str) -> bool:
    """Withdraw a start command that no master has executed yet.

    Returns:
        False if the command was already executed or withdrawn.
    """
    mine = sa.and_(command.c.id == command_id, command.c.done_at.is_(None), command.c.type.in_(_STARTS))
    ended = {"done_at": now, "error": f"it was stopped before it began, by {by}"}
    return bool(connection.execute(sa.update(command).where(mine).values(**ended)).rowcount)


def has_restart_command(connection: sa.Connection, run_id: int) -> bool:
    """Return whether an unfinished command resumes, recovers or reruns this run."""
    mine = sa.and_(command.c.run_id == run_id, command.c.done_at.is_(None), command.c.type.in_(_RESTARTS))
    return connection.execute(sa.select(command.c.id).where(mine).limit(1)).first() is not None


def find_command(connection: sa.Connection, command_id: int) -> CommandRow:
    """Return the command with this ID.

    Raises:
        NotFound: There is no such command.
    """
    row = connection.execute(sa.select(*_COLUMNS).where(command.c.id == command_id)).first()
    if row is None:
        raise NotFound(f"there is no command {command_id}")
    return CommandRow(*row)
