"""The home page: health, failures, active runs, next starts, and commands that wait for masters."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from latchwork_workflows.db import overview, workflow_queries
from latchwork_workflows.keys import worker_group_of
from latchwork_workflows.services import schedules
from latchwork_workflows.services.parts import WorkerSeen, parts_of, seen_codes
from latchwork_workflows.ui.frame import page
from latchwork_workflows.web import Who

router = APIRouter()
_DAY_S = 86_400.0


@router.get("/", response_class=HTMLResponse)
def home(request: Request, who: Who) -> HTMLResponse:
    """Show the state of the installation."""
    parts, now = parts_of(request), time.time()
    with parts.database.read() as connection:
        codes = seen_codes(connection, who)
        values: dict[str, Any] = {
            "active": overview.active(connection, codes),
            "active_count": overview.active_count(connection, codes),
            "failed": overview.failed_since(connection, now - _DAY_S, codes),
            "lag": overview.lag(connection),
        }
        lanes = overview.queued_lanes(connection, [each.id for each in values["active"]])
        is_new = not workflow_queries.listed(connection, among=who.projects(), most=1)
    soon = [each for each in schedules.listed(parts, who) if each.next_fires]
    soon.sort(key=lambda each: each.next_fires)
    workers = parts.workers()
    values |= {"workers": workers, "waits": {} if workers is None else _without_workers(lanes, workers)}
    return page(request, who, "home.html", soon=soon[:8], most=overview.MOST, is_new=is_new, **values)


def _without_workers(lanes: Mapping[int, Collection[str]], workers: Sequence[WorkerSeen]) -> dict[int, list[str]]:
    """Return, by run, the worker groups with queued tasks and no online worker."""
    living = {group for each in workers for group in each.groups}
    wanted = {run: {worker_group_of(each) for each in some} for run, some in lanes.items()}
    return {run: sorted(groups - living) for run, groups in wanted.items() if groups - living}
