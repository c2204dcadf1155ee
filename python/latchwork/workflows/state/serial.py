"""What a start does while another run of its workflow goes on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from latchwork.workflows.state.records import InstanceState

#: A run in one of these has the place of its workflow. One that is paused keeps it.
GOING = frozenset({InstanceState.RUNNING, InstanceState.READY_PAUSE, InstanceState.PAUSED, InstanceState.READY_STOP})


class Other(NamedTuple):
    """Another run of the same workflow.

    Attributes:
        id: of the instance.
        shard: whose it is.
        state: where it is.
    """

    id: int
    shard: int
    state: InstanceState


class Turn(str, Enum):
    """What becomes of a start."""

    RUN = "run"
    WAIT = "wait"
    DISCARD = "discard"


class Verdict(NamedTuple):
    """What to do.

    Attributes:
        turn: of the run that is to start.
        stop: others that are to be stopped for it.
        because: of which other; None: it runs.
    """

    turn: Turn
    stop: tuple[Other, ...] = ()
    because: Other | None = None


def verdict(policy: str, others: Sequence[Other], *, is_wanted: bool = False) -> Verdict:
    """Whether a run starts.

    Args:
        policy: of its workflow.
        others: that have the place, or wait for it.
        is_wanted: it is neither discarded nor ends others, whatever the policy: a date of a backfill.
    """
    there = [each for each in others if each.state in GOING or each.state is InstanceState.SERIAL_WAIT]
    if policy == "parallel" or not there:
        return Verdict(Turn.RUN)
    if policy == "discard" and not is_wanted:
        return Verdict(Turn.DISCARD, because=there[0])
    ends = policy == "priority" and not is_wanted
    stop = tuple(each for each in there if each.state is not InstanceState.READY_STOP) if ends else ()
    return Verdict(Turn.WAIT, stop, there[0])
