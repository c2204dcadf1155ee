"""The page of schedules, with a preview of cron expressions."""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from latchwork_workflows.services import schedules
from latchwork_workflows.services.context import get_context
from latchwork_workflows.ui.page_helpers import render_page
from latchwork_workflows.web import CurrentUser, HttpProblem, Role

router = APIRouter()
#: The maximum number of tasks shown for each worker.
_MAX_NAMED = 8


@router.get("/schedules", response_class=HTMLResponse)
def list_schedules(
    request: Request,
    user: CurrentUser,
    cron: Annotated[str, Query(max_length=200)] = "",
    tz: Annotated[str, Query(max_length=100)] = "UTC",
) -> HTMLResponse:
    """Show all schedules, sorted by next fire time, and a preview of a cron expression."""
    rows = schedules.list_schedules(get_context(request), user)
    rows.sort(key=lambda each: each.next_fires or [math.inf])
    may = {each.project for each in rows if user.has_role(Role.OPERATOR, each.project)}
    return render_page(request, user, "schedules.html", rows=rows, cron=cron, tz=tz, may=may, **_preview(cron, tz))


@router.get("/schedules/preview", response_class=HTMLResponse)
def preview_fire_times(
    request: Request,
    user: CurrentUser,
    cron: Annotated[str, Query(max_length=200)] = "",
    tz: Annotated[str, Query(max_length=100)] = "UTC",
) -> HTMLResponse:
    """Show the next fire times of a cron expression while the user types."""
    return render_page(request, user, "fires.html", **_preview(cron, tz))


def _preview(cron: str, tz: str) -> dict[str, Any]:
    if not cron.strip():
        return {"fires": [], "wrong": ""}
    try:
        return {"fires": schedules.preview_fire_times(cron.strip(), tz.strip() or "UTC", 5), "wrong": ""}
    except HttpProblem as error:
        return {"fires": [], "wrong": error.detail}
