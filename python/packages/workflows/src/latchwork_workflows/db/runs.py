"""Runs and tasks in the database: read as input of ``advance``, and updated with its changes.

Writers hold the guard of the shard in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from latchwork_workflows.db.tables import IS_ACTIVE, event, task, workflow_run
from latchwork_workflows.model.definition import PRIORITIES
from latchwork_workflows.state import (
    RunState,
    TaskRun,
    TaskState,
    WorkflowRun,
    build_element_name,
    get_element_index,
    get_map_name,
)
from latchwork_workflows.state.records import DONE, FAILED, OVER

_NOT_BEGUN = OVER | {RunState.SUBMITTED, RunState.SERIAL_WAIT}
#: Tasks in these states are not killed with their run.
_ENDED = sorted(each.value for each in DONE | FAILED | {TaskState.WAITING})
#: The maximum number of variables in one statement of SQLite.
_TOGETHER = 500
# Frequent statements are built once: building one costs several times as much as executing it.
_RUN = ("state", "active", "round", "ending", "warn_at", "wake_at", "dry", "fresh")
_TASK = ("state", "n", "failures", "wake_at", "forced_after", "until", "cut", "chosen", "changed_at")
_NULL_JSON = sa.JSON(none_as_null=True)
_CHANGE = (
    sa.update(task)
    .where(task.c.id == sa.bindparam("_id"))
    .values(
        **{name: sa.bindparam(name) for name in _TASK},
        queue_key=sa.func.coalesce(sa.bindparam("_key", type_=sa.String()), task.c.queue_key),
        outputs=sa.func.coalesce(sa.bindparam("_outputs", type_=_NULL_JSON), task.c.outputs),
    )
)
_OUTPUTS = sa.update(task).where(task.c.id == sa.bindparam("_id")).values(outputs=sa.bindparam("_outputs"))
_MAKE = sa.insert(task).returning(task.c.name, task.c.map_index, task.c.id)
_TELL = sa.insert(event)


def _updating(*more: str) -> sa.Update:
    names = (*_RUN, *more)
    mine = workflow_run.c.id == sa.bindparam("_id")
    return sa.update(workflow_run).where(mine).values(**{name: sa.bindparam(name) for name in names})


_UPDATES: dict[tuple[str, ...], sa.Update] = {
    more: _updating(*more) for more in ((), ("ended_at",), ("ended_at", "started_at"))
}


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run, with its columns besides the state.

    Attributes:
        id: The ID of the run.
        code: The ID of its workflow.
        version: The version that it was started with.
        priority: 0, the highest, to 4.
        schedule_time: The base time of its parameters, in seconds since the epoch.
        params: The parameters given at the start.
        known: The state and the tasks.
        ids: The IDs of its task rows in this run, by name.
        queue_keys: The partition and sort key of the queue items of its tasks, by name.
        outputs: The outputs of the ended tasks, by name.
        parent: The row of the task that started it. None: no task did.
        depth: The number of runs that it is nested in.
        backfill: The backfill that it belongs to.

    Elements of maps have the names of ``state.build_element_name``.
    """

    id: int
    code: int
    version: int
    priority: int
    schedule_time: float
    params: Mapping[str, Any]
    known: WorkflowRun
    ids: Mapping[str, int] = field(default_factory=dict)
    queue_keys: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parent: int | None = None
    depth: int = 0
    backfill: int | None = None


def create_run(connection: sa.Connection, shard: int, code: int, version: int, **fields: Any) -> int:
    """Insert a run and return its ID.

    Args:
        connection: A transaction.
        shard: The shard that the run belongs to.
        code: The ID of the workflow.
        version: The version of the workflow.
        fields: Further columns. ``priority`` is given as a word.
    """
    row = {"state": RunState.SUBMITTED.value, "active": True, "shard": shard, "code": code, "version": version}
    fields["priority"] = PRIORITIES.index(fields.get("priority", "medium"))
    made = sa.insert(workflow_run).values(**row, **fields).returning(workflow_run.c.id)
    return int(connection.execute(made).scalar_one())


