"""Pages of backfills: the list, a backfill with its dates, and the form to request one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from latchwork.spi import MAX_TIME_S
from latchwork_workflows.api.models import MOST_ID, Id, NamePath
from latchwork_workflows.db import workflow_queries
from latchwork_workflows.errors import WrongState
from latchwork_workflows.model.backfill_dates import MOST_MOMENTS, MOST_PARALLEL, DateRange
from latchwork_workflows.model.model import PRIORITIES
from latchwork_workflows.schemas.backfills import Backfill, BackfillRequest
from latchwork_workflows.services import backfills, workflows
from latchwork_workflows.services.parts import parts_of, valid
from latchwork_workflows.state import InstanceState
from latchwork_workflows.state.backfills import STOPPABLE
from latchwork_workflows.ui.frame import address, led, page, whole
from latchwork_workflows.ui.workflows import params_of
from latchwork_workflows.web import Identity, Problem, Role, Who, new_secret, shares

router = APIRouter()
_MOST = 30
_MOST_DATES = 100
_STATES = [each.value for each in InstanceState]
#: States from left to right in a bar: done, needing attention, active. The rest was never started.
_ORDER = ("success", "failure", "stopped", "paused", "ready_pause", "ready_stop", "running", "serial_wait", "submitted")
_Moment = Annotated[float | None, Query(ge=-MAX_TIME_S, le=MAX_TIME_S)]
_Word = Annotated[str, Query(max_length=100)]


@router.get("/backfills", response_class=HTMLResponse)
def list_backfills(
    *,
    request: Request,
    who: Who,
    project: _Word = "",
    workflow: _Word = "",
    before: Annotated[int | None, Query(ge=1, le=MOST_ID)] = None,
) -> HTMLResponse:
    """Show backfills, newest first: all, of a project, or of a workflow."""
    parts, project = parts_of(request), project.replace("\x00", "")
    workflow = workflow.replace("\x00", "") if project else ""
    found = backfills.listed(parts, who, project=project, workflow=workflow, before=before, limit=_MOST + 1)
    with parts.database.read() as connection:
        among = who.projects()
        projects = [each for each in workflow_queries.projects(connection) if among is None or each in among]
    chosen = {"project": project, "workflow": workflow}
    more = address("/backfills", **chosen, before=found[_MOST - 1].id) if len(found) > _MOST else ""
    rows = [(each, _bar(each)) for each in found[:_MOST]]
    return page(request, who, "backfills.html", rows=rows, older=more, projects=projects, before=before, **chosen)


@router.get("/backfills/{backfill_id}", response_class=HTMLResponse)
def show_backfill(
    *, request: Request, who: Who, backfill_id: Id, state: _Word = "", after: _Moment = None
) -> HTMLResponse:
    """Show a backfill: its progress and its dates, oldest first."""
    parts = parts_of(request)
    found = backfills.get(parts, who, backfill_id)
    wanted = state if state in _STATES else ""
    rows = backfills.runs(parts, who, backfill_id, state=wanted, after=after, limit=_MOST_DATES + 1)
    path = f"/backfills/{backfill_id}"
    more = address(path, state=wanted, after=rows[_MOST_DATES - 1].schedule_time) if len(rows) > _MOST_DATES else ""
    may_stop = who.may(Role.OPERATOR, found.project) and found.state in STOPPABLE
    return page(
        request,
        who,
        "backfill.html",
        row=found,
        counts=[(each, found.counts[each]) for each in _ORDER if found.counts.get(each)],
        bar=_bar(found),
        runs=rows[:_MOST_DATES],
        state=wanted,
        after=after,
        more=more,
        may_stop=may_stop,
        key=new_secret(),
    )


def _bar(found: Backfill) -> object:
    done = sum(found.counts.get(each, 0) for each in ("success", "failure", "stopped"))
    parts = [(each, found.counts.get(each, 0)) for each in _ORDER]
    return shares(parts, f"{done} of {found.dates} are over")


@router.post("/backfills/{backfill_id}/stop")
def stop(
    request: Request, who: Who, backfill_id: Id, key: Annotated[str, Form(min_length=1, max_length=150)]
) -> Response:
    """Stop a backfill: no further date starts."""
    backfills.stop(parts_of(request), who, backfill_id, unique_key=f"page-{key}")
    return led(f"/backfills/{backfill_id}")


@router.get("/workflows/{project}/{name}/backfill", response_class=HTMLResponse)
def form(request: Request, who: Who, project: NamePath, name: NamePath) -> HTMLResponse:
    """Show the form for the dates and the parallelism."""
    return _form(request, who, (project, name), {})


@router.get("/workflows/{project}/{name}/backfill/moments", response_class=HTMLResponse)
def preview(
    *, request: Request, who: Who, project: NamePath, name: NamePath, first: _Word = "", last: _Word = ""
) -> HTMLResponse:
    """Show the number of runs for the entered dates. Updates the form while the user types."""
    workflows.row_of(parts_of(request), who, project, name)
    return page(request, who, "moments.html", **_moments(request, who, (project, name), first, last))


@router.post("/workflows/{project}/{name}/backfill")
async def start(request: Request, who: Who, project: NamePath, name: NamePath) -> Response:
    """Request a backfill and redirect to it once it exists."""
    sent = {key: value for key, value in (await request.form()).multi_items() if isinstance(value, str)}
    return await run_in_threadpool(_start, request, who, (project, name), sent)


def _start(request: Request, who: Identity, path: tuple[str, str], sent: Mapping[str, str]) -> Response:
    parts, key = parts_of(request), sent.get("key", "")[:150]
    body = workflows.get(parts, who, *path).definition
    try:
        dates = _dates(sent.get("first", ""), sent.get("last", ""))
        given = valid(
            BackfillRequest,
            first=dates.first,
            last=dates.last,
            parallel=whole("parallel", sent.get("parallel", "1")),
            order=sent.get("order", "asc"),
            stop_on_failure=bool(sent.get("stop_on_failure")),
            params=params_of(body, sent),
            priority=sent.get("priority") or None,
            dry=bool(sent.get("dry")),
            no_cache=bool(sent.get("no_cache")),
            dependents=sent.get("dependents", "none"),
        )
        asked = backfills.start(parts, who, *path, given, unique_key=f"page-{key}" if key else None)
    except Problem as error:
        if error.status != 422:
            raise
        return _form(request, who, path, sent, 422, error.errors or [("", error.detail)])
    except WrongState as error:
        return _form(request, who, path, sent, 409, [("", str(error))])
    return led(f"/commands/{asked.command}")


def _form(  # noqa: PLR0917 - one page, shown again if the form is invalid
    request: Request,
    who: Identity,
    path: tuple[str, str],
    sent: Mapping[str, str],
    status: int = 200,
    problems: Sequence[tuple[str, str]] = (),
) -> HTMLResponse:
    shown = workflows.get(parts_of(request), who, *path)
    found = _moments(request, who, path, sent.get("first", ""), sent.get("last", ""))
    behind, refused = _behind(request, who, path)
    known: dict[str, Any] = {"behind": behind, "refused": refused}
    known |= {"can_cache": any(task.cache_s is not None for task in shown.definition.tasks)}
    known |= {"priorities": PRIORITIES, "most_parallel": MOST_PARALLEL, "most": MOST_MOMENTS, "problems": problems}
    values = {"row": shown, "body": shown.definition, "sent": sent, **known, **found}
    return page(request, who, "backfill_form.html", status, tab="backfill", key=new_secret(), **values)


def _behind(request: Request, who: Identity, path: tuple[str, str]) -> tuple[dict[str, list[str]], str]:
    """Return the dependent workflows, ``direct`` and ``all``, and the error if they cannot be included."""
    if not who.may(Role.OPERATOR, path[0]):
        return {}, ""
    try:
        return {level: backfills.behind(parts_of(request), who, *path, level) for level in ("direct", "all")}, ""
    except Problem as error:
        if error.status != 403:
            raise
        return {}, error.detail


def _moments(request: Request, who: Identity, path: tuple[str, str], first: str, last: str) -> dict[str, Any]:
    if not first or not last:
        return {"moments": [], "wrong": ""}
    try:
        return {"moments": backfills.moments(parts_of(request), who, *path, _dates(first, last)), "wrong": ""}
    except Problem as error:
        if error.status != 422:
            raise
        return {"moments": [], "wrong": error.detail}


def _dates(first: str, last: str) -> DateRange:
    found = []
    for name, text in (("first", first), ("last", last)):
        try:
            found.append(date.fromisoformat(text.strip()))
        except ValueError:
            why = f"{text.strip()[:40]!r} is no date; write it like 2026-11-22"
            raise Problem(422, f"{name}: {why}", errors=[(name, why)]) from None
    try:
        return DateRange(*found)
    except ValueError as error:
        raise Problem(422, f"last: {error}", errors=[("last", str(error))]) from None
