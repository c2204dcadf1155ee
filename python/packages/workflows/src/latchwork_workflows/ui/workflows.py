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
from latchwork_workflows.api.models import MOST_ID, NamePath
from latchwork_workflows.db import run_queries
from latchwork_workflows.model.model import PRIORITIES, Definition
from latchwork_workflows.model.yaml_format import write
from latchwork_workflows.schemas.runs import StartRequest
from latchwork_workflows.services import runs, schedules, workflows
from latchwork_workflows.services.parts import parts_of, valid
from latchwork_workflows.ui.dag_svg import MOST_DRAWN, dag_svg
from latchwork_workflows.ui.frame import address, led, older, page
from latchwork_workflows.web import Problem, Role, Who, new_secret

router = APIRouter()
_MOST = 50
_MOST_RUNS = 20
_MOST_TASKS = 100
_Number = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


@router.get("/workflows", response_class=HTMLResponse)
def list_workflows(
    request: Request,
    who: Who,
    q: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[str, Query(max_length=201)] = "",
) -> HTMLResponse:
    """Show workflows with their last runs and next starts."""
    parts = parts_of(request)
    rows = workflows.listed(parts, who, contains=q.strip(), after=after, limit=_MOST + 1)
    more = address("/workflows", q=q, after=rows[_MOST - 1].key) if len(rows) > _MOST else ""
    with parts.database.read() as connection:
        last = run_queries.recent(connection, [row.code for row in rows[:_MOST]], 8)
    shown = [(row, last.get(row.code, [])) for row in rows[:_MOST]]
    may_edit = who.may_somewhere(Role.EDITOR)
    return page(request, who, "workflows.html", rows=shown, q=q, older=more, may_edit=may_edit)


@router.get("/workflows/{project}/{name}", response_class=HTMLResponse)
def show_workflow(
    *, request: Request, who: Who, project: NamePath, name: NamePath, version: _Number = None, draw: int = 0
) -> HTMLResponse:
    """Show the tasks of a workflow as a drawing and as a list."""
    parts = parts_of(request)
    shown = workflows.get(parts, who, project, name, version)
    found = schedules.listed(parts, who, project=project, workflow=name) if shown.cron else []
    is_drawn = len(shown.definition.tasks) <= MOST_DRAWN or bool(draw)
    links = {task.name: f"#task-{number}" for number, task in enumerate(shown.definition.tasks)}
    return page(
        request,
        who,
        "workflow.html",
        tab="graph",
        row=shown,
        schedule=found[0] if found else None,
        svg=dag_svg(shown.definition, None, links) if is_drawn else None,
        source=write(shown.definition),
    )


@router.get("/workflows/{project}/{name}/runs", response_class=HTMLResponse)
def run_grid(
    *,
    request: Request,
    who: Who,
    project: NamePath,
    name: NamePath,
    before: Annotated[int | None, Query(ge=1, le=MOST_ID)] = None,
    task: Annotated[int, Query(ge=0, le=5000)] = 0,
) -> HTMLResponse:
    """Show a grid of runs and tasks, to see where and since when tasks fail."""
    parts = parts_of(request)
    shown = workflows.get(parts, who, project, name)
    names = [each.name for each in shown.definition.tasks]
    part = names[task : task + _MOST_TASKS]
    with parts.database.read() as connection:
        rows = run_queries.newest(connection, codes=[shown.code], before=before, most=_MOST_RUNS + 1)
        cells = run_queries.task_states(connection, [row.id for row in rows[:_MOST_RUNS]], part)
    path = f"/workflows/{project}/{name}/runs"
    columns, more = older(rows, _MOST_RUNS, path, task=task or None)
    following = address(path, before=before, task=task + _MOST_TASKS) if task + _MOST_TASKS < len(names) else ""
    values = {"columns": list(reversed(columns)), "names": part, "cells": cells, "older": more, "following": following}
    return page(request, who, "grid.html", tab="runs", row=shown, before=before, **values)


