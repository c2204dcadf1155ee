"""Read-only queries for workflows, their versions and schedules."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db.tables import command, definition, definition_version, fire, schedule, workflow_run
from latchwork_workflows.model.definition import Definition

#: A row, by the names of its columns.
Row: TypeAlias = Any
#: The maximum number of workflows in a list.
MAX = 5000

_WORKFLOW = sa.select(
    *definition.c,
    *(schedule.c[each] for each in ("cron", "tz", "starts_at", "ends_at", "cursor")),
    schedule.c.enabled.label("scheduled"),
).join(schedule, schedule.c.code == definition.c.code, isouter=True)


def list_projects(connection: sa.Connection) -> list[str]:
    """Return the names of the projects that have workflows, sorted."""
    return list(connection.execute(sa.select(definition.c.project).distinct().order_by(definition.c.project)).scalars())


def get_workflow_names(
    connection: sa.Connection, projects: Collection[str] | None, project: str = ""
) -> dict[int, str]:
    """Return the full name ``project.name`` of each workflow, by workflow ID.

    Args:
        connection: A transaction.
        projects: Return only workflows of these projects. None: all projects.
        project: Return only workflows of this project. Empty: no further restriction.
    """
    chosen = sa.select(definition.c.code, definition.c.project, definition.c.name).limit(MAX)
    if projects is not None:
        chosen = chosen.where(definition.c.project.in_(sorted(projects)))
    if project:
        chosen = chosen.where(definition.c.project == project)
    return {row.code: f"{row.project}.{row.name}" for row in connection.execute(chosen)}


def list_workflows(
    connection: sa.Connection,
    *,
    projects: Collection[str] | None = None,
    contains: str = "",
    after: tuple[str, str] | None = None,
    limit: int = 50,
) -> list[Row]:
    """Return workflows with their schedules, sorted by project and name.

    Args:
        connection: A transaction.
        projects: Return only workflows of these projects. None: all projects.
        contains: Only workflows whose project or name contains this text.
        after: Only workflows after this project and name.
        limit: The maximum number of workflows.
    """
    key = sa.tuple_(definition.c.project, definition.c.name)
    chosen = _WORKFLOW
    if projects is not None:
        chosen = chosen.where(definition.c.project.in_(sorted(projects)))
    if contains:
        chosen = chosen.where((definition.c.project + "." + definition.c.name).icontains(contains, autoescape=True))
    if after is not None:
        chosen = chosen.where(key > after)
    return list(connection.execute(chosen.order_by(definition.c.project, definition.c.name).limit(limit)).all())


def find_workflow(connection: sa.Connection, project: str, name: str) -> Row | None:
    """Return a workflow with its schedule, or None if there is none."""
    there = sa.and_(definition.c.project == project, definition.c.name == name)
    return connection.execute(_WORKFLOW.where(there)).first()


def find_workflow_by_code(connection: sa.Connection, code: int) -> Row | None:
    """Return the workflow with this code, or None."""
    return connection.execute(sa.select(*definition.c).where(definition.c.code == code)).first()


def list_newest_versions(connection: sa.Connection, projects: Collection[str] | None = None) -> list[Row]:
    """Return workflows with their newest versions, sorted by project and name. Definitions are not loaded.

    Args:
        connection: A transaction.
        projects: Return only workflows of these projects. None: all projects.
    """
    chosen = sa.select(*definition.c).order_by(definition.c.project, definition.c.name).limit(MAX)
    return list(
        connection.execute(chosen if projects is None else chosen.where(definition.c.project.in_(sorted(projects))))
    )


def list_versions(connection: sa.Connection, code: int, *, before: int | None = None, limit: int = 50) -> list[Row]:
    """Return the versions of a workflow without their definitions, newest first.

    Args:
        connection: A transaction.
        code: The ID of the workflow.
        before: Return only lower version numbers, for the next page.
        limit: The maximum number of versions.
    """
    columns = (definition_version.c.version, definition_version.c.created_at, definition_version.c.author)
    chosen = sa.select(*columns).where(definition_version.c.code == code)
    if before is not None:
        chosen = chosen.where(definition_version.c.version < before)
    return list(connection.execute(chosen.order_by(definition_version.c.version.desc()).limit(limit)).all())


def load_definition(connection: sa.Connection, code: int, version: int) -> Definition | None:
    """Return the definition of a workflow version, or None if it does not exist.

    Args:
        connection: A transaction.
        code: The ID of the workflow.
        version: The version.
    """
    there = sa.and_(definition_version.c.code == code, definition_version.c.version == version)
    found = connection.execute(sa.select(definition_version.c.body).where(there)).scalar_one_or_none()
    return None if found is None else Definition.model_validate_json(found)


def list_schedules(connection: sa.Connection, projects: Collection[str] | None = None, limit: int = 1000) -> list[Row]:
    """Return schedules with the names of their workflows, sorted by project and name.

    Args:
        connection: A transaction.
        projects: Return only schedules of these projects. None: all projects.
        limit: The maximum number of schedules.
    """
    columns = (definition.c.project, definition.c.name, definition.c.online, definition.c.version)
    chosen = sa.select(*schedule.c, *columns).join(definition, definition.c.code == schedule.c.code)
    if projects is not None:
        chosen = chosen.where(definition.c.project.in_(sorted(projects)))
    return list(connection.execute(chosen.order_by(definition.c.project, definition.c.name).limit(limit)).all())


def load_last_fire_times(connection: sa.Connection, codes_: Collection[int]) -> dict[int, Row]:
    """Return the newest fire time of each schedule and the run that it started, by workflow ID.

    Args:
        connection: A transaction.
        codes_: The IDs of the workflows.
    Returns:
        Rows with ``fire_time``, ``run_id`` and ``state``, and with ``done_at`` and ``error`` of the start command. All
        columns except ``fire_time`` are NULL if the command was deleted.
    """
    each = fire.alias()
    newest = sa.select(sa.func.max(each.c.fire_time)).where(each.c.code == schedule.c.code).scalar_subquery()
    chosen = sa.select(
        fire.c.code, fire.c.fire_time, command.c.done_at, command.c.error, command.c.run_id, workflow_run.c.state
    ).select_from(schedule)
    chosen = chosen.join(fire, sa.and_(fire.c.code == schedule.c.code, fire.c.fire_time == newest))
    chosen = chosen.join(command, command.c.id == fire.c.command, isouter=True)
    chosen = chosen.join(workflow_run, workflow_run.c.id == command.c.run_id, isouter=True)
    rows = connection.execute(chosen.where(schedule.c.code.in_(sorted(codes_))))
    return {row.code: row for row in rows}


def find_schedule(connection: sa.Connection, code: int) -> Row | None:
    """Return the schedule of a workflow, or None if it has none."""
    return connection.execute(sa.select(*schedule.c).where(schedule.c.code == code)).first()
