"""When something runs next: fixed delay, fixed rate and cron, and which fire times of a cron schedule an item owes.

Everything is pure, the time comes in as an argument; nothing here knows of jobs, stores or threads.
"""

from latchwork.schedules.fires import NO_JITTER, Fired, Jitter, Step, next_step, rule_of
from latchwork.schedules.schedule import Cron, Due, FixedDelay, FixedRate, Instant, Schedule

__all__ = [
    "NO_JITTER",
    "Cron",
    "Due",
    "Fired",
    "FixedDelay",
    "FixedRate",
    "Instant",
    "Jitter",
    "Schedule",
    "Step",
    "next_step",
    "rule_of",
]
