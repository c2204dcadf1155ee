"""One shift of a worker: from the beginning of a session to its end. The worker begins another one then.

Session and claims have one life: what the store lets go of with one of them, it lets go of with all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from latchwork.errors import LatchworkError
from latchwork.plans.control import Control
from latchwork.plans.finishing import PlanHooks
from latchwork.plans.keys import split_id
from latchwork.plans.place import Place
from latchwork.plans.progress import Progress
from latchwork.plans.running.children import Children
from latchwork.plans.running.company import Company
from latchwork.plans.running.handing import Handing
from latchwork.plans.running.limits import Limits
from latchwork.plans.running.mates import Mates
from latchwork.plans.running.waking import ends
from latchwork.primitives import WorkQueue
from latchwork.store import Mirror, Session, Store
from latchwork.store.steps import Signal
from latchwork.tasks import Failure, Feeder, Functions, GroupCommit, Payloads, RunIn, Slots
from latchwork.tasks.children import Leash

#: No item becomes a dead letter: a task has its own number of attempts.
_NO_LIMIT = 2**31


@dataclass(frozen=True, slots=True)
class Way:
    """How a worker works.

    Attributes:
        slots: tasks at a time.
        functions: what may be run.
        run_in: ``thread`` or ``process``.
        payloads: how arguments and results are read and written.
        label: what others see of it.
        context: what tasks get.
        failed: told of each try that raised: plan, task, and what.
    """

    slots: int
    functions: Functions
    run_in: RunIn
    payloads: Payloads
    label: str
    context: object
    failed: Callable[[str, str, Failure], object]


class Shift:
    """Runs tasks as long as one session lasts. Safe to share between threads.

    Args:
        store: the store that tasks get.
        place: where the plans are.
        mirrors: of the records of plans, of the places of limited ones, and of who works; the worker's.
        way: how we work.
        session: what we live by; closed at the end.
        stop: set when the worker closes.
    """

    def __init__(
        self,
        store: Store,
        place: Place,
        mirrors: tuple[Mirror, Mirror, Mirror],
        way: Way,
        *,
        session: Session,
        stop: Signal,
    ) -> None:
        self._place = place
        plans, taken, workers = mirrors
        self._plans = plans
        self.session = session
        self.limits = Limits(place.keys, taken, session, store.clock)
        self._leash = Leash(session.remaining_s)
        self._slots = Slots(
            way.slots,
            way.functions,
            way.payloads,
            run_in=way.run_in,
            leash=self._leash,
            label=way.label,
            clock=store.clock,
        )
        self._commits = GroupCommit(place.store, label=way.label)
        backlog = WorkQueue(place.store, place.keys.backlog, max_attempts=_NO_LIMIT, session=session, label=way.label)
        progress = Progress(place)
        children = Children(place, way.payloads, session)
        self.mates = Mates(place.keys, workers, session)
        handing = Handing(place, backlog, session)
        self._hooks = hooks = PlanHooks(
            place,
            plans,
            payloads=way.payloads,
            progress=progress,
            control=Control(place, progress, children),
            children=children,
            failed=way.failed,
            limits=self.limits,
            mates=self.mates,
            handing=handing,
            company=Company(lambda: self._slots.typical_s),
            stop=stop,
        )
        self.feeder = Feeder(
            backlog, self._slots, self._commits, hooks, store=store, node_id=way.label, context=way.context
        )
        self.limits.poke = self.feeder.poke
        handing.spare, handing.begin = self.feeder.spare, self.feeder.begin_taken
        self._ended = False

    def begin(self) -> None:
        """Begin to take tasks."""
        self.feeder.start()

    def plans_changed(self) -> None:
        """Plans became ready, or end: look for items, and tell what runs of those that end to stop."""
        self.feeder.poke()
        for path in self.feeder.running():
            plan_id, task = split_id(path.rpartition("/")[2])
            if not task.startswith("@") and (self._ends(plan_id) or self._is_replaced(path)):
                self.feeder.stop_task(path)

    def place_given_back(self) -> None:
        """Somebody gave a place of a limited plan back: look for items, if some were left alone for that."""
        if self.limits.holds_back:
            self.feeder.poke()

    async def tidy(self) -> None:
        """Give places back that belong to no claim any more."""
        await self.limits.tidy(self._place, self.feeder.running())

    def _is_replaced(self, path: str) -> bool:
        try:
            return self._hooks.is_replaced(path)
        except LatchworkError:  # our mirror is closed
            return False

    def _ends(self, plan_id: str) -> bool:
        try:
            return ends(self._plans, self._place.keys, plan_id)
        except LatchworkError:  # our mirror is closed
            return False

    def end(self, timeout_s: float) -> list[str]:
        """Stop all tasks, give them back, leave; the paths of those that did not end.

        From several threads, and again after an interrupt: each step is one that is made once, or changes nothing.
        """
        if self._ended:
            return []
        left = self.feeder.close(timeout_s)
        self._slots.close(min(timeout_s, 1.0) if left else timeout_s)
        self._hooks.close()
        self._commits.close(timeout_s if self.session.remaining_s() > 0.0 else 0.0)
        self._leash.close()
        self.session.close()
        self._ended = True
        return left
