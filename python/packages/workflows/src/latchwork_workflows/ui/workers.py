"""Pages of workers, shards and the routes of the API."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from latchwork_workflows.db import overview
from latchwork_workflows.services.context import get_context, require_any_role
from latchwork_workflows.services.workers import list_tasks_by_worker
from latchwork_workflows.ui.page_helpers import render_page
from latchwork_workflows.web import CurrentUser

router = APIRouter()
#: The maximum number of tasks shown for each worker.
_MAX_NAMED = 8


@router.get("/workers", response_class=HTMLResponse)
def show_workers(request: Request, user: CurrentUser) -> HTMLResponse:
    """Show the workers with their tasks, and the shards with their owners. Requires a role in at least one project."""
    require_any_role(user)
    context = get_context(request)
    seen = context.list_workers()
    with context.database.read() as connection:
        shards, lag = overview.list_shards(connection), overview.measure_command_lag(connection)
        running = list_tasks_by_worker(connection, user, seen or ())
    values = {"workers": seen, "running": running, "limit": _MAX_NAMED, "known": context.cluster is not None}
    return render_page(request, user, "workers.html", shards=shards, lag=lag, **values)


@router.get("/api", response_class=HTMLResponse)
def show_api_routes(request: Request, user: CurrentUser) -> HTMLResponse:
    """Show the routes of the API, according to its OpenAPI document."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for path, methods in request.app.openapi()["paths"].items():
        for method, each in methods.items():
            tag = (each.get("tags") or ["server"])[0]
            text = each.get("description", "").split("\n")[0]
            found.setdefault(tag, []).append((method.upper(), path, text))
    return render_page(request, user, "api.html", groups=found)