def load_runs(connection: sa.Connection, ids: Sequence[int], *, shard: int | None = None) -> dict[int, StoredRun]:
    """Return runs of a shard with their current tasks, by run ID. Runs of other shards and unknown IDs are left out.

    Args:
        connection: A transaction.
        ids: The IDs of the runs.
        shard: The shard. None: any shard.
    """
    found: dict[int, StoredRun] = {}
    for start in range(0, len(ids), _TOGETHER):
        part = ids[start : start + _TOGETHER]
        chosen = sa.select(workflow_run).where(workflow_run.c.id.in_(part))
        rows = connection.execute(chosen if shard is None else chosen.where(workflow_run.c.shard == shard)).all()
        of_run = sa.select(task).join(
            workflow_run, sa.and_(task.c.run_id == workflow_run.c.id, task.c.round == workflow_run.c.round)
        )
        tasks = connection.execute(of_run.where(workflow_run.c.id.in_(part)).order_by(task.c.id)).all()
        by_run: dict[int, list[Any]] = {}
        for each in tasks:
            by_run.setdefault(each.run_id, []).append(each)
        found.update((row.id, _stored(row, by_run.get(row.id, []))) for row in rows)
    return found


def list_active_runs(connection: sa.Connection, shard: int) -> list[int]:
    """Return the IDs of the active runs of a shard, oldest first."""
    chosen = sa.select(workflow_run.c.id).where(workflow_run.c.shard == shard, IS_ACTIVE).order_by(workflow_run.c.id)
    return list(connection.execute(chosen).scalars())


def list_due_runs(connection: sa.Connection, shard: int, now: float) -> list[int]:
    """Return the IDs of the runs of a shard that have a timer due."""
    chosen = sa.select(workflow_run.c.id).where(workflow_run.c.shard == shard, workflow_run.c.wake_at <= now)
    return list(connection.execute(chosen.order_by(workflow_run.c.wake_at)).scalars())


def _stored(row: Any, tasks: Iterable[Any]) -> StoredRun:
    rows = list(tasks)
    names = {each.id: build_element_name(each.name, each.map_index) for each in rows}
    known = WorkflowRun(
        RunState(row.state),
        {names[each.id]: _task(each) for each in rows},
        row.round,
        row.ending,
        row.warn_at,
        row.dry,
        row.fresh,
    )
    return StoredRun(
        row.id,
        row.code,
        row.version,
        row.priority,
        row.schedule_time,
        row.params,
        known,
        {names[each.id]: each.id for each in rows},
        {names[each.id]: each.queue_key for each in rows if each.queue_key},
        {names[each.id]: each.outputs for each in rows if each.outputs is not None},
        row.parent_task,
        row.depth,
        row.backfill,
    )


def _task(row: Any) -> TaskRun:
    state = TaskState(row.state)
    runs_on_master = state is TaskState.RUNNING and row.queue_key is None  # it was never queued
    chosen = None if row.chosen is None else tuple(row.chosen)
    return TaskRun(
        state, row.n, row.failures, row.wake_at, row.forced_after, runs_on_master, row.until, row.cut, chosen
    )


def save_run(
    connection: sa.Connection,
    before: StoredRun,
    after: WorkflowRun,
    now: float,
    *,
    queue_keys: Mapping[str, str] | None = None,
    outputs: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, int]:
    """Store the changes of a run, and return the IDs of its tasks by name.

    Args:
        connection: A transaction in which the ownership of the shard was checked.
        before: The stored run, read in this transaction or known to be current.
        after: The new state.
        now: Seconds since the epoch.
        queue_keys: The partition and sort key of each task that is submitted by this change.
        outputs: The outputs of each task that has ended by this change.
    """
    _save_run(connection, before, after, now)
    changed = after.get_changed_tasks(before.known)
    keys, ended = queue_keys or {}, outputs or {}
    is_new_run = after.round != before.known.round
    ids = {} if is_new_run else dict(before.ids)
    new = [name for name in (after.tasks if is_new_run else changed) if name not in ids]
    old = [name for name in changed if name in ids]
    if new:
        ids.update(_insert_tasks(connection, before.id, after, new, now, keys))
        if done := [{"_id": ids[name], "_outputs": ended[name]} for name in new if name in ended]:
            connection.execute(_OUTPUTS, done)
    if old:
        rows = [
            {
                "_id": ids[name],
                "_key": keys.get(name),
                "_outputs": ended.get(name),
                **_task_columns(after.tasks[name], now),
            }
            for name in old
        ]
        connection.execute(_CHANGE, rows)
    _record_facts(connection, before.id, after, now)
    return ids


def _insert_tasks(  # noqa: PLR0917 - one caller
    connection: sa.Connection,
    run_id: int,
    after: WorkflowRun,
    names: Iterable[str],
    now: float,
    keys: Mapping[str, str],
) -> dict[str, int]:
    """Insert the tasks of a run that have no row yet since the last rerun. Return their IDs by name."""
    rows = [
        {
            "run_id": run_id,
            "round": after.round,
            "name": get_map_name(name),
            "map_index": get_element_index(name),
            "queue_key": keys.get(name),
            **_task_columns(after.tasks[name], now),
        }
        for name in names
    ]
    return {build_element_name(each.name, each.map_index): each.id for each in connection.execute(_MAKE, rows)}


