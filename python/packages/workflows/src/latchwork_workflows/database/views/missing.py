"""What workflows name, and what is not there: connections, environments, task groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import sqlalchemy as sa

from latchwork_workflows.database import settings
from latchwork_workflows.database.tables import definition, definition_version, task_group
from latchwork_workflows.definitions.model import Definition
from latchwork_workflows.definitions.settings.naming import Settings, problems

#: What workflows that try a connection are called, before its name; they go when they fail.
TRIES = "_connection."


class Missing(NamedTuple):
    """A place of a workflow that names what is not there.

    Attributes:
        workflow: ``project.name``.
        path: where, such as ``tasks[3].params.connection``.
        message: what is missing, and what to do.
        group: the task group, if it is one that is missing.
    """

    workflow: str
    path: str
    message: str
    group: str = ""


def missing(connection: sa.Connection, project: str | None = None) -> list[Missing]:
    """In the newest versions of workflows that may be started; of a project, or of all. By project and name."""
    newest = sa.and_(
        definition_version.c.code == definition.c.code, definition_version.c.version == definition.c.version
    )
    chosen = sa.select(definition.c.project, definition_version.c.body).join(definition_version, newest)
    chosen = chosen.where(definition.c.online, definition.c.name.not_like(f"\\{TRIES}%", escape="\\"))
    if project is not None:
        chosen = chosen.where(definition.c.project == project)
    groups = frozenset(connection.execute(sa.select(task_group.c.name)).scalars())
    known: dict[str, Settings] = {}
    found = []
    for row in connection.execute(chosen.order_by(definition.c.project, definition.c.name)).all():
        body = _read(row.body)
        if body is None:
            continue
        if row.project not in known:
            known[row.project] = settings.of_project(connection, row.project)
        found += [Missing(body.key, *each) for each in problems(body, known[row.project])]
        found += _groups(body, groups)
    return found


def _read(body: str) -> Definition | None:
    try:
        return Definition.model_validate_json(body)
    except ValueError:
        return None  # of another version of ours


def _groups(body: Definition, groups: frozenset[str]) -> Iterator[Missing]:
    for index, task in enumerate(body.tasks):
        if task.task_group is not None and task.task_group not in groups:
            why = f"there is no task group {task.task_group!r}: set its size first"
            yield Missing(body.key, f"tasks[{index}].task_group", why, task.task_group)
