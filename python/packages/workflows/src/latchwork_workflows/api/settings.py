"""Connections, environments and parameters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from latchwork_workflows.api import models as m
from latchwork_workflows.model.model import NAME_PATTERN
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
from latchwork_workflows.services import settings as desk
from latchwork_workflows.services.parts import parts_of
from latchwork_workflows.web import Who

router = APIRouter(prefix="/api/v1", tags=["settings"])
Project = Annotated[
    str, Query(pattern=rf"^$|{NAME_PATTERN}", max_length=100, description="whose it is; empty: of all projects")
]
Among = Annotated[
    str | None,
    Query(
        pattern=rf"^$|{NAME_PATTERN}", max_length=100, description="those of this project and of all; none: of every"
    ),
]


@router.get("/connections")
def list_connections(request: Request, who: Who, project: Among = None) -> list[Connection]:
    """Connections by project and name."""
    return desk.connections(parts_of(request), who, project)


@router.put("/connections/{name}")
def set_connection(
    request: Request, who: Who, name: m.NamePath, given: ConnectionChange, project: Project = ""
) -> SettingStored:
    """Store a connection. Attempts that workers have been given keep what they were given."""
    is_new = desk.set_connection(parts_of(request), who, project, name, url=given.url, secret=given.secret)
    return SettingStored(is_new=is_new)


@router.delete("/connections/{name}")
def remove_connection(request: Request, who: Who, name: m.NamePath, project: Project = "") -> SettingRemoved:
    """Delete a connection."""
    return SettingRemoved(missed_by=desk.remove(parts_of(request), who, "connection", project, name))


@router.post("/connections/{name}:test", status_code=202)
def try_connection(
    request: Request, who: Who, name: m.NamePath, given: ConnectionTest | None = None, project: Project = ""
) -> CommandSent:
    """Let a worker open it: a run of one task, whose state and log say how it went."""
    where = given or ConnectionTest()
    return desk.try_connection(parts_of(request), who, project, name, within=where.within, group=where.group)


@router.get("/environments")
def list_environments(request: Request, who: Who, project: Among = None) -> list[Environment]:
    """Environments by project and name."""
    return desk.environments(parts_of(request), who, project)


@router.put("/environments/{name}")
def set_environment(
    request: Request, who: Who, name: m.NamePath, given: EnvironmentChange, project: Project = ""
) -> SettingStored:
    """Store an environment: these variables, and with `keep` also those that it has."""
    is_new = desk.set_environment(
        parts_of(request), who, project, name, given.variables, keep=given.keep, drop=given.drop
    )
    return SettingStored(is_new=is_new)


@router.delete("/environments/{name}")
def remove_environment(request: Request, who: Who, name: m.NamePath, project: Project = "") -> SettingRemoved:
    """Delete an environment."""
    return SettingRemoved(missed_by=desk.remove(parts_of(request), who, "environment", project, name))


@router.get("/parameters")
def list_parameters(request: Request, who: Who, project: Among = None) -> list[Parameter]:
    """Parameters by project and name."""
    return desk.parameters(parts_of(request), who, project)


@router.put("/parameters/{name}")
def set_parameter(
    request: Request, who: Who, name: m.NamePath, given: ParameterChange, project: Project = ""
) -> SettingStored:
    """Store a parameter."""
    return SettingStored(is_new=desk.set_parameter(parts_of(request), who, project, name, given.value))


@router.delete("/parameters/{name}")
def remove_parameter(request: Request, who: Who, name: m.NamePath, project: Project = "") -> SettingRemoved:
    """Delete a parameter."""
    return SettingRemoved(missed_by=desk.remove(parts_of(request), who, "parameter", project, name))
