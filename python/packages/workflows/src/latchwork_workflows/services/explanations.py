"""Explains why runs and tasks are in their states, from the database and, if it is available, the store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from pydantic import ValidationError

from latchwork_workflows import explain
from latchwork_workflows.db import attempts, concurrency, grants, pools, related_runs, run_queries, workers
from latchwork_workflows.db.tables import shard
from latchwork_workflows.errors import NotAllowed, NotFound
from latchwork_workflows.explain import (
    FullPool,
    GroupWorkers,
    MasterTaskFacts,
    QueuePosition,
    RunCause,
    RunFacts,
    TaskFacts,
    explain_task,
    find_failed_upstream_tasks,
)
from latchwork_workflows.keys import ItemName, build_pool_key, format_attempt_key, list_pool_keys
from latchwork_workflows.model.definition import Definition, TaskSpec
from latchwork_workflows.schemas.runs import Cause as Why
from latchwork_workflows.schemas.runs import Explanation
from latchwork_workflows.schemas.workers import ActiveTask
from latchwork_workflows.services import runs, workflows
from latchwork_workflows.services.context import ServiceContext, UnclaimedItems, WorkerStatus
from latchwork_workflows.services.workers import list_tasks_of_attempts
from latchwork_workflows.state import RunState, TaskState, get_map_name
from latchwork_workflows.state.concurrency import GOING
from latchwork_workflows.state.conditions import RunSucceeded, TaskEnded, iter_leaves
from latchwork_workflows.state.related_runs import combine_span_results, list_time_spans
from latchwork_workflows.state.related_runs import is_fulfilled as outcome_of
from latchwork_workflows.types.master_tasks import DependentParams
from latchwork_workflows.web import Identity

Row: TypeAlias = Any
#: Maximum number of tasks that are counted before a queued one, and of partitions that are read for one answer.
MAX_AHEAD, _MAX_PARTITIONS = 200, 4
#: Maximum number of cancels to look up.
_MAX_CANCELS = 200
_LOGICAL = frozenset({"sub_process", "dependent", "switch", "conditions"})


class _TaskData(NamedTuple):
    """Data that is read once for all tasks of a run."""

    owner: str
    master_tasks: Mapping[str, MasterTaskFacts]
    sizes: Mapping[str, int]
    last: Mapping[int, attempts.LastOutcome]
    workers: Mapping[tuple[int, int], Row]
    full: Mapping[str, FullPool]
    blamed: Mapping[str, str]


def explain_tasks(  # noqa: PLR0917 - one run, as it was read
    context: ServiceContext,
    user: Identity,
    row: Row,
    definition: Definition,
    tasks: Sequence[Row],
    names: Iterable[str],
) -> dict[str, str]:
    """Return one sentence for each given task that explains its state, by task name.

    Args:
        context: The service context of this process.
        user: The requesting account. Holders of slots that it may not see are hidden.
        row: The row of the run.
        definition: The definition that the run was started with.
        tasks: Tasks of the run. Elements of map tasks are only needed if they are in ``names``.
        names: Names of the tasks to explain.
    """
    wanted, known = set(names), {each.name for each in definition.tasks}
    asked = [each for each in tasks if each.name in wanted and get_map_name(each.name) in known]
    others = {each.name: TaskState(each.state) for each in tasks}
    read = _read_data(context, user, row, definition, tasks, asked)
    workers, now = context.list_workers(), time.time()
    ahead = _find_queue_positions(context, row, asked) if workers else {}
    cancelled = _get_cancel_times(context, row, asked)
    found = {}
    for task in asked:
        spec = definition.task(get_map_name(task.name))
        ended = read.last.get(task.id, attempts.LastOutcome(""))
        claim = read.workers.get((task.id, task.n))
        around = TaskFacts(
            TaskState(task.state),
            task.n,
            task.failures,
            task.wake_at,
            RunState(row.state),
            others,
            read.owner,
            group_workers=None
            if workers is None
            else _group_workers(workers, spec.worker_group or definition.worker_group, spec.type, definition.tenant),
            sizes=read.sizes,
            full_pools=[read.full[each] for each in _get_pools_of_task(task) if each in read.full],
            master_task=read.master_tasks.get(task.name),
            is_cut=task.cut,
            last=ended.outcome,
            error=ended.error,
            worker="" if claim is None else claim.worker,
            failed_upstream=read.blamed.get(task.name, ""),
            cached_from=ended.cached_from,
            until=task.until,
            ahead=ahead.get(task.id),
            cancel_sent_at=cancelled.get(format_attempt_key(task.id, task.n)),
        )
        found[task.name] = explain_task(task.name, around, definition, now)
    return found


def _read_data(  # noqa: PLR0917 - one caller
    context: ServiceContext,
    user: Identity,
    row: Row,
    definition: Definition,
    tasks: Sequence[Row],
    asked: Sequence[Row],
) -> _TaskData:
    names = {name for each in asked for name in _get_pools_of_task(each)}
    taken = context.get_slot_holders() if names else None
    with context.database.read() as connection:
        owner = connection.execute(sa.select(shard.c.owner).where(shard.c.id == row.shard)).scalar_one_or_none()
        sizes = {each.name: each.size for each in pools.list_pools(connection)}
        return _TaskData(
            owner or "",
            load_master_tasks(connection, row, definition, tasks, [each.name for each in asked]),
            sizes,
            attempts.load_last_outcomes(connection, [each.id for each in asked]),
            workers.load_newest_claims(
                connection, [each.id for each in asked if each.state == TaskState.RUNNING.value]
            ),
            {}
            if taken is None
            else _find_full_pools(connection, user, sizes, {each: taken.get(each, ()) for each in names}),
            find_failed_upstream_tasks(definition, {each.name: TaskState(each.state) for each in tasks}),
        )


def _is_queued(task: Row) -> bool:
    return task.state == TaskState.SUBMITTED.value and task.queue_key is not None


def _get_pools_of_task(task: Row) -> tuple[str, ...]:
    """Return the names of the pools in which a queued task needs a slot."""
    return list_pool_keys(task.queue_key.partition("/")[0]) if _is_queued(task) else ()


def _find_queue_positions(context: ServiceContext, row: Row, asked: Sequence[Row]) -> dict[int, QueuePosition]:
    """Return how many tasks are ahead of each queued task in its partition of the work queue, by task ID.

    Each partition is read once, up to ``MAX_AHEAD`` tasks. Tasks that are not queued yet or were just claimed are left
    out.

    Args:
        context: The service context of this process.
        row: The row of the run.
        asked: The rows of the tasks.
    """
    partitions: dict[str, dict[int, str]] = {}
    for task in filter(_is_queued, asked):
        partition, sort_key, priority = task.queue_key.split("/")
        name = f"{sort_key}/{ItemName(task.id, task.n, row.shard, int(priority)).id}"
        partitions.setdefault(partition, {})[task.id] = name
    found: dict[int, QueuePosition] = {}
    for partition in sorted(partitions)[:_MAX_PARTITIONS]:
        line = context.list_unclaimed_items(partition, MAX_AHEAD + 1)
        if line is not None:
            found.update(_positions_in(line, partitions[partition]))
    return found


def _positions_in(line: UnclaimedItems, wanted: Mapping[int, str]) -> Iterator[tuple[int, QueuePosition]]:
    at = {name: number for number, name in enumerate(line.free)}
    for task, name in wanted.items():
        if name in at:
            yield task, QueuePosition(at[name])
        elif not line.is_whole and line.free and name > line.free[-1]:
            yield task, QueuePosition(len(line.free) - 1, is_more=True)


def _get_cancel_times(context: ServiceContext, row: Row, asked: Sequence[Row]) -> Mapping[str, float]:
    """Return the time at which each attempt was requested to cancel, by attempt key.

    The store is only read if the run is stopping or has failed.

    Args:
        context: The service context of this process.
        row: The row of the run.
        asked: The rows of the tasks.
    """
    if row.state != RunState.READY_STOP.value and not row.ending:
        return {}
    in_hand = {TaskState.SUBMITTED.value, TaskState.RUNNING.value}
    queued = [each for each in asked if each.state in in_hand and each.queue_key is not None]
    return context.get_cancel_times([format_attempt_key(each.id, each.n) for each in queued[:_MAX_CANCELS]])


def _find_full_pools(
    connection: sa.Connection, user: Identity, sizes: Mapping[str, int], taken: Mapping[str, Sequence[str]]
) -> dict[str, FullPool]:
    """Return the pools without a free slot, by pool key.

    Args:
        connection: A transaction.
        user: The requesting account. Holders of slots that it may not see are hidden.
        sizes: The size of each pool, by pool key.
        taken: The attempts that hold slots of each pool, by pool key.
    """
    found = {}
    for name, size in sizes.items():
        holders = taken.get(build_pool_key(name), ())
        if build_pool_key(name) in taken and len(holders) >= size:
            found[build_pool_key(name)] = FullPool(
                name, size, tuple(map(_holder_text, list_tasks_of_attempts(connection, user, holders)))
            )
    return found


def _holder_text(holder: ActiveTask) -> str:
    return "a task that you cannot access" if holder.task is None else f"{holder.name!r} of run {holder.run}"


def _group_workers(workers: Sequence[WorkerStatus], group: str, kind: str, tenant: str | None) -> GroupWorkers:
    mine = [each for each in workers if group in each.groups]
    knowing = [each for each in mine if not each.types or kind in each.types]
    refusing = sum(bool(each.tenants) and (tenant or "-") not in each.tenants for each in knowing)
    slots, busy = sum(each.slots for each in mine), sum(each.busy for each in mine)
    return GroupWorkers(len(mine), len(knowing), slots, busy, refusing)


def explain_causes(
    context: ServiceContext, row: Row, tasks: Sequence[Row], why_tasks: Mapping[str, str]
) -> list[RunCause]:
    """Return the reasons why a run does not continue or has failed.

    Args:
        context: The service context of this process.
        row: The row of the run.
        tasks: Tasks of the run.
        why_tasks: The explanations of its tasks that are known already, by task name.
    """
    state, ahead = RunState(row.state), []
    with context.database.read() as connection:
        if state is RunState.SERIAL_WAIT:
            ahead = [
                each.id
                for each in concurrency.list_active_and_waiting_runs(connection, row.code, exclude=row.id)
                if each.state in GOING
            ]
        owner = connection.execute(sa.select(shard.c.owner).where(shard.c.id == row.shard)).scalar_one_or_none()
    is_held = frozenset(each.name for each in tasks if each.queue_key is None)
    states = {each.name: TaskState(each.state) for each in tasks}
    return explain.explain_run(state, states, is_held, why_tasks, RunFacts(ahead, owner or "", row.backfill))


def explain_run(context: ServiceContext, user: Identity, run_id: int) -> Explanation:
    """Return why a run waits or has failed, and why each of its tasks is in its state.

    Raises:
        HttpProblem: 404 (not found) if there is no such run or the account may not see it.
    """
    row = runs.find_run_row(context, user, run_id)
    body = workflows.get_workflow(context, user, row.project, row.name, row.version).definition
    with context.database.read() as connection:
        tasks = run_queries.list_tasks_of_run(connection, row.id, row.round)
    found = explain_tasks(context, user, row, body, tasks, [each.name for each in tasks])
    cause = [Why(task=each.task, why=each.text) for each in explain_causes(context, row, tasks, found)]
    return Explanation(cause=cause, tasks=found)


def load_master_tasks(
    connection: sa.Connection, row: Row, definition: Definition, tasks: Sequence[Row], names: Iterable[str]
) -> dict[str, MasterTaskFacts]:
    """Return the details of the tasks that a master runs itself, such as sub-processes, by task name.

    Args:
        connection: A transaction.
        row: The row of the run.
        definition: The definition that the run was started with.
        tasks: Tasks of the run. Elements of map tasks may be left out.
        names: Names of the tasks to return.
    """
    asked = set(names)
    specs = {each.name: each for each in definition.tasks}
    mine = [each for each in tasks if each.name in asked and get_map_name(each.name) in specs]
    chosen = [each for each in mine if _kind(specs[get_map_name(each.name)], each.name)]
    children = {
        row: (each.id, RunState(each.state))
        for row, each in related_runs.load_child_runs(connection, [each.id for each in chosen]).items()
    }
    found = {}
    for task in chosen:
        spec = specs[get_map_name(task.name)]
        kind = _kind(spec, task.name)
        elements = related_runs.get_element_states(connection, row.id, task.round, task.name) if kind == "map" else {}
        is_waiting = kind == "dependent" and task.state == TaskState.RUNNING.value
        others = evaluate_dependencies(connection, row, definition, spec) if is_waiting else []
        found[task.name] = MasterTaskFacts(kind, children.get(task.id), others, elements, task.until)
    return found


def _kind(spec: TaskSpec, name: str) -> str:
    if spec.map is not None and name == spec.name:
        return "map"
    return spec.type if spec.type in _LOGICAL else ""


def evaluate_dependencies(
    connection: sa.Connection, row: Row, definition: Definition, spec: TaskSpec
) -> list[tuple[RunSucceeded, bool | None]]:
    """Return the conditions of a ``dependent`` task, each with its current value.

    A condition names a workflow whose runs must succeed. Its value is True if they have, False if one has failed, and
    None if this is not known yet.

    Args:
        connection: A transaction.
        row: The row of the run.
        definition: The definition that the run was started with.
        spec: The task.
    """
    try:
        condition = DependentParams.model_validate(spec.params).on.condition()
    except ValidationError:
        return []
    scheduled_at = datetime.fromtimestamp(
        row.schedule_time, ZoneInfo(definition.schedule.tz if definition.schedule else "UTC")
    )
    without = [row.id, *related_runs.list_ancestors(connection, row.parent_task)]
    return [
        (each, _is_fulfilled(connection, definition.project, each, scheduled_at, without))
        for each in dict.fromkeys(iter_leaves(condition))
        if not isinstance(each, TaskEnded)
    ]


def _is_fulfilled(
    connection: sa.Connection, project: str, other: RunSucceeded, local_time: datetime, without: Sequence[int]
) -> bool | None:
    try:
        code = grants.find_granted_workflow(connection, project, other.workflow, "dependent").code
    except (NotAllowed, NotFound):
        return None
    found = [
        related_runs.find_newest_run(connection, code, span, without)
        for span in list_time_spans(other.window, local_time)
    ]
    return combine_span_results(None if run is None else outcome_of(run.state, other.task, run.tasks) for run in found)
