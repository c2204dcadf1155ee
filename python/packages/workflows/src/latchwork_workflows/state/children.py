"""Parents and children: what a child is asked when its parent goes on, pauses or ends, and what its end tells. Pure."""

from __future__ import annotations

from latchwork_workflows.state.events import (
    ChildPaused,
    Ended,
    Event,
    Outcome,
    Pause,
    Recover,
    Rerun,
    Resume,
    Stop,
)
from latchwork_workflows.state.records import InstanceState, TaskState

#: So many runs are inside of each other at most.
MOST_DEPTH = 100
_OF_CALL: dict[tuple[str, InstanceState], type[Pause | Resume | Stop | Rerun]] = {
    ("open", InstanceState.PAUSED): Resume,
    ("open", InstanceState.READY_PAUSE): Resume,
    ("open", InstanceState.SUCCESS): Rerun,
    ("resume", InstanceState.PAUSED): Resume,
    ("resume", InstanceState.READY_PAUSE): Resume,
    ("pause", InstanceState.RUNNING): Pause,
    **{
        ("stop", state): Stop
        for state in (
            InstanceState.SUBMITTED,
            InstanceState.SERIAL_WAIT,
            InstanceState.RUNNING,
            InstanceState.READY_PAUSE,
            InstanceState.PAUSED,
        )
    },
}
_ENDS = {
    InstanceState.SUCCESS: Outcome.SUCCESS,
    InstanceState.FAILURE: Outcome.FATAL,
    InstanceState.STOPPED: Outcome.KILLED,
}


def asked(call: str, child: InstanceState) -> Event | None:
    """What a child is asked for a call of its parent's task; None: nothing, it is as it should be.

    A child that is there is adopted: what failed in it is recovered, and nothing else runs again.
    """
    if call == "open" and child in {InstanceState.FAILURE, InstanceState.STOPPED}:
        return Recover()
    made = _OF_CALL.get((call, child))
    return made() if made is not None else None


def told(child: InstanceState, task: str, n: int, run: int) -> Event | None:
    """What the parent's task is told of a child in this state; None: nothing yet."""
    if child is InstanceState.PAUSED:
        return ChildPaused(task, n, run)
    outcome = _ENDS.get(child)
    return Ended(task, n, outcome, run) if outcome is not None else None


def may_be_asked(command: str, parent: TaskState) -> bool:
    """Whether somebody may ask this of a child itself: one goes on by itself only while its parent waits for it."""
    return command not in {"resume", "recover", "rerun"} or (command == "resume" and parent is TaskState.RUNNING)