def _save_run(connection: sa.Connection, before: StoredRun, after: WorkflowRun, now: float) -> None:
    """Update the row of a run if its columns have changed."""
    is_over = after.state in OVER
    values = _run_columns(after)
    more: dict[str, Any] = {}
    if is_over and before.known.state not in OVER:
        more = {"ended_at": now}
    elif not is_over and after.state is not RunState.SERIAL_WAIT and before.known.state in _NOT_BEGUN:
        more = {"ended_at": None, "started_at": now}
    if more or values != _run_columns(before.known):
        connection.execute(_UPDATES[tuple(more)], {"_id": before.id, **values, **more})


def end_run_as_failure(connection: sa.Connection, run_id: int, now: float) -> None:
    """Mark a run as failed and its unfinished tasks as killed. Works even if other columns of the run are invalid."""
    mine = sa.update(workflow_run).where(workflow_run.c.id == run_id)
    ended = {"state": RunState.FAILURE.value, "active": False, "ending": "", "warn_at": None, "wake_at": None}
    connection.execute(mine.values(**ended, ended_at=now))
    of_run = sa.select(workflow_run.c.round).where(workflow_run.c.id == run_id).scalar_subquery()
    open_ = sa.and_(task.c.run_id == run_id, task.c.round == of_run, task.c.state.not_in(_ENDED))
    killed = {"state": TaskState.KILLED.value, "wake_at": None, "until": None, "changed_at": now}
    connection.execute(sa.update(task).where(open_).values(**killed))
    connection.execute(_TELL, [{"at": now, "run_id": run_id, "task": "", "kind": "failure", "details": None}])


def load_readable_part(connection: sa.Connection, run_id: int, *, shard: int) -> StoredRun | None:
    """Return the readable part of a run that ``load`` cannot read. Parameters, outputs and unknown states are left
    out.
    """
    plain = [each for each in workflow_run.c if not isinstance(each.type, sa.JSON)]
    chosen = sa.select(*plain).where(workflow_run.c.id == run_id, workflow_run.c.shard == shard)
    row = connection.execute(chosen).first()
    if row is None:
        return None
    of_run = sa.and_(task.c.run_id == run_id, task.c.round == row.round)
    columns = (task.c.id, task.c.name, task.c.map_index, task.c.state, task.c.n, task.c.queue_key)
    rows = connection.execute(sa.select(*columns).where(of_run).order_by(task.c.id)).all()
    states, names = {each.value: each for each in TaskState}, {each.value: each for each in RunState}
    tasks = {}
    for each in rows:
        state = states.get(each.state, TaskState.KILLED)
        runs_on_master = state is TaskState.RUNNING and each.queue_key is None
        tasks[build_element_name(each.name, each.map_index)] = TaskRun(state, each.n, runs_on_master=runs_on_master)
    return StoredRun(
        row.id,
        row.code,
        row.version,
        row.priority,
        row.schedule_time,
        {},
        WorkflowRun(names.get(row.state, RunState.RUNNING), tasks, row.round, dry=row.dry, fresh=row.fresh),
        {build_element_name(each.name, each.map_index): each.id for each in rows},
        {build_element_name(each.name, each.map_index): each.queue_key for each in rows if each.queue_key},
        parent=row.parent_task,
        depth=row.depth,
        backfill=row.backfill,
    )


def _run_columns(known: WorkflowRun) -> dict[str, Any]:
    return {
        "state": known.state.value,
        "active": known.state not in OVER,
        "round": known.round,
        "ending": known.ending,
        "warn_at": known.warn_at,
        "wake_at": known.wake_at,
        "dry": known.dry,
        "fresh": known.fresh,
    }


def _task_columns(known: TaskRun, now: float) -> dict[str, Any]:
    return {
        "state": known.state.value,
        "n": known.n,
        "failures": known.failures,
        "wake_at": known.wake_at,
        "forced_after": known.forced_after,
        "until": known.fails_at,
        "cut": known.is_cut,
        "chosen": None if known.chosen is None else list(known.chosen),
        "changed_at": now,
    }


def _record_facts(connection: sa.Connection, run_id: int, after: WorkflowRun, now: float) -> None:
    rows = [
        {
            "at": now,
            "run_id": run_id,
            "task": timeline_event.task,
            "kind": timeline_event.kind,
            "details": {"n": timeline_event.n} if timeline_event.n else None,
        }
        for timeline_event in after.timeline_events
    ]
    if rows:
        connection.execute(_TELL, rows)
