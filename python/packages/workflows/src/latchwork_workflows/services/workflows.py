"""Workflows: what an account may see of them, and how to change them."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db import definitions, grants, related_runs, settings, workflow_queries
from latchwork_workflows.db.history import told
from latchwork_workflows.db.tables import shard
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.model.settings import usage
from latchwork_workflows.model.validate import Checked, checked
from latchwork_workflows.model.yaml_format import read, write
from latchwork_workflows.schemas.workflows import AppliedVersion, Workflow, WorkflowDetail, WorkflowVersion
from latchwork_workflows.services.parts import Parts, need, seen
from latchwork_workflows.services.schedules import next_fires
from latchwork_workflows.web import Identity, Problem, Role

Row: TypeAlias = Any


def row_of(parts: Parts, who: Identity, project: str, name: str) -> Row:
    """Return the row of a workflow.

    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        return seen(who, workflow_queries.find(connection, project, name), f"workflow {project}.{name}")


def listed(parts: Parts, who: Identity, *, contains: str = "", after: str = "", limit: int = 50) -> list[Workflow]:
    """Return workflows, sorted by project and name.

    Args:
        parts: The parts of this process.
        who: The account that asks.
        contains: Only those whose ``project.name`` contains this text.
        after: Only those after this ``project.name``.
        limit: The most to return.
    """
    project, _, name = after.replace("\x00", "").partition(".")
    with parts.database.read() as connection:
        rows = workflow_queries.listed(
            connection,
            among=who.projects(),
            contains=contains.replace("\x00", ""),
            after=(project, name) if after else None,
            most=limit,
        )
    now = time.time()
    return [_workflow(row, now) for row in rows]


def _workflow(row: Row, now: float) -> Workflow:
    fires = row.cron and row.scheduled and row.online
    next_at = next(iter(next_fires(row, now, 1)), None) if fires else None
    return Workflow.of(row, scheduled=bool(row.scheduled), next_at=next_at)


def get(parts: Parts, who: Identity, project: str, name: str, version: int | None = None) -> WorkflowDetail:
    """Return a workflow with the definition of a version. None: the newest.

    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        row = seen(who, workflow_queries.find(connection, project, name), f"workflow {project}.{name}")
        number = version or row.version
        body = workflow_queries.body(connection, row.code, number)
    if body is None:
        raise Problem(404, f"workflow {project}.{name} has no version {number}; its newest is {row.version}")
    return WorkflowDetail(**dict(_workflow(row, time.time())), shown_version=number, definition=body)


def versions(
    parts: Parts, who: Identity, project: str, name: str, *, before: int | None = None, limit: int = 50
) -> list[WorkflowVersion]:
    """Return the versions of a workflow, the newest first.

    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        row = seen(who, workflow_queries.find(connection, project, name), f"workflow {project}.{name}")
        rows = workflow_queries.versions(connection, row.code, before=before, most=limit)
    return [WorkflowVersion.model_validate(each) for each in rows]


def diff(  # noqa: PLR0917 - what the address has
    parts: Parts, who: Identity, project: str, name: str, old: int, new: int
) -> list[str]:
    """Return a unified diff between the YAML of two versions.

    Raises:
        Problem: 404.
    """
    before, after = (write(get(parts, who, project, name, each).definition).splitlines() for each in (old, new))
    return list(difflib.unified_diff(before, after, f"version {old}", f"version {new}", lineterm=""))


def check(parts: Parts, who: Identity, given: str | Mapping[str, Any]) -> Checked:
    """Check a definition given as text or as plain values.

    A viewer of its project also gets errors about missing settings.

    Raises:
        DefinitionInvalid: With every problem.
    """
    plain = read(given) if isinstance(given, str) else given
    project = plain.get("project", "default")
    if not isinstance(project, str) or not who.may(Role.VIEWER, project):
        return checked(plain, parts.types)
    with parts.database.read() as connection:
        found = checked(plain, parts.types, settings.of_project(connection, project))
        wrong = list(grants.problems(connection, found.definition))
    if wrong:
        raise DefinitionInvalid(wrong)
    return found


def apply(
    parts: Parts, who: Identity, given: str | Mapping[str, Any], *, online: bool | None = None, base: int | None = None
) -> AppliedVersion:
    """Store a definition, as a new version if it differs.

    Args:
        parts: The parts of this process.
        who: The account that asks. Must be an editor of the project.
        given: The definition.
        online: Whether it may be started. None: a new workflow may, and an existing one stays as it is.
        base: The version that was edited. None: any. 0: the workflow is new.
    Raises:
        DefinitionInvalid: With every problem.
        Problem: 403; 409 if there is a newer version than ``base``.
    """
    found = check(parts, who, given)
    wanted = found.definition
    need(who, Role.EDITOR, wanted.project)
    with parts.database.write() as connection:
        there = workflow_queries.find(connection, wanted.project, wanted.name)
        newest = there.version if there is not None else 0
        if base is not None and base != newest:
            raise Problem(
                409,
                f"{wanted.key} has version {newest} now, and version {base} was edited; compare them, then apply again",
                version=newest,
            )
        wrong = [*related_runs.rings(connection, [wanted], may_see=partial(who.may, Role.VIEWER))[0]]
        wrong += grants.problems(connection, wanted)
        wrong += usage.problems(wanted, settings.of_project(connection, wanted.project))
        if wrong:
            raise DefinitionInvalid(wrong)
        shards = connection.execute(sa.select(sa.func.count()).select_from(shard)).scalar_one()
        version = definitions.apply(connection, found, shards=max(1, shards), author=who.name, online=online)
        if version.is_new or (there is not None and there.online != version.is_online):
            details = {"workflow": wanted.name, "version": version.number, "online": version.is_online}
            told(connection, "workflow apply", by=who.name, project=wanted.project, details=details)
    parts.poke(0)  # its master copies new pool sizes to the store
    return AppliedVersion(
        project=wanted.project,
        name=wanted.name,
        code=version.code,
        version=version.number,
        is_new=version.is_new,
        online=version.is_online,
    )


def set_online(parts: Parts, who: Identity, project: str, name: str, *, online: bool) -> None:
    """Set whether a workflow may be started. Existing runs continue.

    Raises:
        Problem: 403, 404.
    """
    row = row_of(parts, who, project, name)
    need(who, Role.EDITOR, project)
    with parts.database.write() as connection:
        definitions.set_online(connection, row.code, online=online)
        kind = "workflow online" if online else "workflow offline"
        told(connection, kind, by=who.name, project=project, details={"workflow": name})
