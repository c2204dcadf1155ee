"""Connections, environments and parameters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from latchwork_workflows.api import models as m
from latchwork_workflows.model.definition import NAME_PATTERN
from latchwork_workflows.schemas.commands import CommandSent
from latchwork_workflows.schemas.settings import (
    Connection,
    ConnectionChange,
    ConnectionTest,
    Environment,
    EnvironmentChange,
    Parameter,
    ParameterChange,
    SettingRemoved,
    SettingStored,
)
from latchwork_workflows.services import settings as service
from latchwork_workflows.services.context import get_context
from latchwork_workflows.web import CurrentUser

router = APIRouter(prefix="/api/v1", tags=["settings"])
Project = Annotated[
    str, Query(pattern=rf"^$|{NAME_PATTERN}", max_length=100, description="its project; empty: all projects")
]
Among = Annotated[
    str | None,
    Query(
        pattern=rf"^$|{NAME_PATTERN}",
        max_length=100,
        description="settings that this project can use; none: settings of all projects",
    ),
]


@router.get("/connections")
def list_connections(request: Request, user: CurrentUser, project: Among = None) -> list[Connection]:
    """List the stored connections, sorted by project and name."""
    return service.list_connections(get_context(request), user, project)


@router.put("/connections/{name}")
def set_connection(
    request: Request, user: CurrentUser, name: m.NamePath, body: ConnectionChange, project: Project = ""
) -> SettingStored:
    """Store a connection. Attempts that workers have already started keep the former connection."""
    is_new = service.set_connection(get_context(request), user, project, name, url=body.url, secret=body.secret)
    return SettingStored(is_new=is_new)


@router.delete("/connections/{name}")
def remove_connection(request: Request, user: CurrentUser, name: m.NamePath, project: Project = "") -> SettingRemoved:
    """Delete a connection."""
    return SettingRemoved(missed_by=service.remove_setting(get_context(request), user, "connection", project, name))


@router.post("/connections/{name}:test", status_code=202)
def check_connection(
    request: Request, user: CurrentUser, name: m.NamePath, body: ConnectionTest | None = None, project: Project = ""
) -> CommandSent:
    """Test a connection on a worker.

    Returns the command that starts a run with one task. The state and the log of the task show the result.
    """
    where = body or ConnectionTest()
    return service.check_connection(get_context(request), user, project, name, within=where.within, group=where.group)


@router.get("/environments")
def list_environments(request: Request, user: CurrentUser, project: Among = None) -> list[Environment]:
    """List the environments, sorted by project and name."""
    return service.list_environments(get_context(request), user, project)


@router.put("/environments/{name}")
def set_environment(
    request: Request, user: CurrentUser, name: m.NamePath, body: EnvironmentChange, project: Project = ""
) -> SettingStored:
    """Store the variables of an environment. With `keep`, the other variables of the environment are kept."""
    is_new = service.set_environment(
        get_context(request), user, project, name, body.variables, keep=body.keep, drop=body.drop
    )
    return SettingStored(is_new=is_new)


@router.delete("/environments/{name}")
def remove_environment(request: Request, user: CurrentUser, name: m.NamePath, project: Project = "") -> SettingRemoved:
    """Delete an environment."""
    return SettingRemoved(missed_by=service.remove_setting(get_context(request), user, "environment", project, name))


@router.get("/parameters")
def list_parameters(request: Request, user: CurrentUser, project: Among = None) -> list[Parameter]:
    """List the parameters, sorted by project and name."""
    return service.list_parameters(get_context(request), user, project)


@router.put("/parameters/{name}")
def set_parameter(
    request: Request, user: CurrentUser, name: m.NamePath, body: ParameterChange, project: Project = ""
) -> SettingStored:
    """Store a parameter."""
    return SettingStored(is_new=service.set_parameter(get_context(request), user, project, name, body.value))


@router.delete("/parameters/{name}")
def remove_parameter(request: Request, user: CurrentUser, name: m.NamePath, project: Project = "") -> SettingRemoved:
    """Delete a parameter."""
    return SettingRemoved(missed_by=service.remove_setting(get_context(request), user, "parameter", project, name))
