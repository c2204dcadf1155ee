"""Deletes old rows: runs with their history, commands, fire times and audit events. A few hundred rows per transaction.

A run is deleted only if it has ended, while the row of its shard is locked. The master takes the same lock, so it finds
either the whole run or nothing. The same transaction adds a row to ``about`` for logs that remain to be deleted outside
the database. That row is removed once the logs are deleted.

The newest row of a table is never deleted, because SQLite would reuse its ID.
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
    schedule,
    shard,
    task,
    web_session,
    workflow_run,
)
from latchwork_workflows.state.backfills import BackfillState

#: The maximum number of rows per transaction.
ROWS = 500
#: Runs of a backfill that has not ended are kept: it counts its dates, and failed ones may still be recovered.
_GOING = (BackfillState.RUNNING.value, BackfillState.HELD.value, BackfillState.STOPPING.value)
_COUNTED = workflow_run.c.backfill.in_(sa.select(backfill.c.id).where(backfill.c.state.in_(_GOING)))
_LOGS = "logs/"


@dataclass(frozen=True, slots=True)
class RunPage:
    """A page of runs of a workflow.

    Attributes:
        old: The IDs of the runs that are old enough to delete, by shard.
        next: Continue after this ID. None: there are no more.
    """

    old: dict[int, list[int]]
    next: int | None


def list_workflow_codes(connection: sa.Connection, *, with_fires_before: float | None = None) -> list[int]:
    """Return the IDs of workflows.

    Args:
        connection: A transaction.
        with_fires_before: Return only workflows with fire times before this time. None: all workflows.
    """
    chosen = sa.select(definition.c.code).order_by(definition.c.code)
    if with_fires_before is not None:
        mine = sa.and_(fire.c.code == definition.c.code, fire.c.fire_time < with_fires_before)
        chosen = chosen.where(sa.exists().where(mine))
    return list(connection.execute(chosen).scalars())


def find_old_runs(connection: sa.Connection, code: int, *, before: float, keep: int, after: int = 0) -> RunPage:
    """Return runs of a workflow that are old enough to delete, page by page.

    Args:
        connection: A transaction.
        code: The ID of the workflow.
        before: Return only runs that ended before this time, in seconds since the epoch.
        keep: The number of newest runs to keep, however old they are.
        after: Return only runs with higher IDs, for the next page.
    """
    mine = workflow_run.c.code == code
    newest = (
        sa.select(workflow_run.c.id).where(mine).order_by(workflow_run.c.id.desc()).offset(max(0, keep - 1)).limit(1)
    )
    floor = connection.execute(newest).scalar()
    if floor is None:
        return RunPage({}, None)
    columns = (
        workflow_run.c.id,
        workflow_run.c.shard,
        workflow_run.c.active,
        workflow_run.c.created_at,
        workflow_run.c.ended_at,
    )
    chosen = sa.select(*columns, _COUNTED.label("counted")).where(
        mine, workflow_run.c.id > after, workflow_run.c.id < floor
    )
    rows = connection.execute(chosen.order_by(workflow_run.c.id).limit(ROWS)).all()
    of_newest_task = connection.execute(sa.select(task.c.run_id).order_by(task.c.id.desc()).limit(1)).scalar()
    old: dict[int, list[int]] = {}
    for row in rows:
        is_over = not row.active and not row.counted and row.ended_at is not None
        if is_over and row.ended_at < before and row.id != of_newest_task:
            old.setdefault(row.shard, []).append(row.id)
    is_last = len(rows) < ROWS or rows[-1].created_at >= before
    return RunPage(old, None if is_last else rows[-1].id)


def split_into_batches(connection: sa.Connection, ids: Sequence[int]) -> list[list[int]]:
    """Split runs into batches that are small enough to be deleted in one transaction. A very large run gets a batch of
    its own.
    """
    counted = sa.select(task.c.run_id, sa.func.count()).where(task.c.run_id.in_(ids)).group_by(task.c.run_id)
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


def trim_history(connection: sa.Connection, shard_id: int, ids: Sequence[int], before: float) -> int:
    """Delete the oldest events of old runs, and their tasks from before a rerun. Return the number of deleted rows.

    Actions of users are kept for the audit log.

    Args:
        connection: A transaction.
        shard_id: The shard of all these runs. Its row is locked.
        ids: The IDs of the runs.
        before: Change only runs that ended before this time, in seconds since the epoch.
    """
    old = _lock_shard_of_old_runs(connection, shard_id, ids, before)
    if not old:
        return 0
    old_events = sa.select(event.c.id).where(event.c.run_id.in_(old), event.c.by == "").limit(ROWS)
    earlier = sa.select(task.c.id).join(workflow_run, workflow_run.c.id == task.c.run_id)
    earlier = earlier.where(workflow_run.c.id.in_(old), task.c.round < workflow_run.c.round)
    count = _delete(connection, event.c.id, old_events)
    return count + _delete(connection, task.c.id, earlier.limit(ROWS - count))


def delete_runs(connection: sa.Connection, shard_id: int, ids: Sequence[int], before: float) -> list[int]:
    """Delete runs with their tasks and attempts, and record that their logs must still be deleted.

    Args:
        connection: A transaction.
        shard_id: The shard of all these runs. Its row is locked.
        ids: The IDs of the runs.
        before: Delete only runs that ended before this time, because a run may have been rerun meanwhile.
    Returns:
        The IDs of the deleted runs.
    """
    old = _lock_shard_of_old_runs(connection, shard_id, ids, before)
    if not old:
        return []
    rows = connection.execute(sa.select(workflow_run.c.id, workflow_run.c.code).where(workflow_run.c.id.in_(old))).all()
    debts = [{"name": f"{_LOGS}{row.id}", "value": str(row.code)} for row in rows]
    connection.execute(sa.insert(about), debts)
    connection.execute(sa.delete(workflow_run).where(workflow_run.c.id.in_(old)))
    return old


def _lock_shard_of_old_runs(connection: sa.Connection, shard_id: int, ids: Sequence[int], before: float) -> list[int]:
    """Lock the row of a shard against its master, and return the given runs that ended before a time."""
    connection.execute(sa.update(shard).where(shard.c.id == shard_id).values(seq=shard.c.seq))
    chosen = sa.select(workflow_run.c.id).where(workflow_run.c.id.in_(ids), workflow_run.c.shard == shard_id)
    chosen = chosen.where(workflow_run.c.active.is_(False), workflow_run.c.ended_at < before)
    chosen = chosen.where(sa.or_(workflow_run.c.backfill.is_(None), sa.not_(_COUNTED)))
    return list(connection.execute(chosen).scalars())


def list_pending_log_deletions(connection: sa.Connection, limit: int = ROWS) -> list[tuple[int, int]]:
    """Return the workflow ID and the ID of each deleted run whose logs must still be deleted."""
    chosen = sa.select(about.c.name, about.c.value).where(about.c.name.like(f"{_LOGS}%"))
    rows = connection.execute(chosen.order_by(about.c.name).limit(limit))
    return [(int(row.value), int(row.name.removeprefix(_LOGS))) for row in rows]


def record_logs_deleted(connection: sa.Connection, runs: Iterable[int]) -> None:
    """Record that the logs of these runs have been deleted."""
    connection.execute(sa.delete(about).where(about.c.name.in_([f"{_LOGS}{each}" for each in runs])))


def delete_commands(connection: sa.Connection, before: float, after: int = 0) -> tuple[int, int | None]:
    """Delete finished commands that were executed before a given time.

    Returns:
        The number of deleted commands, and the ID after which to continue. The ID is None if there are no more.
    """
    columns = (command.c.id, command.c.created_at, command.c.done_at)
    rows = connection.execute(
        sa.select(*columns).where(command.c.id > after).order_by(command.c.id).limit(ROWS + 1)
    ).all()
    page = rows[:ROWS] if len(rows) > ROWS else rows[:-1]  # the newest is kept
    old = [row.id for row in page if row.done_at is not None and row.done_at < before]
    _delete_ids(connection, command.c.id, old)
    is_last = len(rows) <= ROWS or page[-1].created_at >= before
    return len(old), None if is_last else page[-1].id


def delete_fires(connection: sa.Connection, code: int, before: float) -> int:
    """Delete fire times that can no longer start a run, at most ``ROWS``, and return how many were deleted.

    Fire times that the schedule may still catch up are kept, however old they are.

    Args:
        connection: A transaction.
        code: The ID of the workflow.
        before: Seconds since the epoch.
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


