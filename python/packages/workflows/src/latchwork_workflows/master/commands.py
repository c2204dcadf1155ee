"""Validation of command arguments, and classification of errors that concern a run and not its master."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa

from latchwork.errors import LatchworkError
from latchwork.spi import MAX_TIME_S, is_number, reason
from latchwork_workflows.db.commands import CommandRow
from latchwork_workflows.errors import NotAllowed, NotFound, WrongState
from latchwork_workflows.model.backfill_dates import MAX_PARALLEL, MAX_SCHEDULE_TIMES
from latchwork_workflows.model.definition import PRIORITIES, Priority
from latchwork_workflows.state import (
    Event,
    ForceStart,
    ForceSuccess,
    Pause,
    Recover,
    Rerun,
    Resume,
    Scope,
    Start,
    Stop,
    Wake,
)

#: Commands that create a run.
STARTS = frozenset({"start", "timer"})


#: Commands about backfills. A wake that names a backfill is one too.
BACKFILLS = frozenset({"backfill", "backfill_stop"})


class MalformedCommand(ValueError):
    """A command that was not written by Latchwork."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A new run to create.

    Attributes:
        code: ID of the workflow.
        version: Version of the workflow.
        event: How it starts.
        schedule_time: Seconds since the epoch.
        params: Values for ``${name}``.
        priority: None: the priority of the definition.
    """

    code: int
    version: int
    event: Start
    schedule_time: float
    params: Mapping[str, Any]
    priority: Priority | None


@dataclass(frozen=True, slots=True)
class BackfillDates:
    """A new backfill to create.

    Attributes:
        code: ID of the workflow.
        version: Version of the workflow.
        schedule_times: Schedule times of its runs, in seconds since the epoch, without duplicates.
        parallel: Maximum number of runs at a time.
        direction: ``asc`` or ``desc``.
        stop_on_failure: Start no other run while one has failed.
        params: Values for ``${name}``, for all runs.
        priority: None: the priority of the definition.
        dry: Every task succeeds without running.
        fresh: Every task runs, even if a cached result exists.
    """

    code: int
    version: int
    schedule_times: tuple[float, ...]
    parallel: int
    direction: str
    stop_on_failure: bool
    params: Mapping[str, Any]
    priority: Priority | None
    dry: bool
    fresh: bool


def parse_backfill_request(command: CommandRow) -> BackfillDates:
    """Parse the arguments of a command that creates a backfill.

    Raises:
        MalformedCommand: The arguments are missing or invalid.
    """
    args = command.args
    start = parse_run_request(command)
    times, parallel, direction = args.get("schedule_times"), args.get("parallel"), args.get("order")
    good = isinstance(times, list) and 0 < len(times) <= MAX_SCHEDULE_TIMES and direction in {"asc", "desc"}
    good = good and all(_is_time(each) for each in times or ())
    if not good or len(set(times or ())) < len(times or ()):
        raise MalformedCommand(f"command {command.id} has no valid schedule times, limit or order")
    if type(parallel) is not int or not 1 <= parallel <= MAX_PARALLEL:
        raise MalformedCommand(f"command {command.id}: parallel is {parallel!r:.40}")
    return BackfillDates(
        start.code,
        start.version,
        tuple(float(each) for each in cast("list[float]", times)),
        parallel,
        cast("str", direction),
        args.get("stop_on_failure") is True,
        start.params,
        start.priority,
        start.event.dry,
        start.event.fresh,
    )


def parse_run_request(command: CommandRow) -> RunRequest:
    """Parse the arguments of a command that starts a run.

    Raises:
        MalformedCommand: The arguments are missing or invalid.
    """
    args = command.args
    code, version, priority = args.get("code"), args.get("version"), args.get("priority")
    params, at = args.get("params") or {}, args.get("schedule_time")
    at = command.created_at if at is None else at
    good = type(code) is int and type(version) is int and isinstance(params, dict) and _is_time(at)
    if not good or priority not in {None, *PRIORITIES}:
        raise MalformedCommand(f"command {command.id} is not a valid start: {dict(args)!r:.200}")
    event = Start(
        _names(command, "start_from"), _scope(command), dry=args.get("dry") is True, fresh=args.get("no_cache") is True
    )
    return RunRequest(cast("int", code), cast("int", version), event, float(at), params, priority)


def parse_run_event(command: CommandRow) -> Event:
    """Return the event that a command requests for an existing run, such as pausing the run.

    Raises:
        MalformedCommand: The arguments are invalid, or the command is unknown.
    """
    if command.type == "recover":
        return Recover(_names(command, "start_from"))
    if command.type == "rerun":
        return Rerun(fresh=command.args.get("no_cache") is True)
    if command.type in {"force_success", "force_start"}:
        task = command.args.get("task")
        if not isinstance(task, str):
            raise MalformedCommand(f"command {command.id} names no task")
        return ForceSuccess(task) if command.type == "force_success" else ForceStart(task)
    made = _PLAIN.get(command.type)
    if made is None:
        raise MalformedCommand(f"command {command.id} is {command.type!r:.40}, which this version does not know")
    return made()


_PLAIN: dict[str, Callable[[], Event]] = {
    "pause": Pause,
    "resume": Resume,
    "stop": Stop,
    "wake": Wake,
}


def _is_time(value: object) -> bool:
    return is_number(value, 0) and value <= MAX_TIME_S


def _names(command: CommandRow, field: str) -> tuple[str, ...]:
    found = command.args.get(field) or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise MalformedCommand(f"command {command.id}: {field} is not a list of names")
    return tuple(found)


def _scope(command: CommandRow) -> Scope:
    try:
        return Scope(command.args.get("scope") or Scope.DOWNSTREAM)
    except ValueError:
        raise MalformedCommand(f"command {command.id}: scope is {command.args['scope']!r:.40}") from None


#: Maximum number of characters of an error that are stored.
MAX_WHY = 1000
#: Errors by which the database refuses the values of a statement.
_REFUSED = (sa.exc.DataError, sa.exc.IntegrityError, sa.exc.ProgrammingError, sa.exc.NotSupportedError)


class RunErrorSuspected(Exception):
    """A transaction failed, perhaps because of one run. It is rolled back, and repeated with savepoints."""


def may_concern_one_run(error: Exception) -> bool:
    """Return whether one run, command or row may have caused an error, so that the others can still be processed.

    Returns False for errors of the database that do not refuse a value, for errors of the store, and for the loss of
    the shard. Returns True for all others, including ``MemoryError`` and ``RecursionError``.
    """
    if isinstance(error, sa.exc.SQLAlchemyError):
        is_refused = isinstance(error, _REFUSED) or type(error) is sa.exc.StatementError
        return is_refused and not getattr(error, "connection_invalidated", False)
    if isinstance(error, LatchworkError):
        return isinstance(error, (ValueError, NotAllowed, NotFound, WrongState))
    return not isinstance(error, RunErrorSuspected)


def get_error_text(error: Exception) -> str:
    """Return the message of an error, without characters that a database cannot store."""
    if isinstance(error, KeyError):
        return f"a parameter refers to {error.args[0]!r}, which does not exist"
    is_ours = isinstance(error, (ValueError, LatchworkError)) and not isinstance(error, UnicodeError)
    text = str(error) if is_ours and str(error) else reason(error)
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")[:MAX_WHY]
