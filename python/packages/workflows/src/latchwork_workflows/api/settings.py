"""Connections, environments and parameters: what workflows name, stored beside them."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator, Field, StringConstraints

from latchwork_workflows.api import models as m
from latchwork_workflows.db.settings import SettingKind
from latchwork_workflows.model.model import NAME_PATTERN
from latchwork_workflows.schemas.base import Document
from latchwork_workflows.schemas.values import plain_json
from latchwork_workflows.services import settings as desk
from latchwork_workflows.services.parts import Parts, parts_of
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
_Values = Annotated[dict[str, Annotated[str, StringConstraints(max_length=100_000)]], AfterValidator(plain_json)]


class Setting(Document):
    """What all have in common. Who may not see values sees ``shown`` false."""

    project: str
    name: str
    shown: bool


class ConnectionRow(Setting):
    """A connection: all but the password, of which it has the name among the secrets of workers."""

    url: str | None
    secret: str | None


class EnvironmentRow(Setting):
    """Variables by a name."""

    variables: dict[str, str] | None


class ParameterRow(Setting):
    """A value for ``${name}``."""

    value: Any


class ConnectionRequest(Document):
    """A connection. A URL with a password is refused."""

    url: Annotated[str, StringConstraints(max_length=4000), AfterValidator(plain_json)]
    secret: Annotated[str, StringConstraints(max_length=100), AfterValidator(plain_json)] = ""


class EnvironmentRequest(Document):
    """All variables of an environment."""

    variables: _Values


class ParameterRequest(Document):
    """Any JSON."""

    value: Annotated[Any, AfterValidator(plain_json)]


class TryRequest(Document):
    """Where a connection is tried."""

    within: Annotated[str, Field(pattern=rf"^$|{NAME_PATTERN}")] = ""
    group: Annotated[str, Field(pattern=NAME_PATTERN)] = "default"


class Written(Document):
    """What became of it."""

    is_new: bool


class Removed(Document):
    """The workflows that name it still: their tasks will fail."""

    missed_by: list[str]


class Tried(Document):
    """The command that starts the run in which a worker tries it."""

    command: int


R = TypeVar("R", bound=Setting)


def _rows(model: type[R], kind: SettingKind, parts: Parts, who: Who, project: str | None) -> list[R]:
    names = model.model_fields.keys() - Setting.model_fields.keys()
    return [
        model(
            project=each.project,
            name=each.name,
            shown=each.values is not None,
            **(each.values if each.values is not None else dict.fromkeys(names)),
        )
        for each in desk.listed(parts, who, kind, project)
    ]


@router.get("/connections")
def list_connections(request: Request, who: Who, project: Among = None) -> list[ConnectionRow]:
    """Connections by project and name."""
    return _rows(ConnectionRow, "connection", parts_of(request), who, project)


@router.put("/connections/{name}")
def set_connection(
    request: Request, who: Who, name: m.NamePath, given: ConnectionRequest, project: Project = ""
) -> Written:
    """Store a connection. Attempts that workers have been given keep what they were given."""
    is_new = desk.set_connection(parts_of(request), who, project, name, url=given.url, secret=given.secret)
    return Written(is_new=is_new)


@router.delete("/connections/{name}")
def remove_connection(request: Request, who: Who, name: m.NamePath, project: Project = "") -> Removed:
    """Delete a connection."""
    return Removed(missed_by=desk.remove(parts_of(request), who, "connection", project, name))


@router.post("/connections/{name}:test", status_code=202)
def try_connection(
    request: Request, who: Who, name: m.NamePath, given: TryRequest | None = None, project: Project = ""
) -> Tried:
    """Let a worker open it: a run of one task, whose state and log say how it went."""
    where = given or TryRequest()
    asked = desk.try_connection(parts_of(request), who, project, name, within=where.within, group=where.group)
    return Tried(command=asked.command)


@router.get("/environments")
def list_environments(request: Request, who: Who, project: Among = None) -> list[EnvironmentRow]:
    """Environments by project and name."""
    return _rows(EnvironmentRow, "environment", parts_of(request), who, project)


@router.put("/environments/{name}")
def set_environment(
    request: Request, who: Who, name: m.NamePath, given: EnvironmentRequest, project: Project = ""
) -> Written:
    """Store an environment, with these variables and no others."""
    return Written(is_new=desk.set_environment(parts_of(request), who, project, name, given.variables))


@router.delete("/environments/{name}")
def remove_environment(request: Request, who: Who, name: m.NamePath, project: Project = "") -> Removed:
    """Delete an environment."""
    return Removed(missed_by=desk.remove(parts_of(request), who, "environment", project, name))


@router.get("/parameters")
def list_parameters(request: Request, who: Who, project: Among = None) -> list[ParameterRow]:
    """Parameters by project and name."""
    return _rows(ParameterRow, "parameter", parts_of(request), who, project)


@router.put("/parameters/{name}")
def set_parameter(
    request: Request, who: Who, name: m.NamePath, given: ParameterRequest, project: Project = ""
) -> Written:
    """Store a parameter."""
    return Written(is_new=desk.set_parameter(parts_of(request), who, project, name, given.value))


@router.delete("/parameters/{name}")
def remove_parameter(request: Request, who: Who, name: m.NamePath, project: Project = "") -> Removed:
    """Delete a parameter."""
    return Removed(missed_by=desk.remove(parts_of(request), who, "parameter", project, name))
