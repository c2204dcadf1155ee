"""Schedules: when workflows start automatically, and whether they are enabled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork.schedules import Cron
from latchwork_workflows.db import workflow_queries
from latchwork_workflows.db.history import record_event
from latchwork_workflows.db.tables import schedule
from latchwork_workflows.schemas.schedules import LastFire, Schedule
from latchwork_workflows.services.context import ServiceContext, require_role, require_visible
from latchwork_workflows.services.errors import object_not_found
from latchwork_workflows.web import HttpProblem, Identity, Role

Row: TypeAlias = Any


def list_schedules(
    context: ServiceContext, user: Identity, *, project: str = "", workflow: str = "", count: int = 1
) -> list[Schedule]:
    """Return schedules, sorted by the project and the name of their workflows.

    Args:
        context: The service context of this process.
        user: The requesting account.
        project: Return only schedules of this project. Empty: all projects.
        workflow: If a project is given, return only the schedule of this workflow in it.
        count: How many of the next fire times to return.
    Raises:
        HttpProblem: 404 (not found) if there is no such workflow.
    """
    with context.database.read() as connection:
        if workflow:
            require_visible(
                user, workflow_queries.find_workflow(connection, project, workflow), f"workflow {project}.{workflow}"
            )
        rows = workflow_queries.list_schedules(connection, user.get_projects())
        rows = [row for row in rows if project in {"", row.project} and workflow in {"", row.name}]
        last = workflow_queries.load_last_fire_times(connection, [row.code for row in rows])
    now = time.time()
    return [_schedule(row, last.get(row.code), now, count) for row in rows]


def _schedule(row: Row, last: Row | None, now: float, count: int) -> Schedule:
    fires = list_next_fires(row, now, count) if row.enabled and row.online else []
    fired = None
    if last is not None:
        fired = LastFire.from_row(last, run=last.run_id)
    return Schedule.from_row(row, next_fires=fires, last=fired)


def set_schedule_enabled(context: ServiceContext, user: Identity, project: str, name: str, *, enabled: bool) -> None:
    """Enable or disable the schedule of a workflow. Fire times that pass while it is disabled are not caught up.

    An enabled schedule continues with its next fire time. This also repairs a schedule that is ahead because a clock
    was ahead.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such workflow or it
            has no schedule.
    """
    now = time.time()
    with context.database.write() as connection:
        row = require_visible(
            user, workflow_queries.find_workflow(connection, project, name), f"workflow {project}.{name}"
        )
        require_role(user, Role.OPERATOR, project)
        there = sa.and_(schedule.c.code == row.code, schedule.c.enabled != enabled)
        values = {"enabled": True, "cursor": now} if enabled else {"enabled": False}
        connection.execute(sa.update(schedule).where(there).values(values))
        if workflow_queries.find_schedule(connection, row.code) is None:
            raise object_not_found(f"workflow {project}.{name} has no schedule")
        kind = "schedule on" if enabled else "schedule off"
        record_event(connection, kind, by=user.name, project=project, details={"workflow": name})


def preview_fire_times(cron: str, tz: str = "UTC", count: int = 5, after: float | None = None) -> list[float]:
    """Return the next times at which a cron expression fires.

    Raises:
        HttpProblem: 422 (invalid) if the expression or the time zone is wrong, or the expression never fires.
    """
    try:
        return list(islice(_fire_times(Cron(cron, tz=tz), time.time() if after is None else after), count))
    except (ValueError, OverflowError) as error:
        path = "tz" if "time zone" in str(error) else "cron"
        raise HttpProblem(422, f"{path}: {error}", errors=[(path, str(error))]) from None


def list_next_fires(row: Row, now: float, count: int) -> list[float]:
    """Return the next times at which a schedule starts its workflow. There are fewer if the schedule ends before.

    Args:
        row: A row with ``cron``, ``tz``, ``starts_at`` and ``ends_at``.
        now: Seconds since the epoch.
        count: Maximum number of times.
    """
    at = now if row.starts_at is None else max(now, row.starts_at - 0.001)
    found: list[float] = []
    try:
        for each in islice(_fire_times(Cron(row.cron, tz=row.tz), at), count):
            if row.ends_at is not None and each > row.ends_at:
                break
            found.append(each)
    except (ValueError, OverflowError):
        pass  # it never fires again
    return found


def _fire_times(cron: Cron, at: float) -> Iterator[float]:
    while True:
        at = cron.fire_after(at)
        yield at
