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
from latchwork_workflows.db.tables import definition, definition_version, instance, task, waiting
from latchwork_workflows.errors import Problem, WrongState
from latchwork_workflows.model.logical import full_name
from latchwork_workflows.model.model import Definition, TaskSpec
from latchwork_workflows.state import InstanceState, TaskState, element
from latchwork_workflows.state.conditions import Other, leaves
from latchwork_workflows.state.related_runs import Span, may_be_asked
from latchwork_workflows.types.logical import DependentParams

#: The PostgreSQL advisory lock for writing definitions that start other workflows.
_RINGS = 7_205_759_403
_WHO_WAITS = (
    sa.select(waiting.c.shard, waiting.c.code, waiting.c.target)
    .where(waiting.c.code.in_(sa.bindparam("codes", expanding=True)))
    .distinct()
)


def _above() -> sa.Select[Any]:
    """Return the query for all ancestors.

    It is a single statement, because a transaction may run it for each of 50 levels.
    """
    nearest = (
        sa.select(instance.c.id, instance.c.parent_task, sa.literal(0).label("level"))
        .join(task, task.c.instance == instance.c.id)
        .where(task.c.id == sa.bindparam("row"))
        .cte("above", recursive=True)
    )
    further = (
        sa.select(instance.c.id, instance.c.parent_task, nearest.c.level + 1)
        .join(task, task.c.instance == instance.c.id)
        .join(nearest, nearest.c.parent_task == task.c.id)
    )
    found = nearest.union_all(further)
    return sa.select(found.c.id).order_by(found.c.level)


_ABOVE = _above()


class Place(NamedTuple):
    """A task of an instance.

    Attributes:
        instance: The ID of the instance.
        name: The name of the task. Elements of maps are named as in ``state.element``.
        state: The state of the task.
    """

    instance: int
    name: str
    state: TaskState


class Found(NamedTuple):
    """A run of another workflow.

    Attributes:
        id: The ID of the instance.
        state: Its state.
        tasks: The states of its tasks, by name.
        outputs: The outputs of its ended tasks, by name.
    """

    id: int
    state: InstanceState
    tasks: Mapping[str, TaskState]
    outputs: Mapping[str, Mapping[str, Any]]


def child_of(connection: sa.Connection, row: int) -> int | None:
    """Return the instance that this task row started, or None."""
    found: int | None = connection.execute(
        sa.select(instance.c.id).where(instance.c.parent_task == row)
    ).scalar_one_or_none()
    return found


def parent_of(connection: sa.Connection, row: int) -> Place | None:
    """Return the task that started an instance. None: it no longer exists or belongs to an earlier run."""
    found = connection.execute(
        sa.select(task.c.instance, task.c.name, task.c.map_index, task.c.state)
        .join(instance, sa.and_(instance.c.id == task.c.instance, instance.c.run == task.c.run))
        .where(task.c.id == row)
    ).first()
    if found is None:
        return None
    return Place(found.instance, element(found.name, found.map_index), TaskState(found.state))


def check_alone(connection: sa.Connection, of: int, row: int | None, command: str) -> None:
    """Refuse a command that would restart a child by itself while its parent does not wait for it.

    Args:
        connection: A transaction.
        of: The instance that gets the command.
        row: The task row of its parent. None: it has no parent.
        command: The type of the command.
    Raises:
        WrongState: The message names the instance to use instead.
    """
    place = parent_of(connection, row) if row is not None else None
    if place is not None and not may_be_asked(command, place.state):
        raise WrongState(f"run {of} is a part of run {place.instance}; {command} that one: it takes this along")


def above(connection: sa.Connection, row: int | None) -> list[int]:
    """Return the ancestors of an instance, nearest first. ``row`` is the task row of its parent."""
    return [] if row is None else list(connection.execute(_ABOVE, {"row": row}).scalars())


def person_of(connection: sa.Connection, of: int) -> str:
    """Return the user who started an instance. If a schedule started it, return the author of its version."""
    version = sa.and_(definition_version.c.code == instance.c.code, definition_version.c.version == instance.c.version)
    chosen = sa.select(instance.c.by, definition_version.c.author).join(definition_version, version)
    row = connection.execute(chosen.where(instance.c.id == of)).first()
    if row is None:
        return ""
    return str(row.author or row.by) if row.by in {"", BY_SCHEDULE} else str(row.by)


