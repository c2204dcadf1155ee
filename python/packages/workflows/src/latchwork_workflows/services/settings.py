"""Connections, environments and parameters: their permissions, and how a connection is tested.

A viewer of a project sees the names. An editor also sees the values, which its tasks could print anyway, and changes
those of the project. Only administrators of all projects change the settings for all projects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from latchwork_workflows.db import settings
from latchwork_workflows.db.history import record_event
from latchwork_workflows.db.lineage import TRIES, find_missing_references
from latchwork_workflows.db.settings import ALL
from latchwork_workflows.errors import Problem as Wrong
from latchwork_workflows.model.settings.validation import (
    MAX,
    find_connection_problems,
    find_environment_problems,
    find_parameter_problems,
)
from latchwork_workflows.schemas.commands import CommandSent
from latchwork_workflows.schemas.runs import StartRequest
from latchwork_workflows.schemas.settings import Connection, Environment, Parameter, Setting, SettingKind
from latchwork_workflows.services import workflows
from latchwork_workflows.services.context import ServiceContext, require_role
from latchwork_workflows.services.errors import object_not_found
from latchwork_workflows.services.runs import request_run
from latchwork_workflows.web import HttpProblem, Identity, Role

Row: TypeAlias = Any
#: Time limit of a connection test, in seconds.
TRY_S = 30.0


S = TypeVar("S", bound=Setting)


def list_connections(context: ServiceContext, user: Identity, project: str | None = None) -> list[Connection]:
    """Return the connections that the account may see, sorted by project and name.

    Args:
        context: The service context of this process.
        user: The requesting account.
        project: Return the connections of this project and those shared by all projects. None: the connections of every
            project.
    """
    return _listed(Connection, context, user, "connection", project)


def list_environments(context: ServiceContext, user: Identity, project: str | None = None) -> list[Environment]:
    """Return the environments that the account may see. The arguments are those of ``list_connections``."""
    return _listed(Environment, context, user, "environment", project)


def list_parameters(context: ServiceContext, user: Identity, project: str | None = None) -> list[Parameter]:
    """Return the parameters that the account may see. The arguments are those of ``list_connections``."""
    return _listed(Parameter, context, user, "parameter", project)


def _listed(
    schema: type[S], context: ServiceContext, user: Identity, kind: SettingKind, project: str | None
) -> list[S]:
    if not user.has_any_role(Role.VIEWER):
        return []
    mine = user.get_projects()
    wanted = mine if project is None else frozenset({project} if mine is None or project in mine else ())
    with context.database.read() as connection:
        rows = settings.list_settings(connection, kind, wanted)
    return [
        schema.from_row(row, shown=True)
        if may_read(user, row.project)
        else schema(project=row.project, name=row.name, shown=False)
        for row in rows
    ]


def may_read(user: Identity, project: str) -> bool:
    """Return whether an account may read the values of settings, for which it must be an editor.

    Args:
        user: The requesting account.
        project: Project of the settings. Empty: they are shared by all projects.
    """
    return user.has_role(Role.EDITOR, project) if project else user.has_any_role(Role.EDITOR)


def may_change(user: Identity, project: str) -> bool:
    """Return whether an account may change settings.

    Args:
        user: The requesting account.
        project: Project of the settings. Empty: they are shared by all projects.
    """
    return user.has_role(_required_role(project), project)


def set_connection(
    context: ServiceContext, user: Identity, project: str, name: str, *, url: str, secret: str = ""
) -> bool:
    """Store a database connection. Return whether the connection is new.

    Args:
        context: The service context of this process.
        user: The requesting account.
        project: Project of the connection. Empty: shared by all projects.
        name: Name of the connection.
        url: SQLAlchemy URL without a password.
        secret: Name of the password among the secrets of workers. Empty: no password.
    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 409 (conflict) if the project has too many
            settings, 422 (invalid) with the invalid field. No message contains the URL.
    """
    return _set(context, user, "connection", project, name, values={"url": url, "secret": secret})


def set_environment(
    context: ServiceContext,
    user: Identity,
    project: str,
    name: str,
    variables: Mapping[str, Any],
    *,
    drop: Iterable[str] = (),
    keep: bool = False,
) -> bool:
    """Store an environment, which is a named set of variables. Return whether it is new.

    The errors are those of ``set_connection``.

    Args:
        context: The service context of this process.
        user: The requesting account.
        project: Project of the environment. Empty: shared by all projects.
        name: Name of the environment.
        variables: Variables of the environment.
        drop: Names of existing variables to remove if ``keep`` is set.
        keep: Whether to keep the existing variables, except those in ``drop``.
    """
    return _set(
        context, user, "environment", project, name, values={"variables": dict(variables)}, keep=keep, drop=drop
    )


def set_parameter(context: ServiceContext, user: Identity, project: str, name: str, value: Any) -> bool:
    """Store a parameter, which is any JSON value. Return whether it is new.

    The arguments and errors are those of ``set_connection``.
    """
    return _set(context, user, "parameter", project, name, values={"value": value})


def remove_setting(context: ServiceContext, user: Identity, kind: SettingKind, project: str, name: str) -> list[str]:
    """Delete a setting. Tasks that still use it will fail.

    Returns:
        The workflows that still use it, sorted.
    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such setting.
    """
    require_role(user, _required_role(project), project)
    with context.database.write() as connection:
        if not settings.delete_setting(connection, kind, project, name):
            raise object_not_found(f"there is no {kind} {name} of {_project(project)}")
        record_event(connection, f"{kind} delete", by=user.name, project=project, details={kind: name})
    with context.database.read() as connection:
        found = find_missing_references(connection, project or None)
    return sorted({each.workflow for each in found if f"no {kind} {name!r}" in each.message})


def check_connection(
    context: ServiceContext, user: Identity, project: str, name: str, *, within: str = "", group: str = "default"
) -> CommandSent:
    """Test a connection on a worker, by starting a run with one task that opens the connection.

    The test uses the same network, drivers and secrets as other tasks, and its log is kept.

    Args:
        context: The service context of this process.
        user: The requesting account. Must be an editor of the project in which the test runs.
        project: Project of the connection. Empty: all projects.
        name: Name of the connection.
        within: Project in which a connection of all projects is tested. Empty: ``default``.
        group: Worker group that runs the test.
    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such connection, 409
            (conflict) if the project has another connection of this name, 422 (invalid) with the invalid field.
    """
    at = project or within or "default"
    if project and within not in {"", project}:
        raise HttpProblem(422, f"a connection of {project} is tried in {project}, and not in {within}")
    require_role(user, Role.EDITOR, at)
    with context.database.read() as connection:
        if settings.find_setting(connection, "connection", project, name) is None:
            raise object_not_found(f"there is no connection {name} of {_project(project)}")
        if not project and settings.find_setting(connection, "connection", at, name) is not None:
            raise HttpProblem(409, f"project {at} has a connection {name} too, which takes precedence; test that one")
    task = {"name": "connect", "type": "connect", "timeout_s": TRY_S, "params": {"connection": name}}
    what = "Created by the connection test."
    body = {"name": TRIES + name, "project": at, "description": what, "worker_group": group, "tasks": [task]}
    workflows.apply_definition(context, user, body)
    return request_run(context, user, at, TRIES + name, StartRequest())


def _set(
    context: ServiceContext,
    user: Identity,
    kind: SettingKind,
    project: str,
    name: str,
    *,
    values: dict[str, Any],
    keep: bool = False,
    drop: Iterable[str] = (),
) -> bool:
    require_role(user, _required_role(project), project)
    with context.database.write() as connection:
        before = settings.find_setting(connection, kind, project, name, lock=True)
        if keep and before is not None:
            values["variables"] = {**before.variables, **values["variables"]}
            values["variables"] = {key: each for key, each in values["variables"].items() if key not in set(drop)}
        _check(kind, name, values)
        if before is None and settings.count_settings(connection, kind, project) >= MAX:
            raise HttpProblem(409, f"{_project(project)} has {MAX} {kind}s, the maximum; delete some first")
        settings.save_setting(connection, kind, project, name, values)
        record_event(
            connection,
            f"{kind} set",
            by=user.name,
            project=project,
            details=_build_audit_details(kind, name, before, values),
        )
    return before is None


def _check(kind: SettingKind, name: str, values: Mapping[str, Any]) -> None:
    if kind == "connection":
        found: Iterable[Wrong] = find_connection_problems(name, values["url"], values["secret"])
    elif kind == "environment":
        found = find_environment_problems(name, values["variables"])
    else:
        found = find_parameter_problems(name, values["value"])
    problems = [(each.path, each.message) for each in found]
    if problems:
        raise HttpProblem(422, "; ".join(f"{path}: {message}" for path, message in problems[:5]), errors=problems)


def _build_audit_details(kind: SettingKind, name: str, before: Row | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of a changed setting for the audit log: its name and the names of the changed fields, without
    values.

    Args:
        kind: The kind of the setting.
        name: Its name.
        before: The row before the change. None: the setting is new.
        values: The new values.
    """
    found: dict[str, Any] = {kind: name, "new": before is None}
    if kind == "environment":
        old, new = (before.variables if before is not None else {}), values["variables"]
        found["variables"] = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))[:100]
    elif kind == "connection" and before is not None:
        found["changed"] = [key for key in ("url", "secret") if getattr(before, key) != values[key]]
    return found


def _required_role(project: str) -> Role:
    return Role.EDITOR if project != ALL else Role.ADMIN


def _project(project: str) -> str:
    return f"project {project}" if project else "all projects"