def delete_events(connection: sa.Connection, before: float) -> int:
    """Delete events that are older than a given time, at most ``ROWS``, and return how many were deleted."""
    newest = sa.select(sa.func.max(event.c.id)).scalar_subquery()
    old = sa.select(event.c.id).where(event.c.at < before, event.c.id != newest).order_by(event.c.at).limit(ROWS)
    return _delete(connection, event.c.id, old)


def delete_sessions(connection: sa.Connection, before: float) -> int:
    """Delete expired sessions and sign-in links, and return how many were deleted."""
    return int(connection.execute(sa.delete(web_session).where(web_session.c.expires_at < before)).rowcount)


def shrink_database(connection: sa.Connection, *, keep_pages: int = 1000) -> int:
    """Return free pages of a SQLite file to the file system, at most ``ROWS``.

    Args:
        connection: A transaction.
        keep_pages: The number of free pages to keep for new rows.
    Returns:
        The number of pages that were returned.
    """
    free = int(connection.exec_driver_sql("PRAGMA freelist_count").scalar() or 0)
    some = min(ROWS, free - keep_pages)
    if some <= 0:
        return 0
    for _ in connection.connection.cursor().execute(f"PRAGMA incremental_vacuum({some})"):
        pass  # each step frees one page
    return free - int(connection.exec_driver_sql("PRAGMA freelist_count").scalar() or 0)


def _delete(connection: sa.Connection, column: Any, chosen: sa.Select[Any]) -> int:
    return _delete_ids(connection, column, list(connection.execute(chosen).scalars()))


def _delete_ids(connection: sa.Connection, column: Any, ids: Collection[int]) -> int:
    if ids:
        connection.execute(sa.delete(column.table).where(column.in_(ids)))
    return len(ids)
