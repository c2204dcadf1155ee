"""Schedules: fixed delay, fixed rate and cron, and the missed fire times of a cron schedule.

Everything but ``WallClock`` is pure, and the time is an argument. Nothing here knows about jobs, stores or threads.
"""

from latchwork.schedules.fires import NO_JITTER, CronStep, FireProgress, Jitter, describe_rule, find_next_step
from latchwork.schedules.schedule import Cron, DueTime, FixedDelay, FixedRate, Instant, Schedule
from latchwork.schedules.wall_clock import WallClock

__all__ = [
    "NO_JITTER",
    "Cron",
    "CronStep",
    "DueTime",
    "FireProgress",
    "FixedDelay",
    "FixedRate",
    "Instant",
    "Jitter",
    "Schedule",
    "WallClock",
    "describe_rule",
    "find_next_step",
]
