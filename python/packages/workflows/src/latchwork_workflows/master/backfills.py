"""Advances backfills, with a limited number of active runs each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa

from latchwork.spi import reason
from latchwork_workflows.db import backfills, definitions
from latchwork_workflows.db.commands import CommandRow, CommandType, send_command
from latchwork_workflows.db.runs import StoredRun
from latchwork_workflows.errors import NotFound, WrongState
from latchwork_workflows.master.commands import MalformedCommand, parse_backfill_request
from latchwork_workflows.master.state_cache import VersionCache
from latchwork_workflows.model.definition import PRIORITIES
from latchwork_workflows.state import Event, Start, Stop
from latchwork_workflows.state.backfills import STOPPABLE, BackfillState, decide_next_step

_log = logging.getLogger(__name__)

#: Maximum number of runs of a backfill that are started or stopped in one transaction.
MAX_AT_ONCE = 100


class BackfillWriter(Protocol):
    """The part of ``TransactionWriter`` that the module uses to read and change runs."""

    def get_run(self, run_id: int) -> StoredRun | None:
        """Return the current state of a run, or None if the run does not belong to this shard."""
        ...

    def apply_events(self, run_id: int, events: Iterable[Event]) -> None:
        """Apply events to a run, save the run, and update the other runs that this affects, such as its parent."""
        ...

    def must_backfill_run_wait(self, stored: StoredRun) -> bool:
        """Return whether a run has to wait for the concurrency limit of its workflow."""
        ...

    def record_event(self, run_id: int, kind: str, *, details: Mapping[str, Any]) -> None:
        """Add an event to the timeline of a run."""
        ...

    def call_isolated(self, function: Callable[[], object], on_error: Callable[[Exception], object]) -> None:
        """Call a function. If it raises an error that only its own run, command or row can have caused, call
        ``on_error`` instead, so that the others are still processed.

        Args:
            function: The function.
            on_error: Called with the error.
        """
        ...


class BackfillAdvancer:
    """Executes the commands about backfills and starts or stops their runs, in one transaction. Not thread-safe."""

    def __init__(
        self, connection: sa.Connection, shard: int, plans: VersionCache, now: float, writer: BackfillWriter
    ) -> None:
        self._connection = connection
        self._shard = shard
        self._plans = plans
        self._now = now
        self._writer = writer
        self._asked: set[int] = set()

    def apply_command(self, command: CommandRow) -> int:
        """Create or stop a backfill as a command requests. ``advance_changed_backfills`` then starts or stops its runs.

        Returns:
            The ID of the backfill.
        Raises:
            MalformedCommand: The command was not written by Latchwork.
            NotFound: This shard has no such backfill, or the version does not exist.
            WrongState: The backfill has ended or is stopping.
        """
        if command.type == "backfill":
            number = self._create(command)
        else:
            asked = command.args.get("backfill")
            if type(asked) is not int:
                raise MalformedCommand(f"command {command.id} names no backfill")
            number = asked
            if command.type == "backfill_stop":
                self._stop(number)
        self._asked.add(number)
        return number

    def _create(self, command: CommandRow) -> int:
        wanted = parse_backfill_request(command)
        definitions.check_online(self._connection, wanted.code)
        definition = self._plans.get(self._connection, wanted.code, wanted.version).definition
        priority = PRIORITIES.index(wanted.priority or definition.priority)
        same: dict[str, Any] = {"shard": self._shard, "code": wanted.code, "version": wanted.version}
        same |= {"by": command.by, "created_at": self._now}
        fields: dict[str, Any] = {
            "parallel": wanted.parallel,
            "direction": wanted.direction,
            "stop_on_failure": wanted.stop_on_failure,
        }
        if "cause" in command.args:
            fields["cause"] = self._find_preceding_backfill(command)
        each = {"params": dict(wanted.params), "priority": priority, "dry": wanted.dry, "fresh": wanted.fresh}
        return backfills.create_backfill(self._connection, {**same, **fields}, wanted.schedule_times, {**same, **each})

    def _find_preceding_backfill(self, command: CommandRow) -> int:
        """Return the ID of the backfill that must be created before the requested one. An earlier command created it in
        this shard.
        """
        asked = command.args["cause"]
        if type(asked) is not int:
            raise MalformedCommand(f"command {command.id} names no command that it follows")
        number = backfills.find_backfill_id_by_command(self._connection, asked, shard=self._shard)
        if number is None:
            raise WrongState("the backfill that requested this one was refused; request this one by itself")
        return number

    def _stop(self, number: int) -> None:
        found = backfills.load_backfill(self._connection, number, shard=self._shard)
        if found is None:
            raise NotFound(f"there is no backfill {number} here")
        if found.state not in STOPPABLE:
            raise WrongState(
                f"backfill {number} is {found.state.value}; only one that is running or held can be stopped"
            )
        backfills.set_backfill_state(self._connection, number, BackfillState.STOPPING, self._now)

    def advance_changed_backfills(self, written: Mapping[int, StoredRun], before: Mapping[int, StoredRun]) -> bool:
        """Start or stop further runs of the backfills with a run or a command that was written in this transaction.

        Args:
            written: The runs that were written in this transaction.
            before: The same runs before it.
        Returns:
            Whether a command was written to continue later, because not everything fits into one transaction.
        """
        going_on: set[int] = set()
        for number in sorted(self._asked | _find_changed_backfills(written, before)):
            self._writer.call_isolated(partial(self._advance, number, going_on), partial(self._end, number))
        return bool(going_on)

    def _advance(self, number: int, going_on: set[int]) -> None:
        leading = _BackfillSteps(self._connection, self._shard, number, self._now)
        while (now := leading.save_next_step()) is not None:
            for run_id in now.runs:
                self._apply_to_run(number, run_id, now.event)
        if leading.goes_on:
            going_on.add(number)

    def _end(self, number: int, error: Exception) -> None:
        _log.error("backfill %d of shard %d cannot continue: %s", number, self._shard, reason(error), exc_info=error)
        backfills.set_backfill_state(self._connection, number, BackfillState.FAILURE, self._now)

    def _apply_to_run(self, number: int, run_id: int, event: Event) -> None:
        if isinstance(event, Start):
            self._writer.record_event(run_id, "begin", details={"backfill": number})
            stored = self._writer.get_run(run_id)
            if stored is not None:
                known = stored.known
                event = replace(
                    event, dry=known.dry, fresh=known.fresh, waits=self._writer.must_backfill_run_wait(stored)
                )
        self._writer.apply_events(run_id, [event])


def _find_changed_backfills(written: Mapping[int, StoredRun], before: Mapping[int, StoredRun]) -> set[int]:
    """Return the IDs of the backfills with a run whose state has changed in this transaction.

    Args:
        written: The runs that were written in this transaction.
        before: The same runs before it.
    """
    return {
        each.backfill
        for each in written.values()
        if each.backfill is not None and (each.id not in before or before[each.id].known.state is not each.known.state)
    }


class _EventForRuns(NamedTuple):
    """An event to apply to some runs of a backfill.

    Attributes:
        runs: IDs of the runs.
        event: The event.
    """

    runs: list[int]
    event: Event


class _BackfillSteps:
    """Advances one backfill in one transaction, step by step, until there is nothing to do or the limit is reached.

    Attributes:
        goes_on: Whether there is more to do, so that a command was written to continue later.
    """

    def __init__(self, connection: sa.Connection, shard: int, number: int, now: float) -> None:
        self._connection = connection
        self._shard = shard
        self._number = number
        self._now = now
        self._left = MAX_AT_ONCE
        self._is_over = False
        self.goes_on = False

    def save_next_step(self) -> _EventForRuns | None:
        """Save the next state of the backfill, and return which of its runs to start or stop because of it.

        Call this repeatedly. None: no run has to be started or stopped now.
        """
        row = None if self._is_over else backfills.load_backfill(self._connection, self._number, shard=self._shard)
        if row is None:
            return None
        progress = backfills.count_dates(self._connection, self._number)
        step = decide_next_step(row.state, progress, parallel=row.parallel, stop_on_failure=row.stop_on_failure)
        if step.state is not row.state:
            backfills.set_backfill_state(self._connection, self._number, step.state, self._now)
        if step.state is BackfillState.STOPPING:
            self._is_over = True
            return self._limited(backfills.list_runs_to_stop(self._connection, self._number, self._left + 1), Stop())
        if not step.start:
            return None
        wanted = min(step.start, self._left + 1)
        return self._limited(backfills.list_pending_runs(self._connection, row, wanted), Start())

    def _limited(self, ids: Iterable[int], event: Event) -> _EventForRuns:
        chosen = list(ids)
        if len(chosen) > self._left:  # later transactions handle the rest
            self._is_over = self.goes_on = True
            chosen = chosen[: self._left]
            send_command(self._connection, CommandType.WAKE, shard_id=self._shard, args={"backfill": self._number})
        self._left -= len(chosen)
        return _EventForRuns(chosen, event)
