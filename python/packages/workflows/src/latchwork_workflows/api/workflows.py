"""Workflows, their versions and schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse
from starlette.concurrency import run_in_threadpool

from latchwork_workflows.api import models as m
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.model.yaml_format import format_yaml
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
from latchwork_workflows.services.context import get_context, require_role
from latchwork_workflows.web import CurrentUser, HttpProblem, Role

router = APIRouter(prefix="/api/v1", tags=["workflows"])
_Number = Annotated[int, Query(ge=1, le=2**31 - 1)]
_VersionQuery = Annotated[int | None, Query(ge=1, le=2**31 - 1)]
_Project = Annotated[str, Query(max_length=100)]


@router.get("/workflows")
def list_workflows(
    *,
    request: Request,
    user: CurrentUser,
    contains: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[str, Query(max_length=201, description="only workflows after this project.name")] = "",
    limit: m.Limit = 50,
) -> list[Workflow]:
    """List the workflows, sorted by project and name."""
    return workflows.list_workflows(get_context(request), user, contains=contains, after=after, limit=limit)


@router.post("/workflows")
def apply_workflow(*, request: Request, user: CurrentUser, body: ApplyRequest) -> AppliedVersion:
    """Store a definition of a workflow. It becomes a new version if it differs from the newest version."""
    return workflows.apply_definition(
        get_context(request), user, _definition_of(body), online=body.online, base=body.base
    )


@router.post("/workflows:validate")
def validate_workflow(*, request: Request, user: CurrentUser, body: ApplyRequest) -> Validation:
    """List all problems of a definition with their positions. Stores nothing."""
    try:
        workflows.validate_definition(get_context(request), user, _definition_of(body))
    except DefinitionInvalid as error:
        problems = [FieldProblem(path=each.path, message=each.message) for each in error.problems]
        return Validation(ok=False, errors=problems)
    return Validation(ok=True, errors=[])


def _definition_of(body: ApplyRequest) -> str | Mapping[str, Any]:
    if (body.definition is None) == (body.yaml is None):
        raise HttpProblem(422, "give one of definition and yaml", errors=[("body.definition", "give this, or yaml")])
    return body.yaml if body.yaml is not None else body.definition or {}


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
async def store_bundle(*, request: Request, user: CurrentUser) -> StoredBundle:
    """Store a code bundle for workers: a zip file, named by the SHA-256 of its bytes."""
    data = await request.body()
    return await run_in_threadpool(bundles.store_bundle, get_context(request), user, data)


@router.get("/workflows/{project}/{name}")
def get_workflow(
    *, request: Request, user: CurrentUser, project: m.NamePath, name: m.NamePath, version: _VersionQuery = None
) -> WorkflowDetail:
    """Return a workflow with the definition of one version, by default the newest."""
    return workflows.get_workflow(get_context(request), user, project, name, version)


@router.get("/workflows/{project}/{name}/yaml", response_class=PlainTextResponse)
def get_yaml(
    *, request: Request, user: CurrentUser, project: m.NamePath, name: m.NamePath, version: _VersionQuery = None
) -> PlainTextResponse:
    """Return the definition of a version as YAML that can be applied again."""
    found = workflows.get_workflow(get_context(request), user, project, name, version)
    return PlainTextResponse(format_yaml(found.definition), media_type="text/plain; charset=utf-8")


@router.get("/workflows/{project}/{name}/versions")
def list_versions(
    *,
    request: Request,
    user: CurrentUser,
    project: m.NamePath,
    name: m.NamePath,
    before: m.Before = None,
    limit: m.Limit = 50,
) -> list[WorkflowVersion]:
    """List the versions of a workflow, newest first."""
    return workflows.list_versions(get_context(request), user, project, name, before=before, limit=limit)


@router.get("/workflows/{project}/{name}/diff", response_class=PlainTextResponse)
def diff_versions(
    *, request: Request, user: CurrentUser, project: m.NamePath, name: m.NamePath, old: _Number, new: _Number
) -> PlainTextResponse:
    """Return a unified diff between the YAML of two versions."""
    lines = workflows.diff_versions(get_context(request), user, project, name, old, new)
    return PlainTextResponse("\n".join(lines), media_type="text/plain; charset=utf-8")


@router.put("/workflows/{project}/{name}/online", status_code=204)
def set_online(
    *, request: Request, user: CurrentUser, project: m.NamePath, name: m.NamePath, body: OnlineChange
) -> None:
    """Set a workflow online, so that it may be started, or offline. Active runs continue."""
    workflows.set_online(get_context(request), user, project, name, online=body.online)


@router.get("/schedules", tags=["schedules"])
def list_schedules(
    *,
    request: Request,
    user: CurrentUser,
    project: _Project = "",
    workflow: Annotated[str, Query(max_length=100, description="a name; needs project")] = "",
    count: Annotated[int, Query(ge=1, le=100, description="how many of the next fire times")] = 1,
) -> list[Schedule]:
    """List the schedules, each with its next fire times and the result of its last fire time."""
    of = workflow if project else ""
    return schedules.list_schedules(get_context(request), user, project=project, workflow=of, count=count)


@router.get("/schedules:preview", tags=["schedules"])
def preview_fire_times(
    user: CurrentUser,  # noqa: ARG001 - requires a signed-in user
    cron: Annotated[str, Query(max_length=200)],
    tz: Annotated[str, Query(max_length=100)] = "UTC",
    count: Annotated[int, Query(ge=1, le=50)] = 5,
) -> FireTimes:
    """Return the next times at which a cron expression fires."""
    return FireTimes(fires=schedules.preview_fire_times(cron, tz, count))


@router.put("/workflows/{project}/{name}/schedule", status_code=204, tags=["schedules"])
def set_schedule(
    *, request: Request, user: CurrentUser, project: m.NamePath, name: m.NamePath, body: ScheduleChange
) -> None:
    """Enable or disable the schedule of a workflow.

    Fire times that pass while the schedule is disabled are not caught up.
    """
    schedules.set_schedule_enabled(get_context(request), user, project, name, enabled=body.enabled)


@router.get("/task-types", tags=["workflows"])
def get_task_types(*, request: Request, user: CurrentUser) -> dict[str, dict[str, object]]:
    """Return the JSON schema of the parameters of each task type."""
    types = get_context(request).types
    require_any_role(user)
    return {name: types.get(name).params.model_json_schema() for name in types.names}


def require_any_role(user: CurrentUser) -> None:
    """Check that an account has a role in at least one project."""
    if not user.has_any_role(Role.VIEWER):
        require_role(user, Role.VIEWER)
