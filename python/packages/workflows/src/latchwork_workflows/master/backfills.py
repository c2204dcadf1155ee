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
from latchwork_workflows.db.commands import CommandRow, CommandType, ask
from latchwork_workflows.db.runs import Stored
from latchwork_workflows.errors import UnknownWorkflow, WrongState
from latchwork_workflows.master.commands import Malformed, dates_of
from latchwork_workflows.master.state_cache import Plans
from latchwork_workflows.model.model import PRIORITIES
from latchwork_workflows.state import Event, Start, Stop
from latchwork_workflows.state.backfills import STOPPABLE, BackfillState, next_step

_log = logging.getLogger(__name__)

#: Maximum number of instances of a backfill that are started or stopped in one transaction.
MOST_AT_ONCE = 100


class Writer(Protocol):
    """Writes instances."""

    def stored(self, instance: int) -> Stored | None:
        """Return the current state of an instance. None: it does not belong to this shard."""
        ...

    def advance(self, instance: int, events: Iterable[Event]) -> None:
        """Advance an instance, and apply the effects on other instances."""
        ...

    def has_to_wait(self, stored: Stored) -> bool:
        """Return whether a run has to wait for the concurrency limit of its workflow."""
        ...

    def tell(self, instance: int, kind: str, *, details: Mapping[str, Any]) -> None:
        """Add an event to the timeline of an instance."""
        ...

    def alone(self, do: Callable[[], object], failed: Callable[[Exception], object]) -> None:
        """Run ``do``, and pass an error that it alone caused to ``failed``."""
        ...


class Backfills:
    """Commands about backfills and their effects, in one transaction. Not thread-safe."""

    def __init__(self, connection: sa.Connection, shard: int, plans: Plans, now: float, writer: Writer) -> None:
        self._connection = connection
        self._shard = shard
        self._plans = plans
        self._now = now
        self._writer = writer
        self._asked: set[int] = set()

    def command(self, row: CommandRow) -> int:
        """Apply a command about a backfill and return the backfill's ID. ``lead`` starts or stops the runs.

        Raises:
            Malformed: The command was not written by Latchwork.
            UnknownWorkflow: This shard has no such backfill, or the version does not exist.
            WrongState: The backfill has ended or is stopping.
        """
        if row.type == "backfill":
            number = self._create(row)
        else:
            asked = row.args.get("backfill")
            if type(asked) is not int:
                raise Malformed(f"command {row.id} names no backfill")
            number = asked
            if row.type == "backfill_stop":
                self._stop(number)
        self._asked.add(number)
        return number

    def _create(self, row: CommandRow) -> int:
        wanted = dates_of(row)
        definitions.check_online(self._connection, wanted.code)
        definition = self._plans.get(self._connection, wanted.code, wanted.version).definition
        priority = PRIORITIES.index(wanted.priority or definition.priority)
        same: dict[str, Any] = {"shard": self._shard, "code": wanted.code, "version": wanted.version}
        same |= {"by": row.by, "created_at": self._now}
        fields: dict[str, Any] = {
            "parallel": wanted.parallel,
            "direction": wanted.direction,
            "stop_on_failure": wanted.stop_on_failure,
        }
        if "cause" in row.args:
            fields["cause"] = self._cause(row)
        each = {"params": dict(wanted.params), "priority": priority, "dry": wanted.dry, "fresh": wanted.fresh}
        return backfills.create(self._connection, {**same, **fields}, wanted.moments, {**same, **each})

    def _cause(self, row: CommandRow) -> int:
        """Return the backfill that this one follows. It was created earlier, in this shard."""
        asked = row.args["cause"]
        if type(asked) is not int:
            raise Malformed(f"command {row.id} names no command that it follows")
        number = backfills.made_by(self._connection, asked, shard=self._shard)
        if number is None:
            raise WrongState("the backfill that leads to this one was refused; ask for this one by itself")
        return number

    def _stop(self, number: int) -> None:
        found = backfills.load(self._connection, number, shard=self._shard)
        if found is None:
            raise UnknownWorkflow(f"there is no backfill {number} here")
        if found.state not in STOPPABLE:
            raise WrongState(
                f"backfill {number} is {found.state.value}; only one that is running or held can be stopped"
            )
        backfills.set_state(self._connection, number, BackfillState.STOPPING, self._now)

    def lead(self, written: Mapping[int, Stored], before: Mapping[int, Stored]) -> bool:
        """Advance the backfills that had a command or whose instances changed their state.

        Args:
            written: Instances written in this transaction.
            before: The same instances before it.
        Returns:
            Whether a command was written, because there is more to do than fits into one transaction.
        """
        going_on: set[int] = set()
        for number in sorted(self._asked | _touched(written, before)):
            self._writer.alone(partial(self._lead, number, going_on), partial(self._end, number))
        return bool(going_on)

    def _lead(self, number: int, going_on: set[int]) -> None:
        leading = _Leading(self._connection, self._shard, number, self._now)
        while (now := leading.round()) is not None:
            for instance in now.instances:
                self._happens(number, instance, now.event)
        if leading.goes_on:
            going_on.add(number)

    def _end(self, number: int, error: Exception) -> None:
        _log.error("backfill %d of shard %d cannot go on: %s", number, self._shard, reason(error), exc_info=error)
        backfills.set_state(self._connection, number, BackfillState.FAILURE, self._now)

    def _happens(self, number: int, instance: int, event: Event) -> None:
        if isinstance(event, Start):
            self._writer.tell(instance, "begin", details={"backfill": number})
            stored = self._writer.stored(instance)
            if stored is not None:
                known = stored.known
                event = replace(event, dry=known.dry, fresh=known.fresh, waits=self._writer.has_to_wait(stored))
        self._writer.advance(instance, [event])


