"""Backfills: one row for each backfill, and one run for each of its dates, all created at once.

Writers hold the guard of the shard in the same transaction. A backfill and its runs belong to one shard.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db.tables import backfill, command, definition, workflow_run
from latchwork_workflows.state import RunState
from latchwork_workflows.state.backfills import RESTS, BackfillState, DateCounts

_FAILED = frozenset({RunState.FAILURE, RunState.STOPPED})
#: The states of runs that a stop of the backfill stops.
_STOPS = (
    RunState.SUBMITTED,
    RunState.SERIAL_WAIT,
    RunState.RUNNING,
    RunState.READY_PAUSE,
    RunState.PAUSED,
)


class BackfillRow(NamedTuple):
    """The columns of a backfill that are needed to decide its next step.

    Attributes:
        id: The ID of the backfill.
        state: Its state.
        parallel: The maximum number of dates that run at the same time.
        direction: ``asc`` for oldest first, or ``desc``.
        stop_on_failure: Whether no further date starts after one has failed.
    """

    id: int
    state: BackfillState
    parallel: int
    direction: str
    stop_on_failure: bool


def create_backfill(
    connection: sa.Connection,
    fields: Mapping[str, Any],
    schedule_times: Sequence[float],
    shared_columns: Mapping[str, Any],
) -> int:
    """Create a backfill and all its runs, without starting them. Return the ID of the backfill.

    Args:
        connection: A transaction in which the ownership of the shard was checked.
        fields: The columns of the backfill.
        schedule_times: The schedule times of the runs, without duplicates.
        shared_columns: The columns with the same value in all runs.
    """
    values = {"state": BackfillState.RUNNING.value, "dates": len(schedule_times), **fields}
    number = int(connection.execute(sa.insert(backfill).values(**values).returning(backfill.c.id)).scalar_one())
    common = {"state": RunState.SUBMITTED.value, "active": True, "backfill": number, **shared_columns}
    connection.execute(sa.insert(workflow_run), [{**common, "schedule_time": at} for at in schedule_times])
    return number


def find_backfill_id_by_command(connection: sa.Connection, command_id: int, *, shard: int) -> int | None:
    """Return the ID of the backfill that a command of this shard created, or None."""
    chosen = sa.select(command.c.backfill).where(command.c.id == command_id, command.c.shard == shard)
    return connection.execute(chosen).scalar_one_or_none()


def load_backfill(connection: sa.Connection, backfill_id: int, *, shard: int) -> BackfillRow | None:
    """Return a backfill of a shard, or None if the shard has no such backfill."""
    columns = (backfill.c[name] for name in BackfillRow._fields)
    chosen = sa.select(*columns).where(backfill.c.id == backfill_id, backfill.c.shard == shard)
    row = connection.execute(chosen).first()
    return None if row is None else BackfillRow(*row)._replace(state=BackfillState(row.state))


def count_dates(connection: sa.Connection, backfill_id: int) -> DateCounts:
    """Return how many runs of a backfill are pending, active, succeeded and failed."""
    counted = sa.select(workflow_run.c.state, sa.func.count()).where(workflow_run.c.backfill == backfill_id)
    found = {RunState(state): count for state, count in connection.execute(counted.group_by(workflow_run.c.state))}
    pending = found.pop(RunState.SUBMITTED, 0)
    succeeded = found.pop(RunState.SUCCESS, 0)
    failed = sum(found.pop(state, 0) for state in _FAILED)
    return DateCounts(pending, sum(found.values()), succeeded, failed)


def list_pending_runs(connection: sa.Connection, row: BackfillRow, limit: int) -> list[int]:
    """Return the IDs of the next runs to start, in the order of the backfill."""
    chosen = sa.select(workflow_run.c.id).where(
        workflow_run.c.backfill == row.id, workflow_run.c.state == RunState.SUBMITTED.value
    )
    at = workflow_run.c.schedule_time
    return list(
        connection.execute(chosen.order_by(at.desc() if row.direction == "desc" else at).limit(limit)).scalars()
    )


def list_runs_to_stop(connection: sa.Connection, backfill_id: int, limit: int) -> list[int]:
    """Return the IDs of the unfinished runs of a backfill that is being stopped."""
    states = [state.value for state in _STOPS]
    chosen = sa.select(workflow_run.c.id).where(
        workflow_run.c.backfill == backfill_id, workflow_run.c.state.in_(states)
    )
    return list(connection.execute(chosen.order_by(workflow_run.c.id).limit(limit)).scalars())


def set_backfill_state(connection: sa.Connection, backfill_id: int, state: BackfillState, now: float) -> None:
    """Set the state of a backfill. If it has now ended or is now held, also set its end time."""
    values = {"state": state.value, "ended_at": now if state in RESTS else None}
    connection.execute(sa.update(backfill).where(backfill.c.id == backfill_id).values(**values))


#: A row, by the names of its columns.
Row: TypeAlias = Any

_BACKFILL = sa.select(*backfill.c, definition.c.project, definition.c.name).join(
    definition, definition.c.code == backfill.c.code
)


def find_backfill(connection: sa.Connection, backfill_id: int) -> Row | None:
    """Return a backfill with the name of its workflow, or None if there is none."""
    return connection.execute(_BACKFILL.where(backfill.c.id == backfill_id)).first()


def list_newest_backfills(
    connection: sa.Connection, *, codes: Collection[int] | None = None, before: int | None = None, limit: int = 50
) -> list[Row]:
    """Return backfills with the names of their workflows, newest first.

    Args:
        connection: A transaction.
        codes: Return only backfills of these workflows. None: all workflows.
        before: Return only backfills with lower IDs, for the next page.
        limit: The maximum number of backfills.
    """
    chosen = _BACKFILL.order_by(backfill.c.id.desc()).limit(limit)
    if codes is not None:
        chosen = chosen.where(backfill.c.code.in_(codes))
    return list(connection.execute(chosen if before is None else chosen.where(backfill.c.id < before)).all())


def count_runs_by_state(connection: sa.Connection, backfill_ids: Collection[int]) -> dict[int, dict[str, int]]:
    """Return how many runs of each backfill are in each state, by backfill ID."""
    if not backfill_ids:
        return {}
    by = (workflow_run.c.backfill, workflow_run.c.state)
    counted = (
        sa.select(*by, sa.func.count().label("count")).where(workflow_run.c.backfill.in_(backfill_ids)).group_by(*by)
    )
    found: dict[int, dict[str, int]] = {number: {} for number in backfill_ids}
    for row in connection.execute(counted):
        found[row.backfill][row.state] = row[2]
    return found


def list_runs(
    connection: sa.Connection,
    backfill_id: int,
    *,
    state: str = "",
    after: float | None = None,
    limit: int | None = None,
) -> list[Row]:
    """Return the runs of a backfill, earliest schedule time first.

    Args:
        connection: A transaction.
        backfill_id: The ID of the backfill.
        state: Return only runs in this state. Empty: any state.
        after: Return only runs with a later schedule time, for the next page.
        limit: The maximum number of runs. None: all.
    """
    columns = (
        workflow_run.c.id,
        workflow_run.c.schedule_time,
        workflow_run.c.state,
        workflow_run.c.started_at,
        workflow_run.c.ended_at,
    )
    chosen = sa.select(*columns).where(workflow_run.c.backfill == backfill_id).order_by(workflow_run.c.schedule_time)
    if state:
        chosen = chosen.where(workflow_run.c.state == state)
    if after is not None:
        chosen = chosen.where(workflow_run.c.schedule_time > after)
    return list(connection.execute(chosen.limit(limit)).all())
