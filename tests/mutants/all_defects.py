"""Every planted defect: at least one for each invariant of each primitive."""

from __future__ import annotations

from mutants import of_leaders, of_locks, of_meetings, of_numbers, of_persistent_locks, of_queues

DEFECTS = (
    *of_locks.DEFECTS,
    *of_leaders.DEFECTS,
    *of_persistent_locks.DEFECTS,
    *of_numbers.DEFECTS,
    *of_meetings.DEFECTS,
    *of_queues.DEFECTS,
)
