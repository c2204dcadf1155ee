"""What belongs to a run: what it is a part of, the runs that its tasks started, what they wait for, maps' elements."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeAlias

from latchwork_workflows.db.views import instances, kin
from latchwork_workflows.model.logical import full_name
from latchwork_workflows.model.model import Definition
from latchwork_workflows.services import held
from latchwork_workflows.services.parts import Parts
from latchwork_workflows.services.runs import find, find_task
from latchwork_workflows.state import base_of
from latchwork_workflows.web import Identity, Problem, Role

Row: TypeAlias = Any


class Awaited(NamedTuple):
    """What a dependent waits for.

    Attributes:
        workflow: ``project.name``.
        task: of it; empty: the run as a whole; ``*``: each of its tasks.
        window: the run of which time.
        said: whether it is as wanted; None: not yet.
    """

    workflow: str
    task: str
    window: str
    said: bool | None


def parent(parts: Parts, who: Identity, row: Row) -> Row | None:
    """The task that started a run, with its instance and workflow; None: nobody did, or who asks may not see it."""
    if row.parent_task is None:
        return None
    with parts.database.read() as connection:
        found = instances.find_task(connection, row.parent_task)
    return found if found is not None and who.may(Role.VIEWER, found.project) else None


def children(parts: Parts, who: Identity, tasks: Collection[int]) -> Mapping[int, Row]:
    """The runs that these tasks started, by the id of the task, as far as who asks may see them."""
    with parts.database.read() as connection:
        found = kin.children(connection, tasks)
    return {task: row for task, row in found.items() if who.may(Role.VIEWER, row.project)}


def children_of(parts: Parts, who: Identity, run_id: int, *, before: int | None, most: int) -> list[Row]:
    """The runs that tasks of a run started, the newest first, as far as who asks may see them.

    Raises:
        Problem: 404.
    """
    row = find(parts, who, run_id)
    with parts.database.read() as connection:
        found = kin.children_of(connection, row.id, before=before, most=most)
    return [each for each in found if who.may(Role.VIEWER, each.project)]


def elements(
    parts: Parts, who: Identity, task_id: int, *, state: str = "", after: int | None = None, most: int = 100
) -> list[Row]:
    """The elements of a map, by their index.

    Raises:
        Problem: 404, also of what is no map.
    """
    task = find_task(parts, who, task_id)
    if task.map_index >= 0:
        raise Problem(404, f"task {task_id} is an element of a map; ask for the elements of {base_of(task.name)}")
    with parts.database.read() as connection:
        return kin.elements(connection, task, state=state, after=after, most=most)


def awaited(parts: Parts, who: Identity, row: Row, body: Definition, task: str) -> list[Awaited]:
    """What a task waits for, if it is a dependent, as far as who asks may see it."""
    spec = next((each for each in body.tasks if each.name == base_of(task)), None)
    if spec is None or spec.type != "dependent":
        return []
    with parts.database.read() as connection:
        found = held.wanted(connection, row, body, spec)
    shown = [Awaited(full_name(each.workflow), each.task, each.window, said) for each, said in found]
    return [each for each in shown if who.may(Role.VIEWER, each.workflow.partition(".")[0])]
