"""Explains why runs and tasks are in their states, from the database and, if it is available, the store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from pydantic import ValidationError

from latchwork_workflows.db import attempts, concurrency, grants, pools, related_runs, run_queries, workers
from latchwork_workflows.db.tables import shard
from latchwork_workflows.errors import NotAllowed, UnknownWorkflow
from latchwork_workflows.explain import Ahead, Around, Cause, Crew, Full, Held, Known, blamed, causes, why
from latchwork_workflows.keys import Item, pool_key, pools_of, x_of
from latchwork_workflows.model.model import Definition, TaskSpec
from latchwork_workflows.schemas.runs import Cause as Why
from latchwork_workflows.schemas.runs import Explanation
from latchwork_workflows.schemas.workers import ActiveTask
from latchwork_workflows.services import runs, workflows
from latchwork_workflows.services.parts import Line, Parts, WorkerSeen
from latchwork_workflows.services.workers import tasks_of
from latchwork_workflows.state import InstanceState, TaskState, base_of
from latchwork_workflows.state.concurrency import GOING
from latchwork_workflows.state.conditions import Ended, Other, leaves
from latchwork_workflows.state.related_runs import of_run as outcome_of
from latchwork_workflows.state.related_runs import of_spans, spans
from latchwork_workflows.types.logical import DependentParams
from latchwork_workflows.web import Identity

Row: TypeAlias = Any
#: Maximum number of tasks that are counted before a queued one, and of partitions that are read for one answer.
MOST_AHEAD, _MOST_LANES = 200, 4
#: Maximum number of cancels to look up.
_MOST_CANCELS = 200
_LOGICAL = frozenset({"sub_process", "dependent", "switch", "conditions"})


class _Read(NamedTuple):
    """Data that was read for all of the tasks at once."""

    owner: str
    held: Mapping[str, Held]
    sizes: Mapping[str, int]
    last: Mapping[int, attempts.Last]
    workers: Mapping[tuple[int, int], Row]
    full: Mapping[str, Full]
    blamed: Mapping[str, str]


def reasons(  # noqa: PLR0917 - one run, as it was read
    parts: Parts, who: Identity, row: Row, body: Definition, tasks: Sequence[Row], names: Iterable[str]
) -> dict[str, str]:
    """Return why each of these tasks is in its state, by name.

    Args:
        parts: The parts of this process.
        who: The account that asks. Holders of slots that it may not see are hidden.
        row: The row of the run.
        body: Its version of the definition.
        tasks: Tasks of the run. Map elements are needed only if they are in ``names``.
        names: Tasks to explain.
    """
    wanted, known = set(names), {each.name for each in body.tasks}
    asked = [each for each in tasks if each.name in wanted and base_of(each.name) in known]
    others = {each.name: TaskState(each.state) for each in tasks}
    read = _read(parts, who, row, body, tasks, asked)
    workers, now = parts.workers(), time.time()
    ahead = _ahead(parts, row, asked) if workers else {}
    cancelled = _cancelled(parts, row, asked)
    found = {}
    for task in asked:
        spec = body.task(base_of(task.name))
        ended = read.last.get(task.id, attempts.Last(""))
        claim = read.workers.get((task.id, task.n))
        around = Known(
            TaskState(task.state),
            task.n,
            task.failures,
            task.wake_at,
            InstanceState(row.state),
            others,
            read.owner,
            crew=None
            if workers is None
            else _crew(workers, spec.worker_group or body.worker_group, spec.type, body.tenant),
            sizes=read.sizes,
            full=[read.full[each] for each in _lane(task) if each in read.full],
            held=read.held.get(task.name),
            is_cut=task.cut,
            last=ended.outcome,
            error=ended.error,
            worker="" if claim is None else claim.worker,
            blamed=read.blamed.get(task.name, ""),
            cached_from=ended.cached_from,
            until=task.until,
            ahead=ahead.get(task.id),
            cancel_sent_at=cancelled.get(x_of(task.id, task.n)),
        )
        found[task.name] = why(task.name, around, body, now)
    return found


def _read(  # noqa: PLR0917 - one caller
    parts: Parts, who: Identity, row: Row, body: Definition, tasks: Sequence[Row], asked: Sequence[Row]
) -> _Read:
    names = {name for each in asked for name in _lane(each)}
    taken = parts.slots() if names else None
    with parts.database.read() as connection:
        owner = connection.execute(sa.select(shard.c.owner).where(shard.c.id == row.shard)).scalar_one_or_none()
        sizes = {each.name: each.size for each in pools.every(connection)}
        return _Read(
            owner or "",
            held(connection, row, body, tasks, [each.name for each in asked]),
            sizes,
            attempts.last_outcomes(connection, [each.id for each in asked]),
            workers.claims(connection, [each.id for each in asked if each.state == TaskState.RUNNING.value]),
            {} if taken is None else _full(connection, who, sizes, {each: taken.get(each, ()) for each in names}),
            blamed(body, {each.name: TaskState(each.state) for each in tasks}),
        )


def _is_queued(task: Row) -> bool:
    return task.state == TaskState.SUBMITTED.value and task.queue_key is not None


def _lane(task: Row) -> tuple[str, ...]:
    """Return the pools of which a queued task needs a slot."""
    return pools_of(task.queue_key.partition("/")[0]) if _is_queued(task) else ()


def _ahead(parts: Parts, row: Row, asked: Sequence[Row]) -> dict[int, Ahead]:
    """Return how many tasks are before these queued tasks in their partitions, by task ID.

    A partition is read once, up to ``MOST_AHEAD`` tasks. A task whose item is missing is left out: it is not queued
    yet, or was claimed just now.
    """
    lanes: dict[str, dict[int, str]] = {}
    for task in filter(_is_queued, asked):
        lane, shelf, priority = task.queue_key.split("/")
        name = f"{shelf}/{Item(task.id, task.n, row.shard, int(priority)).id}"
        lanes.setdefault(lane, {})[task.id] = name
    found: dict[int, Ahead] = {}
    for lane in sorted(lanes)[:_MOST_LANES]:
        line = parts.line(lane, MOST_AHEAD + 1)
        if line is not None:
            found.update(_places(line, lanes[lane]))
    return found


def _places(line: Line, wanted: Mapping[int, str]) -> Iterator[tuple[int, Ahead]]:
    at = {name: number for number, name in enumerate(line.free)}
    for task, name in wanted.items():
        if name in at:
            yield task, Ahead(at[name])
        elif not line.is_whole and line.free and name > line.free[-1]:
            yield task, Ahead(len(line.free) - 1, is_more=True)


def _cancelled(parts: Parts, row: Row, asked: Sequence[Row]) -> Mapping[str, float]:
    """Return the attempts of these tasks that were sent a cancel.

    Reads the store only while the run stops or has failed.
    """
    if row.state != InstanceState.READY_STOP.value and not row.ending:
        return {}
    in_hand = {TaskState.SUBMITTED.value, TaskState.RUNNING.value}
    queued = [each for each in asked if each.state in in_hand and each.queue_key is not None]
    return parts.cancelled([x_of(each.id, each.n) for each in queued[:_MOST_CANCELS]])


def _full(
    connection: sa.Connection, who: Identity, sizes: Mapping[str, int], taken: Mapping[str, Sequence[str]]
) -> dict[str, Full]:
    """Return the pools without a free slot, by their names in keys."""
    found = {}
    for name, size in sizes.items():
        holders = taken.get(pool_key(name), ())
        if pool_key(name) in taken and len(holders) >= size:
            found[pool_key(name)] = Full(name, size, tuple(map(_said, tasks_of(connection, who, holders))))
    return found


def _said(holder: ActiveTask) -> str:
    return "a task that you may not see" if holder.task is None else f"{holder.name!r} of run {holder.run}"


def _crew(workers: Sequence[WorkerSeen], group: str, kind: str, tenant: str | None) -> Crew:
    mine = [each for each in workers if group in each.groups]
    knowing = [each for each in mine if not each.types or kind in each.types]
    refusing = sum(bool(each.tenants) and (tenant or "-") not in each.tenants for each in knowing)
    slots, busy = sum(each.slots for each in mine), sum(each.busy for each in mine)
    return Crew(len(mine), len(knowing), slots, busy, refusing)


def of_run(parts: Parts, row: Row, tasks: Sequence[Row], why_tasks: Mapping[str, str]) -> list[Cause]:
    """Return why a run does not continue, or why it failed.

    Args:
        parts: The parts of this process.
        row: The row of the run.
        tasks: Tasks of the run.
        why_tasks: Known reasons, by task.
    """
    state, ahead = InstanceState(row.state), []
    with parts.database.read() as connection:
        if state is InstanceState.SERIAL_WAIT:
            ahead = [each.id for each in concurrency.others(connection, row.code, but=row.id) if each.state in GOING]
        owner = connection.execute(sa.select(shard.c.owner).where(shard.c.id == row.shard)).scalar_one_or_none()
    is_held = frozenset(each.name for each in tasks if each.queue_key is None)
    states = {each.name: TaskState(each.state) for each in tasks}
    return causes(state, states, is_held, why_tasks, Around(ahead, owner or "", row.backfill))


def explain(parts: Parts, who: Identity, run_id: int) -> Explanation:
    """Return why a run waits or failed, and why each of its tasks is in its state.

    Raises:
        Problem: 404.
    """
    row = runs.row_of(parts, who, run_id)
    body = workflows.get(parts, who, row.project, row.name, row.version).definition
    with parts.database.read() as connection:
        tasks = run_queries.tasks(connection, row.id, row.run)
    found = reasons(parts, who, row, body, tasks, [each.name for each in tasks])
    cause = [Why(task=each.task, why=each.text) for each in of_run(parts, row, tasks, found)]
    return Explanation(cause=cause, tasks=found)


def held(
    connection: sa.Connection, row: Row, body: Definition, tasks: Sequence[Row], names: Iterable[str]
) -> dict[str, Held]:
    """Return the state of the tasks that a master runs or ran itself.

    Args:
        connection: A transaction.
        row: The row of the run.
        body: Its version of the definition.
        tasks: Tasks of the run. May omit map elements.
        names: Tasks to return.
    """
    asked = set(names)
    specs = {each.name: each for each in body.tasks}
    mine = [each for each in tasks if each.name in asked and base_of(each.name) in specs]
    chosen = [each for each in mine if _kind(specs[base_of(each.name)], each.name)]
    children = {
        row: (each.id, InstanceState(each.state))
        for row, each in related_runs.children(connection, [each.id for each in chosen]).items()
    }
    found = {}
    for task in chosen:
        spec = specs[base_of(task.name)]
        kind = _kind(spec, task.name)
        elements = related_runs.element_states(connection, row.id, task.run, task.name) if kind == "map" else {}
        is_waiting = kind == "dependent" and task.state == TaskState.RUNNING.value
        others = wanted(connection, row, body, spec) if is_waiting else []
        found[task.name] = Held(kind, children.get(task.id), others, elements, task.until)
    return found


def _kind(spec: TaskSpec, name: str) -> str:
    if spec.map is not None and name == spec.name:
        return "map"
    return spec.type if spec.type in _LOGICAL else ""


def wanted(connection: sa.Connection, row: Row, body: Definition, spec: TaskSpec) -> list[tuple[Other, bool | None]]:
    """Return the dependencies of a dependent, and whether each is fulfilled as its master would see it now.

    None: not yet.
    """
    try:
        condition = DependentParams.model_validate(spec.params).on.condition()
    except ValidationError:
        return []
    moment = datetime.fromtimestamp(row.schedule_time, ZoneInfo(body.schedule.tz if body.schedule else "UTC"))
    without = [row.id, *related_runs.above(connection, row.parent_task)]
    return [
        (each, _is_as_wanted(connection, body.project, each, moment, without))
        for each in dict.fromkeys(leaves(condition))
        if not isinstance(each, Ended)
    ]


def _is_as_wanted(
    connection: sa.Connection, project: str, other: Other, moment: datetime, without: Sequence[int]
) -> bool | None:
    try:
        code = grants.resolve(connection, project, other.workflow, "dependent").code
    except (NotAllowed, UnknownWorkflow):
        return None
    found = [related_runs.newest(connection, code, span, without) for span in spans(other.window, moment)]
    return of_spans(None if run is None else outcome_of(run.state, other.task, run.tasks) for run in found)
