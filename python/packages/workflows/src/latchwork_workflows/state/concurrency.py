"""Decides which runs of a workflow may run at a time, and how another start is handled. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import NamedTuple

from latchwork_workflows.state.records import RunState

#: A run in one of these states counts against the limit of its workflow. A paused run still counts.
GOING = frozenset({RunState.RUNNING, RunState.READY_PAUSE, RunState.PAUSED, RunState.READY_STOP})


class ActiveRun(NamedTuple):
    """Another run of the same workflow.

    Attributes:
        id: Its run ID.
        shard: The shard that it belongs to.
        state: Its state.
    """

    id: int
    shard: int
    state: RunState


class StartDecision(StrEnum):
    """Decision about a start."""

    RUN = "run"
    WAIT = "wait"
    DISCARD = "discard"
    #: It would wait forever for its own ancestors.
    NEVER = "never"


class StartVerdict(NamedTuple):
    """Decision about a start, with its consequences.

    Attributes:
        decision: Decision for the new run.
        stop: Other runs to stop in favor of the new run.
        cause: The other run that caused the decision. None if the new run starts.
    """

    decision: StartDecision
    stop: tuple[ActiveRun, ...] = ()
    cause: ActiveRun | None = None


def get_max_active_runs(policy: str, max_runs: int | None) -> int | None:
    """Return how many runs of a workflow may be active at the same time. None: unlimited.

    Args:
        policy: Concurrency policy of the workflow.
        max_runs: Limit set by the workflow. None: the default of the policy.
    """
    return max_runs if max_runs is not None else None if policy == "parallel" else 1


def decide_start(
    policy: str,
    other_runs: Sequence[ActiveRun],
    *,
    max_runs: int | None = None,
    must_run: bool = False,
    ancestors: Collection[int] = (),
) -> StartVerdict:
    """Apply the concurrency policy of a workflow to a new run: start it, let it wait, discard it, or stop other runs
    for it.

    Args:
        policy: Concurrency policy of the workflow.
        other_runs: Runs that count against the limit or wait for it, oldest first.
        max_runs: Maximum number of active runs. None: the default of the policy, which is one or unlimited.
        must_run: Never discard the new run or stop others for it, whatever the policy. Set for the dates of a backfill.
        ancestors: Run IDs of the parent of the new run and of the parent's ancestors.
    """
    limit = get_max_active_runs(policy, max_runs)
    there = [each for each in other_runs if each.state in GOING or each.state is RunState.SERIAL_WAIT]
    if limit is None or len(there) < limit:
        return StartVerdict(StartDecision.RUN)
    mine = [each for each in there if each.id in ancestors]
    if len(mine) >= limit:
        return StartVerdict(StartDecision.NEVER, cause=mine[0])
    if policy == "discard" and not must_run:
        return StartVerdict(StartDecision.DISCARD, cause=there[0])
    stop = _select_runs_to_stop(there, limit, ancestors) if policy == "priority" and not must_run else ()
    return StartVerdict(StartDecision.WAIT, stop, there[0])


def _select_runs_to_stop(other_runs: Sequence[ActiveRun], limit: int, above: Collection[int]) -> tuple[ActiveRun, ...]:
    """Return the runs to stop for a new run: all waiting ones, and the oldest active ones that exceed the limit."""
    ending = sum(each.state is RunState.READY_STOP for each in other_runs)
    go = [each for each in other_runs if each.state in GOING and each.state is not RunState.READY_STOP]
    too_many = max(0, len(go) - (limit - 1)) if ending + len(go) >= limit else 0
    ends = {each.id for each in go if each.id not in above}
    ended = {each.id for each in [each for each in go if each.id in ends][:too_many]}
    return tuple(each for each in other_runs if each.id in ended or each.state is RunState.SERIAL_WAIT)
