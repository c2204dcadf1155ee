"""Backfills: one workflow for many dates."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from latchwork.spi import MAX_TIME_S
from latchwork_workflows.api import models as m
from latchwork_workflows.schemas.backfills import (
    Backfill,
    BackfillRequest,
    BackfillRun,
    Dependents,
    FollowingBackfills,
)
from latchwork_workflows.schemas.commands import CommandSent
from latchwork_workflows.services import backfills
from latchwork_workflows.services.context import get_context
from latchwork_workflows.web import CurrentUser

router = APIRouter(prefix="/api/v1", tags=["backfills"])


@router.post("/workflows/{project}/{name}:backfill", status_code=202)
def start_backfill(
    *,
    request: Request,
    user: CurrentUser,
    project: m.NamePath,
    name: m.NamePath,
    body: BackfillRequest,
    key: m.UniqueKey = None,
) -> CommandSent:
    """Request a backfill of a workflow. Once a master has created the backfill, the returned command has its ID."""
    return backfills.request_backfill(get_context(request), user, project, name, body, unique_key=key)


@router.get("/workflows/{project}/{name}/following-backfills")
def list_dependent_workflows(
    *, request: Request, user: CurrentUser, project: m.NamePath, name: m.NamePath, dependents: Dependents = "all"
) -> FollowingBackfills:
    """List the other workflows that a backfill also runs, because they wait for runs of its workflow."""
    return FollowingBackfills(
        workflows=backfills.list_dependent_workflows(get_context(request), user, project, name, dependents)
    )


@router.get("/backfills")
def list_backfills(
    *,
    request: Request,
    user: CurrentUser,
    project: Annotated[str, Query(max_length=100)] = "",
    workflow: Annotated[str, Query(max_length=100, description="a name; needs project")] = "",
    before: m.Before = None,
    limit: m.Limit = 50,
) -> list[Backfill]:
    """List backfills, newest first."""
    return backfills.list_backfills(
        get_context(request), user, project=project, workflow=workflow, before=before, limit=limit
    )


@router.get("/backfills/{backfill_id}")
def get_backfill(*, request: Request, user: CurrentUser, backfill_id: m.Id) -> Backfill:
    """Return a backfill with its progress."""
    return backfills.get_backfill(get_context(request), user, backfill_id)


@router.get("/backfills/{backfill_id}/runs")
def list_runs(
    *,
    request: Request,
    user: CurrentUser,
    backfill_id: m.Id,
    state: m.RunState = "",
    after: Annotated[
        float | None, Query(ge=-MAX_TIME_S, le=MAX_TIME_S, description="only runs with later schedule times")
    ] = None,
    limit: m.Limit = 100,
) -> list[BackfillRun]:
    """List the runs of a backfill, earliest date first.

    Dates that have not started yet have the state `submitted`.
    """
    return backfills.list_runs(get_context(request), user, backfill_id, state=state, after=after, limit=limit)


@router.post("/backfills/{backfill_id}:stop", status_code=202)
def stop_backfill(*, request: Request, user: CurrentUser, backfill_id: m.Id, key: m.UniqueKey = None) -> CommandSent:
    """Stop a backfill: its active runs are stopped and no more dates start."""
    return backfills.stop_backfill(get_context(request), user, backfill_id, unique_key=key)
