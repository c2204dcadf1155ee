"""Tasks: what an account may see of them and of the runs that they start or wait for, and commands about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from latchwork_workflows.db import related_runs, run_queries
from latchwork_workflows.db.commands import CommandType
from latchwork_workflows.model.logical import full_name
from latchwork_workflows.model.model import Definition
from latchwork_workflows.schemas.commands import CommandSent
from latchwork_workflows.schemas.runs import ChildRun
from latchwork_workflows.schemas.tasks import AwaitedRun, Task, TaskDetail
from latchwork_workflows.services import explanations, runs, workflows
from latchwork_workflows.services.parts import Parts, need, seen
from latchwork_workflows.services.runs import attempt_of, task_of
from latchwork_workflows.state import ForceStart, ForceSuccess, base_of
from latchwork_workflows.web import Identity, Problem, Role

Row: TypeAlias = Any
FORCES = {"force-success": CommandType.FORCE_SUCCESS, "force-start": CommandType.FORCE_START}


def row_of(parts: Parts, who: Identity, task_id: int) -> Row:
    """Return the row of a task.

    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        return seen(who, run_queries.find_task(connection, task_id), f"task {task_id}")


def get(parts: Parts, who: Identity, task_id: int) -> TaskDetail:
    """Return a task with its attempts, and why it is in its state.

    Raises:
        Problem: 404.
    """
    row = row_of(parts, who, task_id)
    run = runs.row_of(parts, who, row.instance)
    definition = workflows.get(parts, who, run.project, run.name, run.version).definition
    with parts.database.read() as connection:
        tried = run_queries.attempts_of_task(connection, task_id)
        tasks = related_runs.plain_tasks(connection, row.instance, row.run)
        counts = related_runs.element_counts(connection, row.instance, row.run)
    tasks += [row] if row.map_index >= 0 else []
    child = children(parts, who, [row.id]).get(row.id)
    return TaskDetail(
        **dict(task_of(row)),
        workflow=f"{run.project}.{run.name}",
        why=explanations.reasons(parts, who, run, definition, tasks, [row.name]).get(row.name, ""),
        child=child.id if child is not None else None,
        awaited=awaited(parts, who, run, definition, row.name) if row.run == run.run else [],
        elements=counts.get(row.name, {}),
        attempts=[attempt_of(each) for each in tried],
    )


def force(parts: Parts, who: Identity, task_id: int, action: str, *, unique_key: str | None = None) -> CommandSent:
    """Send a command about a task: one of ``FORCES``.

    Raises:
        Problem: 403, 404, 409.
    """
    task = row_of(parts, who, task_id)
    if action not in FORCES:
        raise Problem(404, f"a task cannot be asked to {action[:40]!r}; it takes {', '.join(FORCES)}")
    need(who, Role.OPERATOR, task.project)
    if task.run != task.newest_run:
        raise Problem(409, f"task {task_id} is of run {task.run}; the newest is {task.newest_run}", possible=[])
    row = runs.row_of(parts, who, task.instance)
    kind = FORCES[action]
    event = ForceSuccess(task.name) if kind is CommandType.FORCE_SUCCESS else ForceStart(task.name)
    return runs.send(parts, who, row, kind, event, {"task": task.name}, unique_key)


def parent(parts: Parts, who: Identity, row: Row) -> Row | None:
    """Return the task that started a run. None: no task did, or the account may not see it."""
    if row.parent_task is None:
        return None
    with parts.database.read() as connection:
        found = run_queries.find_task(connection, row.parent_task)
    return found if found is not None and who.may(Role.VIEWER, found.project) else None


def children(parts: Parts, who: Identity, tasks: Collection[int]) -> Mapping[int, Row]:
    """Return the runs that these tasks started and the account may see, by the ID of the task."""
    with parts.database.read() as connection:
        found = related_runs.children(connection, tasks)
    return {task: row for task, row in found.items() if who.may(Role.VIEWER, row.project)}


def children_of_run(
    parts: Parts, who: Identity, run_id: int, *, before: int | None = None, limit: int = 50
) -> list[ChildRun]:
    """Return the runs that tasks of a run started and the account may see, the newest first.

    Raises:
        Problem: 404.
    """
    row = runs.row_of(parts, who, run_id)
    with parts.database.read() as connection:
        found = related_runs.children_of(connection, row.id, before=before, most=limit)
    return [ChildRun.of(each, round=each.run) for each in found if who.may(Role.VIEWER, each.project)]


def elements(
    parts: Parts, who: Identity, task_id: int, *, state: str = "", after: int | None = None, limit: int = 100
) -> list[Task]:
    """Return the elements of a map, sorted by index.

    Raises:
        Problem: 404, also if the task is not a map.
    """
    row = row_of(parts, who, task_id)
    if row.map_index >= 0:
        raise Problem(404, f"task {task_id} is an element of a map; ask for the elements of {base_of(row.name)}")
    with parts.database.read() as connection:
        found = related_runs.elements(connection, row, state=state.replace("\x00", ""), after=after, most=limit)
    return [task_of(each) for each in found]


def awaited(parts: Parts, who: Identity, row: Row, definition: Definition, task: str) -> list[AwaitedRun]:
    """Return the runs for which a dependent waits, as far as the account may see them.

    Args:
        parts: The parts of this process.
        who: The account that asks.
        row: The row of the run.
        definition: The version that it has.
        task: The name of the task.
    """
    spec = next((each for each in definition.tasks if each.name == base_of(task)), None)
    if spec is None or spec.type != "dependent":
        return []
    with parts.database.read() as connection:
        found = explanations.wanted(connection, row, definition, spec)
    shown = [
        AwaitedRun(workflow=full_name(each.workflow), task=each.task, window=each.window, there=there)
        for each, there in found
    ]
    return [each for each in shown if who.may(Role.VIEWER, each.workflow.partition(".")[0])]
