"""Runs of workflows of which one goes at a time: who has the place, and who is the next.

Whoever takes the place has the lock of the workflow's row, in the transaction in which its run begins to go: so two
shards that look at once come one after the other. Who gives it up needs no lock: a run that waits looks again.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from latchwork.workflows.database.tables import definition, instance
from latchwork.workflows.state import InstanceState
from latchwork.workflows.state.serial import GOING, Other

_WAITS = InstanceState.SERIAL_WAIT.value
_GOES = [state.value for state in GOING]


def lock(connection: sa.Connection, code: int) -> None:
    """Keep the workflow's row from others until the end of the transaction."""
    connection.execute(sa.select(definition.c.code).where(definition.c.code == code).with_for_update(key_share=True))


def others(connection: sa.Connection, code: int, *, but: int = 0) -> list[Other]:
    """The runs that have the place or wait for it, the oldest first; not those that are parts of other runs."""
    chosen = sa.select(instance.c.id, instance.c.shard, instance.c.state).where(
        instance.c.code == code,
        instance.c.state.in_([*_GOES, _WAITS]),
        instance.c.parent_task.is_(None),
        instance.c.dry.is_(False),
        instance.c.id != but,
    )
    rows = connection.execute(chosen.order_by(instance.c.id))
    return [Other(row.id, row.shard, InstanceState(row.state)) for row in rows]


def next_of(connection: sa.Connection, code: int) -> int | None:
    """The run that waits and whose turn it is; None while another has the place."""
    mine = sa.and_(instance.c.code == code, instance.c.parent_task.is_(None), instance.c.dry.is_(False))
    if connection.execute(sa.select(instance.c.id).where(mine, instance.c.state.in_(_GOES)).limit(1)).first():
        return None
    waiting = sa.select(instance.c.id).where(mine, instance.c.state == _WAITS)
    first = connection.execute(waiting.order_by(instance.c.priority, instance.c.id).limit(1)).scalar_one_or_none()
    return None if first is None else int(first)


def shards_waiting(connection: sa.Connection, codes: Collection[int]) -> set[int]:
    """The shards that have waiting runs of these workflows."""
    if not codes:
        return set()
    chosen = sa.select(instance.c.shard).where(instance.c.code.in_(codes), instance.c.state == _WAITS)
    return set(connection.execute(chosen.distinct()).scalars())