def _touched(written: Mapping[int, Stored], before: Mapping[int, Stored]) -> set[int]:
    """Return the backfills with an instance whose state has changed."""
    return {
        each.backfill
        for each in written.values()
        if each.backfill is not None and (each.id not in before or before[each.id].known.state is not each.known.state)
    }


class _Round(NamedTuple):
    """The next step of a backfill.

    Attributes:
        instances: IDs of instances of the backfill.
        event: Event to apply to each.
    """

    instances: list[int]
    event: Event


class _Leading:
    """Advances one backfill in one transaction, in rounds, until there is nothing to do or the limit is reached.

    Attributes:
        goes_on: There is more to do, and a command was written for it.
    """

    def __init__(self, connection: sa.Connection, shard: int, number: int, now: float) -> None:
        self._connection = connection
        self._shard = shard
        self._number = number
        self._now = now
        self._left = MOST_AT_ONCE
        self._is_over = False
        self.goes_on = False

    def round(self) -> _Round | None:
        """Write the state of the backfill and return the next step. None: there is nothing to do for now."""
        row = None if self._is_over else backfills.load(self._connection, self._number, shard=self._shard)
        if row is None:
            return None
        progress = backfills.progress(self._connection, self._number)
        step = next_step(row.state, progress, parallel=row.parallel, stop_on_failure=row.stop_on_failure)
        if step.state is not row.state:
            backfills.set_state(self._connection, self._number, step.state, self._now)
        if step.state is BackfillState.STOPPING:
            self._is_over = True
            return self._bounded(backfills.stoppable(self._connection, self._number, self._left + 1), Stop())
        if not step.start:
            return None
        wanted = min(step.start, self._left + 1)
        return self._bounded(backfills.pending(self._connection, row, wanted), Start())

    def _bounded(self, ids: Iterable[int], event: Event) -> _Round:
        chosen = list(ids)
        if len(chosen) > self._left:  # later transactions handle the rest
            self._is_over = self.goes_on = True
            chosen = chosen[: self._left]
            ask(self._connection, CommandType.WAKE, shard_id=self._shard, args={"backfill": self._number})
        self._left -= len(chosen)
        return _Round(chosen, event)