def rings(
    connection: sa.Connection, wanted: Sequence[Definition], *, may_see: Callable[[str], bool] = lambda _project: True
) -> list[list[Problem]]:
    """Return for each definition the sub-process tasks by which it would start itself once it is written.

    Writers of such tasks are serialized until their transactions end. If two definitions form a cycle together, the
    second writer sees the first definition.

    Args:
        connection: A transaction.
        wanted: The definitions to be written.
        may_see: Returns whether the user may see the names of workflows of a project.
    """
    if not any(_starts(each) for one in wanted for each in one.tasks):
        return [[] for _ in wanted]
    if connection.dialect.name != "sqlite":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _RINGS})
    bodies: dict[tuple[str, str], Definition | None] = {(each.project, each.name): each for each in wanted}
    return [list(_rings_of(connection, bodies, each, may_see)) for each in wanted]


def _rings_of(
    connection: sa.Connection,
    bodies: dict[tuple[str, str], Definition | None],
    wanted: Definition,
    may_see: Callable[[str], bool],
) -> Iterator[Problem]:
    for index, each in enumerate(wanted.tasks):
        way = _way(connection, bodies, name, wanted.key) if (name := _starts(each)) else None
        if way is not None:
            named = [each.key if may_see(each.project) else "one that you may not see" for each in way]
            shown = " -> ".join([wanted.key, *named])
            what = f"it would start itself, again and again: {shown}; let one of these start another workflow"
            yield Problem(f"tasks[{index}].params.workflow", what)


def _starts(spec: TaskSpec) -> str:
    return str(spec.params.get("workflow", "")) if spec.type == "sub_process" else ""


def _way(
    connection: sa.Connection, bodies: dict[tuple[str, str], Definition | None], start: str, goal: str
) -> list[Definition] | None:
    """Return the workflows on a path from one workflow to another through sub-processes, or None."""
    open_: list[tuple[str, list[Definition]]] = [(start, [])]
    seen: set[str] = set()
    while open_:
        name, way = open_.pop()
        body = _body(connection, bodies, name)
        if body is None or body.key in seen:
            continue
        way = [*way, body]
        if body.key == goal:
            return way
        seen.add(body.key)
        open_.extend((other, way) for each in body.tasks if (other := _starts(each)))
    return None


def _body(connection: sa.Connection, bodies: dict[tuple[str, str], Definition | None], name: str) -> Definition | None:
    """Return the definition that a name refers to, or None."""
    for key in definitions.meanings(name):
        if key not in bodies:
            bodies[key] = _newest(connection, *key)
        if bodies[key] is not None:
            return bodies[key]
    return None


def _newest(connection: sa.Connection, project: str, name: str) -> Definition | None:
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


def wait(connection: sa.Connection, row: int, of: int, shard: int, targets: Iterable[tuple[int, str]]) -> None:
    """Store that a task of the instance ``of`` waits for workflows, given as codes and task names. Idempotent."""
    insert = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(waiting)
    values = [
        {"task": row, "code": code, "target": target, "instance": of, "shard": shard}
        for code, target in dict.fromkeys(targets)
    ]
    if values:
        connection.execute(insert.on_conflict_do_nothing(), values)


def forget(connection: sa.Connection, row: int) -> None:
    """Remove all dependencies that this task waits for."""
    connection.execute(sa.delete(waiting).where(waiting.c.task == row))


def forget_all(connection: sa.Connection, of: int) -> None:
    """Remove all dependencies that tasks of this instance wait for."""
    connection.execute(sa.delete(waiting).where(waiting.c.instance == of))


def who_waits(
    connection: sa.Connection, over: Collection[int], ended: Mapping[int, Collection[str]]
) -> list[tuple[int, int]]:
    """Return the shards with tasks that wait for these events, each with the workflow's code.

    Args:
        connection: A transaction.
        over: The codes of workflows with a run that has ended.
        ended: The tasks that have ended, by code.
    """
    codes = sorted({*over, *ended})
    if not codes:
        return []
    found = connection.execute(_WHO_WAITS, {"codes": codes})
    return sorted(
        {
            (row.shard, row.code)
            for row in found
            if row.code in over or row.target == "*" or row.target in ended.get(row.code, ())
        }
    )


