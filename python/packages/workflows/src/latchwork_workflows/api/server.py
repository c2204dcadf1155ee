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
from latchwork_workflows.schemas.nodes import Worker, WorkerTask
from latchwork_workflows.schemas.workers import ActiveTask
from latchwork_workflows.services import runs
from latchwork_workflows.services.parts import WorkerSeen, need_any, parts_of
from latchwork_workflows.services.workers import at_work
from latchwork_workflows.web import Identity, Problem, Who, may_still

router = APIRouter()
#: The limit of the count of failed runs in metrics.
_MOST_FAILED = 100
_TOPIC = r"^(all|run:[1-9][0-9]{0,17})$"


@router.get("/api/v1/workers", tags=["workers"])
def list_workers(request: Request, who: Who) -> list[Worker]:
    """The workers that live, and what they run. Needs a role in some project."""
    need_any(who)
    parts = parts_of(request)
    if parts.cluster is None:
        raise Problem(503, "workers are not known: the API was started without --store or LATCHWORK_WORKFLOWS_STORE")
    found = parts.workers()
    if found is None:
        raise Problem(503, "the store cannot be asked for workers now", headers={"Retry-After": "5"})
    with parts.database.read() as connection:
        running = at_work(connection, who, found)
    return [_worker(each, running[each.name]) for each in found]


def _worker(seen: WorkerSeen, running: Sequence[ActiveTask]) -> Worker:
    tasks = [WorkerTask.of(each) for each in running if each.task]
    fields = {"groups": list(seen.groups), "types": list(seen.types), "tenants": list(seen.tenants)}
    return Worker.of(seen, **fields, running=tasks)


@router.get("/api/v1/events", tags=["live"], response_class=StreamingResponse)
async def events(request: Request, who: Who, topic: Annotated[str, Query(pattern=_TOPIC)] = "all") -> StreamingResponse:
    """A stream with an event ``change`` whenever something changed: of a run, or anything. What, is asked for then."""
    parts, live = parts_of(request), request.app.state.site.live

    def look(now: Identity) -> None:
        if topic != "all":
            runs.row_of(parts, now, int(topic.partition(":")[2]))

    await run_in_threadpool(look, who)
    stream = await live.opened(live.changes(topic), who.name, lambda: may_still(request, look))
    return StreamingResponse(stream, media_type="text/event-stream")


@router.get("/healthz", tags=["server"])
def healthz(request: Request) -> Response:
    """Whether this server answers, and reaches its database. Needs no account, and tells nothing else."""
    try:
        with parts_of(request).database.read() as connection:
            overview.lag(connection)
    except DatabaseUnavailable:
        return JSONResponse({"ok": False, "database": False}, 503)
    return JSONResponse({"ok": True, "database": True})


@router.get("/metrics", tags=["server"], response_class=PlainTextResponse)
def metrics(request: Request, who: Who) -> PlainTextResponse:
    """What waits and runs, for Prometheus: with a token of an account that has a role in some project."""
    need_any(who)
    parts = parts_of(request)
    now = time.time()
    with parts.database.read() as connection:
        lag, active = overview.lag(connection), overview.active_count(connection)
        failed = len(overview.failed_since(connection, now - 3600.0, most=_MOST_FAILED))
    workers = parts.workers()
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
