"""The history of attempts: who ran what, from when to when, and how it ended. Written twice, it is the same.

A row is one run of one attempt, under one claim: a worker that dies leaves one that ended as ``lost``, and the next
claim has a row of its own. Who writes has the guard of the shard in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork_workflows.db.tables import attempt, instance, task

#: The outcome of a run whose worker died, or gave it back.
LOST = "lost"
_TOGETHER = 400
_IDS: sa.BindParameter[int] = sa.bindparam("ids", expanding=True)
_KNOWN = (
    sa.select(task.c.id, task.c.instance, instance.c.code)
    .join(instance, instance.c.id == task.c.instance)
    .where(task.c.id.in_(_IDS), instance.c.shard == sa.bindparam("shard"))
)
_CLAIMS = sa.select(attempt.c.task, attempt.c.n, attempt.c.claim)
_ENDED = ("ended_at", "outcome", "pid", "exit_code", "error", "log_ref")


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One run of an attempt.

    Attributes:
        task: the id of the task's row.
        n: number of the attempt.
        claim: token of the claim; 0 of one that ended before any worker had it.
        worker: name of the worker.
        host: where it is.
        started_at: seconds since the epoch.
        log_ref: where its log is.
        ended_at: None while it runs.
        outcome: in a word; None while it runs.
        pid: of its process.
        exit_code: of its process.
        error: what a person should read first.
        cached_from: the run whose outputs it has, if it did not run itself.
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


class Last(NamedTuple):
    """How the newest attempt of a task ended.

    Attributes:
        outcome: in a word.
        cached_from: the run whose outputs it has, if it did not run itself.
        error: what was said of it.
    """

    outcome: str
    cached_from: int | None = None
    error: str = ""


def known_tasks(connection: sa.Connection, shard: int, tasks: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Instance and workflow of those task rows that are of this shard, by id."""
    found: dict[int, tuple[int, int]] = {}
    ids = sorted(set(tasks))
    for start in range(0, len(ids), _TOGETHER):
        rows = connection.execute(_KNOWN, {"ids": ids[start : start + _TOGETHER], "shard": shard})
        found.update((row.id, (row.instance, row.code)) for row in rows)
    return found


def gone_tasks(connection: sa.Connection, tasks: Iterable[int]) -> set[int]:
    """Those of these task rows that are not there any more."""
    ids = sorted(set(tasks))
    there: set[int] = set()
    for start in range(0, len(ids), _TOGETHER):
        chosen = sa.select(task.c.id).where(task.c.id.in_(ids[start : start + _TOGETHER]))
        there.update(connection.execute(chosen).scalars())
    return set(ids) - there


def save(connection: sa.Connection, rows: Sequence[AttemptRow], now: float) -> None:
    """Write these; what is there of the same claims is filled in, what ran before under other claims has ended."""
    if not rows:
        return
    before = _claims(connection, {row.task for row in rows})
    for ended in (False, True):
        values = [_values(row, before) for row in rows if (row.ended_at is not None) is ended]
        if values:
            connection.execute(_upsert(connection.dialect.name, ended=ended), values)
    newer = [row for row in rows if any(n == row.n and claim < row.claim for n, claim in before.get(row.task, ()))]
    for row in newer:
        end_open(connection, row.task, row.n, now, before_claim=row.claim)


@cache
def _upsert(dialect: str, *, ended: bool) -> sa.Insert:
    """A row, if it is not there yet; of one that has ended, how."""
    insert = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(attempt)
    row = ["task", "n", "claim"]
    if not ended:
        return insert.on_conflict_do_nothing(index_elements=row)
    return insert.on_conflict_do_update(index_elements=row, set_={name: insert.excluded[name] for name in _ENDED})


def end_open(connection: sa.Connection, task_id: int, n: int, now: float, *, before_claim: int | None = None) -> None:
    """What ran of this attempt, under earlier claims, was lost."""
    open_ = sa.and_(attempt.c.task == task_id, attempt.c.n == n, attempt.c.ended_at.is_(None))
    if before_claim is not None:
        open_ = sa.and_(open_, attempt.c.claim < before_claim)
    connection.execute(sa.update(attempt).where(open_).values(ended_at=now, outcome=LOST))


def last_outcomes(connection: sa.Connection, tasks: Iterable[int]) -> dict[int, Last]:
    """How the newest attempt of each of these tasks ended; without those that have none that has ended."""
    found: dict[int, Last] = {}
    ids = sorted(set(tasks))
    for start in range(0, len(ids), _TOGETHER):
        chosen = sa.select(attempt.c.task, attempt.c.outcome, attempt.c.cached_from, attempt.c.error).where(
            attempt.c.task.in_(ids[start : start + _TOGETHER]), attempt.c.outcome.is_not(None)
        )
        for row in connection.execute(chosen.order_by(attempt.c.n, attempt.c.claim)):
            found[row.task] = Last(row.outcome, row.cached_from, row.error or "")
    return found


@cache
def _claims_of(dialect: str) -> sa.Select[tuple[int, int, int]]:
    """PostgreSQL gets an array: a text that is the same for any number of tasks is parsed, and planned, once."""
    if dialect == "sqlite":
        return _CLAIMS.where(attempt.c.task.in_(_IDS))
    return _CLAIMS.where(attempt.c.task == sa.any_(sa.bindparam("ids", type_=postgresql.ARRAY(sa.BigInteger()))))


def _claims(connection: sa.Connection, tasks: Iterable[int]) -> dict[int, set[tuple[int, int]]]:
    ids = sorted(tasks)
    found: dict[int, set[tuple[int, int]]] = {}
    for start in range(0, len(ids), _TOGETHER):
        for row in connection.execute(_claims_of(connection.dialect.name), {"ids": ids[start : start + _TOGETHER]}):
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
