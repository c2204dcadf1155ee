"""The home page: health, failures, active runs, next starts, and commands that wait for masters."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from latchwork_workflows.db import overview, workflow_queries
from latchwork_workflows.keys import get_worker_group
from latchwork_workflows.services import schedules
from latchwork_workflows.services.context import WorkerStatus, get_context, list_visible_codes
from latchwork_workflows.ui.page_helpers import render_page
from latchwork_workflows.web import CurrentUser

router = APIRouter()
_DAY_S = 86_400.0


@router.get("/", response_class=HTMLResponse)
def show_home(request: Request, user: CurrentUser) -> HTMLResponse:
    """Show the home page, with the state of the installation."""
    context, now = get_context(request), time.time()
    with context.database.read() as connection:
        codes = list_visible_codes(connection, user)
        values: dict[str, Any] = {
            "active": overview.list_active_runs(connection, codes),
            "active_count": overview.count_active_runs(connection, codes),
            "failed": overview.list_failed_runs(connection, now - _DAY_S, codes),
            "lag": overview.measure_command_lag(connection),
        }
        partitions = overview.get_queued_partitions(connection, [each.id for each in values["active"]])
        is_new = not workflow_queries.list_workflows(connection, projects=user.get_projects(), limit=1)
    soon = [each for each in schedules.list_schedules(context, user) if each.next_fires]
    soon.sort(key=lambda each: each.next_fires)
    workers = context.list_workers()
    values |= {
        "workers": workers,
        "waits": {} if workers is None else _find_groups_without_workers(partitions, workers),
    }
    return render_page(request, user, "home.html", soon=soon[:8], limit=overview.MAX, is_new=is_new, **values)


def _find_groups_without_workers(
    partitions: Mapping[int, Collection[str]], workers: Sequence[WorkerStatus]
) -> dict[int, list[str]]:
    """Return the worker groups that have queued tasks but no online worker, by run ID.

    Args:
        partitions: The queue partitions that contain tasks of each run, by run ID.
        workers: The workers that are online.
    """
    living = {group for each in workers for group in each.groups}
    wanted = {run: {get_worker_group(each) for each in some} for run, some in partitions.items()}
    return {run: sorted(groups - living) for run, groups in wanted.items() if groups - living}
