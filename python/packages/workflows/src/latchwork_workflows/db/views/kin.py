"""What belongs to a run: the runs that its tasks started, the run that it is a part of, the elements of its maps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db.tables import definition, instance, task
from latchwork_workflows.db.views.instances import TASK
from latchwork_workflows.state import TaskState, element

#: A row, by the names of its columns.
Row: TypeAlias = Any
_CHILD = sa.select(
    instance.c.id, instance.c.state, instance.c.parent_task, definition.c.project, definition.c.name
).join(definition, definition.c.code == instance.c.code)


def children(connection: sa.Connection, tasks: Collection[int]) -> dict[int, Row]:
    """The run that each of these tasks started, by the id of the task; those that started none are missing."""
    ids = _ids_of_children(connection, tasks)
    return {row.parent_task: row for row in _by_id(connection, _CHILD, list(ids))}


def _ids_of_children(connection: sa.Connection, tasks: Collection[int]) -> dict[int, int]:
    """By the id of the child, the task that started it: what its index has, and no other column.

    Hardly any run has a parent, and SQLite's statistics take these NULLs for one value that all rows share: asked for a
    column more, it reads all runs instead.
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
    """The runs that tasks of an instance started, of each of its runs; the newest first, with the tasks' names."""
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
    """The tasks of a run without the elements of its maps, in the order in which they were made; at most 5,000."""
    mine = sa.and_(task.c.instance == instance_id, task.c.run == run, task.c.map_index == -1)
    return list(connection.execute(sa.select(*TASK).where(mine).order_by(task.c.id).limit(5000)).all())


def element_counts(connection: sa.Connection, instance_id: int, run: int) -> dict[str, dict[str, int]]:
    """By the names of the maps of a run: how many of their elements are in each state."""
    mine = sa.and_(task.c.instance == instance_id, task.c.run == run, task.c.map_index >= 0)
    counted = sa.select(task.c.name, task.c.state, sa.func.count().label("count")).where(mine)
    found: dict[str, dict[str, int]] = {}
    for row in connection.execute(counted.group_by(task.c.name, task.c.state)):
        found.setdefault(row.name, {})[row.state] = row[2]
    return found


def element_states(connection: sa.Connection, instance_id: int, run: int, name: str) -> dict[str, TaskState]:
    """The states of the elements of a map, by what they are called."""
    mine = sa.and_(task.c.instance == instance_id, task.c.run == run, task.c.name == name, task.c.map_index >= 0)
    rows = connection.execute(sa.select(task.c.map_index, task.c.state).where(mine).order_by(task.c.map_index))
    return {element(name, row.map_index): TaskState(row.state) for row in rows}


def elements(
    connection: sa.Connection, of: Row, *, state: str = "", after: int | None = None, most: int = 100
) -> list[Row]:
    """The elements of a map, by their index.

    Args:
        connection: a transaction.
        of: the row of the map: its ``instance``, ``run`` and ``name``.
        state: in this state; empty: in any.
        after: behind this index.
        most: so many.
    """
    mine = sa.and_(task.c.instance == of.instance, task.c.run == of.run, task.c.name == of.name)
    chosen = sa.select(*TASK).where(mine, task.c.map_index > (-1 if after is None else after))
    if state:
        chosen = chosen.where(task.c.state == state)
    return list(connection.execute(chosen.order_by(task.c.map_index).limit(most)).all())
