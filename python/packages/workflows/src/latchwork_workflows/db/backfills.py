"""Backfills: a row for each, and a run for each of its times, all created at once.

Writers hold the guard of the shard in the same transaction. A backfill and its runs belong to one shard.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db.tables import backfill, command, definition, instance
from latchwork_workflows.state import InstanceState
from latchwork_workflows.state.backfills import RESTS, BackfillState, Progress

_FAILED = frozenset({InstanceState.FAILURE, InstanceState.STOPPED})
#: The states of instances that a stop of the backfill stops.
_STOPS = (
    InstanceState.SUBMITTED,
    InstanceState.SERIAL_WAIT,
    InstanceState.RUNNING,
    InstanceState.READY_PAUSE,
    InstanceState.PAUSED,
)


class BackfillRow(NamedTuple):
    """The columns of a backfill that its next step needs.

    Attributes:
        id: The ID of the backfill.
        state: Its state.
        parallel: The maximum number of dates that run at a time.
        direction: ``asc`` for oldest first, or ``desc``.
        stop_on_failure: Whether no further date starts after one has failed.
    """

    id: int
    state: BackfillState
    parallel: int
    direction: str
    stop_on_failure: bool


def create(
    connection: sa.Connection, fields: Mapping[str, Any], moments: Sequence[float], each: Mapping[str, Any]
) -> int:
    """Create a backfill and its instances without starting any. Return its ID.

    Args:
        connection: A transaction that the guard of the shard has begun.
        fields: The columns of the backfill.
        moments: The schedule times of the instances, without duplicates.
        each: The columns that all instances share.
    """
    values = {"state": BackfillState.RUNNING.value, "dates": len(moments), **fields}
    number = int(connection.execute(sa.insert(backfill).values(**values).returning(backfill.c.id)).scalar_one())
    common = {"state": InstanceState.SUBMITTED.value, "active": True, "backfill": number, **each}
    connection.execute(sa.insert(instance), [{**common, "schedule_time": at} for at in moments])
    return number


def made_by(connection: sa.Connection, asked: int, *, shard: int) -> int | None:
    """Return the backfill that a command of this shard created, or None."""
    chosen = sa.select(command.c.backfill).where(command.c.id == asked, command.c.shard == shard)
    return connection.execute(chosen).scalar_one_or_none()


def load(connection: sa.Connection, number: int, *, shard: int) -> BackfillRow | None:
    """Return a backfill of a shard, or None."""
    columns = (backfill.c[name] for name in BackfillRow._fields)
    chosen = sa.select(*columns).where(backfill.c.id == number, backfill.c.shard == shard)
    row = connection.execute(chosen).first()
    return None if row is None else BackfillRow(*row)._replace(state=BackfillState(row.state))


def progress(connection: sa.Connection, number: int) -> Progress:
    """Return how many of its dates are pending, active, succeeded and failed."""
    counted = sa.select(instance.c.state, sa.func.count()).where(instance.c.backfill == number)
    found = {InstanceState(state): count for state, count in connection.execute(counted.group_by(instance.c.state))}
    pending = found.pop(InstanceState.SUBMITTED, 0)
    succeeded = found.pop(InstanceState.SUCCESS, 0)
    failed = sum(found.pop(state, 0) for state in _FAILED)
    return Progress(pending, sum(found.values()), succeeded, failed)


def pending(connection: sa.Connection, row: BackfillRow, most: int) -> list[int]:
    """Return the next instances to start, in the order of the backfill."""
    chosen = sa.select(instance.c.id).where(
        instance.c.backfill == row.id, instance.c.state == InstanceState.SUBMITTED.value
    )
    at = instance.c.schedule_time
    return list(connection.execute(chosen.order_by(at.desc() if row.direction == "desc" else at).limit(most)).scalars())


def stoppable(connection: sa.Connection, number: int, most: int) -> list[int]:
    """Return the instances to stop when the backfill is stopped."""
    states = [state.value for state in _STOPS]
    chosen = sa.select(instance.c.id).where(instance.c.backfill == number, instance.c.state.in_(states))
    return list(connection.execute(chosen.order_by(instance.c.id).limit(most)).scalars())


def set_state(connection: sa.Connection, number: int, state: BackfillState, now: float) -> None:
    """Set the state of a backfill. Sets its end time if the state is held or final, and clears it otherwise."""
    values = {"state": state.value, "ended_at": now if state in RESTS else None}
    connection.execute(sa.update(backfill).where(backfill.c.id == number).values(**values))


#: A row, by the names of its columns.
Row: TypeAlias = Any

_BACKFILL = sa.select(*backfill.c, definition.c.project, definition.c.name).join(
    definition, definition.c.code == backfill.c.code
)


def find(connection: sa.Connection, number: int) -> Row | None:
    """Return a backfill with the name of its workflow, or None."""
    return connection.execute(_BACKFILL.where(backfill.c.id == number)).first()


def newest(
    connection: sa.Connection, *, codes: Collection[int] | None = None, before: int | None = None, most: int = 50
) -> list[Row]:
    """Return the newest backfills, of these workflows or of all, with IDs below ``before``."""
    chosen = _BACKFILL.order_by(backfill.c.id.desc()).limit(most)
    if codes is not None:
        chosen = chosen.where(backfill.c.code.in_(codes))
    return list(connection.execute(chosen if before is None else chosen.where(backfill.c.id < before)).all())


def counts(connection: sa.Connection, numbers: Collection[int]) -> dict[int, dict[str, int]]:
    """Return the number of instances in each state, by backfill."""
    if not numbers:
        return {}
    by = (instance.c.backfill, instance.c.state)
    counted = sa.select(*by, sa.func.count().label("count")).where(instance.c.backfill.in_(numbers)).group_by(*by)
    found: dict[int, dict[str, int]] = {number: {} for number in numbers}
    for row in connection.execute(counted):
        found[row.backfill][row.state] = row[2]
    return found


def instances(
    connection: sa.Connection, number: int, *, state: str = "", after: float | None = None, most: int | None = None
) -> list[Row]:
    """Return up to ``most`` instances of a backfill, oldest schedule time first.

    ``state`` selects instances in this state, ``after`` those with a later schedule time.
    """
    columns = (instance.c.id, instance.c.schedule_time, instance.c.state, instance.c.started_at, instance.c.ended_at)
    chosen = sa.select(*columns).where(instance.c.backfill == number).order_by(instance.c.schedule_time)
    if state:
        chosen = chosen.where(instance.c.state == state)
    if after is not None:
        chosen = chosen.where(instance.c.schedule_time > after)
    return list(connection.execute(chosen.limit(most)).all())
