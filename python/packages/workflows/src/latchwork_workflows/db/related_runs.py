"""Related runs: parents and children, elements of map tasks, and tasks that wait for other workflows.

Writers hold the guard of the shard in the same transaction. Parents and children belong to one shard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.dialects import postgresql, sqlite

from latchwork_workflows.db import definitions
from latchwork_workflows.db.run_queries import TASK
from latchwork_workflows.db.schedules import BY_SCHEDULE
from latchwork_workflows.db.tables import definition, definition_version, task, waiting, workflow_run
from latchwork_workflows.errors import Problem, WrongState
from latchwork_workflows.model.definition import Definition, TaskSpec
from latchwork_workflows.model.master_tasks import qualify_name
from latchwork_workflows.state import RunState, TaskState, build_element_name
from latchwork_workflows.state.conditions import RunSucceeded, iter_leaves
from latchwork_workflows.state.related_runs import Span, may_command_child
from latchwork_workflows.types.master_tasks import DependentParams

#: The PostgreSQL advisory lock for writing definitions that start other workflows.
_RINGS = 7_205_759_403
_WHO_WAITS = (
    sa.select(waiting.c.shard, waiting.c.code, waiting.c.target)
    .where(waiting.c.code.in_(sa.bindparam("codes", expanding=True)))
    .distinct()
)


def _build_ancestors_query() -> sa.Select[Any]:
    """Build the query for all ancestors of a run. It is built only once, because a transaction may execute it often."""
    nearest = (
        sa.select(workflow_run.c.id, workflow_run.c.parent_task, sa.literal(0).label("level"))
        .join(task, task.c.run_id == workflow_run.c.id)
        .where(task.c.id == sa.bindparam("row"))
        .cte("above", recursive=True)
    )
    further = (
        sa.select(workflow_run.c.id, workflow_run.c.parent_task, nearest.c.level + 1)
        .join(task, task.c.run_id == workflow_run.c.id)
        .join(nearest, nearest.c.parent_task == task.c.id)
    )
    found = nearest.union_all(further)
    return sa.select(found.c.id).order_by(found.c.level)


_ABOVE = _build_ancestors_query()


class TaskPlace(NamedTuple):
    """A task of a run.

    Attributes:
        run_id: The ID of the run.
        name: The name of the task. Elements of maps are named as in ``state.build_element_name``.
        state: The state of the task.
    """

    run_id: int
    name: str
    state: TaskState


class FoundRun(NamedTuple):
    """A run of another workflow.

    Attributes:
        id: The ID of the run.
        state: Its state.
        tasks: The states of its tasks, by name.
        outputs: The outputs of its ended tasks, by name.
    """

    id: int
    state: RunState
    tasks: Mapping[str, TaskState]
    outputs: Mapping[str, Mapping[str, Any]]


def find_child(connection: sa.Connection, task_id: int) -> int | None:
    """Return the ID of the run that a task started, or None if it started none."""
    found: int | None = connection.execute(
        sa.select(workflow_run.c.id).where(workflow_run.c.parent_task == task_id)
    ).scalar_one_or_none()
    return found


def find_parent(connection: sa.Connection, task_id: int) -> TaskPlace | None:
    """Return the run, the name and the state of a task that started a child run.

    Returns None if the task no longer exists, or if its run was rerun since.

    Args:
        connection: A transaction.
        task_id: The ID of the task.
    """
    found = connection.execute(
        sa.select(task.c.run_id, task.c.name, task.c.map_index, task.c.state)
        .join(workflow_run, sa.and_(workflow_run.c.id == task.c.run_id, workflow_run.c.round == task.c.round))
        .where(task.c.id == task_id)
    ).first()
    if found is None:
        return None
    return TaskPlace(found.run_id, build_element_name(found.name, found.map_index), TaskState(found.state))


def check_command_to_child(connection: sa.Connection, run_id: int, parent_task: int | None, command: str) -> None:
    """Check that a user may send this command to a child run.

    A child must not be restarted while its parent does not wait for it.

    Args:
        connection: A transaction.
        run_id: The child run.
        parent_task: The ID of the task that started the run. None: the run has no parent.
        command: The type of the command.
    Raises:
        WrongState: The parent does not wait for the child. The message names the run that should get the command
            instead.
    """
    place = find_parent(connection, parent_task) if parent_task is not None else None
    if place is not None and not may_command_child(command, place.state):
        raise WrongState(f"run {run_id} is a part of run {place.run_id}; {command} that run, which includes this one")


def list_ancestors(connection: sa.Connection, parent_task: int | None) -> list[int]:
    """Return the ancestors of a run, nearest first.

    Args:
        connection: A transaction.
        parent_task: The ID of the task that started the run. None: the run has no ancestors.
    """
    return [] if parent_task is None else list(connection.execute(_ABOVE, {"row": parent_task}).scalars())


def get_starting_user(connection: sa.Connection, run_id: int) -> str:
    """Return the user who started a run. If a schedule started it, return the author of the workflow version."""
    version = sa.and_(
        definition_version.c.code == workflow_run.c.code, definition_version.c.version == workflow_run.c.version
    )
    chosen = sa.select(workflow_run.c.by, definition_version.c.author).join(definition_version, version)
    row = connection.execute(chosen.where(workflow_run.c.id == run_id)).first()
    if row is None:
        return ""
    return str(row.author or row.by) if row.by in {"", BY_SCHEDULE} else str(row.by)


def find_cycles(
    connection: sa.Connection,
    definitions: Sequence[Definition],
    *,
    may_see: Callable[[str], bool] = lambda _project: True,
) -> list[list[Problem]]:
    """Find workflows that would start themselves through sub-processes.

    If two transactions write such definitions at the same time, the second waits and then sees the first definition.

    Args:
        connection: A transaction.
        definitions: The definitions to be written.
        may_see: Returns whether the user may see the names of a project's workflows.
    Returns:
        For each definition, the problems of the sub-process tasks that close a cycle.
    """
    if not any(_started_workflow(each) for one in definitions for each in one.tasks):
        return [[] for _ in definitions]
    if connection.dialect.name != "sqlite":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _RINGS})
    bodies: dict[tuple[str, str], Definition | None] = {(each.project, each.name): each for each in definitions}
    return [list(_cycles_of(connection, bodies, each, may_see)) for each in definitions]


def _cycles_of(
    connection: sa.Connection,
    cache: dict[tuple[str, str], Definition | None],
    definition: Definition,
    may_see: Callable[[str], bool],
) -> Iterator[Problem]:
    for index, each in enumerate(definition.tasks):
        way = _find_path(connection, cache, name, definition.key) if (name := _started_workflow(each)) else None
        if way is not None:
            named = [each.key if may_see(each.project) else "one that you cannot access" for each in way]
            shown = " -> ".join([definition.key, *named])
            what = f"it would start itself endlessly: {shown}; let one of these start another workflow"
            yield Problem(f"tasks[{index}].params.workflow", what)


def _started_workflow(spec: TaskSpec) -> str:
    return str(spec.params.get("workflow", "")) if spec.type == "sub_process" else ""


def _find_path(
    connection: sa.Connection, cache: dict[tuple[str, str], Definition | None], start: str, goal: str
) -> list[Definition] | None:
    """Return the workflows on a path of sub-processes between two workflows, or None if there is no path.

    Args:
        connection: A transaction.
        cache: Definitions that were loaded already, by project and name.
        start: Name of the first workflow.
        goal: Name of the last workflow.
    """
    open_: list[tuple[str, list[Definition]]] = [(start, [])]
    seen: set[str] = set()
    while open_:
        name, way = open_.pop()
        body = _load_definition(connection, cache, name)
        if body is None or body.key in seen:
            continue
        way = [*way, body]
        if body.key == goal:
            return way
        seen.add(body.key)
        open_.extend((other, way) for each in body.tasks if (other := _started_workflow(each)))
    return None


def _load_definition(
    connection: sa.Connection, cache: dict[tuple[str, str], Definition | None], name: str
) -> Definition | None:
    """Return the newest definition of a workflow, or None if there is no such workflow.

    Args:
        connection: A transaction.
        cache: Definitions that were loaded already, by project and name.
        name: ``project.name``, or only a name.
    """
    for key in definitions.list_possible_targets(name):
        if key not in cache:
            cache[key] = _newest_definition(connection, *key)
        if cache[key] is not None:
            return cache[key]
    return None


def _newest_definition(connection: sa.Connection, project: str, name: str) -> Definition | None:
    newest_ = sa.and_(
        definition_version.c.code == definition.c.code, definition_version.c.version == definition.c.version
    )
    chosen = sa.select(definition_version.c.body).join(definition, newest_)
    body = connection.execute(chosen.where(definition.c.project == project, definition.c.name == name)).scalar()
    try:
        return None if body is None else Definition.model_validate_json(body)
    except ValueError:
        return None  # written by another version of this package


# Waiting for others


def register_dependencies(
    connection: sa.Connection, task_id: int, run_id: int, shard: int, targets: Iterable[tuple[int, str]]
) -> None:
    """Record that a task waits for other workflows. Idempotent.

    Args:
        connection: A transaction.
        task_id: The ID of the task.
        run_id: The run of the task.
        shard: The shard of the run.
        targets: The codes of the workflows, each with the name of a task or an empty string.
    """
    insert = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(waiting)
    values = [
        {"task": task_id, "code": code, "target": target, "run_id": run_id, "shard": shard}
        for code, target in dict.fromkeys(targets)
    ]
    if values:
        connection.execute(insert.on_conflict_do_nothing(), values)


def delete_dependencies(connection: sa.Connection, task_id: int) -> None:
    """Delete the records of the workflows that a task waits for."""
    connection.execute(sa.delete(waiting).where(waiting.c.task == task_id))


def delete_dependencies_of_run(connection: sa.Connection, run_id: int) -> None:
    """Delete the records of which workflows the ``dependent`` tasks of a run wait for."""
    connection.execute(sa.delete(waiting).where(waiting.c.run_id == run_id))


def find_waiting_shards(
    connection: sa.Connection, ended_codes: Collection[int], ended_tasks: Mapping[int, Collection[str]]
) -> list[tuple[int, int]]:
    """Find shards with tasks that wait for the workflows or tasks that have just ended.

    Args:
        connection: A transaction.
        ended_codes: The IDs of workflows of which a run has ended.
        ended_tasks: The names of the tasks that have ended, by workflow ID.
    Returns:
        Pairs of the shard and the ID of the workflow that its tasks wait for.
    """
    codes = sorted({*ended_codes, *ended_tasks})
    if not codes:
        return []
    found = connection.execute(_WHO_WAITS, {"codes": codes})
    return sorted(
        {
            (row.shard, row.code)
            for row in found
            if row.code in ended_codes or row.target == "*" or row.target in ended_tasks.get(row.code, ())
        }
    )


def list_waiting_runs(connection: sa.Connection, shard: int, code: int, *, after: int, limit: int) -> list[int]:
    """Return the runs of a shard that have a task waiting for a workflow, sorted by ID.

    Args:
        connection: A transaction.
        shard: The ID of the shard.
        code: The ID of the workflow.
        after: Return only runs with higher IDs, for the next page.
        limit: The maximum number of runs.
    """
    mine = sa.and_(waiting.c.shard == shard, waiting.c.code == code, waiting.c.run_id > after)
    chosen = sa.select(waiting.c.run_id).where(mine).distinct().order_by(waiting.c.run_id).limit(limit)
    return list(connection.execute(chosen).scalars())


def find_newest_run(connection: sa.Connection, code: int, span: Span, exclude: Collection[int]) -> FoundRun | None:
    """Return the run of a workflow with the latest schedule time within a time span, or None if there is none.

    Dry runs are ignored, because they have no results to wait for.

    Args:
        connection: A transaction.
        code: The ID of the workflow.
        span: The time span.
        exclude: IDs of runs to ignore.
    """
    chosen = (
        sa.select(workflow_run.c.id, workflow_run.c.state, workflow_run.c.round)
        .where(
            workflow_run.c.code == code,
            workflow_run.c.schedule_time >= span.start,
            workflow_run.c.schedule_time < span.end,
        )
        .where(workflow_run.c.id.not_in(sorted(exclude)), workflow_run.c.dry.is_(False))
        .order_by(workflow_run.c.schedule_time.desc(), workflow_run.c.id.desc())
        .limit(1)
    )
    row = connection.execute(chosen).first()
    if row is None:
        return None
    mine = sa.and_(task.c.run_id == row.id, task.c.round == row.round, task.c.map_index == -1)
    tasks = connection.execute(sa.select(task.c.name, task.c.state, task.c.outputs).where(mine).order_by(task.c.id))
    rows = tasks.all()
    return FoundRun(
        row.id,
        RunState(row.state),
        {each.name: TaskState(each.state) for each in rows},
        {each.name: each.outputs for each in rows if each.outputs is not None},
    )


#: A row, by the names of its columns.
Row: TypeAlias = Any
_CHILD = sa.select(
    workflow_run.c.id, workflow_run.c.state, workflow_run.c.parent_task, definition.c.project, definition.c.name
).join(definition, definition.c.code == workflow_run.c.code)


def load_child_runs(connection: sa.Connection, tasks: Collection[int]) -> dict[int, Row]:
    """Return the child run of each given task, by task ID. Tasks without a child run are left out."""
    ids = _load_parent_tasks(connection, tasks)
    return {row.parent_task: row for row in _by_id(connection, _CHILD, list(ids))}


def _load_parent_tasks(connection: sa.Connection, tasks: Collection[int]) -> dict[int, int]:
    """Return the task that started each child run, by the ID of the child run.

    The query selects only columns of the index. With one more column SQLite would scan all runs, because few runs have
    a parent.
    """
    ids, found = sorted(tasks), {}
    for start in range(0, len(ids), 400):
        chosen = sa.select(workflow_run.c.id, workflow_run.c.parent_task)
        chosen = chosen.where(workflow_run.c.parent_task.in_(ids[start : start + 400]))
        found.update({row.id: row.parent_task for row in connection.execute(chosen)})
    return found


def _by_id(connection: sa.Connection, chosen: sa.Select[Any], ids: Sequence[int]) -> Iterator[Row]:
    for start in range(0, len(ids), 400):
        yield from connection.execute(chosen.where(workflow_run.c.id.in_(ids[start : start + 400])))


def list_child_runs(
    connection: sa.Connection, run_id: int, *, before: int | None = None, limit: int = 100
) -> list[Row]:
    """Return the child runs of a run with the names of the tasks that started them, newest first.

    Args:
        connection: A transaction.
        run_id: The ID of the parent.
        before: Return only runs with lower IDs, for the next page.
        limit: The maximum number of runs.
    """
    tasks = connection.execute(sa.select(task.c.id).where(task.c.run_id == run_id)).scalars().all()
    ids = sorted(
        (each for each in _load_parent_tasks(connection, tasks) if before is None or each < before), reverse=True
    )
    named = sa.select(
        workflow_run.c.id, workflow_run.c.state, definition.c.project, definition.c.name,
        workflow_run.c.started_at, workflow_run.c.ended_at, task.c.name.label("task"), task.c.map_index, task.c.round,
    )  # fmt: skip
    named = named.join(definition, definition.c.code == workflow_run.c.code).join(
        task, task.c.id == workflow_run.c.parent_task
    )
    return sorted(_by_id(connection, named, ids[:limit]), key=lambda row: int(row.id), reverse=True)


def list_tasks_without_elements(connection: sa.Connection, run_id: int, round_number: int) -> list[Row]:
    """Return the tasks of a run in the order of creation, without the elements of map tasks. At most 5,000."""
    mine = sa.and_(task.c.run_id == run_id, task.c.round == round_number, task.c.map_index == -1)
    return list(connection.execute(sa.select(*TASK).where(mine).order_by(task.c.id).limit(5000)).all())


def count_elements(connection: sa.Connection, run_id: int, round_number: int) -> dict[str, dict[str, int]]:
    """Return how many elements of each map task are in each state, by the name of the map task."""
    mine = sa.and_(task.c.run_id == run_id, task.c.round == round_number, task.c.map_index >= 0)
    counted = sa.select(task.c.name, task.c.state, sa.func.count().label("count")).where(mine)
    found: dict[str, dict[str, int]] = {}
    for row in connection.execute(counted.group_by(task.c.name, task.c.state)):
        found.setdefault(row.name, {})[row.state] = row[2]
    return found


def get_element_states(connection: sa.Connection, run_id: int, round_number: int, name: str) -> dict[str, TaskState]:
    """Return the state of each element of a map task, by the name of the element."""
    mine = sa.and_(task.c.run_id == run_id, task.c.round == round_number, task.c.name == name, task.c.map_index >= 0)
    rows = connection.execute(sa.select(task.c.map_index, task.c.state).where(mine).order_by(task.c.map_index))
    return {build_element_name(name, row.map_index): TaskState(row.state) for row in rows}


def list_elements(
    connection: sa.Connection, map_row: Row, *, state: str = "", after: int | None = None, limit: int = 100
) -> list[Row]:
    """Return the elements of a map task, sorted by index.

    Args:
        connection: A transaction.
        map_row: The row of the map task, with its run, round and name.
        state: Return only elements in this state. Empty: any state.
        after: Return only elements with a higher index, for the next page.
        limit: The maximum number of elements.
    """
    mine = sa.and_(task.c.run_id == map_row.run_id, task.c.round == map_row.round, task.c.name == map_row.name)
    chosen = sa.select(*TASK).where(mine, task.c.map_index > (-1 if after is None else after))
    if state:
        chosen = chosen.where(task.c.state == state)
    return list(connection.execute(chosen.order_by(task.c.map_index).limit(limit)).all())


class DependentWorkflow(NamedTuple):
    """A workflow that waits for another.

    Attributes:
        code: The ID of the workflow.
        version: Its newest version.
        definition: The definition of that version.
    """

    code: int
    version: int
    definition: Definition


def list_dependent_workflows(connection: sa.Connection, key: str, *, include_indirect: bool) -> list[DependentWorkflow]:
    """Return the online workflows that wait for runs of a workflow, nearest first.

    Each workflow is returned once. The given workflow is never included.

    Args:
        connection: A transaction.
        key: ``project.name`` of the workflow that they wait for.
        include_indirect: Also return workflows that wait for another dependent workflow.
    """
    waiting = [(each, frozenset(_awaited_workflows(each.definition))) for each in _online_workflows(connection)]
    found: dict[str, DependentWorkflow] = {}
    level = [key]
    while level:
        nearest = [each for each, names in waiting if names & set(level) and each.definition.key not in {key, *found}]
        found.update((each.definition.key, each) for each in nearest)
        level = [each.definition.key for each in nearest] if include_indirect else []
    return list(found.values())


def _online_workflows(connection: sa.Connection) -> Iterator[DependentWorkflow]:
    newest = sa.and_(
        definition_version.c.code == definition.c.code, definition_version.c.version == definition.c.version
    )
    chosen = sa.select(definition.c.code, definition.c.version, definition_version.c.body)
    chosen = chosen.join(definition_version, newest).where(definition.c.online)
    chosen = chosen.where(definition_version.c.body.contains('"dependent"', autoescape=True))
    for row in connection.execute(chosen.order_by(definition.c.project, definition.c.name)):
        try:
            yield DependentWorkflow(row.code, row.version, Definition.model_validate_json(row.body))
        except ValueError:
            continue  # of a later version


def _awaited_workflows(body: Definition) -> Iterator[str]:
    for spec in body.tasks:
        if spec.type != "dependent" or not spec.enabled:
            continue
        try:
            condition = DependentParams.model_validate(spec.params).on.condition()
        except ValidationError:
            continue
        for leaf in iter_leaves(condition):
            if isinstance(leaf, RunSucceeded):
                yield from {leaf.workflow, qualify_name(leaf.workflow)}
