"""Pages of workers, shards and the routes of the API."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from latchwork_workflows.db import overview
from latchwork_workflows.services.parts import need_any, parts_of
from latchwork_workflows.services.workers import at_work
from latchwork_workflows.ui.frame import page
from latchwork_workflows.web import Who

router = APIRouter()
#: The maximum number of tasks shown for each worker.
_MOST_NAMED = 8


@router.get("/workers", response_class=HTMLResponse)
def workers(request: Request, who: Who) -> HTMLResponse:
    """Show the workers with their tasks, and the owners of the shards. Needs a role in some project."""
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
    """Show the routes of the API, from its OpenAPI document."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for path, methods in request.app.openapi()["paths"].items():
        for method, each in methods.items():
            tag = (each.get("tags") or ["server"])[0]
            text = each.get("description", "").split("\n")[0]
            found.setdefault(tag, []).append((method.upper(), path, text))
    return page(request, who, "api.html", groups=found)
