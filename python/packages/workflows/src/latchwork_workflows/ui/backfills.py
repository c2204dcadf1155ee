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
from latchwork_workflows.api.models import MAX_ID, Id, NamePath
from latchwork_workflows.db import workflow_queries
from latchwork_workflows.errors import WrongState
from latchwork_workflows.model.backfill_dates import MAX_PARALLEL, MAX_SCHEDULE_TIMES, DateRange
from latchwork_workflows.model.definition import PRIORITIES
from latchwork_workflows.schemas.backfills import Backfill, BackfillRequest
from latchwork_workflows.services import backfills, workflows
from latchwork_workflows.services.context import get_context, validate
from latchwork_workflows.state import RunState
from latchwork_workflows.state.backfills import STOPPABLE
from latchwork_workflows.ui.page_helpers import build_url, parse_integer, redirect, render_page
from latchwork_workflows.ui.workflows import parse_params
from latchwork_workflows.web import CurrentUser, HttpProblem, Identity, Role, create_secret, draw_share_bar

router = APIRouter()
_MAX = 30
_MAX_DATES = 100
_STATES = [each.value for each in RunState]
#: States from left to right in a bar: done, needing attention, active. The rest was never started.
_ORDER = ("success", "failure", "stopped", "paused", "ready_pause", "ready_stop", "running", "serial_wait", "submitted")
_Timestamp = Annotated[float | None, Query(ge=-MAX_TIME_S, le=MAX_TIME_S)]
_Word = Annotated[str, Query(max_length=100)]


@router.get("/backfills", response_class=HTMLResponse)
def list_backfills(
    *,
    request: Request,
    user: CurrentUser,
    project: _Word = "",
    workflow: _Word = "",
    before: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
) -> HTMLResponse:
    """Show backfills, newest first. A project or a workflow can be selected."""
    context, project = get_context(request), project.replace("\x00", "")
    workflow = workflow.replace("\x00", "") if project else ""
    found = backfills.list_backfills(context, user, project=project, workflow=workflow, before=before, limit=_MAX + 1)
    with context.database.read() as connection:
        among = user.get_projects()
        projects = [each for each in workflow_queries.list_projects(connection) if among is None or each in among]
    chosen = {"project": project, "workflow": workflow}
    more = build_url("/backfills", **chosen, before=found[_MAX - 1].id) if len(found) > _MAX else ""
    rows = [(each, _bar(each)) for each in found[:_MAX]]
    return render_page(
        request, user, "backfills.html", rows=rows, older=more, projects=projects, before=before, **chosen
    )


@router.get("/backfills/{backfill_id}", response_class=HTMLResponse)
def show_backfill(
    *, request: Request, user: CurrentUser, backfill_id: Id, state: _Word = "", after: _Timestamp = None
) -> HTMLResponse:
    """Show the progress of a backfill and its dates, earliest date first."""
    context = get_context(request)
    found = backfills.get_backfill(context, user, backfill_id)
    wanted = state if state in _STATES else ""
    rows = backfills.list_runs(context, user, backfill_id, state=wanted, after=after, limit=_MAX_DATES + 1)
    path = f"/backfills/{backfill_id}"
    more = build_url(path, state=wanted, after=rows[_MAX_DATES - 1].schedule_time) if len(rows) > _MAX_DATES else ""
    may_stop = user.has_role(Role.OPERATOR, found.project) and found.state in STOPPABLE
    return render_page(
        request,
        user,
        "backfill.html",
        row=found,
        counts=[(each, found.counts[each]) for each in _ORDER if found.counts.get(each)],
        bar=_bar(found),
        runs=rows[:_MAX_DATES],
        state=wanted,
        after=after,
        more=more,
        may_stop=may_stop,
        key=create_secret(),
    )


def _bar(found: Backfill) -> object:
    done = sum(found.counts.get(each, 0) for each in ("success", "failure", "stopped"))
    context = [(each, found.counts.get(each, 0)) for each in _ORDER]
    return draw_share_bar(context, f"{done} of {found.dates} have ended")


@router.post("/backfills/{backfill_id}/stop")
def stop_backfill(
    request: Request, user: CurrentUser, backfill_id: Id, key: Annotated[str, Form(min_length=1, max_length=150)]
) -> Response:
    """Stop a backfill, so that no further date starts."""
    backfills.stop_backfill(get_context(request), user, backfill_id, unique_key=f"page-{key}")
    return redirect(f"/backfills/{backfill_id}")


@router.get("/workflows/{project}/{name}/backfill", response_class=HTMLResponse)
def show_backfill_form(request: Request, user: CurrentUser, project: NamePath, name: NamePath) -> HTMLResponse:
    """Show the form that requests a backfill."""
    return _form(request, user, (project, name), {})


