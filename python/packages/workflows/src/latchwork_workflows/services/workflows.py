"""Workflows: what an account may see of them, and how to change them."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db import definitions, grants, related_runs, settings, workflow_queries
from latchwork_workflows.db.history import record_event
from latchwork_workflows.db.tables import shard
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.model.settings import usage
from latchwork_workflows.model.validate import ValidDefinition, check_definition
from latchwork_workflows.model.yaml_format import format_yaml, parse_yaml
from latchwork_workflows.schemas.workflows import AppliedVersion, Workflow, WorkflowDetail, WorkflowVersion
from latchwork_workflows.services.context import ServiceContext, require_role, require_visible
from latchwork_workflows.services.errors import object_not_found
from latchwork_workflows.services.schedules import list_next_fires
from latchwork_workflows.web import HttpProblem, Identity, Role

Row: TypeAlias = Any


def find_workflow_row(context: ServiceContext, user: Identity, project: str, name: str) -> Row:
    """Return the database row of a workflow, if the account may see it.

    Raises:
        HttpProblem: 404 (not found) if there is no such workflow or the account may not see it.
    """
    with context.database.read() as connection:
        return require_visible(
            user, workflow_queries.find_workflow(connection, project, name), f"workflow {project}.{name}"
        )


def list_workflows(
    context: ServiceContext, user: Identity, *, contains: str = "", after: str = "", limit: int = 50
) -> list[Workflow]:
    """Return the workflows that the account may see, sorted by project and name.

    Args:
        context: The service context of this process.
        user: The requesting account.
        contains: Only those whose ``project.name`` contains this text.
        after: Only those after this ``project.name``.
        limit: The maximum number of results.
    """
    project, _, name = after.replace("\x00", "").partition(".")
    with context.database.read() as connection:
        rows = workflow_queries.list_workflows(
            connection,
            projects=user.get_projects(),
            contains=contains.replace("\x00", ""),
            after=(project, name) if after else None,
            limit=limit,
        )
    now = time.time()
    return [_workflow(row, now) for row in rows]


def _workflow(row: Row, now: float) -> Workflow:
    fires = row.cron and row.scheduled and row.online
    next_at = next(iter(list_next_fires(row, now, 1)), None) if fires else None
    return Workflow.from_row(row, scheduled=bool(row.scheduled), next_at=next_at)


def get_workflow(
    context: ServiceContext, user: Identity, project: str, name: str, version: int | None = None
) -> WorkflowDetail:
    """Return a workflow with the definition of one version.

    Args:
        context: The service context of this process.
        user: The requesting account.
        project: Project of the workflow.
        name: Name of the workflow.
        version: The version. None: the newest one.
    Raises:
        HttpProblem: 404 (not found) if there is no such workflow or version or the account may not see it.
    """
    with context.database.read() as connection:
        row = require_visible(
            user, workflow_queries.find_workflow(connection, project, name), f"workflow {project}.{name}"
        )
        number = version or row.version
        body = workflow_queries.load_definition(connection, row.code, number)
    if body is None:
        raise object_not_found(f"workflow {project}.{name} has no version {number}; its newest is {row.version}")
    return WorkflowDetail(**dict(_workflow(row, time.time())), shown_version=number, definition=body)


def list_versions(
    context: ServiceContext, user: Identity, project: str, name: str, *, before: int | None = None, limit: int = 50
) -> list[WorkflowVersion]:
    """Return the versions of a workflow, newest first.

    Raises:
        HttpProblem: 404 (not found) if there is no such workflow or the account may not see it.
    """
    with context.database.read() as connection:
        row = require_visible(
            user, workflow_queries.find_workflow(connection, project, name), f"workflow {project}.{name}"
        )
        rows = workflow_queries.list_versions(connection, row.code, before=before, limit=limit)
    return [WorkflowVersion.model_validate(each) for each in rows]


def diff_versions(  # noqa: PLR0917 - what the address has
    context: ServiceContext, user: Identity, project: str, name: str, old: int, new: int
) -> list[str]:
    """Return a unified diff between the YAML of two versions.

    Raises:
        HttpProblem: 404 (not found) if there is no such workflow or version or the account may not see it.
    """
    before, after = (
        format_yaml(get_workflow(context, user, project, name, each).definition).splitlines() for each in (old, new)
    )
    return list(difflib.unified_diff(before, after, f"version {old}", f"version {new}", lineterm=""))


def validate_definition(
    context: ServiceContext, user: Identity, definition: str | Mapping[str, Any]
) -> ValidDefinition:
    """Check a definition that is given as text or as plain values.

    An account that may see the project of the workflow also gets errors about missing settings.

    Raises:
        DefinitionInvalid: Contains every problem that was found.
    """
    plain = parse_yaml(definition) if isinstance(definition, str) else definition
    project = plain.get("project", "default")
    if not isinstance(project, str) or not user.has_role(Role.VIEWER, project):
        return check_definition(plain, context.types)
    with context.database.read() as connection:
        found = check_definition(plain, context.types, settings.load_setting_names(connection, project))
        wrong = list(grants.find_missing_grants(connection, found.definition))
    if wrong:
        raise DefinitionInvalid(wrong)
    return found


def apply_definition(
    context: ServiceContext,
    user: Identity,
    definition: str | Mapping[str, Any],
    *,
    online: bool | None = None,
    base: int | None = None,
) -> AppliedVersion:
    """Store a definition of a workflow. It becomes a new version if it differs from the newest version.

    Args:
        context: The service context of this process.
        user: The requesting account. Must be an editor of the project.
        definition: The definition.
        online: Whether it may be started. None: a new workflow may, and an existing one stays as it is.
        base: The version that was edited. None: any. 0: the workflow is new.
    Raises:
        DefinitionInvalid: With every problem.
        HttpProblem: 403 (forbidden) if the account may not do this, 409 (conflict) if there is a newer version than
            ``base``.
    """
    found = validate_definition(context, user, definition)
    wanted = found.definition
    require_role(user, Role.EDITOR, wanted.project)
    with context.database.write() as connection:
        there = workflow_queries.find_workflow(connection, wanted.project, wanted.name)
        newest = there.version if there is not None else 0
        if base is not None and base != newest:
            raise HttpProblem(
                409,
                f"{wanted.key} has version {newest} now, and version {base} was edited; compare them, then apply again",
                version=newest,
            )
        wrong = [*related_runs.find_cycles(connection, [wanted], may_see=partial(user.has_role, Role.VIEWER))[0]]
        wrong += grants.find_missing_grants(connection, wanted)
        wrong += usage.find_missing_settings(wanted, settings.load_setting_names(connection, wanted.project))
        if wrong:
            raise DefinitionInvalid(wrong)
        shards = connection.execute(sa.select(sa.func.count()).select_from(shard)).scalar_one()
        version = definitions.save_definition(connection, found, shards=max(1, shards), author=user.name, online=online)
        if version.is_new or (there is not None and there.online != version.is_online):
            details = {"workflow": wanted.name, "version": version.number, "online": version.is_online}
            record_event(connection, "workflow apply", by=user.name, project=wanted.project, details=details)
    context.notify_master(0)  # its master copies new pool sizes to the store
    return AppliedVersion(
        project=wanted.project,
        name=wanted.name,
        code=version.code,
        version=version.number,
        is_new=version.is_new,
        online=version.is_online,
    )


def set_online(context: ServiceContext, user: Identity, project: str, name: str, *, online: bool) -> None:
    """Set a workflow online, so that it may be started, or offline. Active runs continue.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such workflow.
    """
    row = find_workflow_row(context, user, project, name)
    require_role(user, Role.EDITOR, project)
    with context.database.write() as connection:
        definitions.set_online(connection, row.code, online=online)
        kind = "workflow online" if online else "workflow offline"
        record_event(connection, kind, by=user.name, project=project, details={"workflow": name})
