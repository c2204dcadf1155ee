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
from latchwork_workflows.services.parts import parts_of
from latchwork_workflows.web import Who

router = APIRouter(prefix="/api/v1", tags=["backfills"])


@router.post("/workflows/{project}/{name}:backfill", status_code=202)
def start(
    *,
    request: Request,
    who: Who,
    project: m.NamePath,
    name: m.NamePath,
    given: BackfillRequest,
    key: m.UniqueKey = None,
) -> CommandSent:
    """Ask for a run for each of these dates. The command names its backfill once a master has made it."""
    return backfills.start(parts_of(request), who, project, name, given, unique_key=key)


@router.get("/workflows/{project}/{name}/following-backfills")
def list_following(
    *, request: Request, who: Who, project: m.NamePath, name: m.NamePath, dependents: Dependents = "all"
) -> FollowingBackfills:
    """Return the workflows that get a backfill too, if this one gets one with `dependents`."""
    return FollowingBackfills(workflows=backfills.behind(parts_of(request), who, project, name, dependents))


@router.get("/backfills")
def list_backfills(
    *,
    request: Request,
    who: Who,
    project: Annotated[str, Query(max_length=100)] = "",
    workflow: Annotated[str, Query(max_length=100, description="a name; needs project")] = "",
    before: m.Before = None,
    limit: m.Limit = 50,
) -> list[Backfill]:
    """Return backfills, the newest first."""
    return backfills.listed(parts_of(request), who, project=project, workflow=workflow, before=before, limit=limit)


@router.get("/backfills/{backfill_id}")
def get_backfill(*, request: Request, who: Who, backfill_id: m.Id) -> Backfill:
    """Return a backfill."""
    return backfills.get(parts_of(request), who, backfill_id)


@router.get("/backfills/{backfill_id}/runs")
def list_runs(
    *,
    request: Request,
    who: Who,
    backfill_id: m.Id,
    state: m.RunState = "",
    after: Annotated[float | None, Query(ge=-MAX_TIME_S, le=MAX_TIME_S, description="of later times than this")] = None,
    limit: m.Limit = 100,
) -> list[BackfillRun]:
    """Return the runs of a backfill, the oldest date first. Those that were never started are `submitted`."""
    return backfills.runs(parts_of(request), who, backfill_id, state=state, after=after, limit=limit)


@router.post("/backfills/{backfill_id}:stop", status_code=202)
def stop(*, request: Request, who: Who, backfill_id: m.Id, key: m.UniqueKey = None) -> CommandSent:
    """Start no other date of a backfill, and stop those that run."""
    return backfills.stop(parts_of(request), who, backfill_id, unique_key=key)