@router.get("/workflows/{project}/{name}/backfill/schedule-times", response_class=HTMLResponse)
def preview_dates(
    *, request: Request, user: CurrentUser, project: NamePath, name: NamePath, first: _Word = "", last: _Word = ""
) -> HTMLResponse:
    """Show the number of runs for the entered dates, while the user types."""
    workflows.find_workflow_row(get_context(request), user, project, name)
    return render_page(request, user, "schedule_times.html", **_preview(request, user, (project, name), first, last))


@router.post("/workflows/{project}/{name}/backfill")
async def start_backfill(request: Request, user: CurrentUser, project: NamePath, name: NamePath) -> Response:
    """Request a backfill, and redirect to its page once a master has created it."""
    sent = {key: value for key, value in (await request.form()).multi_items() if isinstance(value, str)}
    return await run_in_threadpool(_start, request, user, (project, name), sent)


def _start(request: Request, user: Identity, path: tuple[str, str], sent: Mapping[str, str]) -> Response:
    context, key = get_context(request), sent.get("key", "")[:150]
    body = workflows.get_workflow(context, user, *path).definition
    try:
        dates = _dates(sent.get("first", ""), sent.get("last", ""))
        given = validate(
            BackfillRequest,
            first=dates.first,
            last=dates.last,
            parallel=parse_integer("parallel", sent.get("parallel", "1")),
            order=sent.get("order", "asc"),
            stop_on_failure=bool(sent.get("stop_on_failure")),
            params=parse_params(body, sent),
            priority=sent.get("priority") or None,
            dry=bool(sent.get("dry")),
            no_cache=bool(sent.get("no_cache")),
            dependents=sent.get("dependents", "none"),
        )
        asked = backfills.request_backfill(context, user, *path, given, unique_key=f"page-{key}" if key else None)
    except HttpProblem as error:
        if error.status != 422:
            raise
        return _form(request, user, path, sent, 422, error.errors or [("", error.detail)])
    except WrongState as error:
        return _form(request, user, path, sent, 409, [("", str(error))])
    return redirect(f"/commands/{asked.command}")


def _form(  # noqa: PLR0917 - one page, shown again if the form is invalid
    request: Request,
    user: Identity,
    path: tuple[str, str],
    sent: Mapping[str, str],
    status: int = 200,
    problems: Sequence[tuple[str, str]] = (),
) -> HTMLResponse:
    shown = workflows.get_workflow(get_context(request), user, *path)
    found = _preview(request, user, path, sent.get("first", ""), sent.get("last", ""))
    behind, refused = _find_dependents(request, user, path)
    known: dict[str, Any] = {"behind": behind, "refused": refused}
    known |= {"can_cache": any(task.cache_s is not None for task in shown.definition.tasks)}
    known |= {
        "priorities": PRIORITIES,
        "most_parallel": MAX_PARALLEL,
        "limit": MAX_SCHEDULE_TIMES,
        "problems": problems,
    }
    values = {"row": shown, "body": shown.definition, "sent": sent, **known, **found}
    return render_page(request, user, "backfill_form.html", status, tab="backfill", key=create_secret(), **values)


def _find_dependents(request: Request, user: Identity, path: tuple[str, str]) -> tuple[dict[str, list[str]], str]:
    """Return the workflows that a backfill can also run because they wait for this one.

    Args:
        request: The request.
        user: The signed-in user.
        path: The project and the name of the workflow.
    Returns:
        The workflows for each choice, ``direct`` and ``all``, and the error message if the backfill cannot include
            them.
    """
    if not user.has_role(Role.OPERATOR, path[0]):
        return {}, ""
    try:
        return {
            level: backfills.list_dependent_workflows(get_context(request), user, *path, level)
            for level in ("direct", "all")
        }, ""
    except HttpProblem as error:
        if error.status != 403:
            raise
        return {}, error.detail


def _preview(request: Request, user: Identity, path: tuple[str, str], first: str, last: str) -> dict[str, Any]:
    if not first or not last:
        return {"schedule_times": [], "wrong": ""}
    try:
        return {
            "schedule_times": backfills.preview_times(get_context(request), user, *path, _dates(first, last)),
            "wrong": "",
        }
    except HttpProblem as error:
        if error.status != 422:
            raise
        return {"schedule_times": [], "wrong": error.detail}


def _dates(first: str, last: str) -> DateRange:
    found = []
    for name, text in (("first", first), ("last", last)):
        try:
            found.append(date.fromisoformat(text.strip()))
        except ValueError:
            why = f"{text.strip()[:40]!r} is not a date; write it like 2026-11-22"
            raise HttpProblem(422, f"{name}: {why}", errors=[(name, why)]) from None
    try:
        return DateRange(*found)
    except ValueError as error:
        raise HttpProblem(422, f"last: {error}", errors=[("last", str(error))]) from None
