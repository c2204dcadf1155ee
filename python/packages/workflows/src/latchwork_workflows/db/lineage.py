"""The workflows and settings that the newest versions of workflows name, and references to missing ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db import settings
from latchwork_workflows.db.tables import definition, definition_version
from latchwork_workflows.model.definition import Definition
from latchwork_workflows.model.lineage import NAMING, WorkflowReference, list_references
from latchwork_workflows.model.settings.usage import StoredSettings, find_missing_settings

#: A row, by the names of its columns.
Row: TypeAlias = Any
#: The name prefix of workflows that test a connection.
TRIES = "_connection."


class ReferenceCache:
    """A cache of the workflows to which the newest version of each workflow refers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[int, tuple[int, tuple[WorkflowReference, ...]]] = {}

    def get_references(
        self, connection: sa.Connection, rows: Sequence[Row]
    ) -> dict[int, tuple[WorkflowReference, ...]]:
        """Return the references to other workflows in each of the given workflows, by workflow ID."""
        with self._lock:
            found = {row.code: self._found.get(row.code, (0, ())) for row in rows}
        missing = {row.code: row.version for row in rows if found[row.code][0] != row.version}
        bodies = _load_referencing_definitions(connection, missing)
        new = {code: (version, _references(bodies.get((code, version)))) for code, version in missing.items()}
        with self._lock:
            self._found.update(new)
        return {code: names for code, (_, names) in {**found, **new}.items()}


def _references(body: str | None) -> tuple[WorkflowReference, ...]:
    if body is None:
        return ()
    try:
        return list_references(Definition.model_validate_json(body))
    except ValueError:  # of a later version of latchwork
        return ()


def _load_referencing_definitions(connection: sa.Connection, versions: Mapping[int, int]) -> dict[tuple[int, int], str]:
    """Return the definitions that refer to other workflows, as JSON, by workflow ID and version.

    Args:
        connection: A transaction.
        versions: The newest version of each workflow, by workflow ID.
    """
    found: dict[tuple[int, int], str] = {}
    codes = sorted(versions)
    names = sa.or_(*(definition_version.c.body.contains(f'"{each}"', autoescape=True) for each in NAMING))
    columns = (definition_version.c.code, definition_version.c.version, definition_version.c.body)
    newest = sa.and_(
        definition_version.c.code == definition.c.code, definition_version.c.version == definition.c.version
    )
    for start in range(0, len(codes), 400):
        some = sa.select(*columns).join(definition, newest).where(definition.c.code.in_(codes[start : start + 400]))
        found.update({(row.code, row.version): row.body for row in connection.execute(some.where(names))})
    return found


class MissingReference(NamedTuple):
    """A reference of a workflow to something that does not exist.

    Attributes:
        workflow: ``project.name``.
        path: The location, such as ``tasks[3].params.connection``.
        message: What is missing, and how to fix it.
    """

    workflow: str
    path: str
    message: str


def find_missing_references(connection: sa.Connection, project: str | None = None) -> list[MissingReference]:
    """Return the references in online workflows to things that do not exist, sorted by project and name.

    Args:
        connection: A transaction.
        project: Check only workflows of this project. None: all projects.
    """
    newest = sa.and_(
        definition_version.c.code == definition.c.code, definition_version.c.version == definition.c.version
    )
    chosen = sa.select(definition.c.project, definition_version.c.body).join(definition_version, newest)
    chosen = chosen.where(definition.c.online, definition.c.name.not_like(f"\\{TRIES}%", escape="\\"))
    if project is not None:
        chosen = chosen.where(definition.c.project == project)
    known: dict[str, StoredSettings] = {}
    found = []
    for row in connection.execute(chosen.order_by(definition.c.project, definition.c.name)).all():
        body = _read(row.body)
        if body is None:
            continue
        if row.project not in known:
            known[row.project] = settings.load_setting_names(connection, row.project)
        found += [MissingReference(body.key, *each) for each in find_missing_settings(body, known[row.project])]
    return found


def _read(body: str) -> Definition | None:
    try:
        return Definition.model_validate_json(body)
    except ValueError:
        return None  # written by another version of this package
