"""Tasks: what an account may see of them and of the runs that they start or wait for, and commands about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from latchwork_workflows.db import related_runs, run_queries
from latchwork_workflows.db.commands import CommandType
from latchwork_workflows.model.definition import Definition
from latchwork_workflows.model.master_tasks import qualify_name
from latchwork_workflows.schemas.commands import CommandSent
from latchwork_workflows.schemas.runs import ChildRun
from latchwork_workflows.schemas.tasks import AwaitedRun, Task, TaskDetail
from latchwork_workflows.services import explanations, runs, workflows
from latchwork_workflows.services.context import ServiceContext, require_role, require_visible
from latchwork_workflows.services.errors import object_not_found
from latchwork_workflows.services.runs import to_attempt, to_task
from latchwork_workflows.state import ForceStart, ForceSuccess, get_map_name
from latchwork_workflows.web import HttpProblem, Identity, Role

Row: TypeAlias = Any
FORCES = {"force-success": CommandType.FORCE_SUCCESS, "force-start": CommandType.FORCE_START}


def find_task_row(context: ServiceContext, user: Identity, task_id: int) -> Row:
    """Return the database row of a task, if the account may see it.

    Raises:
        HttpProblem: 404 (not found) if there is no such task or the account may not see it.
    """
    with context.database.read() as connection:
        return require_visible(user, run_queries.find_task(connection, task_id), f"task {task_id}")


def get_task(context: ServiceContext, user: Identity, task_id: int) -> TaskDetail:
    """Return a task with its attempts and an explanation of its state.

    Raises:
        HttpProblem: 404 (not found) if there is no such task or the account may not see it.
    """
    row = find_task_row(context, user, task_id)
    run = runs.find_run_row(context, user, row.run_id)
    definition = workflows.get_workflow(context, user, run.project, run.name, run.version).definition
    with context.database.read() as connection:
        tried = run_queries.list_attempts_of_task(connection, task_id)
        tasks = related_runs.list_tasks_without_elements(connection, row.run_id, row.round)
        counts = related_runs.count_elements(connection, row.run_id, row.round)
    tasks += [row] if row.map_index >= 0 else []
    child = load_child_runs(context, user, [row.id]).get(row.id)
    return TaskDetail(
        **dict(to_task(row)),
        workflow=f"{run.project}.{run.name}",
        why=explanations.explain_tasks(context, user, run, definition, tasks, [row.name]).get(row.name, ""),
        child=child.id if child is not None else None,
        awaited=list_awaited_runs(context, user, run, definition, row.name) if row.round == run.round else [],
        elements=counts.get(row.name, {}),
        attempts=[to_attempt(each) for each in tried],
    )


def request_task_action(
    context: ServiceContext, user: Identity, task_id: int, action: str, *, unique_key: str | None = None
) -> CommandSent:
    """Request an action on a task, such as marking it as successful.

    Args:
        context: The service context of this process.
        user: The requesting account. Must be an operator of the project.
        task_id: ID of the task.
        action: One of ``FORCES``.
        unique_key: Idempotency key: repeating it with the same command changes nothing.
    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such task or action,
            409 (conflict) if the state of the task does not allow the action.
    """
    task = find_task_row(context, user, task_id)
    if action not in FORCES:
        raise HttpProblem(404, f"{action[:40]!r} is not an action for tasks; use one of {', '.join(FORCES)}")
    require_role(user, Role.OPERATOR, task.project)
    if task.round != task.newest_round:
        raise HttpProblem(
            409, f"task {task_id} is of round {task.round}; the newest is {task.newest_round}", possible=[]
        )
    row = runs.find_run_row(context, user, task.run_id)
    kind = FORCES[action]
    event = ForceSuccess(task.name) if kind is CommandType.FORCE_SUCCESS else ForceStart(task.name)
    return runs.send_run_command(context, user, row, kind, event, {"task": task.name}, unique_key)


def find_parent_task(context: ServiceContext, user: Identity, row: Row) -> Row | None:
    """Return the row of the task that started a run. None if no task did, or if the account may not see that task.

    Args:
        context: The service context of this process.
        user: The requesting account.
        row: The row of the run.
    """
    if row.parent_task is None:
        return None
    with context.database.read() as connection:
        found = run_queries.find_task(connection, row.parent_task)
    return found if found is not None and user.has_role(Role.VIEWER, found.project) else None


def load_child_runs(context: ServiceContext, user: Identity, tasks: Collection[int]) -> Mapping[int, Row]:
    """Return the run that each of these tasks started, by task ID. Runs that the account may not see are left out."""
    with context.database.read() as connection:
        found = related_runs.load_child_runs(connection, tasks)
    return {task: row for task, row in found.items() if user.has_role(Role.VIEWER, row.project)}


def list_children(
    context: ServiceContext, user: Identity, run_id: int, *, before: int | None = None, limit: int = 50
) -> list[ChildRun]:
    """Return the runs that tasks of a run started, newest first.

    Runs that the account may not see are left out.

    Raises:
        HttpProblem: 404 (not found) if there is no such run or the account may not see it.
    """
    row = runs.find_run_row(context, user, run_id)
    with context.database.read() as connection:
        found = related_runs.list_child_runs(connection, row.id, before=before, limit=limit)
    return [ChildRun.from_row(each, round=each.round) for each in found if user.has_role(Role.VIEWER, each.project)]


def list_elements(
    context: ServiceContext,
    user: Identity,
    task_id: int,
    *,
    state: str = "",
    after: int | None = None,
    limit: int = 100,
) -> list[Task]:
    """Return the elements of a map task, sorted by index.

    Raises:
        HttpProblem: 404 (not found) if there is no such task or the task is not a map.
    """
    row = find_task_row(context, user, task_id)
    if row.map_index >= 0:
        raise object_not_found(
            f"task {task_id} is an element of a map; ask for the elements of {get_map_name(row.name)}"
        )
    with context.database.read() as connection:
        found = related_runs.list_elements(connection, row, state=state.replace("\x00", ""), after=after, limit=limit)
    return [to_task(each) for each in found]


def list_awaited_runs(
    context: ServiceContext, user: Identity, row: Row, definition: Definition, task: str
) -> list[AwaitedRun]:
    """Return the runs that a ``dependent`` task waits for. Runs that the account may not see are left out.

    Args:
        context: The service context of this process.
        user: The requesting account.
        row: The row of the run.
        definition: The definition that the run was started with.
        task: The name of the task.
    """
    spec = next((each for each in definition.tasks if each.name == get_map_name(task)), None)
    if spec is None or spec.type != "dependent":
        return []
    with context.database.read() as connection:
        found = explanations.evaluate_dependencies(connection, row, definition, spec)
    shown = [
        AwaitedRun(workflow=qualify_name(each.workflow), task=each.task, window=each.window, there=there)
        for each, there in found
    ]
    return [each for each in shown if user.has_role(Role.VIEWER, each.workflow.partition(".")[0])]
