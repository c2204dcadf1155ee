"""State machine of a backfill. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class BackfillState(StrEnum):
    """State of a backfill."""

    RUNNING = "running"
    #: A date has failed, and no other date starts.
    HELD = "held"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SUCCESS = "success"
    FAILURE = "failure"


#: Nothing more happens without a command.
RESTS = frozenset({BackfillState.HELD, BackfillState.STOPPED, BackfillState.SUCCESS, BackfillState.FAILURE})
#: States that allow a stop.
STOPPABLE = frozenset({BackfillState.RUNNING, BackfillState.HELD})


class DateCounts(NamedTuple):
    """Number of dates in each state.

    Attributes:
        pending: Not started.
        active: Running or paused.
        succeeded: Ended successfully.
        failed: Failed or stopped.
    """

    pending: int = 0
    active: int = 0
    succeeded: int = 0
    failed: int = 0


class BackfillStep(NamedTuple):
    """The next step of a backfill.

    Attributes:
        state: New state of the backfill.
        start: Number of pending dates to start, in the order of the backfill.
    """

    state: BackfillState
    start: int = 0


def decide_next_step(state: BackfillState, counts: DateCounts, *, parallel: int, stop_on_failure: bool) -> BackfillStep:
    """Return the next state of a backfill and how many of its pending dates to start now. Idempotent.

    Args:
        state: Current state of the backfill.
        counts: Number of its dates in each state.
        parallel: Maximum number of dates that run at the same time.
        stop_on_failure: Whether to start no other date once one has failed.
    """
    if state is BackfillState.STOPPED:
        return BackfillStep(state)
    if state is BackfillState.STOPPING:
        return BackfillStep(state if counts.active or counts.pending else BackfillState.STOPPED)
    is_held = stop_on_failure and counts.failed > 0
    start = 0 if is_held else min(counts.pending, max(0, parallel - counts.active))
    if start or counts.active:
        return BackfillStep(BackfillState.RUNNING, start)
    if counts.pending:
        return BackfillStep(BackfillState.HELD)
    return BackfillStep(BackfillState.FAILURE if counts.failed else BackfillState.SUCCESS)
