"""Backfills in the database: one row for each, and an instance for each of its moments, all made at once.

Who writes has the guard of the shard in the same transaction; a backfill and its instances are of one shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from latchwork_workflows.db.tables import backfill, command, instance
from latchwork_workflows.state import InstanceState
from latchwork_workflows.state.backfilling import RESTS, BackfillState, Progress

_FAILED = frozenset({InstanceState.FAILURE, InstanceState.STOPPED})
#: What a stop of the backfill is told to.
_STOPS = (
    InstanceState.SUBMITTED,
    InstanceState.SERIAL_WAIT,
    InstanceState.RUNNING,
    InstanceState.READY_PAUSE,
    InstanceState.PAUSED,
)


class BackfillRow(NamedTuple):
    """A backfill, as far as its next step needs it.

    Attributes:
        id: of it.
        state: where it is.
        parallel: so many dates at a time.
        direction: ``asc``, the oldest first, or ``desc``.
        stop_on_failure: no other date starts while one has failed.
    """

    id: int
    state: BackfillState
    parallel: int
    direction: str
    stop_on_failure: bool


def create(
    connection: sa.Connection, fields: Mapping[str, Any], moments: Sequence[float], each: Mapping[str, Any]
) -> int:
    """A backfill and its instances, of which none is started; its number.

    Args:
        connection: a transaction that the guard of the shard has begun.
        fields: columns of the backfill.
        moments: of the instances; each once.
        each: columns that all instances have.
    """
    values = {"state": BackfillState.RUNNING.value, "dates": len(moments), **fields}
    number = int(connection.execute(sa.insert(backfill).values(**values).returning(backfill.c.id)).scalar_one())
    common = {"state": InstanceState.SUBMITTED.value, "active": True, "backfill": number, **each}
    connection.execute(sa.insert(instance), [{**common, "schedule_time": at} for at in moments])
    return number


def made_by(connection: sa.Connection, asked: int, *, shard: int) -> int | None:
    """The backfill that a command of this shard has led to; None: none."""
    chosen = sa.select(command.c.backfill).where(command.c.id == asked, command.c.shard == shard)
    return connection.execute(chosen).scalar_one_or_none()


def load(connection: sa.Connection, number: int, *, shard: int) -> BackfillRow | None:
    """A backfill of a shard; None if it has none of this number."""
    columns = (backfill.c[name] for name in BackfillRow._fields)
    chosen = sa.select(*columns).where(backfill.c.id == number, backfill.c.shard == shard)
    row = connection.execute(chosen).first()
    return None if row is None else BackfillRow(*row)._replace(state=BackfillState(row.state))


def progress(connection: sa.Connection, number: int) -> Progress:
    """How far its dates are."""
    counted = sa.select(instance.c.state, sa.func.count()).where(instance.c.backfill == number)
    found = {InstanceState(state): count for state, count in connection.execute(counted.group_by(instance.c.state))}
    pending = found.pop(InstanceState.SUBMITTED, 0)
    succeeded = found.pop(InstanceState.SUCCESS, 0)
    failed = sum(found.pop(state, 0) for state in _FAILED)
    return Progress(pending, sum(found.values()), succeeded, failed)


def pending(connection: sa.Connection, row: BackfillRow, most: int) -> list[int]:
    """The next instances to start, in its order."""
    chosen = sa.select(instance.c.id).where(
        instance.c.backfill == row.id, instance.c.state == InstanceState.SUBMITTED.value
    )
    at = instance.c.schedule_time
    return list(connection.execute(chosen.order_by(at.desc() if row.direction == "desc" else at).limit(most)).scalars())


def stoppable(connection: sa.Connection, number: int, most: int) -> list[int]:
    """Instances that are to be told to stop."""
    states = [state.value for state in _STOPS]
    chosen = sa.select(instance.c.id).where(instance.c.backfill == number, instance.c.state.in_(states))
    return list(connection.execute(chosen.order_by(instance.c.id).limit(most)).scalars())


def set_state(connection: sa.Connection, number: int, state: BackfillState, now: float) -> None:
    """It is there now."""
    values = {"state": state.value, "ended_at": now if state in RESTS else None}
    connection.execute(sa.update(backfill).where(backfill.c.id == number).values(**values))
