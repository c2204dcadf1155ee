"""What is too old is deleted: runs with their history, commands, fire times, audit. Some hundred rows a transaction.

A run is deleted while the row of its shard is locked, as its master locks it, and only if it is over then: a master
finds the whole of a run, or nothing. What is left to delete outside the database, the logs of a run, is written down in
the same transaction as a row of ``about``, and is struck out once it is done.

The newest row of a table stays whatever its age: SQLite would give its number again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from latchwork_workflows.db.tables import (
    about,
    backfill,
    command,
    definition,
    event,
    fire,
    instance,
    schedule,
    shard,
    task,
    web_session,
)
from latchwork_workflows.state.backfills import BackfillState

#: Rows of a transaction.
ROWS = 500
#: Those of a backfill that is not over: it counts its dates, and a failed one may yet be recovered for it.
_GOING = (BackfillState.RUNNING.value, BackfillState.HELD.value, BackfillState.STOPPING.value)
_COUNTED = instance.c.backfill.in_(sa.select(backfill.c.id).where(backfill.c.state.in_(_GOING)))
_LOGS = "logs/"


@dataclass(frozen=True, slots=True)
class Page:
    """Runs of a workflow, some of which are too old.

    Attributes:
        old: by shard, the ids of those that are.
        next: look on after this id; None: there are no more.
    """

    old: dict[int, list[int]]
    next: int | None


def codes(connection: sa.Connection, *, with_fires_before: float | None = None) -> list[int]:
    """The codes of all workflows; of those only that have fire times from before a moment, if one is given."""
    chosen = sa.select(definition.c.code).order_by(definition.c.code)
    if with_fires_before is not None:
        mine = sa.and_(fire.c.code == definition.c.code, fire.c.fire_time < with_fires_before)
        chosen = chosen.where(sa.exists().where(mine))
    return list(connection.execute(chosen).scalars())


def old_runs(connection: sa.Connection, code: int, *, before: float, keep: int, after: int = 0) -> Page:
    """Runs of a workflow that were over before a moment, without its newest.

    Reads no more rows than are too old, but for runs that outlast what came after them.

    Args:
        connection: a transaction.
        code: of the workflow.
        before: seconds since the epoch.
        keep: so many of the newest are not among them, however old.
        after: look at higher ids only.
    """
    mine = instance.c.code == code
    newest = sa.select(instance.c.id).where(mine).order_by(instance.c.id.desc()).offset(max(0, keep - 1)).limit(1)
    floor = connection.execute(newest).scalar()
    if floor is None:
        return Page({}, None)
    columns = (instance.c.id, instance.c.shard, instance.c.active, instance.c.created_at, instance.c.ended_at)
    chosen = sa.select(*columns, _COUNTED.label("counted")).where(mine, instance.c.id > after, instance.c.id < floor)
    rows = connection.execute(chosen.order_by(instance.c.id).limit(ROWS)).all()
    of_newest_task = connection.execute(sa.select(task.c.instance).order_by(task.c.id.desc()).limit(1)).scalar()
    old: dict[int, list[int]] = {}
    for row in rows:
        is_over = not row.active and not row.counted and row.ended_at is not None
        if is_over and row.ended_at < before and row.id != of_newest_task:
            old.setdefault(row.shard, []).append(row.id)
    is_last = len(rows) < ROWS or rows[-1].created_at >= before
    return Page(old, None if is_last else rows[-1].id)


def batches(connection: sa.Connection, ids: Sequence[int]) -> list[list[int]]:
    """These runs in parts that have so many tasks as fit into a transaction; a larger run is alone."""
    counted = sa.select(task.c.instance, sa.func.count()).where(task.c.instance.in_(ids)).group_by(task.c.instance)
    tasks = {row[0]: int(row[1]) for row in connection.execute(counted)}
    made: list[list[int]] = []
    size = ROWS
    for each in ids:
        rows = 1 + tasks.get(each, 0)
        if size + rows > ROWS:
            made.append([])
            size = 0
        made[-1].append(each)
        size += rows
    return made


def trim(connection: sa.Connection, shard_id: int, ids: Sequence[int], before: float) -> int:
    """Delete some of the timeline and of earlier runs of runs that are too old; how many rows.

    What people did stays: that is audit.
    """
    old = _still_old(connection, shard_id, ids, before)
    if not old:
        return 0
    told = sa.select(event.c.id).where(event.c.instance.in_(old), event.c.by == "").limit(ROWS)
    earlier = sa.select(task.c.id).join(instance, instance.c.id == task.c.instance)
    earlier = earlier.where(instance.c.id.in_(old), task.c.run < instance.c.run)
    count = _delete(connection, event.c.id, told)
    return count + _delete(connection, task.c.id, earlier.limit(ROWS - count))


def remove(connection: sa.Connection, shard_id: int, ids: Sequence[int], before: float) -> list[int]:
    """Delete runs with their tasks and attempts, and note that their logs are to be deleted; those that were.

    Args:
        connection: a transaction.
        shard_id: of all of them; its row is locked.
        ids: of them.
        before: those that were over before this moment only: somebody may have run one again.
    """
    old = _still_old(connection, shard_id, ids, before)
    if not old:
        return []
    rows = connection.execute(sa.select(instance.c.id, instance.c.code).where(instance.c.id.in_(old))).all()
    debts = [{"name": f"{_LOGS}{row.id}", "value": str(row.code)} for row in rows]
    connection.execute(sa.insert(about), debts)
    connection.execute(sa.delete(instance).where(instance.c.id.in_(old)))
    return old


def _still_old(connection: sa.Connection, shard_id: int, ids: Sequence[int], before: float) -> list[int]:
    """Which of these are over, with the shard's row locked: its master, which begins with that row, waits."""
    connection.execute(sa.update(shard).where(shard.c.id == shard_id).values(seq=shard.c.seq))
    chosen = sa.select(instance.c.id).where(instance.c.id.in_(ids), instance.c.shard == shard_id)
    chosen = chosen.where(instance.c.active.is_(False), instance.c.ended_at < before)
    chosen = chosen.where(sa.or_(instance.c.backfill.is_(None), sa.not_(_COUNTED)))
    return list(connection.execute(chosen).scalars())


