"""Events: the timeline of runs and the audit log of users, written in the transaction of the change."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from latchwork_workflows.db.tables import event


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event.

    Attributes:
        id: Increases with time, approximately.
        at: Seconds since the epoch.
        kind: The type of the event.
        by: The account. Empty if no user caused it.
        project: The project, for events without a run.
        run_id: The run.
        task: The task.
        details: Further details.
    """

    id: int
    at: float
    kind: str
    by: str
    project: str
    run_id: int | None
    task: str
    details: Mapping[str, Any] | None


def record_event(
    connection: sa.Connection,
    kind: str,
    *,
    by: str,
    project: str = "",
    run_id: int | None = None,
    task: str = "",
    details: Mapping[str, Any] | None = None,
) -> None:
    """Record an event of a run or an action of a user, in the transaction that makes the change.

    Args:
        connection: The transaction.
        kind: The type of the event.
        by: The account that caused it. Empty if no user did.
        project: The project, for events without a run.
        run_id: The run, if any.
        task: The task, if any.
        details: Further details.
    """
    row = {"kind": kind, "by": by[:200], "project": project, "run_id": run_id, "task": task[:100]}
    connection.execute(sa.insert(event).values(**row, at=time.time(), details=dict(details) if details else None))


def list_events_of_run(
    connection: sa.Connection, run_id: int, *, before: int | None = None, limit: int = 100
) -> list[HistoryEvent]:
    """Return the events of a run, newest first.

    Args:
        connection: A transaction.
        run_id: The ID of the run.
        before: Return only events with lower IDs, for the next page.
        limit: The maximum number of events.
    """
    chosen = _rows().where(event.c.run_id == run_id).order_by(event.c.id.desc()).limit(limit)
    return _read(connection, chosen if before is None else chosen.where(event.c.id < before))


def list_user_actions(
    connection: sa.Connection,
    *,
    projects: Collection[str] | None = None,
    before: int | None = None,
    by: str = "",
    limit: int = 100,
) -> list[HistoryEvent]:
    """Return the actions of users from the audit log, newest first.

    Args:
        connection: A transaction.
        projects: Return only actions in these projects. None: all, including actions without a project.
        before: Return only events with lower IDs, for the next page.
        by: Return only actions of this account. Empty: any account.
        limit: The maximum number of events.
    """
    chosen = _rows().where(event.c.by != "").order_by(event.c.id.desc()).limit(limit)
    if projects is not None:
        chosen = chosen.where(event.c.project.in_(sorted(projects)))
    if by:
        chosen = chosen.where(event.c.by == by)
    return _read(connection, chosen if before is None else chosen.where(event.c.id < before))


def _rows() -> sa.Select[Any]:
    return sa.select(*(event.c[name] for name in HistoryEvent.__slots__))


def _read(connection: sa.Connection, chosen: sa.Select[Any]) -> list[HistoryEvent]:
    rows: Sequence[Any] = connection.execute(chosen).all()
    return [HistoryEvent(*row) for row in rows]
