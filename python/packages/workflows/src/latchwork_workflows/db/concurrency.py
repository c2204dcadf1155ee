"""Concurrency limits of workflows: which runs are active, and which run is next.

A run starts under the lock of the workflow's row, so concurrent starts of two shards are serialized. The end of a run
needs no lock, because a waiting run checks again.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from latchwork_workflows.db.tables import definition, task, workflow_run
from latchwork_workflows.state import RunState
from latchwork_workflows.state.concurrency import GOING, ActiveRun

_WAITS = RunState.SERIAL_WAIT.value
_GOES = [state.value for state in GOING]


def lock_workflow(connection: sa.Connection, code: int) -> None:
    """Lock the row of a workflow until the end of the transaction. Decisions about its concurrency then run one at a
    time.
    """
    connection.execute(sa.select(definition.c.code).where(definition.c.code == code).with_for_update(key_share=True))


def list_active_and_waiting_runs(connection: sa.Connection, code: int, *, exclude: int = 0) -> list[ActiveRun]:
    """Return the runs of a workflow that are active or wait for its limit, oldest first. Includes child runs of other
    runs.
    """
    chosen = sa.select(workflow_run.c.id, workflow_run.c.shard, workflow_run.c.state).where(
        workflow_run.c.code == code,
        workflow_run.c.state.in_([*_GOES, _WAITS]),
        workflow_run.c.dry.is_(False),
        workflow_run.c.id != exclude,
    )
    rows = connection.execute(chosen.order_by(workflow_run.c.id))
    return [ActiveRun(row.id, row.shard, RunState(row.state)) for row in rows]


def list_runs_to_start(connection: sa.Connection, code: int, max_active: int | None) -> list[int]:
    """Return the waiting runs of a workflow that may start now. Empty if the concurrency limit is reached.

    A waiting child run does not count while its parent is not running, so it does not block other runs.

    Args:
        connection: A transaction.
        code: The ID of the workflow.
        max_active: The maximum number of active runs. None: no limit.
    """
    mine = sa.and_(workflow_run.c.code == code, workflow_run.c.dry.is_(False))
    parent = workflow_run.alias("parent")
    goes_on = sa.or_(workflow_run.c.parent_task.is_(None), parent.c.state == RunState.RUNNING.value)
    waiting = sa.select(workflow_run.c.id).where(mine, workflow_run.c.state == _WAITS, goes_on)
    waiting = waiting.outerjoin(task, task.c.id == workflow_run.c.parent_task)
    waiting = waiting.outerjoin(parent, parent.c.id == task.c.run_id).order_by(
        workflow_run.c.priority, workflow_run.c.id
    )
    if max_active is not None:
        going = sa.select(sa.func.count()).select_from(workflow_run).where(mine, workflow_run.c.state.in_(_GOES))
        free = max_active - int(connection.execute(going).scalar_one())
        if free <= 0:
            return []
        waiting = waiting.limit(free)
    return list(connection.execute(waiting).scalars())


def find_shards_with_waiting_runs(connection: sa.Connection, codes: Collection[int]) -> set[int]:
    """Return the shards in which runs of these workflows wait for a concurrency limit."""
    if not codes:
        return set()
    chosen = sa.select(workflow_run.c.shard).where(workflow_run.c.code.in_(codes), workflow_run.c.state == _WAITS)
    return set(connection.execute(chosen.distinct()).scalars())
