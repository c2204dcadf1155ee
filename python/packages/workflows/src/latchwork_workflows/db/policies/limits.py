"""Limits of projects: how many of their tasks run at a time, and what becomes of a start that is one too many.

What runs is counted by slots in the store, which workers take with the tasks; how many are in hands, by rows of all
shards. Who asks for the latter has the lock of the project's row, so two starts come one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from latchwork_workflows.db.policies.tables import project_limit
from latchwork_workflows.db.tables import IS_GOING, definition, instance, task
from latchwork_workflows.state import TaskState

#: What a start does while the project has as many tasks as it may.
ADMISSIONS = ("suspend", "fail", "precompute")
#: So many tasks of a project run at a time at most: each has a key of its own. As many is what the store has of one
#: that is limited no more.
MOST_TASKS = 10_000
_FIND = sa.select(project_limit).where(project_limit.c.project == sa.bindparam("project"))
_FIND_LOCKED = _FIND.with_for_update()


class Limit(NamedTuple):
    """The limit of a project.

    Attributes:
        project: which.
        max_running_tasks: so many of its tasks run at a time.
        admission: ``suspend`` starts a run, whose tasks wait; ``fail`` refuses it; ``precompute`` has it wait until its
            tasks fit.
    """

    project: str
    max_running_tasks: int
    admission: str


def find(connection: sa.Connection, project: str, *, lock: bool = False) -> Limit | None:
    """The limit of a project; None: it has none. Locked, nobody else asks for it until the end of the transaction."""
    row = connection.execute(_FIND_LOCKED if lock else _FIND, {"project": project}).first()
    return None if row is None else Limit(row.project, row.max_running_tasks, row.admission)


def every(connection: sa.Connection) -> list[Limit]:
    """All limits, by project."""
    rows = connection.execute(sa.select(project_limit).order_by(project_limit.c.project))
    return [Limit(row.project, row.max_running_tasks, row.admission) for row in rows]


def put(connection: sa.Connection, limit: Limit) -> None:
    """This is the limit of its project now."""
    fields = {"max_running_tasks": limit.max_running_tasks, "admission": limit.admission}
    there = sa.update(project_limit).where(project_limit.c.project == limit.project)
    if not connection.execute(there.values(**fields)).rowcount:
        connection.execute(sa.insert(project_limit).values(project=limit.project, **fields))


def remove(connection: sa.Connection, project: str) -> bool:
    """It has none any more; whether it had one."""
    return bool(connection.execute(sa.delete(project_limit).where(project_limit.c.project == project)).rowcount)


def in_hands(connection: sa.Connection, project: str) -> int:
    """How many tasks of a project are queued for workers or run, in all shards."""
    of_project = sa.select(definition.c.code).where(definition.c.project == project)
    goes = going(instance.c.code.in_(of_project))
    chosen = sa.select(sa.func.count()).select_from(goes).join(task, is_of(goes))
    held = task.c.state.in_([TaskState.SUBMITTED.value, TaskState.RUNNING.value])
    return int(connection.execute(chosen.where(held, task.c.queue_key.is_not(None))).scalar_one())


def going(*more: sa.ColumnElement[bool]) -> sa.CTE:
    """The runs of which workers may have tasks: a few of all, and read first.

    A database that guesses that of a long history few tasks are queued would read them all.
    """
    return sa.select(instance.c.id, instance.c.run).where(IS_GOING, *more).cte("going").prefix_with("MATERIALIZED")


def is_of(goes: sa.CTE) -> sa.ColumnElement[bool]:
    """That a task is one of the present runs of these."""
    return sa.and_(task.c.instance == goes.c.id, task.c.run == goes.c.run)