@router.get("/workflows/{project}/{name}/versions", response_class=HTMLResponse)
def list_versions(
    *,
    request: Request,
    who: Who,
    project: NamePath,
    name: NamePath,
    old: _Number = None,
    new: _Number = None,
    before: _Number = None,
) -> HTMLResponse:
    """Show versions and the diff between two of them."""
    parts = parts_of(request)
    row = workflows.row_of(parts, who, project, name)
    rows = workflows.versions(parts, who, project, name, before=before, limit=_MOST + 1)
    shown, more = older(rows, _MOST, f"/workflows/{project}/{name}/versions", "version")
    new = new or row.version
    old = old or max(1, new - 1)
    lines = workflows.diff(parts, who, project, name, old, new) if old != new else []
    values = {"rows": shown, "older": more, "old": old, "new": new, "lines": lines[:5000]}
    return page(request, who, "versions.html", tab="versions", row=row, **values)


@router.get("/workflows/{project}/{name}/start", response_class=HTMLResponse)
def start_form(request: Request, who: Who, project: NamePath, name: NamePath) -> HTMLResponse:
    """Show the start form, with a field for each parameter."""
    shown = workflows.get(parts_of(request), who, project, name)
    return page(
        request,
        who,
        "start.html",
        tab="start",
        row=shown,
        body=shown.definition,
        priorities=PRIORITIES,
        key=new_secret(),
    )


@router.post("/workflows/{project}/{name}/start")
async def start(request: Request, who: Who, project: NamePath, name: NamePath) -> Response:
    """Start a run and redirect to it once it exists."""
    items = [(key, value) for key, value in (await request.form()).multi_items() if isinstance(value, str)]
    chosen = tuple(value for key, value in items if key == "from")
    return await run_in_threadpool(_start, request, who, (project, name), dict(items), chosen)


def _start(
    request: Request, who: Who, path: tuple[str, str], sent: dict[str, str], chosen: tuple[str, ...]
) -> Response:
    parts = parts_of(request)
    params = params_of(workflows.get(parts, who, *path).definition, sent)
    given = valid(
        StartRequest,
        params=params,
        priority=sent.get("priority") or None,
        start_from=list(chosen),
        scope=sent.get("scope", "downstream"),
        dry=bool(sent.get("dry")),
        no_cache=bool(sent.get("no_cache")),
    )
    key = sent.get("key", "")[:150]
    asked = runs.start(parts, who, *path, given, unique_key=f"page-{key}" if key else None)
    return led(f"/commands/{asked.command}")


def params_of(body: Definition, sent: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of a start form that differ from the defaults.

    Raises:
        Problem: 422, names each field that is not valid JSON.
    """
    params, problems = {}, []
    for name, default in body.params.items():
        text = sent.get(f"param-{name}", "")
        if text in {"", _text(default)}:
            continue
        try:
            params[name] = text if isinstance(default, str) else read_json(text.encode("utf-8", "replace"))
        except BadRecord:
            problems.append((f"params.{name}", f"{text[:60]!r} is no JSON; the default is {_text(default)[:60]}"))
    if problems:
        raise Problem(422, "nothing was started: a parameter is wrong", errors=problems)
    return params


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@router.post("/workflows/{project}/{name}/online")
def set_online(
    request: Request, who: Who, project: NamePath, name: NamePath, online: Annotated[str, Form(max_length=3)] = ""
) -> Response:
    """Set a workflow online or offline."""
    workflows.set_online(parts_of(request), who, project, name, online=online == "yes")
    return led(f"/workflows/{project}/{name}")


@router.post("/workflows/{project}/{name}/schedule")
def set_schedule(
    *,
    request: Request,
    who: Who,
    project: NamePath,
    name: NamePath,
    enabled: Annotated[str, Form(max_length=3)] = "",
    back: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Enable or disable the schedule of a workflow."""
    schedules.set_enabled(parts_of(request), who, project, name, enabled=enabled == "yes")
    return led("/schedules" if back == "schedules" else f"/workflows/{project}/{name}")
