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


class Progress(NamedTuple):
    """Number of dates in each state.

    Attributes:
        pending: Not started.
        going: Running or paused.
        succeeded: Ended successfully.
        failed: Failed or stopped.
    """

    pending: int = 0
    going: int = 0
    succeeded: int = 0
    failed: int = 0


class Step(NamedTuple):
    """The next step of a backfill.

    Attributes:
        state: New state of the backfill.
        start: Number of pending dates to start, in the order of the backfill.
    """

    state: BackfillState
    start: int = 0


def next_step(was: BackfillState, progress: Progress, *, parallel: int, stop_on_failure: bool) -> Step:
    """Return the next step. Idempotent: repeating it with its own result changes nothing.

    Args:
        was: Current state of the backfill.
        progress: Number of its dates in each state.
        parallel: Maximum number of dates that run at a time.
        stop_on_failure: Start no other date while one has failed.
    """
    if was is BackfillState.STOPPED:
        return Step(was)
    if was is BackfillState.STOPPING:
        return Step(was if progress.going or progress.pending else BackfillState.STOPPED)
    is_held = stop_on_failure and progress.failed > 0
    start = 0 if is_held else min(progress.pending, max(0, parallel - progress.going))
    if start or progress.going:
        return Step(BackfillState.RUNNING, start)
    if progress.pending:
        return Step(BackfillState.HELD)
    return Step(BackfillState.FAILURE if progress.failed else BackfillState.SUCCESS)
