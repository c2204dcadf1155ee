"""Related runs: parents and children, elements of maps, and tasks that wait for other workflows.

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
from latchwork_workflows.model.logical import full_name
from latchwork_workflows.model.model import Definition, TaskSpec
from latchwork_workflows.state import RunState, TaskState, element_name
from latchwork_workflows.state.conditions import RunSucceeded, leaves
from latchwork_workflows.state.related_runs import Span, may_command_child
from latchwork_workflows.types.logical import DependentParams

#: The PostgreSQL advisory lock for writing definitions that start other workflows.
_RINGS = 7_205_759_403
_WHO_WAITS = (
    sa.select(waiting.c.shard, waiting.c.code, waiting.c.target)
    .where(waiting.c.code.in_(sa.bindparam("codes", expanding=True)))
    .distinct()
)


def _above() -> sa.Select[Any]:
    """Return the query for all ancestors of a run. It is built once, because a transaction may execute it often."""
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


_ABOVE = _above()


class TaskPlace(NamedTuple):
    """A task of a run.

    Attributes:
        run_id: The ID of the run.
        name: The name of the task. Elements of maps are named as in ``state.element_name``.
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


def child_of(connection: sa.Connection, task_id: int) -> int | None:
    """Return the run that a task started, or None."""
    found: int | None = connection.execute(
        sa.select(workflow_run.c.id).where(workflow_run.c.parent_task == task_id)
    ).scalar_one_or_none()
    return found


def parent_of(connection: sa.Connection, task_id: int) -> TaskPlace | None:
    """Return the task that started a run. None: the task no longer exists or belongs to an earlier round."""
    found = connection.execute(
        sa.select(task.c.run_id, task.c.name, task.c.map_index, task.c.state)
        .join(workflow_run, sa.and_(workflow_run.c.id == task.c.run_id, workflow_run.c.round == task.c.round))
        .where(task.c.id == task_id)
    ).first()
    if found is None:
        return None
    return TaskPlace(found.run_id, element_name(found.name, found.map_index), TaskState(found.state))


def check_command_to_child(connection: sa.Connection, run_id: int, parent_task: int | None, command: str) -> None:
    """Check that a command may be sent to a child run.

    A child must not be restarted while its parent does not wait for it.

    Args:
        connection: A transaction.
        run_id: The run that gets the command.
        parent_task: The ID of the task that started the run. None: the run has no parent.
        command: The type of the command.
    Raises:
        WrongState: The parent does not wait for the child. The message names the run to which to send the command
            instead.
    """
    place = parent_of(connection, parent_task) if parent_task is not None else None
    if place is not None and not may_command_child(command, place.state):
        raise WrongState(f"run {run_id} is a part of run {place.run_id}; {command} that run, which includes this one")


def ancestor_runs(connection: sa.Connection, parent_task: int | None) -> list[int]:
    """Return the ancestors of a run, nearest first. ``parent_task`` is the ID of the task that started the run."""
    return [] if parent_task is None else list(connection.execute(_ABOVE, {"row": parent_task}).scalars())


def started_by(connection: sa.Connection, run_id: int) -> str:
    """Return the user who started a run. If a schedule started it, return the author of its version."""
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
    """Return for each definition the sub-process tasks through which the workflow would start itself.

    Concurrent writers of such tasks wait for each other. If two definitions form a cycle together, the second writer
    sees the first definition.

    Args:
        connection: A transaction.
        definitions: The definitions to be written.
        may_see: Returns whether the user may see the names of workflows of a project.
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
            named = [each.key if may_see(each.project) else "one that you may not see" for each in way]
            shown = " -> ".join([definition.key, *named])
            what = f"it would start itself endlessly: {shown}; let one of these start another workflow"
            yield Problem(f"tasks[{index}].params.workflow", what)


def _started_workflow(spec: TaskSpec) -> str:
    return str(spec.params.get("workflow", "")) if spec.type == "sub_process" else ""


def _find_path(
    connection: sa.Connection, cache: dict[tuple[str, str], Definition | None], start: str, goal: str
) -> list[Definition] | None:
    """Return the workflows on a path of sub-processes from one workflow to another, or None if there is no path."""
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
    """Return the definition to which a name refers, or None."""
    for key in definitions.possible_targets(name):
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


def register_wait(
    connection: sa.Connection, task_id: int, run_id: int, shard: int, targets: Iterable[tuple[int, str]]
) -> None:
    """Record that a task of the run ``run_id`` waits for other workflows, given as codes and task names.

    Idempotent.
    """
    insert = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(waiting)
    values = [
        {"task": task_id, "code": code, "target": target, "run_id": run_id, "shard": shard}
        for code, target in dict.fromkeys(targets)
    ]
    if values:
        connection.execute(insert.on_conflict_do_nothing(), values)


def remove_waits(connection: sa.Connection, task_id: int) -> None:
    """Remove the records of the workflows for which a task waits."""
    connection.execute(sa.delete(waiting).where(waiting.c.task == task_id))


def remove_waits_of_run(connection: sa.Connection, run_id: int) -> None:
    """Remove the records of the workflows for which tasks of a run wait."""
    connection.execute(sa.delete(waiting).where(waiting.c.run_id == run_id))


def waiting_workflows(
    connection: sa.Connection, ended_codes: Collection[int], ended_tasks: Mapping[int, Collection[str]]
) -> list[tuple[int, int]]:
    """Return the shards that have tasks waiting for these workflows or tasks to end, each with the code of the awaited
    workflow.

    Args:
        connection: A transaction.
        ended_codes: The codes of workflows of which a run has ended.
        ended_tasks: The names of the tasks that have ended, by workflow code.
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


