"""Which tasks that become ready a worker takes along, in the transaction that makes them ready.

Such a task is never seen free: nobody looks for it, and nobody else wants it. Only a worker with room takes one along,
and one that has looked a moment ago: items that come first are not kept waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from latchwork.plans.keys import LANE, item_id
from latchwork.plans.place import Place
from latchwork.plans.records import PlanRecord, PlanState, Task
from latchwork.plans.states import item_value
from latchwork.primitives import CreateClaimed, QueueClaim, WorkQueue
from latchwork.store import Session
from latchwork.types import Committed, Entry, Op


@dataclass(slots=True)
class Along:
    """Tasks of one transaction that are taken along.

    Attributes:
        puts: by task, what puts its item and takes it.
    """

    puts: dict[str, CreateClaimed] = field(default_factory=dict)

    def items(self) -> dict[str, Sequence[Op]]:
        """By task, the writes that put its item."""
        return {name: put.ops for name, put in self.puts.items()}

    def taken(self, done: Committed | None) -> list[QueueClaim]:
        """The claims, once they were written; of an answer that is lost the next look finds them."""
        claims = []
        for put in self.puts.values():
            claim = None if done is None else put.taken(done)
            if claim is None:
                put.doubtful()
            else:
                claims.append(claim)
        return claims


#: Of a transaction that takes nothing along.
NOBODY = Along()


class Handing:
    """Takes tasks along. For the thread that decides on ends.

    Args:
        place: where the plans are.
        backlog: whose claims are run.
        session: what claims live by.
    """

    def __init__(self, place: Place, backlog: WorkQueue, session: Session) -> None:
        self._place = place
        self._backlog = backlog
        self._session = session
        self._unsure: dict[str, list[Along]] = {}
        #: How many the worker has room for now, and what runs them: the feeder's.
        self.spare: Callable[[], int] = int
        self.begin: Callable[[Sequence[QueueClaim]], object] = bool

    def of(self, plan_id: str, entry: Entry, plan: PlanRecord) -> Taker:
        """Takes along what a look at one plan finds."""
        return Taker(self, plan_id, entry, plan)

    def unsure(self, plan_id: str, along: Along) -> None:
        """It may have landed, or may yet."""
        self._unsure.setdefault(plan_id, []).append(along)

    def settle(self, plan_id: str) -> None:
        """All that was to be ready of a plan is: what was unsure has landed, or never will."""
        for along in self._unsure.pop(plan_id, ()):
            along.taken(None)

    def along(self, plan_id: str, seen: tuple[Entry, PlanRecord], tasks: Iterable[Task], *, had: int = 0) -> Along:
        """Those of these tasks, about to be ready, that are for us.

        Args:
            plan_id: of which plan.
            seen: the plan, as it is checked where tasks become ready: as for a claim.
            tasks: in the order in which they are wanted.
            had: how many were chosen a moment ago, and are not here yet.
        """
        if seen[1].state is not PlanState.READY or seen[1].max_parallel is not None:
            return NOBODY
        some = list(tasks)
        some = some[: max(0, self.spare() - had)] if some else some
        if not some:
            return NOBODY
        return Along({each.name: self._put(plan_id, seen[1], each) for each in some})

    def _put(self, plan_id: str, plan: PlanRecord, task: Task) -> CreateClaimed:
        shelf = self._place.edges.shelf(plan, task.record)
        value = item_value(task.record)
        return self._backlog.create_claimed(LANE, shelf, item_id(plan_id, task.name), value, session=self._session)


@dataclass(frozen=True, slots=True)
class Taker:
    """What a look at the tasks of one plan does with those that it makes ready."""

    handing: Handing
    plan_id: str
    entry: Entry
    plan: PlanRecord

    def along(self, tasks: Iterable[Task]) -> Along:
        """Those of these that are taken along."""
        return self.handing.along(self.plan_id, (self.entry, self.plan), tasks)

    def landed(self, along: Along, done: Committed) -> None:
        """They are ours."""
        if along.puts:
            self.handing.begin(along.taken(done))

    def unsure(self, along: Along) -> None:
        """Nobody knows: ``Handing.settle`` does, once they are ready one way or the other."""
        self.handing.unsure(self.plan_id, along)
