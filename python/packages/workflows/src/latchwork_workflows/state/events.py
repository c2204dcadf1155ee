"""Events of a run: commands of users, and reports of workers and clocks. Immutable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from latchwork_workflows.state.records import Scope


class Outcome(StrEnum):
    """Result of an attempt."""

    SUCCESS = "success"
    FAILURE = "failure"
    #: Canceled on request.
    KILLED = "killed"
    #: A failure that is not retried, such as an attempt that killed five workers.
    FATAL = "fatal"


# Commands


@dataclass(frozen=True, slots=True)
class Start:
    """Start the run.

    Attributes:
        start_from: Tasks to start with. Empty: all.
        scope: Which other tasks run.
        dry: Every task succeeds without running.
        fresh: Every task runs, even if a cached result exists.
        waits: Wait, because other runs of the workflow use up its limit.
    """

    start_from: tuple[str, ...] = ()
    scope: Scope = Scope.DOWNSTREAM
    dry: bool = False
    fresh: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """A waiting run may start."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Start no more tasks. Running tasks complete."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Continue after a pause."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Start no more tasks. Running tasks are killed."""


@dataclass(frozen=True, slots=True)
class Recover:
    """Run the failed and killed tasks again, and everything downstream of them. Successful tasks are kept.

    Attributes:
        start_from: Tasks that run again with everything downstream of them, whatever their state.
        waits: Wait, because other runs of the workflow use up its limit.
    """

    start_from: tuple[str, ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Rerun:
    """Run everything from the start, as another run of the same run.

    Attributes:
        fresh: Every task runs, even if a cached result exists.
        waits: Wait, because other runs of the workflow use up its limit.
    """

    fresh: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class ForceSuccess:
    """Mark a failed task as successful."""

    task: str


@dataclass(frozen=True, slots=True)
class ForceStart:
    """Start a queued task without waiting for a slot."""

    task: str


# From workers and clocks. `n` is the attempt, `run` the run. Events of another attempt change nothing.


@dataclass(frozen=True, slots=True)
class Claimed:
    """A worker has claimed the task."""

    task: str
    n: int
    round: int = 1


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker died or released the task: it is queued again, as the same attempt.

    Attributes:
        died: The worker died, which can cause an alert.
    """

    task: str
    n: int
    round: int = 1
    died: bool = True


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt has ended.

    Attributes:
        took_s: Seconds since its claim, measured by the worker.
    """

    task: str
    n: int
    outcome: Outcome
    round: int = 1
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Removed:
    """The item of a queued task was withdrawn: no worker can claim it any more."""

    task: str
    n: int
    round: int = 1


# From the master, about the tasks that it runs itself.


@dataclass(frozen=True, slots=True)
class ChildPaused:
    """The child of a sub-process is paused. The sub-process pauses too if its run is pausing."""

    task: str
    n: int
    round: int = 1


@dataclass(frozen=True, slots=True)
class ChildForced:
    """The failed child of a sub-process was marked as successful."""

    task: str
    round: int = 1


@dataclass(frozen=True, slots=True)
class SeenFailed:
    """A dependency of a dependent has failed.

    The dependent fails after a wait, unless the dependency succeeds by then.
    """

    task: str
    n: int
    round: int = 1


@dataclass(frozen=True, slots=True)
class Chose:
    """A switch has chosen a branch.

    Attributes:
        heads: First tasks of the chosen branch.
    """

    task: str
    n: int
    heads: tuple[str, ...]
    round: int = 1


@dataclass(frozen=True, slots=True)
class Expanded:
    """The number of items of a map is known."""

    task: str
    n: int
    count: int
    round: int = 1


@dataclass(frozen=True, slots=True)
class Wake:
    """Time has passed or a dependency may have changed: check the dependents."""


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
