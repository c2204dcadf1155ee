"""Backfills: one workflow for many dates."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from latchwork.spi import MAX_TIME_S
from latchwork_workflows.api import models as m
from latchwork_workflows.db.commands import Asked
from latchwork_workflows.model.model import Priority
from latchwork_workflows.model.moments import DateRange
from latchwork_workflows.schemas.base import Document
from latchwork_workflows.schemas.commands import CommandSent
from latchwork_workflows.services import backfills as desk
from latchwork_workflows.services.parts import parts_of
from latchwork_workflows.web import Problem, Who

router = APIRouter(prefix="/api/v1", tags=["backfills"])


class BackfillRequest(Document):
    """For which dates a workflow is to run: ``first`` and ``last``, or ``dates``."""

    first: date | None = None
    last: date | None = None
    dates: list[date] = Field(default_factory=list, max_length=5000)
    parallel: Annotated[int, Field(ge=1, le=1000, description="so many runs at a time")] = 1
    order: Literal["asc", "desc"] = "asc"
    stop_on_failure: bool = False
    params: m.Plain = Field(default_factory=dict)
    priority: Priority | None = None
    dry: bool = False
    no_cache: Annotated[bool, Field(description="every task runs, whatever is known of its outputs")] = False
    dependents: Annotated[
        Literal["none", "direct", "all"], Field(description="which workflows that wait for this one get a backfill too")
    ] = "none"


class BackfillRow(Document):
    """A backfill; ``counts``: how many of its runs are in each state, ``submitted`` those that were never started."""

    id: int
    project: str
    name: str
    version: int
    state: str
    parallel: int
    order: Literal["asc", "desc"]
    stop_on_failure: bool
    dates: int
    counts: dict[str, int]
    created_at: float
    ended_at: float | None
    by: str
    cause: int | None = None


class BackfillRun(Document):
    """One run of a backfill."""

    id: int
    schedule_time: float
    state: str
    started_at: float | None
    ended_at: float | None


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
    """Ask for a run for each of these dates; the command names its backfill once there is one."""
    fields = given.model_dump(exclude={"first", "last", "dates"})
    wanted = desk.Backfill(_dates(given), **fields)
    return _told(desk.start(parts_of(request), who, project, name, wanted, unique_key=key))


@router.get("/backfills")
def list_backfills(
    *,
    request: Request,
    who: Who,
    project: Annotated[str, Query(max_length=100)] = "",
    workflow: Annotated[str, Query(max_length=100, description="a name; needs project")] = "",
    before: m.Before = None,
    limit: m.Limit = 50,
) -> list[BackfillRow]:
    """Backfills, the newest first."""
    of = workflow if project else ""
    found = desk.listed(parts_of(request), who, project=project, workflow=of, before=before, most=limit)
    return [BackfillRow(**_fields(each)) for each in found]


@router.get("/backfills/{backfill_id}")
def get_backfill(*, request: Request, who: Who, backfill_id: m.Id) -> BackfillRow:
    """A backfill, and how far it is."""
    return BackfillRow(**_fields(desk.find(parts_of(request), who, backfill_id)))


@router.get("/backfills/{backfill_id}/runs")
def list_runs(
    *,
    request: Request,
    who: Who,
    backfill_id: m.Id,
    state: m.RunState = "",
    after: Annotated[
        float | None, Query(ge=-MAX_TIME_S, le=MAX_TIME_S, description="of later moments than this")
    ] = None,
    limit: m.Limit = 100,
) -> list[BackfillRun]:
    """The runs of a backfill, the oldest moment first; those that were never started are `submitted`."""
    found = desk.runs(parts_of(request), who, backfill_id, state=state, after=after, most=limit)
    return [BackfillRun.model_validate(each) for each in found]


@router.post("/backfills/{backfill_id}:stop", status_code=202)
def stop(*, request: Request, who: Who, backfill_id: m.Id, key: m.UniqueKey = None) -> CommandSent:
    """Let none of its dates start any more, and stop those at work."""
    return _told(desk.stop(parts_of(request), who, backfill_id, unique_key=key))


def _dates(given: BackfillRequest) -> DateRange | list[date]:
    if given.dates and given.first is None and given.last is None:
        return given.dates
    if given.dates or given.first is None or given.last is None:
        why = "give first and last, or dates, and not both"
        raise Problem(422, f"dates: {why}", errors=[("dates", why)])
    try:
        return DateRange(given.first, given.last)
    except ValueError as error:
        raise Problem(422, f"last: {error}", errors=[("last", str(error))]) from None


def _told(asked: Asked) -> CommandSent:
    return CommandSent(command=asked.id, is_new=asked.is_new)


def _fields(found: desk.Seen) -> dict[str, Any]:
    columns = BackfillRow.model_fields.keys() - {"order", "counts"}
    row = {name: getattr(found.row, name) for name in columns}
    return {**row, "order": found.row.direction, "counts": found.counts}