def waiting_runs(connection: sa.Connection, shard: int, code: int, *, after: int, limit: int) -> list[int]:
    """Return up to ``limit`` runs of a shard with tasks that wait for a workflow, with IDs above ``after``, sorted by
    ID.
    """
    mine = sa.and_(waiting.c.shard == shard, waiting.c.code == code, waiting.c.run_id > after)
    chosen = sa.select(waiting.c.run_id).where(mine).distinct().order_by(waiting.c.run_id).limit(limit)
    return list(connection.execute(chosen).scalars())


def newest_run(connection: sa.Connection, code: int, span: Span, exclude: Collection[int]) -> FoundRun | None:
    """Return the run of a workflow with the latest schedule time within a time span, with its tasks.

    Ignores the runs in ``exclude``, and dry runs, which have no results to wait for.
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


def runs_started_by(connection: sa.Connection, tasks: Collection[int]) -> dict[int, Row]:
    """Return the child run of each of these tasks, by task ID. Tasks without a child run are left out."""
    ids = _ids_of_children(connection, tasks)
    return {row.parent_task: row for row in _by_id(connection, _CHILD, list(ids))}


def _ids_of_children(connection: sa.Connection, tasks: Collection[int]) -> dict[int, int]:
    """Return the IDs of tasks, by the ID of the child run that each started.

    Selects only the columns of the index. With one more column, SQLite would scan all runs, because few runs have a
    parent.
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


def children_of_run(
    connection: sa.Connection, run_id: int, *, before: int | None = None, limit: int = 100
) -> list[Row]:
    """Return the runs that tasks of a run started in any round, newest first, with the names of the tasks."""
    tasks = connection.execute(sa.select(task.c.id).where(task.c.run_id == run_id)).scalars().all()
    ids = sorted(
        (each for each in _ids_of_children(connection, tasks) if before is None or each < before), reverse=True
    )
    named = sa.select(
        workflow_run.c.id, workflow_run.c.state, definition.c.project, definition.c.name,
        workflow_run.c.started_at, workflow_run.c.ended_at, task.c.name.label("task"), task.c.map_index, task.c.round,
    )  # fmt: skip
    named = named.join(definition, definition.c.code == workflow_run.c.code).join(
        task, task.c.id == workflow_run.c.parent_task
    )
    return sorted(_by_id(connection, named, ids[:limit]), key=lambda row: int(row.id), reverse=True)


def tasks_without_elements(connection: sa.Connection, run_id: int, round_number: int) -> list[Row]:
    """Return the tasks of a run in the order of creation, at most 5,000. Elements of maps are left out."""
    mine = sa.and_(task.c.run_id == run_id, task.c.round == round_number, task.c.map_index == -1)
    return list(connection.execute(sa.select(*TASK).where(mine).order_by(task.c.id).limit(5000)).all())


def element_counts(connection: sa.Connection, run_id: int, round_number: int) -> dict[str, dict[str, int]]:
    """Return the number of elements in each state for each map of a run, by the name of the map."""
    mine = sa.and_(task.c.run_id == run_id, task.c.round == round_number, task.c.map_index >= 0)
    counted = sa.select(task.c.name, task.c.state, sa.func.count().label("count")).where(mine)
    found: dict[str, dict[str, int]] = {}
    for row in connection.execute(counted.group_by(task.c.name, task.c.state)):
        found.setdefault(row.name, {})[row.state] = row[2]
    return found


def element_states(connection: sa.Connection, run_id: int, round_number: int, name: str) -> dict[str, TaskState]:
    """Return the state of each element of a map, by the name of the element."""
    mine = sa.and_(task.c.run_id == run_id, task.c.round == round_number, task.c.name == name, task.c.map_index >= 0)
    rows = connection.execute(sa.select(task.c.map_index, task.c.state).where(mine).order_by(task.c.map_index))
    return {element_name(name, row.map_index): TaskState(row.state) for row in rows}


def elements(
    connection: sa.Connection, map_row: Row, *, state: str = "", after: int | None = None, limit: int = 100
) -> list[Row]:
    """Return the elements of a map, sorted by index.

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
        code: The code of the workflow.
        version: Its newest version.
        definition: The definition of that version.
    """

    code: int
    version: int
    definition: Definition


def dependent_workflows(connection: sa.Connection, key: str, *, include_indirect: bool) -> list[DependentWorkflow]:
    """Return the online workflows that wait for runs of a workflow, nearest first, without duplicates and without the
    workflow itself.

    Args:
        connection: A transaction.
        key: ``project.name`` of the awaited workflow.
        include_indirect: Whether to include workflows that wait for one of the dependents.
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
        for leaf in leaves(condition):
            if isinstance(leaf, RunSucceeded):
                yield from {leaf.workflow, full_name(leaf.workflow)}
