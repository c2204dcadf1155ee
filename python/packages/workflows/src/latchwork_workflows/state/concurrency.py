"""Decides which runs of a workflow may run at a time, and how another start is handled. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import NamedTuple

from latchwork_workflows.state.records import InstanceState

#: A run in one of these states counts against the limit of its workflow. A paused run still counts.
GOING = frozenset({InstanceState.RUNNING, InstanceState.READY_PAUSE, InstanceState.PAUSED, InstanceState.READY_STOP})


class Other(NamedTuple):
    """Another run of the same workflow.

    Attributes:
        id: Its instance ID.
        shard: The shard that it belongs to.
        state: Its state.
    """

    id: int
    shard: int
    state: InstanceState


class Turn(StrEnum):
    """Decision about a start."""

    RUN = "run"
    WAIT = "wait"
    DISCARD = "discard"
    #: It would wait forever for its own ancestors.
    NEVER = "never"


class Verdict(NamedTuple):
    """Decision about a start, with its consequences.

    Attributes:
        turn: Decision for the new run.
        stop: Other runs to stop in favor of the new run.
        because: The other run that caused the decision. None if the new run starts.
    """

    turn: Turn
    stop: tuple[Other, ...] = ()
    because: Other | None = None


def places(policy: str, max_runs: int | None) -> int | None:
    """Return the maximum number of runs of a workflow at a time. None: unlimited."""
    return max_runs if max_runs is not None else None if policy == "parallel" else 1


def verdict(
    policy: str,
    others: Sequence[Other],
    *,
    max_runs: int | None = None,
    is_wanted: bool = False,
    above: Collection[int] = (),
) -> Verdict:
    """Decide whether a run starts.

    Args:
        policy: Concurrency policy of its workflow.
        others: Runs that count against the limit or wait, the oldest first.
        max_runs: Maximum number of runs at a time. None: the default of the policy, one or unlimited.
        is_wanted: The run is neither discarded nor stops others, whatever the policy: a date of a backfill.
        above: IDs of the ancestors of the run.
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
    """Return the waiting runs, and as many of the oldest active runs as must stop for the new one."""
    ending = sum(each.state is InstanceState.READY_STOP for each in there)
    go = [each for each in there if each.state in GOING and each.state is not InstanceState.READY_STOP]
    too_many = max(0, len(go) - (most - 1)) if ending + len(go) >= most else 0
    ends = {each.id for each in go if each.id not in above}
    ended = {each.id for each in [each for each in go if each.id in ends][:too_many]}
    return tuple(each for each in there if each.id in ended or each.state is InstanceState.SERIAL_WAIT)