def logs_left(connection: sa.Connection, most: int = ROWS) -> list[tuple[int, int]]:
    """Workflow and run of logs whose runs are gone; they are to be deleted."""
    chosen = sa.select(about.c.name, about.c.value).where(about.c.name.like(f"{_LOGS}%"))
    rows = connection.execute(chosen.order_by(about.c.name).limit(most))
    return [(int(row.value), int(row.name.removeprefix(_LOGS))) for row in rows]


def logs_gone(connection: sa.Connection, runs: Iterable[int]) -> None:
    """The logs of these are deleted."""
    connection.execute(sa.delete(about).where(about.c.name.in_([f"{_LOGS}{each}" for each in runs])))


def remove_commands(connection: sa.Connection, before: float, after: int = 0) -> tuple[int, int | None]:
    """Delete commands that were done before a moment; how many, and the id after which to look on (None: no more)."""
    columns = (command.c.id, command.c.created_at, command.c.done_at)
    rows = connection.execute(
        sa.select(*columns).where(command.c.id > after).order_by(command.c.id).limit(ROWS + 1)
    ).all()
    page = rows[:ROWS] if len(rows) > ROWS else rows[:-1]  # the newest of all stays
    old = [row.id for row in page if row.done_at is not None and row.done_at < before]
    _delete_ids(connection, command.c.id, old)
    is_last = len(rows) <= ROWS or page[-1].created_at >= before
    return len(old), None if is_last else page[-1].id


def remove_fires(connection: sa.Connection, code: int, before: float) -> int:
    """Delete fire times that nobody can start any more; how many, at most some hundred.

    Args:
        connection: a transaction.
        code: of the workflow.
        before: a moment; what its schedule may still make up for stays, however old.
    """
    row = connection.execute(
        sa.select(schedule.c.max_lateness_s, schedule.c.cursor).where(schedule.c.code == code)
    ).first()
    until = before if row is None else min(before, row.cursor - row.max_lateness_s)
    old = sa.select(fire.c.fire_time).where(fire.c.code == code, fire.c.fire_time < until)
    times = list(connection.execute(old.order_by(fire.c.fire_time).limit(ROWS)).scalars())
    if times:
        connection.execute(sa.delete(fire).where(fire.c.code == code, fire.c.fire_time <= times[-1]))
    return len(times)


def remove_events(connection: sa.Connection, before: float) -> int:
    """Delete what happened before a moment; how many rows, at most some hundred."""
    newest = sa.select(sa.func.max(event.c.id)).scalar_subquery()
    old = sa.select(event.c.id).where(event.c.at < before, event.c.id != newest).order_by(event.c.at).limit(ROWS)
    return _delete(connection, event.c.id, old)


def remove_sessions(connection: sa.Connection, before: float) -> int:
    """Delete sessions and links of browsers whose time is over."""
    return int(connection.execute(sa.delete(web_session).where(web_session.c.expires_at < before)).rowcount)


def give_back(connection: sa.Connection, *, keep_pages: int = 1000) -> int:
    """SQLite: give pages that nothing is in back to the file system, some hundred; how many.

    Args:
        connection: a transaction.
        keep_pages: so many stay for what comes.
    """
    free = int(connection.exec_driver_sql("PRAGMA freelist_count").scalar() or 0)
    some = min(ROWS, free - keep_pages)
    if some <= 0:
        return 0
    for _ in connection.connection.cursor().execute(f"PRAGMA incremental_vacuum({some})"):
        pass  # a page for each step
    return free - int(connection.exec_driver_sql("PRAGMA freelist_count").scalar() or 0)


def _delete(connection: sa.Connection, column: Any, chosen: sa.Select[Any]) -> int:
    return _delete_ids(connection, column, list(connection.execute(chosen).scalars()))


def _delete_ids(connection: sa.Connection, column: Any, ids: Collection[int]) -> int:
    if ids:
        connection.execute(sa.delete(column.table).where(column.in_(ids)))
    return len(ids)
