"""The history of attempts: worker, start, end and outcome. Writes are idempotent.

A row is one execution of an attempt under one claim. If a worker dies, its row ends as ``lost`` and the next claim gets
a new row. Writers hold the guard of the shard in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork_workflows.db.tables import attempt, task, workflow_run

#: The outcome of an attempt whose worker died or released it.
LOST = "lost"
_TOGETHER = 400
_IDS: sa.BindParameter[int] = sa.bindparam("ids", expanding=True)
_KNOWN = (
    sa.select(task.c.id, task.c.run_id, workflow_run.c.code)
    .join(workflow_run, workflow_run.c.id == task.c.run_id)
    .where(task.c.id.in_(_IDS), workflow_run.c.shard == sa.bindparam("shard"))
)
_CLAIMS = sa.select(attempt.c.task, attempt.c.n, attempt.c.claim)
_ENDED = ("ended_at", "outcome", "pid", "exit_code", "error", "log_ref")


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One execution of an attempt.

    Attributes:
        task: The ID of the task's row.
        n: The number of the attempt.
        claim: The token of the claim. 0 if the attempt ended before a worker claimed it.
        worker: The name of the worker.
        host: The host of the worker.
        started_at: Seconds since the epoch.
        log_ref: The reference of its log.
        ended_at: Seconds since the epoch. None while it runs.
        outcome: The outcome, one word. None while it runs.
        pid: The process ID.
        exit_code: The exit code of the process.
        error: The error message for users.
        cached_from: The run whose outputs it reuses, if it did not run itself.
    """

    task: int
    n: int
    claim: int
    worker: str
    host: str
    started_at: float
    log_ref: str = ""
    ended_at: float | None = None
    outcome: str | None = None
    pid: int | None = None
    exit_code: int | None = None
    error: str = ""
    cached_from: int | None = None


class LastOutcome(NamedTuple):
    """The outcome of the newest attempt of a task.

    Attributes:
        outcome: The outcome, one word.
        cached_from: The run whose outputs it reuses, if it did not run itself.
        error: The error message.
    """

    outcome: str
    cached_from: int | None = None
    error: str = ""


def find_tasks_of_shard(connection: sa.Connection, shard: int, tasks: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return the run ID and the workflow ID of each given task of a shard, by task ID. Tasks of other shards are left
    out.
    """
    found: dict[int, tuple[int, int]] = {}
    ids = sorted(set(tasks))
    for start in range(0, len(ids), _TOGETHER):
        rows = connection.execute(_KNOWN, {"ids": ids[start : start + _TOGETHER], "shard": shard})
        found.update((row.id, (row.run_id, row.code)) for row in rows)
    return found


def find_missing_tasks(connection: sa.Connection, tasks: Iterable[int]) -> set[int]:
    """Return which of the given task IDs no longer exist."""
    ids = sorted(set(tasks))
    there: set[int] = set()
    for start in range(0, len(ids), _TOGETHER):
        chosen = sa.select(task.c.id).where(task.c.id.in_(ids[start : start + _TOGETHER]))
        there.update(connection.execute(chosen).scalars())
    return set(ids) - there


def save_attempts(connection: sa.Connection, rows: Sequence[AttemptRow], now: float) -> None:
    """Insert or update rows of attempts. Earlier claims of these attempts that have no end are marked as lost."""
    if not rows:
        return
    before = _claims(connection, {row.task for row in rows})
    for ended in (False, True):
        values = [_values(row, before) for row in rows if (row.ended_at is not None) is ended]
        if values:
            connection.execute(_build_upsert(connection.dialect.name, ended=ended), values)
    newer = [row for row in rows if any(n == row.n and claim < row.claim for n, claim in before.get(row.task, ()))]
    for row in newer:
        mark_open_attempts_lost(connection, row.task, row.n, now, before_claim=row.claim)


@cache
def _build_upsert(dialect: str, *, ended: bool) -> sa.Insert:
    """Build the statement that inserts a row of an attempt.

    Args:
        dialect: The SQL dialect.
        ended: Whether the statement also updates the end of an existing row.
    """
    insert = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(attempt)
    row = ["task", "n", "claim"]
    if not ended:
        return insert.on_conflict_do_nothing(index_elements=row)
    return insert.on_conflict_do_update(index_elements=row, set_={name: insert.excluded[name] for name in _ENDED})


def mark_open_attempts_lost(
    connection: sa.Connection, task_id: int, n: int, now: float, *, before_claim: int | None = None
) -> None:
    """Mark the rows of an attempt that have no end as lost.

    Args:
        connection: A transaction.
        task_id: The ID of the task.
        n: The number of the attempt.
        now: Seconds since the epoch.
        before_claim: Mark only rows of claims before this one. None: all.
    """
    open_ = sa.and_(attempt.c.task == task_id, attempt.c.n == n, attempt.c.ended_at.is_(None))
    if before_claim is not None:
        open_ = sa.and_(open_, attempt.c.claim < before_claim)
    connection.execute(sa.update(attempt).where(open_).values(ended_at=now, outcome=LOST))


def load_last_outcomes(connection: sa.Connection, tasks: Iterable[int]) -> dict[int, LastOutcome]:
    """Return the outcome of the newest ended attempt of each task, by task ID.

    Tasks without an ended attempt are left out.
    """
    found: dict[int, LastOutcome] = {}
    ids = sorted(set(tasks))
    for start in range(0, len(ids), _TOGETHER):
        chosen = sa.select(attempt.c.task, attempt.c.outcome, attempt.c.cached_from, attempt.c.error).where(
            attempt.c.task.in_(ids[start : start + _TOGETHER]), attempt.c.outcome.is_not(None)
        )
        for row in connection.execute(chosen.order_by(attempt.c.n, attempt.c.claim)):
            found[row.task] = LastOutcome(row.outcome, row.cached_from, row.error or "")
    return found


@cache
def _build_claims_query(dialect: str) -> sa.Select[tuple[int, int, int]]:
    """Build the query for the claims of tasks.

    On PostgreSQL the task IDs are one array parameter, so that the statement is planned only once.
    """
    if dialect == "sqlite":
        return _CLAIMS.where(attempt.c.task.in_(_IDS))
    return _CLAIMS.where(attempt.c.task == sa.any_(sa.bindparam("ids", type_=postgresql.ARRAY(sa.BigInteger()))))


def _claims(connection: sa.Connection, tasks: Iterable[int]) -> dict[int, set[tuple[int, int]]]:
    ids = sorted(tasks)
    found: dict[int, set[tuple[int, int]]] = {}
    for start in range(0, len(ids), _TOGETHER):
        for row in connection.execute(
            _build_claims_query(connection.dialect.name), {"ids": ids[start : start + _TOGETHER]}
        ):
            found.setdefault(row.task, set()).add((row.n, row.claim))
    return found


def _values(row: AttemptRow, before: dict[int, set[tuple[int, int]]]) -> dict[str, Any]:
    others = {claim for n, claim in before.get(row.task, ()) if n == row.n and claim < row.claim}
    kind = "failover" if others else "first" if row.n == 1 else "retry"
    return {
        "task": row.task,
        "n": row.n,
        "claim": row.claim,
        "kind": kind,
        "worker": row.worker,
        "host": row.host,
        "pid": row.pid,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "outcome": row.outcome,
        "exit_code": row.exit_code,
        "log_ref": row.log_ref,
        "error": row.error or None,
        "cached_from": row.cached_from,
    }
