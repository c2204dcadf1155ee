"""Schedules in the database: due fire times, and those already started. One row for each fire time.

Writers hold the guard of the shard. The fire time, its command and the cursor are written in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork.schedules import Cron, FireProgress, find_next_step
from latchwork_workflows.db.commands import CommandType, send_command
from latchwork_workflows.db.tables import definition, fire, schedule

#: The requester of runs that a schedule starts.
BY_SCHEDULE = "schedule"


def describe_clock_ahead(ahead_s: float) -> str:
    """Explain to users why a schedule does not fire: a clock was ahead by ``ahead_s`` seconds."""
    return (
        f"its fire times are already processed up to {ahead_s:.0f} s in the future, because a clock was ahead, and it "
        "starts nothing until then; check the clocks of the masters, then disable and enable it"
    )


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """The schedule of a workflow.

    Attributes:
        code: The ID of the workflow.
        project: The project of the workflow.
        name: The name of the workflow.
        version: The newest version.
        online: Whether the workflow may be started.
        shard: The shard whose master starts it.
        cron: Five or six fields.
        tz: The name of the time zone.
        starts_at: The earliest fire time, in seconds since the epoch.
        ends_at: The latest fire time.
        misfire: The policy for missed fire times: ``once``, ``all`` or ``skip``.
        max_lateness_s: Missed fire times are not caught up after so many seconds.
        enabled: Whether it fires.
        cursor: All fire times up to this one have been handled.
    """

    code: int
    project: str
    name: str
    version: int
    online: bool
    shard: int
    cron: str
    tz: str
    starts_at: float | None
    ends_at: float | None
    misfire: str
    max_lateness_s: float
    enabled: bool
    cursor: float

    def get_seconds_ahead(self, now: float) -> float:
        """Return how many seconds the last handled fire time lies in the future. 0 if it lies in the past.

        Nothing fires until that time has passed.
        """
        return FireProgress(self.cursor).ahead_s(now)

    def get_next_fire(self, now: float) -> float | None:
        """Return the next fire time, or None if there is none. A past fire time was missed and is due now."""
        misfire = cast("Literal['once', 'all', 'skip']", self.misfire)
        cron = Cron(self.cron, tz=self.tz, misfire=misfire, max_lateness_s=self.max_lateness_s)
        before = self.cursor if self.starts_at is None else max(self.cursor, self.starts_at - 0.001)
        at = find_next_step(cron, {"": FireProgress(before)}, now).at
        if at <= before:
            at = cron.fire_after(before)
        if self.ends_at is None or at <= self.ends_at:
            return at
        if misfire != "once":
            return None
        # The newest past fire time is after the end. One before the end may still have to be caught up.
        owed = cron.fire_before(min(now, self.ends_at), now - self.max_lateness_s)
        return owed if owed is not None and owed > before else None


_COLUMNS = (
    schedule.c.code,
    definition.c.project,
    definition.c.name,
    definition.c.version,
    definition.c.online,
    schedule.c.shard,
    schedule.c.cron,
    schedule.c.tz,
    schedule.c.starts_at,
    schedule.c.ends_at,
    schedule.c.misfire,
    schedule.c.max_lateness_s,
    schedule.c.enabled,
    schedule.c.cursor,
)
_ROWS = sa.select(*_COLUMNS).join(definition, definition.c.code == schedule.c.code).order_by(schedule.c.code)
_OF_SHARD = _ROWS.where(schedule.c.shard == sa.bindparam("shard"))


def load_schedules(connection: sa.Connection, shard: int | None = None) -> list[ScheduleRow]:
    """Return the schedules of a shard or of all shards, sorted by workflow ID."""
    found = connection.execute(_ROWS) if shard is None else connection.execute(_OF_SHARD, {"shard": shard})
    return [ScheduleRow(**row) for row in found.mappings()]


def start_scheduled_run(connection: sa.Connection, row: ScheduleRow, at: float) -> int | None:
    """Start the run of a fire time: store the fire time, a start command, and the progress of the schedule.

    Args:
        connection: A transaction.
        row: The schedule.
        at: The fire time, in seconds since the epoch.
    Returns:
        The ID of the command, or None if the fire time was started before, so that only the progress was stored.
    """
    move = sa.update(schedule).where(schedule.c.code == row.code, schedule.c.cursor < at).values(cursor=at)
    connection.execute(move)
    insert = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(fire)
    made = insert.values(code=row.code, fire_time=at, command=0).on_conflict_do_nothing().returning(fire.c.fire_time)
    if connection.execute(made).first() is None:
        return None
    args = {"code": row.code, "version": row.version, "schedule_time": at}
    asked = send_command(connection, CommandType.TIMER, shard_id=row.shard, args=args, by=BY_SCHEDULE)
    mine = sa.and_(fire.c.code == row.code, fire.c.fire_time == at)
    connection.execute(sa.update(fire).where(mine).values(command=asked.id))
    return asked.id
