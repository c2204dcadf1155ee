"""The state of the whole installation: active runs, failures, and commands that wait for masters."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db import run_queries
from latchwork_workflows.db.tables import IS_ACTIVE, command, shard, task, workflow_run
from latchwork_workflows.state import TaskState

#: A row, by the names of its columns.
Row: TypeAlias = Any
#: The upper limit of all counts.
MAX = 1000
# Without this index hint, SQLite sorts all active rows or scans all rows by ID.
_BY_AGE = {
    "sqlite": sa.text("workflow_run INDEXED BY ix_workflow_run_active_id"),
    "postgresql": sa.text("workflow_run"),
}
_ID: sa.ColumnElement[int] = sa.literal_column("workflow_run.id", sa.BigInteger())
_CODE: sa.ColumnElement[int] = sa.literal_column("workflow_run.code", sa.BigInteger())


class CommandLag(NamedTuple):
    """The commands that wait for masters, and the shards.

    Attributes:
        waiting: The number of open commands, at most ``MAX``.
        oldest_at: When the oldest of them was written. None: there are none.
        unowned: The number of shards without an owner: never owned, or released by their last owner.
        shards: The number of shards.
    """

    waiting: int
    oldest_at: float | None
    unowned: int
    shards: int


def count_active_runs(connection: sa.Connection, codes: Collection[int] | None = None) -> int:
    """Return the number of active runs, at most ``MAX``.

    Args:
        connection: A transaction.
        codes: Count only runs of these workflows. None: all workflows.
    """
    some = sa.select(workflow_run.c.id).where(IS_ACTIVE).limit(MAX)
    if codes is not None:
        some = some.where((workflow_run.c.code + 0).in_(codes))
    return int(connection.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one())


def list_active_runs(connection: sa.Connection, codes: Collection[int] | None = None, limit: int = 20) -> list[Row]:
    """Return active runs, newest first.

    Args:
        connection: A transaction.
        codes: Return only runs of these workflows. None: all workflows.
        limit: The maximum number of runs.
    """
    some = (
        sa.select(_ID).select_from(_BY_AGE[connection.dialect.name]).where(IS_ACTIVE).order_by(_ID.desc()).limit(limit)
    )
    if codes is not None:
        some = some.where(_CODE.in_(codes))
    return run_queries.load_runs_by_id(connection, list(connection.execute(some).scalars()))


def get_queued_partitions(connection: sa.Connection, run_ids: Collection[int]) -> dict[int, set[str]]:
    """Return the queue partitions that contain tasks of these runs, by run ID.

    Runs without queued tasks are left out.
    """
    mine = sa.and_(task.c.run_id == workflow_run.c.id, task.c.round == workflow_run.c.round)
    chosen = sa.select(task.c.run_id, task.c.queue_key).select_from(workflow_run).join(task, mine)
    chosen = chosen.where(workflow_run.c.id.in_(sorted(run_ids)), task.c.state == TaskState.SUBMITTED.value)
    found: dict[int, set[str]] = {}
    for row in connection.execute(chosen.where(task.c.queue_key.is_not(None))):
        found.setdefault(row.run_id, set()).add(row.queue_key.partition("/")[0])
    return found


def list_failed_runs(
    connection: sa.Connection, since: float, codes: Collection[int] | None = None, limit: int = 20
) -> list[Row]:
    """Return runs that failed after a given time, newest first.

    Only a limited number of the newest failed runs is searched.

    Args:
        connection: A transaction.
        since: Seconds since the epoch.
        codes: Return only runs of these workflows. None: all workflows.
        limit: The maximum number of runs.
    """
    rows = run_queries.list_newest_runs(connection, codes=codes, state="failure", limit=limit * 5)
    return [row for row in rows if (row.ended_at or 0.0) >= since][:limit]


def measure_command_lag(connection: sa.Connection) -> CommandLag:
    """Return the number of commands that no master has executed yet, and the number of shards without an owner."""
    some = sa.select(command.c.created_at).where(command.c.done_at.is_(None)).limit(MAX).subquery()
    row = connection.execute(sa.select(sa.func.count(), sa.func.min(some.c.created_at)).select_from(some)).one()
    owners = connection.execute(sa.select(shard.c.owner)).scalars().all()
    return CommandLag(int(row[0]), row[1], sum(not owner for owner in owners), len(owners))


def list_shards(connection: sa.Connection) -> list[Row]:
    """Return all shards with their owners."""
    return list(connection.execute(sa.select(*shard.c).order_by(shard.c.id)).all())


def compute_fingerprint(connection: sa.Connection) -> tuple[Any, ...]:
    """Return a value that changes whenever a master or a user writes something that overview pages show."""
    newest = connection.execute(sa.select(sa.func.max(command.c.id))).scalar()
    written = connection.execute(sa.select(shard.c.id, shard.c.seq).order_by(shard.c.id))
    return (newest, *(tuple(row) for row in written))
