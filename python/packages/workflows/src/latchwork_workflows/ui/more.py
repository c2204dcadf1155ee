"""Schedules, workers, and what the API offers."""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from latchwork_workflows.db import overview
from latchwork_workflows.services import schedules
from latchwork_workflows.services.parts import need_any, parts_of
from latchwork_workflows.services.workers import at_work
from latchwork_workflows.ui.frame import page
from latchwork_workflows.web import Problem, Role, Who

router = APIRouter()
#: So many tasks of a worker are named.
_MOST_NAMED = 8


@router.get("/schedules", response_class=HTMLResponse)
def list_schedules(
    request: Request,
    who: Who,
    cron: Annotated[str, Query(max_length=200)] = "",
    tz: Annotated[str, Query(max_length=100)] = "UTC",
) -> HTMLResponse:
    """All schedules by when they fire next; and a field that says when an expression would."""
    rows = schedules.listed(parts_of(request), who)
    rows.sort(key=lambda each: each.next_fires or [math.inf])
    may = {each.project for each in rows if who.may(Role.OPERATOR, each.project)}
    return page(request, who, "schedules.html", rows=rows, cron=cron, tz=tz, may=may, **_preview(cron, tz))


@router.get("/schedules/preview", response_class=HTMLResponse)
def preview(
    request: Request,
    who: Who,
    cron: Annotated[str, Query(max_length=200)] = "",
    tz: Annotated[str, Query(max_length=100)] = "UTC",
) -> HTMLResponse:
    """The part of the page that changes as one types."""
    return page(request, who, "fires.html", **_preview(cron, tz))


def _preview(cron: str, tz: str) -> dict[str, Any]:
    if not cron.strip():
        return {"fires": [], "wrong": ""}
    try:
        return {"fires": schedules.preview(cron.strip(), tz.strip() or "UTC", 5), "wrong": ""}
    except Problem as error:
        return {"fires": [], "wrong": error.detail}


@router.get("/workers", response_class=HTMLResponse)
def workers(request: Request, who: Who) -> HTMLResponse:
    """Who works, and on what; and who has the shards. Needs a role in some project."""
    need_any(who)
    parts = parts_of(request)
    seen = parts.workers()
    with parts.database.read() as connection:
        shards, lag = overview.shards(connection), overview.lag(connection)
        running = at_work(connection, who, seen or ())
    values = {"workers": seen, "running": running, "most": _MOST_NAMED, "known": parts.cluster is not None}
    return page(request, who, "workers.html", shards=shards, lag=lag, **values)


@router.get("/api", response_class=HTMLResponse)
def api(request: Request, who: Who) -> HTMLResponse:
    """The routes of the API, from its own description."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for path, methods in request.app.openapi()["paths"].items():
        for method, each in methods.items():
            tag = (each.get("tags") or ["server"])[0]
            text = each.get("description", "").split("\n")[0]
            found.setdefault(tag, []).append((method.upper(), path, text))
    return page(request, who, "api.html", groups=found)
