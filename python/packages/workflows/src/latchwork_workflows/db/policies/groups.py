"""Task groups in the database: how many of their tasks run at a time. The master of the first shard tells the store."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork_workflows.db.tables import definition, definition_version, task_group
from latchwork_workflows.model.model import Definition

#: The size of a group that a workflow named before anybody said how large it is.
SIZE_UNSAID = 1
#: So many tasks of a group run at a time at most: each has a key of its own.
MOST_SIZE = 10_000


def sizes(connection: sa.Connection) -> dict[str, int]:
    """All groups, by name, with their sizes."""
    chosen = sa.select(task_group.c.name, task_group.c.size).order_by(task_group.c.name)
    return {row.name: row.size for row in connection.execute(chosen)}


def ensure(connection: sa.Connection, names: Iterable[str]) -> None:
    """Make those that nobody has made: one task of each at a time."""
    rows = [{"name": name, "size": SIZE_UNSAID} for name in sorted(set(names))]
    if rows:
        insert = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(task_group)
        connection.execute(insert.on_conflict_do_nothing(index_elements=["name"]), rows)


def put(connection: sa.Connection, name: str, size: int) -> bool:
    """This is its size now; whether it is new."""
    changed = connection.execute(sa.update(task_group).where(task_group.c.name == name).values(size=size)).rowcount
    if not changed:
        connection.execute(sa.insert(task_group).values(name=name, size=size))
    return not changed


def remove(connection: sa.Connection, name: str) -> bool:
    """It is there no more; whether it was."""
    return bool(connection.execute(sa.delete(task_group).where(task_group.c.name == name)).rowcount)


def users(connection: sa.Connection) -> dict[str, list[str]]:
    """The workflows that name each group in their newest versions, as ``project.name``."""
    newest = sa.and_(
        definition_version.c.code == definition.c.code, definition_version.c.version == definition.c.version
    )
    chosen = sa.select(definition_version.c.body).join(definition, newest)
    named = chosen.where(definition_version.c.body.contains('"task_group"', autoescape=True))
    found: dict[str, list[str]] = {}
    for body in connection.execute(named.order_by(definition.c.project, definition.c.name)).scalars():
        try:
            flow = Definition.model_validate_json(body)
        except ValueError:
            continue  # of a later version, which names what we do not know
        for name in sorted({each.task_group for each in flow.tasks if each.task_group is not None}):
            found.setdefault(name, []).append(flow.key)
    return found
