"""The tasks that workers run, as far as the account may see them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork.errors import InvalidKey
from latchwork_workflows.db import workers
from latchwork_workflows.keys import parse_attempt_key
from latchwork_workflows.schemas.workers import ActiveTask
from latchwork_workflows.services.context import WorkerStatus
from latchwork_workflows.web import Identity, Role

Row: TypeAlias = Any


def list_tasks_by_worker(
    connection: sa.Connection, user: Identity, workers: Sequence[WorkerStatus]
) -> dict[str, tuple[ActiveTask, ...]]:
    """Return the tasks that each worker runs, by worker name. The longest-running task is first."""
    found = _tasks(connection, user, {x for each in workers for x in each.attempts})
    return {each.name: _by_age(found[x] for x in each.attempts) for each in workers}


def list_tasks_of_attempts(
    connection: sa.Connection, user: Identity, attempts: Sequence[str]
) -> tuple[ActiveTask, ...]:
    """Return the tasks of some attempts, longest-running first.

    Args:
        connection: A transaction.
        user: The requesting account. Tasks that it may not see have no names.
        attempts: Attempts as ``<task>.<attempt number>``.
    """
    found = _tasks(connection, user, attempts)
    return _by_age(found[each] for each in attempts)


def list_queued_tasks(connection: sa.Connection, user: Identity, ids: Sequence[int]) -> list[ActiveTask]:
    """Return queued tasks, each with the time at which it was queued.

    Args:
        connection: A transaction.
        user: The requesting account. Tasks that it may not see have no names.
        ids: IDs of the tasks, in the order of the result.
    """
    rows = workers.load_tasks_with_workflows(connection, ids)
    return [_active_task(user, rows[each], "", rows[each].changed_at) for each in ids if each in rows]


def _by_age(found: Iterable[ActiveTask]) -> tuple[ActiveTask, ...]:
    return tuple(sorted(found, key=lambda each: (each.since is None, each.since or 0.0)))


def _tasks(connection: sa.Connection, user: Identity, attempts: Collection[str]) -> dict[str, ActiveTask]:
    pairs = {x: _parse_attempt(x) for x in attempts}
    ids = {pair[0] for pair in pairs.values() if pair is not None}
    rows, claims = workers.load_tasks_with_workflows(connection, ids), workers.load_newest_claims(connection, ids)
    found = {}
    for x, pair in pairs.items():
        row, claim = (None, None) if pair is None else (rows.get(pair[0]), claims.get(pair))
        since = None if claim is None else claim.started_at
        found[x] = _active_task(user, row, "" if claim is None else claim.worker, since)
    return found


def _parse_attempt(x: str) -> tuple[int, int] | None:
    try:
        return parse_attempt_key(x)
    except InvalidKey:
        return None  # not written by latchwork


def _active_task(user: Identity, row: Row, worker: str, since: float | None) -> ActiveTask:
    if row is None or not user.has_role(Role.VIEWER, row.project):
        return ActiveTask(since=since)
    workflow = f"{row.project}.{row.workflow}"
    return ActiveTask(task=row.id, name=row.name, workflow=workflow, run=row.run_id, worker=worker, since=since)
