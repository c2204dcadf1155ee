"""The tasks that workers run, as far as the account may see them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork.errors import InvalidKey
from latchwork_workflows.db import workers
from latchwork_workflows.keys import attempt_of
from latchwork_workflows.schemas.workers import ActiveTask
from latchwork_workflows.services.parts import WorkerSeen
from latchwork_workflows.web import Identity, Role

Row: TypeAlias = Any


def at_work(connection: sa.Connection, who: Identity, seen: Sequence[WorkerSeen]) -> dict[str, tuple[ActiveTask, ...]]:
    """Return the tasks of each worker by its name, the longest-running first."""
    found = _tasks(connection, who, {x for each in seen for x in each.attempts})
    return {each.name: _by_age(found[x] for x in each.attempts) for each in seen}


def tasks_of(connection: sa.Connection, who: Identity, attempts: Sequence[str]) -> tuple[ActiveTask, ...]:
    """Return the tasks of these attempts, ``<task>.<n>``, the longest-running first."""
    found = _tasks(connection, who, attempts)
    return _by_age(found[each] for each in attempts)


def queued(connection: sa.Connection, who: Identity, ids: Sequence[int]) -> list[ActiveTask]:
    """Return these tasks, in this order, with the times since which they have been waiting."""
    rows = workers.tasks(connection, ids)
    return [_seen(who, rows[each], "", rows[each].changed_at) for each in ids if each in rows]


def _by_age(found: Iterable[ActiveTask]) -> tuple[ActiveTask, ...]:
    return tuple(sorted(found, key=lambda each: (each.since is None, each.since or 0.0)))


def _tasks(connection: sa.Connection, who: Identity, attempts: Collection[str]) -> dict[str, ActiveTask]:
    pairs = {x: _pair(x) for x in attempts}
    ids = {pair[0] for pair in pairs.values() if pair is not None}
    rows, claims = workers.tasks(connection, ids), workers.claims(connection, ids)
    found = {}
    for x, pair in pairs.items():
        row, claim = (None, None) if pair is None else (rows.get(pair[0]), claims.get(pair))
        since = None if claim is None else claim.started_at
        found[x] = _seen(who, row, "" if claim is None else claim.worker, since)
    return found


def _pair(x: str) -> tuple[int, int] | None:
    try:
        return attempt_of(x)
    except InvalidKey:
        return None  # not written by latchwork


def _seen(who: Identity, row: Row, worker: str, since: float | None) -> ActiveTask:
    if row is None or not who.may(Role.VIEWER, row.project):
        return ActiveTask(since=since)
    workflow = f"{row.project}.{row.workflow}"
    return ActiveTask(task=row.id, name=row.name, workflow=workflow, run=row.instance, worker=worker, since=since)
