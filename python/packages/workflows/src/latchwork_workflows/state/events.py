"""What can happen to an instance: commands of people, and what workers and clocks tell. Immutable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from latchwork_workflows.state.records import Scope


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    #: By a cancel that was asked for.
    KILLED = "killed"
    #: A failure that another try would not mend, such as five workers killed by it.
    FATAL = "fatal"


# Commands


@dataclass(frozen=True, slots=True)
class Start:
    """Begin.

    Attributes:
        start_from: the tasks to begin with; empty: all.
        scope: what else runs.
        dry: every task succeeds without running.
        fresh: every task runs, whatever is known of its outputs.
        waits: not yet: another run of its workflow has the place.
    """

    start_from: tuple[str, ...] = ()
    scope: Scope = Scope.DOWNSTREAM
    dry: bool = False
    fresh: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """It is the turn of one that waited."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Tasks at work end, none starts."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on after a pause."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Tasks at work are ended, none starts."""


@dataclass(frozen=True, slots=True)
class Recover:
    """Run what failed or was ended once more, and what follows. What succeeded is kept.

    Attributes:
        start_from: tasks that run again with all behind them, whatever became of them.
        waits: not yet: other runs of its workflow have the places.
    """

    start_from: tuple[str, ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Rerun:
    """Everything from the start, as another run of the same instance.

    Attributes:
        fresh: every task runs, whatever is known of its outputs.
        waits: not yet: other runs of its workflow have the places.
    """

    fresh: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class ForceSuccess:
    """A task that failed counts as success."""

    task: str


@dataclass(frozen=True, slots=True)
class ForceStart:
    """A queued task is taken without waiting for a slot."""

    task: str


# From workers and clocks; `n` is the attempt that they tell of, `run` the run. Those of another attempt change nothing.


@dataclass(frozen=True, slots=True)
class Claimed:
    """A worker has taken the task."""

    task: str
    n: int
    run: int = 1


@dataclass(frozen=True, slots=True)
class Lost:
    """Its worker died, or gave it back: it is queued again, as the same attempt.

    Attributes:
        died: a worker died, which people are told of.
    """

    task: str
    n: int
    run: int = 1
    died: bool = True


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt has ended.

    Attributes:
        took_s: seconds from its claim, by the clock of its worker.
    """

    task: str
    n: int
    outcome: Outcome
    run: int = 1
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Removed:
    """The item of a queued task was taken back: no worker will ever see it."""

    task: str
    n: int
    run: int = 1


# From the master, of tasks that it holds itself.


@dataclass(frozen=True, slots=True)
class ChildPaused:
    """The child of a sub-process is paused. It goes on with its parent, if that is to be paused too."""

    task: str
    n: int
    run: int = 1


@dataclass(frozen=True, slots=True)
class ChildForced:
    """The child of a sub-process that failed was forced to success."""

    task: str
    run: int = 1


@dataclass(frozen=True, slots=True)
class SeenFailed:
    """What a dependent waits for has failed: it is given up after a while, unless that succeeds by then."""

    task: str
    n: int
    run: int = 1


@dataclass(frozen=True, slots=True)
class Chose:
    """A switch has chosen the tasks that go on.

    Attributes:
        heads: of the branch that was chosen.
    """

    task: str
    n: int
    heads: tuple[str, ...]
    run: int = 1


@dataclass(frozen=True, slots=True)
class Expanded:
    """A map has so many items."""

    task: str
    n: int
    count: int
    run: int = 1


@dataclass(frozen=True, slots=True)
class Wake:
    """Time has passed, or something else may have changed: look again."""


Event: TypeAlias = (
    Start
    | Begin
    | Pause
    | Resume
    | Stop
    | Recover
    | Rerun
    | ForceSuccess
    | ForceStart
    | Claimed
    | Lost
    | Ended
    | Removed
    | ChildPaused
    | ChildForced
    | SeenFailed
    | Chose
    | Expanded
    | Wake
)