def waiting_for(connection: sa.Connection, shard: int, code: int, *, after: int, most: int) -> list[int]:
    """Return up to ``most`` instances of a shard that wait for a workflow, sorted by ID, with IDs above ``after``."""
    mine = sa.and_(waiting.c.shard == shard, waiting.c.code == code, waiting.c.instance > after)
    chosen = sa.select(waiting.c.instance).where(mine).distinct().order_by(waiting.c.instance).limit(most)
    return list(connection.execute(chosen).scalars())


def newest(connection: sa.Connection, code: int, span: Span, without: Collection[int]) -> Found | None:
    """Return the run of a workflow with the latest schedule time in a span, with its tasks.

    Ignores the runs in ``without``, and dry runs, which have no results to wait for.
    """
    chosen = (
        sa.select(instance.c.id, instance.c.state, instance.c.run)
        .where(instance.c.code == code, instance.c.schedule_time >= span.start, instance.c.schedule_time < span.end)
        .where(instance.c.id.not_in(sorted(without)), instance.c.dry.is_(False))
        .order_by(instance.c.schedule_time.desc(), instance.c.id.desc())
        .limit(1)
    )
    row = connection.execute(chosen).first()
    if row is None:
        return None
    mine = sa.and_(task.c.instance == row.id, task.c.run == row.run, task.c.map_index == -1)
    tasks = connection.execute(sa.select(task.c.name, task.c.state, task.c.outputs).where(mine).order_by(task.c.id))
    rows = tasks.all()
    return Found(
        row.id,
        InstanceState(row.state),
        {each.name: TaskState(each.state) for each in rows},
        {each.name: each.outputs for each in rows if each.outputs is not None},
    )


#: A row, by the names of its columns.
Row: TypeAlias = Any
_CHILD = sa.select(
    instance.c.id, instance.c.state, instance.c.parent_task, definition.c.project, definition.c.name
).join(definition, definition.c.code == instance.c.code)


def children(connection: sa.Connection, tasks: Collection[int]) -> dict[int, Row]:
    """Return the runs that these tasks started, by task ID. Tasks without a run are left out."""
    ids = _ids_of_children(connection, tasks)
    return {row.parent_task: row for row in _by_id(connection, _CHILD, list(ids))}


def _ids_of_children(connection: sa.Connection, tasks: Collection[int]) -> dict[int, int]:
    """Return the starting tasks, by the ID of the child. Selects only the columns of the index.

    Few runs have a parent, and the statistics of SQLite count all NULLs as one common value. With one more column, it
    would scan all runs.
    """
    ids, found = sorted(tasks), {}
    for start in range(0, len(ids), 400):
        chosen = sa.select(instance.c.id, instance.c.parent_task)
        chosen = chosen.where(instance.c.parent_task.in_(ids[start : start + 400]))
        found.update({row.id: row.parent_task for row in connection.execute(chosen)})
    return found


def _by_id(connection: sa.Connection, chosen: sa.Select[Any], ids: Sequence[int]) -> Iterator[Row]:
    for start in range(0, len(ids), 400):
        yield from connection.execute(chosen.where(instance.c.id.in_(ids[start : start + 400])))


def children_of(
    connection: sa.Connection, instance_id: int, *, before: int | None = None, most: int = 100
) -> list[Row]:
    """Return the runs that tasks of an instance started, in any of its runs. Newest first, with the tasks' names."""
    tasks = connection.execute(sa.select(task.c.id).where(task.c.instance == instance_id)).scalars().all()
    ids = sorted(
        (each for each in _ids_of_children(connection, tasks) if before is None or each < before), reverse=True
    )
    named = sa.select(
        instance.c.id, instance.c.state, definition.c.project, definition.c.name,
        instance.c.started_at, instance.c.ended_at, task.c.name.label("task"), task.c.map_index, task.c.run,
    )  # fmt: skip
    named = named.join(definition, definition.c.code == instance.c.code).join(task, task.c.id == instance.c.parent_task)
    return sorted(_by_id(connection, named, ids[:most]), key=lambda row: int(row.id), reverse=True)


