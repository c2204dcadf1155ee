"""Pages of workflows: the list, a workflow (drawing, runs, versions, diff), and its start form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from latchwork.errors import BadRecord
from latchwork.spi import read_json
from latchwork_workflows.api.models import MAX_ID, NamePath
from latchwork_workflows.db import run_queries
from latchwork_workflows.model.definition import PRIORITIES, Definition
from latchwork_workflows.model.yaml_format import format_yaml
from latchwork_workflows.schemas.runs import StartRequest
from latchwork_workflows.services import runs, schedules, workflows
from latchwork_workflows.services.context import get_context, validate
from latchwork_workflows.ui.dag_svg import MAX_DRAWN, draw_workflow_svg
from latchwork_workflows.ui.page_helpers import build_url, paginate, redirect, render_page
from latchwork_workflows.web import CurrentUser, HttpProblem, Role, create_secret

router = APIRouter()
_MAX = 50
_MAX_RUNS = 20
_MAX_TASKS = 100
_Number = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


@router.get("/workflows", response_class=HTMLResponse)
def list_workflows(
    request: Request,
    user: CurrentUser,
    q: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[str, Query(max_length=201)] = "",
) -> HTMLResponse:
    """Show the workflows with their last runs and next starts."""
    context = get_context(request)
    rows = workflows.list_workflows(context, user, contains=q.strip(), after=after, limit=_MAX + 1)
    more = build_url("/workflows", q=q, after=rows[_MAX - 1].key) if len(rows) > _MAX else ""
    with context.database.read() as connection:
        last = run_queries.list_recent_runs(connection, [row.code for row in rows[:_MAX]], 8)
    shown = [(row, last.get(row.code, [])) for row in rows[:_MAX]]
    may_edit = user.has_any_role(Role.EDITOR)
    return render_page(request, user, "workflows.html", rows=shown, q=q, older=more, may_edit=may_edit)


@router.get("/workflows/{project}/{name}", response_class=HTMLResponse)
def show_workflow(
    *, request: Request, user: CurrentUser, project: NamePath, name: NamePath, version: _Number = None, draw: int = 0
) -> HTMLResponse:
    """Show the tasks of a workflow as a drawing and as a list."""
    context = get_context(request)
    shown = workflows.get_workflow(context, user, project, name, version)
    found = schedules.list_schedules(context, user, project=project, workflow=name) if shown.cron else []
    is_drawn = len(shown.definition.tasks) <= MAX_DRAWN or bool(draw)
    links = {task.name: f"#task-{number}" for number, task in enumerate(shown.definition.tasks)}
    return render_page(
        request,
        user,
        "workflow.html",
        tab="graph",
        row=shown,
        schedule=found[0] if found else None,
        svg=draw_workflow_svg(shown.definition, None, links) if is_drawn else None,
        source=format_yaml(shown.definition),
    )


@router.get("/workflows/{project}/{name}/runs", response_class=HTMLResponse)
def show_run_grid(
    *,
    request: Request,
    user: CurrentUser,
    project: NamePath,
    name: NamePath,
    before: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
    task: Annotated[int, Query(ge=0, le=5000)] = 0,
) -> HTMLResponse:
    """Show a grid with a row for each task and a column for each run. It shows since when a task fails."""
    context = get_context(request)
    shown = workflows.get_workflow(context, user, project, name)
    names = [each.name for each in shown.definition.tasks]
    part = names[task : task + _MAX_TASKS]
    with context.database.read() as connection:
        rows = run_queries.list_newest_runs(connection, codes=[shown.code], before=before, limit=_MAX_RUNS + 1)
        cells = run_queries.get_task_states(connection, [row.id for row in rows[:_MAX_RUNS]], part)
    path = f"/workflows/{project}/{name}/runs"
    columns, more = paginate(rows, _MAX_RUNS, path, task=task or None)
    following = build_url(path, before=before, task=task + _MAX_TASKS) if task + _MAX_TASKS < len(names) else ""
    values = {"columns": list(reversed(columns)), "names": part, "cells": cells, "older": more, "following": following}
    return render_page(request, user, "grid.html", tab="runs", row=shown, before=before, **values)


@router.get("/workflows/{project}/{name}/versions", response_class=HTMLResponse)
def list_versions(
    *,
    request: Request,
    user: CurrentUser,
    project: NamePath,
    name: NamePath,
    old: _Number = None,
    new: _Number = None,
    before: _Number = None,
) -> HTMLResponse:
    """Show the versions of a workflow and the differences between two of them."""
    context = get_context(request)
    row = workflows.find_workflow_row(context, user, project, name)
    rows = workflows.list_versions(context, user, project, name, before=before, limit=_MAX + 1)
    shown, more = paginate(rows, _MAX, f"/workflows/{project}/{name}/versions", "version")
    new = new or row.version
    old = old or max(1, new - 1)
    lines = workflows.diff_versions(context, user, project, name, old, new) if old != new else []
    values = {"rows": shown, "older": more, "old": old, "new": new, "lines": lines[:5000]}
    return render_page(request, user, "versions.html", tab="versions", row=row, **values)


@router.get("/workflows/{project}/{name}/start", response_class=HTMLResponse)
def show_start_form(request: Request, user: CurrentUser, project: NamePath, name: NamePath) -> HTMLResponse:
    """Show the form that starts a run. It has a field for each parameter."""
    shown = workflows.get_workflow(get_context(request), user, project, name)
    return render_page(
        request,
        user,
        "start.html",
        tab="start",
        row=shown,
        body=shown.definition,
        priorities=PRIORITIES,
        key=create_secret(),
    )


@router.post("/workflows/{project}/{name}/start")
async def start_run(request: Request, user: CurrentUser, project: NamePath, name: NamePath) -> Response:
    """Request a run of a workflow, and redirect to its page once a master has created it."""
    items = [(key, value) for key, value in (await request.form()).multi_items() if isinstance(value, str)]
    chosen = tuple(value for key, value in items if key == "from")
    return await run_in_threadpool(_start, request, user, (project, name), dict(items), chosen)


def _start(
    request: Request, user: CurrentUser, path: tuple[str, str], sent: dict[str, str], chosen: tuple[str, ...]
) -> Response:
    context = get_context(request)
    params = parse_params(workflows.get_workflow(context, user, *path).definition, sent)
    given = validate(
        StartRequest,
        params=params,
        priority=sent.get("priority") or None,
        start_from=list(chosen),
        scope=sent.get("scope", "downstream"),
        dry=bool(sent.get("dry")),
        no_cache=bool(sent.get("no_cache")),
    )
    key = sent.get("key", "")[:150]
    asked = runs.request_run(context, user, *path, given, unique_key=f"page-{key}" if key else None)
    return redirect(f"/commands/{asked.command}")


def parse_params(body: Definition, sent: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters from a start form that differ from their defaults.

    Args:
        body: The definition of the workflow.
        sent: The values that the user has sent, by field name.
    Raises:
        HttpProblem: 422 (invalid). The problem names each field that is not valid JSON.
    """
    params, problems = {}, []
    for name, default in body.params.items():
        text = sent.get(f"param-{name}", "")
        if text in {"", _text(default)}:
            continue
        try:
            params[name] = text if isinstance(default, str) else read_json(text.encode("utf-8", "replace"))
        except BadRecord:
            problems.append((f"params.{name}", f"{text[:60]!r} is not JSON; the default is {_text(default)[:60]}"))
    if problems:
        raise HttpProblem(422, "not started: a parameter is invalid", errors=problems)
    return params


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@router.post("/workflows/{project}/{name}/online")
def set_online(
    request: Request,
    user: CurrentUser,
    project: NamePath,
    name: NamePath,
    online: Annotated[str, Form(max_length=3)] = "",
) -> Response:
    """Set a workflow online, so that it may be started, or offline."""
    workflows.set_online(get_context(request), user, project, name, online=online == "yes")
    return redirect(f"/workflows/{project}/{name}")


@router.post("/workflows/{project}/{name}/schedule")
def set_schedule(
    *,
    request: Request,
    user: CurrentUser,
    project: NamePath,
    name: NamePath,
    enabled: Annotated[str, Form(max_length=3)] = "",
    back: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Enable or disable the schedule of a workflow."""
    schedules.set_schedule_enabled(get_context(request), user, project, name, enabled=enabled == "yes")
    return redirect("/schedules" if back == "schedules" else f"/workflows/{project}/{name}")
