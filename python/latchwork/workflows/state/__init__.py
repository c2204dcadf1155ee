"""What happens to an instance: from what is known and one event to what is known next. Pure: no I/O, no clock.

``advance`` is the door; records and events are its words.
"""

from latchwork.workflows.state.advance import advance
from latchwork.workflows.state.commands import possible
from latchwork.workflows.state.events import (
    Claimed,
    Ended,
    Event,
    ForceStart,
    ForceSuccess,
    Lost,
    Outcome,
    Pause,
    Recover,
    Removed,
    Rerun,
    Resume,
    Start,
    Stop,
    Wake,
)
from latchwork.workflows.state.records import (
    DONE,
    FAILED,
    Fact,
    Instance,
    InstanceState,
    OnFailure,
    OnTimeout,
    Plan,
    Rule,
    Scope,
    Task,
    TaskState,
)

__all__ = [
    "DONE",
    "FAILED",
    "Claimed",
    "Ended",
    "Event",
    "Fact",
    "ForceStart",
    "ForceSuccess",
    "Instance",
    "InstanceState",
    "Lost",
    "OnFailure",
    "OnTimeout",
    "Outcome",
    "Pause",
    "Plan",
    "Recover",
    "Removed",
    "Rerun",
    "Resume",
    "Rule",
    "Scope",
    "Start",
    "Stop",
    "Task",
    "TaskState",
    "Wake",
    "advance",
    "possible",
]
