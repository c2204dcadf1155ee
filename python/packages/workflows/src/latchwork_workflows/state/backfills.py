"""How a backfill goes on. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class BackfillState(StrEnum):
    """Where a backfill is."""

    RUNNING = "running"
    #: A date has failed, and no other is to start.
    HELD = "held"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SUCCESS = "success"
    FAILURE = "failure"


#: Nothing happens any more unless somebody asks.
RESTS = frozenset({BackfillState.HELD, BackfillState.STOPPED, BackfillState.SUCCESS, BackfillState.FAILURE})
#: The states that take a stop.
STOPPABLE = frozenset({BackfillState.RUNNING, BackfillState.HELD})


class Progress(NamedTuple):
    """How many dates are where.

    Attributes:
        pending: were never started.
        going: are at work, or paused.
        succeeded: are over, and well.
        failed: have failed, or were stopped.
    """

    pending: int = 0
    going: int = 0
    succeeded: int = 0
    failed: int = 0


class Step(NamedTuple):
    """What to do.

    Attributes:
        state: of the backfill.
        start: so many of the pending dates, in its order.
    """

    state: BackfillState
    start: int = 0


def next_step(was: BackfillState, progress: Progress, *, parallel: int, stop_on_failure: bool) -> Step:
    """What follows. Done again, with what it led to, it changes nothing.

    Args:
        was: where the backfill was.
        progress: of its dates.
        parallel: so many are at work at a time.
        stop_on_failure: no other date starts while one has failed.
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
