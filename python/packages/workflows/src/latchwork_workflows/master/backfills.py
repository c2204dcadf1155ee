"""Backfills: so many of their runs at a time."""

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

#: So many instances of a backfill are begun, or stopped, in one transaction.
MOST_AT_ONCE = 100


class Writer(Protocol):
    """What writes instances."""

    def stored(self, instance: int) -> Stored | None:
        """An instance as it is now; None: it is not of this shard."""
        ...

    def advance(self, instance: int, events: Iterable[Event]) -> None:
        """Advance an instance, and what follows for others."""
        ...

    def has_to_wait(self, stored: Stored) -> bool:
        """Whether it waits for its turn, in a workflow of which one run goes at a time."""
        ...

    def tell(self, instance: int, kind: str, *, details: Mapping[str, Any]) -> None:
        """An event more, for people."""
        ...

    def alone(self, do: Callable[[], object], failed: Callable[[Exception], object]) -> None:
        """Do something, and give an error that follows from it alone to ``failed``."""
        ...


class Backfills:
    """What follows in one transaction. For one thread."""

    def __init__(self, connection: sa.Connection, shard: int, plans: Plans, now: float, writer: Writer) -> None:
        self._connection = connection
        self._shard = shard
        self._plans = plans
        self._now = now
        self._writer = writer
        self._asked: set[int] = set()

    def command(self, row: CommandRow) -> int:
        """Do what a command says of a backfill; its number. What follows is for ``lead``.

        Raises:
            Malformed: nobody of ours wrote it.
            UnknownWorkflow: there is no such backfill here, or no such version.
            WrongState: it is over, or stops.
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
        """The backfill that leads to this one: it was made before, here."""
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
        """Lead on backfills that a command is about, or of which an instance has moved.

        Args:
            written: the instances of this transaction.
            before: as they were.
        Returns:
            Whether a command was written for what was too much for one transaction.
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
    """The backfills of which an instance is in another state than before."""
    return {
        each.backfill
        for each in written.values()
        if each.backfill is not None and (each.id not in before or before[each.id].known.state is not each.known.state)
    }


class _Round(NamedTuple):
    """What is to be done now.

    Attributes:
        instances: of the backfill.
        event: what happens to each.
    """

    instances: list[int]
    event: Event


class _Leading:
    """One backfill in one transaction: rounds until there is nothing more to do, or it has been enough for once.

    Attributes:
        goes_on: there is more to do, for which a command was written.
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
        """What is to be done next; None when that is all for now. The state of the backfill is written."""
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
        if len(chosen) > self._left:  # the rest in transactions of their own
            self._is_over = self.goes_on = True
            chosen = chosen[: self._left]
            ask(self._connection, CommandType.WAKE, shard_id=self._shard, args={"backfill": self._number})
        self._left -= len(chosen)
        return _Round(chosen, event)
