"""Workers, live events, and the health and metrics of the server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from latchwork_workflows.db import overview
from latchwork_workflows.db.database import DatabaseUnavailable
from latchwork_workflows.schemas.nodes import RunningTask, Worker
from latchwork_workflows.schemas.workers import ActiveTask
from latchwork_workflows.services import runs
from latchwork_workflows.services.context import WorkerStatus, get_context, require_any_role
from latchwork_workflows.services.workers import list_tasks_by_worker
from latchwork_workflows.web import CurrentUser, HttpProblem, Identity, LiveHub, is_still_allowed

router = APIRouter()
#: The limit of the count of failed runs in metrics.
_MOST_FAILED = 100
_TOPIC = r"^(all|run:[1-9][0-9]{0,17})$"


@router.get("/api/v1/workers", tags=["workers"])
def list_workers(request: Request, user: CurrentUser) -> list[Worker]:
    """List the online workers with their tasks. Requires a role in at least one project."""
    require_any_role(user)
    context = get_context(request)
    if context.cluster is None:
        raise HttpProblem(
            503, "the API was started without --store or LATCHWORK_WORKFLOWS_STORE, so workers are not known"
        )
    found = context.list_workers()
    if found is None:
        raise HttpProblem(503, "the store is not reachable now", headers={"Retry-After": "5"})
    with context.database.read() as connection:
        running = list_tasks_by_worker(connection, user, found)
    return [_worker(each, running[each.name]) for each in found]


def _worker(seen: WorkerStatus, running: Sequence[ActiveTask]) -> Worker:
    tasks = [RunningTask.from_row(each) for each in running if each.task]
    fields = {"groups": list(seen.groups), "types": list(seen.types), "tenants": list(seen.tenants)}
    return Worker.from_row(seen, **fields, running=tasks)


@router.get("/api/v1/events", tags=["live"], response_class=StreamingResponse)
async def stream_changes(
    request: Request, user: CurrentUser, topic: Annotated[str, Query(pattern=_TOPIC)] = "all"
) -> StreamingResponse:
    """Stream an event `change` whenever a run has changed, or with the topic `all` whenever anything has changed."""
    context = get_context(request)
    live: LiveHub = request.app.state.site.live

    def look(now: Identity) -> None:
        if topic != "all":
            runs.find_run_row(context, now, int(topic.partition(":")[2]))

    await run_in_threadpool(look, user)
    stream = await live.guard_stream(live.stream_changes(topic), user.name, lambda: is_still_allowed(request, look))
    return StreamingResponse(stream, media_type="text/event-stream")


@router.get("/healthz", tags=["server"])
def check_health(request: Request) -> Response:
    """Return 200 (OK) if this server is running and can reach its database. Requires no account."""
    try:
        with get_context(request).database.read() as connection:
            overview.measure_command_lag(connection)
    except DatabaseUnavailable:
        return JSONResponse({"ok": False, "database": False}, 503)
    return JSONResponse({"ok": True, "database": True})


@router.get("/metrics", tags=["server"], response_class=PlainTextResponse)
def get_metrics(request: Request, user: CurrentUser) -> PlainTextResponse:
    """Return metrics in the format of Prometheus. Requires the token of an account with a role in some project."""
    require_any_role(user)
    context = get_context(request)
    now = time.time()
    with context.database.read() as connection:
        lag, active = overview.measure_command_lag(connection), overview.count_active_runs(connection)
        failed = len(overview.list_failed_runs(connection, now - 3600.0, limit=_MOST_FAILED))
    workers = context.list_workers()
    figures = {
        "latchwork_workflows_active_runs": active,
        "latchwork_workflows_failed_runs_last_hour": failed,
        "latchwork_workflows_open_commands": lag.waiting,
        "latchwork_workflows_oldest_command_seconds": 0 if lag.oldest_at is None else max(0.0, now - lag.oldest_at),
        "latchwork_workflows_shards": lag.shards,
        "latchwork_workflows_shards_without_owner": lag.unowned,
        "latchwork_workflows_store_reachable": int(workers is not None),
        "latchwork_workflows_workers": len(workers or ()),
        "latchwork_workflows_slots": sum(each.slots for each in workers or ()),
        "latchwork_workflows_busy_slots": sum(each.busy for each in workers or ()),
    }
    lines = [f"# TYPE {name} gauge\n{name} {value}\n" for name, value in figures.items()]
    return PlainTextResponse("".join(lines), media_type="text/plain; version=0.0.4; charset=utf-8")
