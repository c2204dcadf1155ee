"""A claim from its begin to its end: what was read for it, and how its run is judged. Nothing here does I/O."""

from __future__ import annotations

from dataclasses import dataclass

from latchwork.errors import BadRecord, LatchworkError
from latchwork.plans.records import PlanRecord, Task
from latchwork.tasks import BadPayload, Failure, Outcome
from latchwork.types import Entry


class NothingToRun(LatchworkError):
    """The item needs no call: it is one of control, or of a task that has ended."""


@dataclass(frozen=True, slots=True)
class Begun:
    """How the call of a claim was made.

    Attributes:
        is_call: whether it was one.
        trouble: what the store raised while it was made.
        is_together: whether its end is decided with those of others: it has few successors.
        plan, task: as they were read; no task any more once an end by them was tried.
        result: the outcome as it is stored, once it is.
        child: the draft of the plan that was returned, once it is written.
    """

    is_call: bool = False
    trouble: str = ""
    is_together: bool = False
    plan: tuple[Entry, PlanRecord] | None = None
    task: Task | None = None
    result: bytes = b""
    child: tuple[str, Entry] | None = None


def is_wrong(outcome: Outcome) -> bool:
    """Whether the call could not be made from what is stored: no worker can."""
    failure = outcome.failure
    return failure is not None and failure.name in (BadPayload.__name__, BadRecord.__name__)


def is_retried(task: Task, failure: Failure) -> bool:
    """Whether an exception is of a class that the task is tried again for; one that is not known here is."""
    kind = failure.loaded_class
    names = task.record.retry.on
    return kind is None or any(f"{each.__module__}:{each.__qualname__}" in names for each in kind.__mro__)