def plain_tasks(connection: sa.Connection, instance_id: int, run: int) -> list[Row]:
    """Return the tasks of a run without the elements of its maps, in the order of creation, at most 5,000."""
    mine = sa.and_(task.c.instance == instance_id, task.c.run == run, task.c.map_index == -1)
    return list(connection.execute(sa.select(*TASK).where(mine).order_by(task.c.id).limit(5000)).all())


def element_counts(connection: sa.Connection, instance_id: int, run: int) -> dict[str, dict[str, int]]:
    """Return the number of elements in each state, by the name of the map."""
    mine = sa.and_(task.c.instance == instance_id, task.c.run == run, task.c.map_index >= 0)
    counted = sa.select(task.c.name, task.c.state, sa.func.count().label("count")).where(mine)
    found: dict[str, dict[str, int]] = {}
    for row in connection.execute(counted.group_by(task.c.name, task.c.state)):
        found.setdefault(row.name, {})[row.state] = row[2]
    return found


def element_states(connection: sa.Connection, instance_id: int, run: int, name: str) -> dict[str, TaskState]:
    """Return the states of the elements of a map, by their names."""
    mine = sa.and_(task.c.instance == instance_id, task.c.run == run, task.c.name == name, task.c.map_index >= 0)
    rows = connection.execute(sa.select(task.c.map_index, task.c.state).where(mine).order_by(task.c.map_index))
    return {element(name, row.map_index): TaskState(row.state) for row in rows}


def elements(
    connection: sa.Connection, of: Row, *, state: str = "", after: int | None = None, most: int = 100
) -> list[Row]:
    """Return the elements of a map, sorted by index.

    Args:
        connection: A transaction.
        of: The row of the map: its ``instance``, ``run`` and ``name``.
        state: Only in this state. Empty: in any.
        after: Only elements with a higher index.
        most: The maximum number of elements.
    """
    mine = sa.and_(task.c.instance == of.instance, task.c.run == of.run, task.c.name == of.name)
    chosen = sa.select(*TASK).where(mine, task.c.map_index > (-1 if after is None else after))
    if state:
        chosen = chosen.where(task.c.state == state)
    return list(connection.execute(chosen.order_by(task.c.map_index).limit(most)).all())


class Behind(NamedTuple):
    """A workflow that waits for another.

    Attributes:
        code: The code of the workflow.
        version: Its newest version.
        definition: The definition of that version.
    """

    code: int
    version: int
    definition: Definition


def behind(connection: sa.Connection, key: str, *, is_all: bool) -> list[Behind]:
    """Return the online workflows that wait for runs of a workflow, nearest first, without duplicates and itself.

    Args:
        connection: A transaction.
        key: ``project.name`` of the workflow that they wait for.
        is_all: Whether to include indirect dependents.
    """
    waiting = [(each, frozenset(_waits_for(each.definition))) for each in _online(connection)]
    found: dict[str, Behind] = {}
    level = [key]
    while level:
        nearest = [each for each, names in waiting if names & set(level) and each.definition.key not in {key, *found}]
        found.update((each.definition.key, each) for each in nearest)
        level = [each.definition.key for each in nearest] if is_all else []
    return list(found.values())


def _online(connection: sa.Connection) -> Iterator[Behind]:
    newest = sa.and_(
        definition_version.c.code == definition.c.code, definition_version.c.version == definition.c.version
    )
    chosen = sa.select(definition.c.code, definition.c.version, definition_version.c.body)
    chosen = chosen.join(definition_version, newest).where(definition.c.online)
    chosen = chosen.where(definition_version.c.body.contains('"dependent"', autoescape=True))
    for row in connection.execute(chosen.order_by(definition.c.project, definition.c.name)):
        try:
            yield Behind(row.code, row.version, Definition.model_validate_json(row.body))
        except ValueError:
            continue  # of a later version


def _waits_for(body: Definition) -> Iterator[str]:
    for spec in body.tasks:
        if spec.type != "dependent" or not spec.enabled:
            continue
        try:
            condition = DependentParams.model_validate(spec.params).on.condition()
        except ValidationError:
            continue
        for leaf in leaves(condition):
            if isinstance(leaf, Other):
                yield from {leaf.workflow, full_name(leaf.workflow)}
