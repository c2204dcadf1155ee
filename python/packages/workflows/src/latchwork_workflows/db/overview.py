"""The state of the whole installation: active runs, failures, and commands that wait for masters."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db import run_queries
from latchwork_workflows.db.tables import IS_ACTIVE, command, instance, shard, task
from latchwork_workflows.state import TaskState

#: A row, by the names of its columns.
Row: TypeAlias = Any
#: The upper limit of all counts.
MOST = 1000
# Without this index hint, SQLite sorts all active rows or scans all rows by ID.
_BY_AGE = {"sqlite": sa.text("instance INDEXED BY ix_instance_active_id"), "postgresql": sa.text("instance")}
_ID: sa.ColumnElement[int] = sa.literal_column("instance.id", sa.BigInteger())
_CODE: sa.ColumnElement[int] = sa.literal_column("instance.code", sa.BigInteger())


class Lag(NamedTuple):
    """The commands that wait for masters, and the shards.

    Attributes:
        waiting: The number of open commands, at most ``MOST``.
        oldest_at: When the oldest of them was written. None: there are none.
        unowned: The number of shards without an owner: never owned, or released by their last owner.
        shards: The number of shards.
    """

    waiting: int
    oldest_at: float | None
    unowned: int
    shards: int


def active_count(connection: sa.Connection, codes: Collection[int] | None = None) -> int:
    """Return the number of active instances, at most ``MOST``."""
    some = sa.select(instance.c.id).where(IS_ACTIVE).limit(MOST)
    if codes is not None:
        some = some.where((instance.c.code + 0).in_(codes))
    return int(connection.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one())


def active(connection: sa.Connection, codes: Collection[int] | None = None, most: int = 20) -> list[Row]:
    """Return the active instances, newest first."""
    some = (
        sa.select(_ID).select_from(_BY_AGE[connection.dialect.name]).where(IS_ACTIVE).order_by(_ID.desc()).limit(most)
    )
    if codes is not None:
        some = some.where(_CODE.in_(codes))
    return run_queries.by_id(connection, list(connection.execute(some).scalars()))


def queued_lanes(connection: sa.Connection, instances_: Collection[int]) -> dict[int, set[str]]:
    """Return the partitions in which tasks of these instances are queued, by instance. Others are left out."""
    mine = sa.and_(task.c.instance == instance.c.id, task.c.run == instance.c.run)
    chosen = sa.select(task.c.instance, task.c.queue_key).select_from(instance).join(task, mine)
    chosen = chosen.where(instance.c.id.in_(sorted(instances_)), task.c.state == TaskState.SUBMITTED.value)
    found: dict[int, set[str]] = {}
    for row in connection.execute(chosen.where(task.c.queue_key.is_not(None))):
        found.setdefault(row.instance, set()).add(row.queue_key.partition("/")[0])
    return found


def failed_since(
    connection: sa.Connection, since: float, codes: Collection[int] | None = None, most: int = 20
) -> list[Row]:
    """Return the instances that failed after a time, newest first. Searches only the newest failures."""
    rows = run_queries.newest(connection, codes=codes, state="failure", most=most * 5)
    return [row for row in rows if (row.ended_at or 0.0) >= since][:most]


def lag(connection: sa.Connection) -> Lag:
    """Return the number of commands that wait for masters, and of shards without an owner."""
    some = sa.select(command.c.created_at).where(command.c.done_at.is_(None)).limit(MOST).subquery()
    row = connection.execute(sa.select(sa.func.count(), sa.func.min(some.c.created_at)).select_from(some)).one()
    owners = connection.execute(sa.select(shard.c.owner)).scalars().all()
    return Lag(int(row[0]), row[1], sum(not owner for owner in owners), len(owners))


def shards(connection: sa.Connection) -> list[Row]:
    """Return all shards with their owners."""
    return list(connection.execute(sa.select(*shard.c).order_by(shard.c.id)).all())


def fingerprint(connection: sa.Connection) -> tuple[Any, ...]:
    """Return a value that differs after any write of a master or any new command."""
    newest = connection.execute(sa.select(sa.func.max(command.c.id))).scalar()
    written = connection.execute(sa.select(shard.c.id, shard.c.seq).order_by(shard.c.id))
    return (newest, *(tuple(row) for row in written))
