"""Workflows, versions, schedules."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse

from latchwork_workflows.api import models as m
from latchwork_workflows.db.views import catalog
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.model.forms import write
from latchwork_workflows.services import workflows as desk
from latchwork_workflows.services.parts import need, parts_of
from latchwork_workflows.web import Problem, Role, Who

router = APIRouter(prefix="/api/v1", tags=["workflows"])
_VersionQuery = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


@router.get("/workflows")
def list_workflows(
    *,
    request: Request,
    who: Who,
    contains: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[str, Query(max_length=201, description="behind this project.name")] = "",
    limit: m.Limit = 50,
) -> list[m.WorkflowRow]:
    """Workflows by project and name."""
    project, _, name = after.partition(".")
    behind = (project, name) if after else None
    with parts_of(request).database.read() as connection:
        rows = catalog.listed(
            connection, among=who.projects(), contains=contains.replace("\x00", ""), after=behind, most=limit
        )
    return [m.WorkflowRow(**{name: getattr(row, name) for name in m.WorkflowRow.model_fields}) for row in rows]


@router.post("/workflows", status_code=200)
def apply_workflow(*, request: Request, who: Who, given: m.ApplyRequest) -> m.Applied:
    """Write a definition: a new version, if it differs from the newest."""
    version, found = desk.apply(parts_of(request), who, _given(given), online=given.online, base=given.base)
    return m.Applied(
        project=found.project,
        name=found.name,
        code=version.code,
        version=version.number,
        is_new=version.is_new,
        online=version.is_online,
    )


@router.post("/workflows:validate")
def validate_workflow(*, request: Request, who: Who, given: m.ApplyRequest) -> m.Validated:
    """Every problem of a definition, by its place. Writes nothing."""
    try:
        desk.check(parts_of(request), who, _given(given))
    except DefinitionInvalid as error:
        problems = [m.FieldProblem(path=each.path, message=each.message) for each in error.problems]
        return m.Validated(ok=False, errors=problems)
    return m.Validated(ok=True, errors=[])


def _given(given: m.ApplyRequest) -> str | Mapping[str, Any]:
    if (given.definition is None) == (given.yaml is None):
        raise Problem(422, "give one of definition and yaml", errors=[("body.definition", "give this, or yaml")])
    return given.yaml if given.yaml is not None else given.definition or {}


@router.get("/workflows/{project}/{name}")
def get_workflow(
    *, request: Request, who: Who, project: m.NamePath, name: m.NamePath, version: _VersionQuery = None
) -> m.WorkflowDocument:
    """A workflow with what a version says; the newest unless one is named."""
    shown = desk.show(parts_of(request), who, project, name, version)
    row = {each: getattr(shown.row, each) for each in m.WorkflowRow.model_fields}
    return m.WorkflowDocument(**row, shown_version=shown.number, definition=shown.definition)


@router.get("/workflows/{project}/{name}/yaml", response_class=PlainTextResponse)
def get_yaml(
    *, request: Request, who: Who, project: m.NamePath, name: m.NamePath, version: _VersionQuery = None
) -> PlainTextResponse:
    """The same as YAML, to be kept and applied again."""
    shown = desk.show(parts_of(request), who, project, name, version)
    return PlainTextResponse(write(shown.definition), media_type="text/plain; charset=utf-8")


@router.get("/workflows/{project}/{name}/versions")
def list_versions(
    *, request: Request, who: Who, project: m.NamePath, name: m.NamePath, before: m.Before = None, limit: m.Limit = 50
) -> list[m.VersionRow]:
    """Versions, the newest first."""
    parts = parts_of(request)
    row = desk.find(parts, who, project, name)
    with parts.database.read() as connection:
        return [
            m.VersionRow.model_validate(each)
            for each in catalog.versions(connection, row.code, before=before, most=limit)
        ]


@router.get("/workflows/{project}/{name}/diff", response_class=PlainTextResponse)
def diff(
    *,
    request: Request,
    who: Who,
    project: m.NamePath,
    name: m.NamePath,
    old: Annotated[int, Query(ge=1, le=2**31 - 1)],
    new: Annotated[int, Query(ge=1, le=2**31 - 1)],
) -> PlainTextResponse:
    """What differs between two versions, as a unified diff of their YAML."""
    parts = parts_of(request)
    before, after = (write(desk.show(parts, who, project, name, each).definition).splitlines() for each in (old, new))
    lines = difflib.unified_diff(before, after, f"version {old}", f"version {new}", lineterm="")
    return PlainTextResponse("\n".join(lines), media_type="text/plain; charset=utf-8")


@router.put("/workflows/{project}/{name}/online", status_code=204)
def set_online(*, request: Request, who: Who, project: m.NamePath, name: m.NamePath, given: m.OnlineChange) -> None:
    """Whether it may be started; runs that are there go on."""
    desk.set_online(parts_of(request), who, project, name, online=given.online)


@router.get("/schedules", tags=["schedules"])
def list_schedules(*, request: Request, who: Who) -> list[m.ScheduleRow]:
    """All schedules, when they fire next, and what became of their newest fire time."""
    with parts_of(request).database.read() as connection:
        rows = catalog.schedules(connection, who.projects())
        last = catalog.last_fires(connection, [row.code for row in rows])
    names = m.ScheduleRow.model_fields.keys() - {"next_at", "last"}
    now = time.time()
    return [
        m.ScheduleRow(
            **{name: getattr(row, name) for name in names},
            next_at=desk.next_fire(row, now) if row.enabled and row.online else None,
            last=m.LastFire.model_validate(last[row.code]) if row.code in last else None,
        )
        for row in rows
    ]


@router.get("/schedules:preview", tags=["schedules"])
def preview(
    who: Who,  # noqa: ARG001 - anybody who is in
    cron: Annotated[str, Query(max_length=200)],
    tz: Annotated[str, Query(max_length=100)] = "UTC",
    count: Annotated[int, Query(ge=1, le=50)] = 5,
) -> m.Fires:
    """The next moments at which an expression fires."""
    return m.Fires(fires=desk.fires(cron, tz, count))


@router.put("/workflows/{project}/{name}/schedule", status_code=204, tags=["schedules"])
def set_schedule(*, request: Request, who: Who, project: m.NamePath, name: m.NamePath, given: m.ScheduleChange) -> None:
    """Whether the schedule starts it. Switched on again, it owes nothing of the time in between."""
    desk.set_schedule(parts_of(request), who, project, name, enabled=given.enabled)


@router.get("/task-types", tags=["workflows"])
def task_types(*, request: Request, who: Who) -> dict[str, dict[str, object]]:
    """The JSON schema of the parameters of each task type."""
    types = parts_of(request).types
    need_any(who)
    return {name: types.get(name).params.model_json_schema() for name in types.names}


def need_any(who: Who) -> None:
    """Refuse who may see nothing at all."""
    if not who.may_somewhere(Role.VIEWER):
        need(who, Role.VIEWER)
