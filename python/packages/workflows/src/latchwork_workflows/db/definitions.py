"""Definitions and their versions. A version never changes, and a new one is only written if it differs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from latchwork_workflows.db import pools
from latchwork_workflows.db.tables import definition, definition_version, schedule
from latchwork_workflows.errors import NotFound, WrongState
from latchwork_workflows.model.definition import Definition, ScheduleSpec
from latchwork_workflows.model.validate import ValidDefinition


@dataclass(frozen=True, slots=True)
class AppliedDefinition:
    """A version of a workflow.

    Attributes:
        code: The ID of the workflow. It never changes, even if the name does.
        number: The version number, from 1.
        is_new: Whether this call wrote it.
        is_online: Whether the workflow may be started.
    """

    code: int
    number: int
    is_new: bool
    is_online: bool


def save_definition(
    connection: sa.Connection, checked: ValidDefinition, *, shards: int, author: str = "", online: bool | None = None
) -> AppliedDefinition:
    """Store a definition as a new version, if it differs from the newest version of its workflow.

    A new or changed schedule begins with its next fire time. An unchanged schedule keeps its missed fire times, and a
    disabled schedule stays disabled. Pools that the definition names and that do not exist are created with a size of
    1.

    Args:
        connection: A transaction.
        checked: The definition.
        shards: The number of shards. The schedule of a new workflow is assigned to one.
        author: The author of the version.
        online: Whether the workflow may be started. None: a new workflow may, and an existing one stays as it is.
    """
    body, now = checked.definition.to_json(), time.time()
    pools.create_missing_pools(connection, [each.pool for each in checked.definition.tasks if each.pool is not None])
    there = _lock_definition(connection, checked.definition)
    if there is None:
        is_online = online is not False
        row = {"project": checked.definition.project, "name": checked.definition.name, "version": 1}
        made = sa.insert(definition).values(**row, online=is_online, created_at=now, changed_at=now)
        made = made.returning(definition.c.code)
        code, number = connection.execute(made).scalar_one(), 1
    else:
        code, is_online = there.code, there.online if online is None else online
        newest = sa.select(definition_version.c.body).where(
            definition_version.c.code == code, definition_version.c.version == there.version
        )
        is_same = connection.execute(newest).scalar_one() == body
        number = there.version if is_same else there.version + 1
        if online is not None:
            set_online(connection, code, online=online)
        if is_same:
            return AppliedDefinition(code, number, is_new=False, is_online=is_online)
        mine = sa.update(definition).where(definition.c.code == code)
        connection.execute(mine.values(version=number, changed_at=now))
    connection.execute(
        sa.insert(definition_version).values(code=code, version=number, body=body, created_at=now, author=author)
    )
    _save_schedule(connection, code, checked.definition.schedule, code % shards, now)
    return AppliedDefinition(code, number, is_new=True, is_online=is_online)


def set_online(connection: sa.Connection, code: int, *, online: bool) -> None:
    """Set whether a workflow is online, that is, whether it may be started.

    Fire times that its schedule misses while it is offline are not caught up.
    """
    now = time.time()
    if online:
        was_offline = sa.select(definition.c.code).where(definition.c.code == code, definition.c.online.is_(False))
        connection.execute(sa.update(schedule).where(schedule.c.code.in_(was_offline)).values(cursor=now))
    connection.execute(sa.update(definition).where(definition.c.code == code).values(online=online, changed_at=now))


def _lock_definition(connection: sa.Connection, wanted: Definition) -> Any:
    """Lock the row of a workflow and return it.

    Does not use ``FOR UPDATE``, which conflicts with foreign key checks.
    """
    found = sa.select(definition.c.code, definition.c.version, definition.c.online).where(
        definition.c.project == wanted.project, definition.c.name == wanted.name
    )
    return connection.execute(found.with_for_update(key_share=True)).first()


def _save_schedule(connection: sa.Connection, code: int, spec: ScheduleSpec | None, shard: int, now: float) -> None:
    mine = schedule.c.code == code
    if spec is None:
        connection.execute(sa.delete(schedule).where(mine))
        return
    values = {
        "cron": spec.cron,
        "tz": spec.tz,
        "starts_at": None if spec.start is None else spec.start.timestamp(),
        "ends_at": None if spec.end is None else spec.end.timestamp(),
        "misfire": spec.misfire,
        "max_lateness_s": spec.max_lateness_s,
    }
    there = connection.execute(sa.select(schedule).where(mine)).mappings().first()
    if there is None:
        connection.execute(sa.insert(schedule).values(code=code, shard=shard, cursor=now, **values))
    elif any(there[name] != value for name, value in values.items()):
        connection.execute(sa.update(schedule).where(mine).values(cursor=now, **values))


def list_possible_targets(key: str) -> list[tuple[str, str]]:
    """Return the projects and names that a reference to a workflow may mean. The first one that exists is used.

    Args:
        key: ``project.name``, or only a name.
    """
    project, dot, name = key.partition(".")
    return [(project, name), ("default", key)] if dot else [("default", key)]


class FoundWorkflow(NamedTuple):
    """A workflow found by name.

    Attributes:
        code: The ID of the workflow.
        version: Its newest version.
        is_online: Whether it may be started.
        project: Its project.
    """

    code: int
    version: int
    is_online: bool
    project: str


def find_workflow(connection: sa.Connection, key: str) -> FoundWorkflow:
    """Find a workflow by ``project.name``, or by its name in the project ``default``.

    Raises:
        NotFound: There is no such workflow.
    """
    for project_, name_ in list_possible_targets(key):
        row = connection.execute(
            sa.select(definition.c.code, definition.c.version, definition.c.online).where(
                definition.c.project == project_, definition.c.name == name_
            )
        ).first()
        if row is not None:
            return FoundWorkflow(row.code, row.version, row.online, project_)
    raise NotFound(f"there is no workflow {key!r}; list them, and name one of another project as project.name")


def check_online(connection: sa.Connection, code: int) -> None:
    """Check that a workflow is online, so that it may be started.

    Raises:
        WrongState: The workflow is offline.
    """
    row = connection.execute(sa.select(definition).where(definition.c.code == code)).first()
    if row is not None and not row.online:
        raise WrongState(f"{row.project}.{row.name} was set offline before it began; set it online, and start it again")


def load_definition(connection: sa.Connection, code: int, version: int) -> Definition:
    """Return the definition of a version.

    Raises:
        NotFound: There is no such version.
    """
    row = connection.execute(
        sa.select(definition_version.c.body).where(
            definition_version.c.code == code, definition_version.c.version == version
        )
    ).scalar_one_or_none()
    if row is None:
        raise NotFound(f"workflow {code} has no version {version}")
    return Definition.model_validate_json(row)
