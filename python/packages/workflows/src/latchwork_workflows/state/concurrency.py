"""Which runs of a workflow may run at a time, and what becomes of another start. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import NamedTuple

from latchwork_workflows.state.records import InstanceState

#: A run in one of these has a place of its workflow. One that is paused keeps it.
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


class Turn(StrEnum):
    """What becomes of a start."""

    RUN = "run"
    WAIT = "wait"
    DISCARD = "discard"
    #: It would wait for runs that it is a part of, for ever.
    NEVER = "never"


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


def places(policy: str, max_runs: int | None) -> int | None:
    """How many runs of a workflow go at a time; None: any."""
    return max_runs if max_runs is not None else None if policy == "parallel" else 1


def verdict(
    policy: str,
    others: Sequence[Other],
    *,
    max_runs: int | None = None,
    is_wanted: bool = False,
    above: Collection[int] = (),
) -> Verdict:
    """Whether a run starts.

    Args:
        policy: of its workflow.
        others: that have a place, or wait for one; the oldest first.
        max_runs: so many go at a time; None: as the policy says, one or any.
        is_wanted: it is neither discarded nor ends others, whatever the policy: a date of a backfill.
        above: the runs that it would be a part of.
    """
    most = places(policy, max_runs)
    there = [each for each in others if each.state in GOING or each.state is InstanceState.SERIAL_WAIT]
    if most is None or len(there) < most:
        return Verdict(Turn.RUN)
    mine = [each for each in there if each.id in above]
    if len(mine) >= most:
        return Verdict(Turn.NEVER, because=mine[0])
    if policy == "discard" and not is_wanted:
        return Verdict(Turn.DISCARD, because=there[0])
    stop = _stopped(there, most, above) if policy == "priority" and not is_wanted else ()
    return Verdict(Turn.WAIT, stop, there[0])


def _stopped(there: Sequence[Other], most: int, above: Collection[int]) -> tuple[Other, ...]:
    """Those that wait, and of those that go the oldest, so that there is a place."""
    ending = sum(each.state is InstanceState.READY_STOP for each in there)
    go = [each for each in there if each.state in GOING and each.state is not InstanceState.READY_STOP]
    too_many = max(0, len(go) - (most - 1)) if ending + len(go) >= most else 0
    ends = {each.id for each in go if each.id not in above}
    ended = {each.id for each in [each for each in go if each.id in ends][:too_many]}
    return tuple(each for each in there if each.id in ended or each.state is InstanceState.SERIAL_WAIT)
