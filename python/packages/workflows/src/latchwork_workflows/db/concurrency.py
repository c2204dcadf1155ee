"""Concurrency limits of workflows: which runs are active, and which run is next.

A run starts under the lock of the workflow's row, so concurrent starts of two shards are serialized. The end of a run
needs no lock, because a waiting run checks again.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from latchwork_workflows.db.tables import definition, instance, task
from latchwork_workflows.state import InstanceState
from latchwork_workflows.state.concurrency import GOING, Other

_WAITS = InstanceState.SERIAL_WAIT.value
_GOES = [state.value for state in GOING]


def lock(connection: sa.Connection, code: int) -> None:
    """Lock the workflow's row until the end of the transaction."""
    connection.execute(sa.select(definition.c.code).where(definition.c.code == code).with_for_update(key_share=True))


def others(connection: sa.Connection, code: int, *, but: int = 0) -> list[Other]:
    """Return the runs that are active or waiting, oldest first, including runs that are part of other runs."""
    chosen = sa.select(instance.c.id, instance.c.shard, instance.c.state).where(
        instance.c.code == code,
        instance.c.state.in_([*_GOES, _WAITS]),
        instance.c.dry.is_(False),
        instance.c.id != but,
    )
    rows = connection.execute(chosen.order_by(instance.c.id))
    return [Other(row.id, row.shard, InstanceState(row.state)) for row in rows]


def next_of(connection: sa.Connection, code: int, places: int | None) -> list[int]:
    """Return the waiting runs that may start now. Empty if the limit is reached.

    A run that is part of another run is only included while its parent is running. Until then it does not block others.

    Args:
        connection: A transaction.
        code: The code of the workflow.
        places: The maximum number of active runs. None: no limit.
    """
    mine = sa.and_(instance.c.code == code, instance.c.dry.is_(False))
    parent = instance.alias("parent")
    goes_on = sa.or_(instance.c.parent_task.is_(None), parent.c.state == InstanceState.RUNNING.value)
    waiting = sa.select(instance.c.id).where(mine, instance.c.state == _WAITS, goes_on)
    waiting = waiting.outerjoin(task, task.c.id == instance.c.parent_task)
    waiting = waiting.outerjoin(parent, parent.c.id == task.c.instance).order_by(instance.c.priority, instance.c.id)
    if places is not None:
        going = sa.select(sa.func.count()).select_from(instance).where(mine, instance.c.state.in_(_GOES))
        free = places - int(connection.execute(going).scalar_one())
        if free <= 0:
            return []
        waiting = waiting.limit(free)
    return list(connection.execute(waiting).scalars())


def shards_waiting(connection: sa.Connection, codes: Collection[int]) -> set[int]:
    """Return the shards that have waiting runs of these workflows."""
    if not codes:
        return set()
    chosen = sa.select(instance.c.shard).where(instance.c.code.in_(codes), instance.c.state == _WAITS)
    return set(connection.execute(chosen.distinct()).scalars())
