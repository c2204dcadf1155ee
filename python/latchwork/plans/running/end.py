"""A run that returned, and what is told by it, or by several, alone. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState
from latchwork.plans.states import MOST_TOGETHER, MOST_WRITES, Seen
from latchwork.primitives import QueueClaim
from latchwork.tasks import Ending, Outcome
from latchwork.types import Entry


@dataclass(eq=False, slots=True)
class End:
    """A run that returned.

    Attributes:
        claim: of its item.
        plan_id, name: which task it is.
        outcome: what it returned.
        result: the same as it is stored.
        plan, task: as they were when it began; None: read them, and look.
        entry: the plan's, as this worker knows it; None: what becomes ready is not taken along.
        ending: how its claim ends.
    """

    claim: QueueClaim
    plan_id: str
    name: str
    outcome: Outcome
    result: bytes
    plan: PlanRecord | None = None
    task: Task | None = None
    entry: Entry | None = None
    ending: Future[Ending] = field(default_factory=Future)

    def end(self, ending: Ending) -> None:
        """The claim ends so."""
        if not self.ending.done():
            self.ending.set_result(ending)

    def fail(self, error: Exception) -> None:
        """It could not be decided."""
        if not self.ending.done():
            self.ending.set_exception(error)


def seen_of(end: End) -> Seen | None:
    """The plan as it was when an end began."""
    return None if end.entry is None or end.plan is None else (end.entry, end.plan)


def is_clean(end: End) -> bool:
    """Whether all that has ended of its plan is done, as long as the plan is as it was then."""
    return end.entry is not None and end.plan is not None and end.plan.state is PlanState.READY and not end.plan.failed


def last_of(ends: Sequence[End]) -> dict[str, str]:
    """By successor, the last of these that it comes after."""
    return {each: end.name for end in ends if end.task is not None for each in end.task.record.succ}


def is_simple(plan: PlanRecord, task: Task) -> bool:
    """Whether it is to be done, as expected, and has not many successors."""
    is_live = plan.state in (PlanState.READY, PlanState.CANCELLING)
    return is_live and task.record.state is TaskState.READY and len(task.record.succ) <= MOST_TOGETHER


def gathered(ends: Sequence[tuple[End, Task]]) -> list[list[tuple[End, Task]]]:
    """As many as fit into each transaction."""
    found: list[list[tuple[End, Task]]] = []
    room = 0
    for end, task in ends:
        cost = 5 + (len(end.result) + len(task.entry.value)) // 10_000
        if room < cost:
            found.append([])
            room = MOST_WRITES
        found[-1].append((end, task))
        room -= cost
    return found
