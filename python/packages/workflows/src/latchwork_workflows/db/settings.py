"""Connections, environments and parameters, of one project or of all. Those of a project take precedence.

Masters read them when they dispatch an attempt. Later changes do not affect that attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork_workflows.db.tables import connection as connections
from latchwork_workflows.db.tables import environment, parameter
from latchwork_workflows.model.settings.usage import StoredSettings
from latchwork_workflows.schemas.settings import SettingKind

Row: TypeAlias = Any
TABLES: Mapping[SettingKind, sa.Table] = {"connection": connections, "environment": environment, "parameter": parameter}
#: The project that means all projects.
ALL = ""
_PARAMETERS = (
    sa.select(parameter.c.name, parameter.c.value)
    .where(parameter.c.project.in_([ALL, sa.bindparam("project")]))
    .order_by(parameter.c.project)
)


def list_settings(connection: sa.Connection, kind: SettingKind, projects: Collection[str] | None = None) -> list[Row]:
    """Return settings, sorted by project and name. Settings shared by all projects are included.

    Args:
        connection: A transaction.
        kind: The kind of settings.
        projects: Return only settings of these projects, and shared ones. None: all projects.
    """
    table = TABLES[kind]
    chosen = sa.select(table).order_by(table.c.project, table.c.name)
    if projects is not None:
        chosen = chosen.where(table.c.project.in_([ALL, *sorted(projects)]))
    return list(connection.execute(chosen).all())


def find_setting(
    connection: sa.Connection, kind: SettingKind, project: str, name: str, *, lock: bool = False
) -> Row | None:
    """Return a setting, or None if there is none.

    Args:
        connection: A transaction.
        kind: The kind of the setting.
        project: Its project. Empty: it is shared by all projects.
        name: Its name.
        lock: Lock its row until the end of the transaction.
    """
    chosen = sa.select(TABLES[kind]).where(_is_setting(kind, project, name))
    return connection.execute(chosen.with_for_update() if lock else chosen).first()


def count_settings(connection: sa.Connection, kind: SettingKind, project: str) -> int:
    """Return the number of settings of a project."""
    table = TABLES[kind]
    return int(connection.execute(sa.select(sa.func.count()).where(table.c.project == project)).scalar_one())


def save_setting(
    connection: sa.Connection, kind: SettingKind, project: str, name: str, values: Mapping[str, Any]
) -> None:
    """Create or replace a setting."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    made = insert(TABLES[kind]).values(project=project, name=name, **values)
    connection.execute(made.on_conflict_do_update(index_elements=["project", "name"], set_=dict(values)))


def delete_setting(connection: sa.Connection, kind: SettingKind, project: str, name: str) -> bool:
    """Delete a setting, and return whether it existed."""
    return bool(connection.execute(sa.delete(TABLES[kind]).where(_is_setting(kind, project, name))).rowcount)


def load_setting_names(connection: sa.Connection, project: str) -> StoredSettings:
    """Return the names of all settings that the workflows of a project may use."""

    def names(kind: SettingKind) -> frozenset[str]:
        table = TABLES[kind]
        return frozenset(connection.execute(sa.select(table.c.name).where(_visible_to(table, project))).scalars())

    return StoredSettings(
        names("connection"),
        {name: frozenset(each) for name, each in load_environments(connection, project).items()},
        names("parameter"),
    )


def load_parameters(connection: sa.Connection, project: str) -> dict[str, Any]:
    """Return the parameters that apply to the workflows of a project, by name."""
    return {row.name: row.value for row in connection.execute(_PARAMETERS, {"project": project})}


def load_environments(
    connection: sa.Connection, project: str, names: Collection[str] | None = None
) -> dict[str, dict[str, str]]:
    """Return the variables of the environments that apply to a project, by environment name.

    Args:
        connection: A transaction.
        project: The project.
        names: Return only these environments. None: all.
    """
    chosen = sa.select(environment.c.name, environment.c.variables).where(_visible_to(environment, project))
    if names is not None:
        chosen = chosen.where(environment.c.name.in_(sorted(names)))
    return {row.name: dict(row.variables) for row in connection.execute(chosen.order_by(environment.c.project))}


def load_connections(
    connection: sa.Connection, project: str, names: Collection[str] | None = None
) -> dict[str, dict[str, str]]:
    """Return ``url`` and ``secret`` of the connections that apply to a project, by name.

    Args:
        connection: A transaction.
        project: The project.
        names: Return only these connections. None: all.
    """
    chosen = sa.select(connections).where(_visible_to(connections, project))
    if names is not None:
        chosen = chosen.where(connections.c.name.in_(sorted(names)))
    rows = connection.execute(chosen.order_by(connections.c.project))
    return {row.name: {"url": row.url, "secret": row.secret} for row in rows}


def _visible_to(table: sa.Table, project: str) -> sa.ColumnElement[bool]:
    return table.c.project.in_([ALL, project])


def _is_setting(kind: SettingKind, project: str, name: str) -> sa.ColumnElement[bool]:
    table = TABLES[kind]
    return sa.and_(table.c.project == project, table.c.name == name)
