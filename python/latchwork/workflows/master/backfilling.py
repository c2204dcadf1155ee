"""Backfills as their shard's master leads them: made with all their instances, then led on as these end.

What to do is decided by the rows, in the transaction in which one of them changed; so there is no moment at which a
date has ended and nobody knows that the next is to start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import sqlalchemy as sa

from latchwork.workflows.database import backfills
from latchwork.workflows.database.commands import CommandType, ask
from latchwork.workflows.database.consuming import CommandRow
from latchwork.workflows.database.runs import Stored
from latchwork.workflows.definitions.model import PRIORITIES, Definition
from latchwork.workflows.errors import UnknownWorkflow, WrongState
from latchwork.workflows.master.orders import Dates, Malformed
from latchwork.workflows.state import Event, Instance, Start, Stop
from latchwork.workflows.state.backfilling import STOPPABLE, BackfillState, next_step

#: So many instances of a backfill are begun, or stopped, in one transaction.
MOST_AT_ONCE = 100


class Round(NamedTuple):
    """What is to be done now.

    Attributes:
        instances: of the backfill.
        event: what happens to each.
    """

    instances: list[int]
    event: Event


def create(
    connection: sa.Connection, row: CommandRow, wanted: Dates, definition: Definition, now: float
) -> tuple[int, list[Stored]]:
    """A backfill with its instances; none is started yet."""
    priority = PRIORITIES.index(wanted.priority or definition.priority)
    same = {"shard": row.shard, "code": wanted.code, "version": wanted.version, "by": row.by, "created_at": now}
    fields = {"parallel": wanted.parallel, "direction": wanted.direction, "stop_on_failure": wanted.stop_on_failure}
    each = {"params": dict(wanted.params), "priority": priority, "dry": wanted.dry}
    number, made = backfills.create(connection, {**same, **fields}, wanted.moments, {**same, **each})
    new = Instance(dry=wanted.dry)
    return number, [
        Stored(one, wanted.code, wanted.version, priority, at, wanted.params, new, backfill=number) for one, at in made
    ]


def number_of(row: CommandRow) -> int:
    """Which backfill a command is about.

    Raises:
        Malformed: it does not say.
    """
    number = row.args.get("backfill")
    if type(number) is not int:
        raise Malformed(f"command {row.id} names no backfill")
    return number


def stop(connection: sa.Connection, shard: int, row: CommandRow, now: float) -> int:
    """A backfill is to stop: none of its dates starts any more.

    Raises:
        Malformed: the command names none.
        UnknownWorkflow: there is none of this number here.
        WrongState: it is over, or stops.
    """
    number = number_of(row)
    found = backfills.load(connection, number, shard=shard)
    if found is None:
        raise UnknownWorkflow(f"there is no backfill {number} here")
    if found.state not in STOPPABLE:
        raise WrongState(f"backfill {number} is {found.state.value}; only one that is running or held can be stopped")
    backfills.set_state(connection, number, BackfillState.STOPPING, now)
    return number


def touched(written: Mapping[int, Stored], before: Mapping[int, Stored]) -> set[int]:
    """The backfills of which an instance is in another state than before."""
    return {
        each.backfill
        for each in written.values()
        if each.backfill is not None and (each.id not in before or before[each.id].known.state is not each.known.state)
    }


class Leading:
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

    def round(self) -> Round | None:
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

    def _bounded(self, ids: Iterable[int], event: Event) -> Round:
        chosen = list(ids)
        if len(chosen) > self._left:  # the rest in transactions of their own
            self._is_over = self.goes_on = True
            chosen = chosen[: self._left]
            ask(self._connection, CommandType.WAKE, shard_id=self._shard, args={"backfill": self._number})
        self._left -= len(chosen)
        return Round(chosen, event)
