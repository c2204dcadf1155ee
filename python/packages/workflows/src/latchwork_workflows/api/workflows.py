"""Workflows, their versions and schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse
from starlette.concurrency import run_in_threadpool

from latchwork_workflows.api import models as m
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.model.yaml_format import write
from latchwork_workflows.schemas.problems import FieldProblem
from latchwork_workflows.schemas.schedules import FireTimes, Schedule, ScheduleChange
from latchwork_workflows.schemas.workflows import (
    AppliedVersion,
    ApplyRequest,
    OnlineChange,
    StoredBundle,
    Validation,
    Workflow,
    WorkflowDetail,
    WorkflowVersion,
)
from latchwork_workflows.services import bundles, schedules, workflows
from latchwork_workflows.services.parts import need, parts_of
from latchwork_workflows.web import Problem, Role, Who

router = APIRouter(prefix="/api/v1", tags=["workflows"])
_Number = Annotated[int, Query(ge=1, le=2**31 - 1)]
_VersionQuery = Annotated[int | None, Query(ge=1, le=2**31 - 1)]
_Project = Annotated[str, Query(max_length=100)]


@router.get("/workflows")
def list_workflows(
    *,
    request: Request,
    who: Who,
    contains: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[str, Query(max_length=201, description="behind this project.name")] = "",
    limit: m.Limit = 50,
) -> list[Workflow]:
    """Return workflows, sorted by project and name."""
    return workflows.listed(parts_of(request), who, contains=contains, after=after, limit=limit)


@router.post("/workflows")
def apply_workflow(*, request: Request, who: Who, given: ApplyRequest) -> AppliedVersion:
    """Apply a definition: a new version, if it differs from the newest."""
    return workflows.apply(parts_of(request), who, _given(given), online=given.online, base=given.base)


@router.post("/workflows:validate")
def validate_workflow(*, request: Request, who: Who, given: ApplyRequest) -> Validation:
    """Return every problem of a definition, with its place. Nothing is stored."""
    try:
        workflows.check(parts_of(request), who, _given(given))
    except DefinitionInvalid as error:
        problems = [FieldProblem(path=each.path, message=each.message) for each in error.problems]
        return Validation(ok=False, errors=problems)
    return Validation(ok=True, errors=[])


def _given(given: ApplyRequest) -> str | Mapping[str, Any]:
    if (given.definition is None) == (given.yaml is None):
        raise Problem(422, "give one of definition and yaml", errors=[("body.definition", "give this, or yaml")])
    return given.yaml if given.yaml is not None else given.definition or {}


@router.post(
    "/bundles",
    status_code=201,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def store_bundle(*, request: Request, who: Who) -> StoredBundle:
    """Keep the code of workflows for their workers: a zip, named by the SHA-256 of its bytes."""
    data = await request.body()
    return await run_in_threadpool(bundles.store, parts_of(request), who, data)


@router.get("/workflows/{project}/{name}")
def get_workflow(
    *, request: Request, who: Who, project: m.NamePath, name: m.NamePath, version: _VersionQuery = None
) -> WorkflowDetail:
    """Return a workflow with the definition of a version, by default of the newest."""
    return workflows.get(parts_of(request), who, project, name, version)


@router.get("/workflows/{project}/{name}/yaml", response_class=PlainTextResponse)
def get_yaml(
    *, request: Request, who: Who, project: m.NamePath, name: m.NamePath, version: _VersionQuery = None
) -> PlainTextResponse:
    """Return the definition of a version as YAML, which can be applied again."""
    found = workflows.get(parts_of(request), who, project, name, version)
    return PlainTextResponse(write(found.definition), media_type="text/plain; charset=utf-8")


@router.get("/workflows/{project}/{name}/versions")
def list_versions(
    *, request: Request, who: Who, project: m.NamePath, name: m.NamePath, before: m.Before = None, limit: m.Limit = 50
) -> list[WorkflowVersion]:
    """Return the versions of a workflow, the newest first."""
    return workflows.versions(parts_of(request), who, project, name, before=before, limit=limit)


@router.get("/workflows/{project}/{name}/diff", response_class=PlainTextResponse)
def diff(
    *, request: Request, who: Who, project: m.NamePath, name: m.NamePath, old: _Number, new: _Number
) -> PlainTextResponse:
    """Return a unified diff between the YAML of two versions."""
    lines = workflows.diff(parts_of(request), who, project, name, old, new)
    return PlainTextResponse("\n".join(lines), media_type="text/plain; charset=utf-8")


@router.put("/workflows/{project}/{name}/online", status_code=204)
def set_online(*, request: Request, who: Who, project: m.NamePath, name: m.NamePath, given: OnlineChange) -> None:
    """Set a workflow online or offline. Active runs continue."""
    workflows.set_online(parts_of(request), who, project, name, online=given.online)


@router.get("/schedules", tags=["schedules"])
def list_schedules(
    *,
    request: Request,
    who: Who,
    project: _Project = "",
    workflow: Annotated[str, Query(max_length=100, description="a name; needs project")] = "",
    count: Annotated[int, Query(ge=1, le=100, description="how many of the next fire times")] = 1,
) -> list[Schedule]:
    """Return schedules, when they fire next, and what became of their newest fire time."""
    of = workflow if project else ""
    return schedules.listed(parts_of(request), who, project=project, workflow=of, count=count)


@router.get("/schedules:preview", tags=["schedules"])
def preview(
    who: Who,  # noqa: ARG001 - requires a signed-in user
    cron: Annotated[str, Query(max_length=200)],
    tz: Annotated[str, Query(max_length=100)] = "UTC",
    count: Annotated[int, Query(ge=1, le=50)] = 5,
) -> FireTimes:
    """Return the next times at which a cron expression fires."""
    return FireTimes(fires=schedules.preview(cron, tz, count))


@router.put("/workflows/{project}/{name}/schedule", status_code=204, tags=["schedules"])
def set_schedule(*, request: Request, who: Who, project: m.NamePath, name: m.NamePath, given: ScheduleChange) -> None:
    """Enable or disable the schedule of a workflow. Fire times while it is disabled are not made up for."""
    schedules.set_enabled(parts_of(request), who, project, name, enabled=given.enabled)


@router.get("/task-types", tags=["workflows"])
def task_types(*, request: Request, who: Who) -> dict[str, dict[str, object]]:
    """Return the JSON schema of the parameters of each task type."""
    types = parts_of(request).types
    need_any(who)
    return {name: types.get(name).params.model_json_schema() for name in types.names}


def need_any(who: Who) -> None:
    """Check that an account has a role in some project."""
    if not who.may_somewhere(Role.VIEWER):
        need(who, Role.VIEWER)
