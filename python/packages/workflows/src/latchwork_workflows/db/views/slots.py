"""Who holds the slots of task groups and of projects with a limit, and who waits for one, as the rows have it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import nsmallest
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db.policies import limits
from latchwork_workflows.db.tables import attempt, definition, instance, task
from latchwork_workflows.db.views.instances import TASK
from latchwork_workflows.keys import slots_of
from latchwork_workflows.state import TaskState

#: A row, by the names of its columns.
Row: TypeAlias = Any
_NAMED = sa.select(*TASK, definition.c.project, definition.c.name.label("workflow"))
_TOGETHER = 400


class Waiting(NamedTuple):
    """Who waits for a slot.

    Attributes:
        total: how many tasks.
        first: those that are taken first, in their order.
    """

    total: int
    first: list[Row]


def waiting_counts(connection: sa.Connection) -> dict[str, int]:
    """How many queued tasks need a slot of each group, by its name; without those for which none waits."""
    found: dict[str, int] = {}
    for _, lane, *_ in _queued(connection):
        for name in slots_of(lane):
            found[name] = found.get(name, 0) + 1
    return found


def waiting(connection: sa.Connection, name: str, most: int) -> Waiting:
    """Who waits for a slot of a group: a few of them, with their workflows."""
    mine = [(shelf, number) for number, lane, shelf in _queued(connection) if name in slots_of(lane)]
    ids = [number for _, number in nsmallest(most, mine)]
    rows = of_tasks(connection, ids)
    return Waiting(len(mine), [rows[each] for each in ids if each in rows])


def _queued(connection: sa.Connection) -> Iterator[tuple[int, str, str]]:
    """The queued tasks that need a slot: their ids, lanes, and where in these they are."""
    goes = limits.going()
    chosen = sa.select(task.c.id, task.c.queue_key).select_from(goes).join(task, limits.is_of(goes))
    chosen = chosen.where(task.c.state == TaskState.SUBMITTED.value, task.c.queue_key.contains("~"))
    for row in connection.execute(chosen):
        lane, _, shelf = row.queue_key.partition("/")
        yield row.id, lane, shelf


def of_tasks(connection: sa.Connection, ids: Collection[int]) -> dict[int, Row]:
    """Tasks with the projects and names of their workflows, by id; those that are not there are missing."""
    found: dict[int, Row] = {}
    wanted = list(ids)
    for start in range(0, len(wanted), _TOGETHER):
        chosen = _NAMED.select_from(task).join(instance, instance.c.id == task.c.instance)
        chosen = chosen.join(definition, definition.c.code == instance.c.code)
        part = task.c.id.in_(wanted[start : start + _TOGETHER])
        found.update({row.id: row for row in connection.execute(chosen.where(part))})
    return found


def at_work(connection: sa.Connection, ids: Collection[int]) -> dict[tuple[int, int], Row]:
    """The newest claim of each attempt of these tasks, by task and number: ``worker`` and ``started_at``."""
    found: dict[tuple[int, int], Row] = {}
    wanted = list(ids)
    for start in range(0, len(wanted), _TOGETHER):
        chosen = sa.select(attempt.c.task, attempt.c.n, attempt.c.worker, attempt.c.started_at)
        chosen = chosen.where(attempt.c.task.in_(wanted[start : start + _TOGETHER]))
        found.update({(row.task, row.n): row for row in connection.execute(chosen.order_by(attempt.c.claim))})
    return found
