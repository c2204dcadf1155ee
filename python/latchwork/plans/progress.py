"""What follows from the end of a task: successors become ready or are skipped, and the plan ends when none is left.

Each step may be done by several workers at once, and again: readiness never becomes false, and each write checks what
it was decided by.

A worker takes some of the tasks that become ready along, in the transaction that makes them ready. Such a task is never
seen free: no worker looks for it, and no other one wants it. Only a worker with room takes one along, and one that has
looked a moment ago: items that come first are not kept waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from latchwork.errors import Conflict, OutcomeUnknown, OwnershipLost
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import LANE, item_id
from latchwork.plans.plan_store import PlanStore, now_ms
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState
from latchwork.plans.states import Seen, item_value, portions
from latchwork.plans.wakeups import wake
from latchwork.primitives import CreateClaimed, QueueClaim, WorkQueue
from latchwork.store import Session
from latchwork.store.steps import ask
from latchwork.types import Committed, Entry, Op

#: So many successors are looked at together, and made ready together: each of these costs up to four writes.
_TOGETHER, _READY_TOGETHER = 200, 22


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

    def __init__(self, place: PlanStore, backlog: WorkQueue, session: Session) -> None:
        self._place = place
        self._backlog = backlog
        self._session = session
        self._unsure: dict[str, list[Along]] = {}
        #: How many the worker has room for now, and what runs them: the feeder's.
        self.spare: Callable[[], int] = int
        self.begin: Callable[[Sequence[QueueClaim]], object] = bool

    def of(self, plan_id: str, entry: Entry, plan: PlanRecord) -> ReadyTaker:
        """Takes along what a look at one plan finds."""
        return ReadyTaker(self, plan_id, entry, plan)

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
class ReadyTaker:
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


class Progress:
    """The steps after a task's end. Safe to share between threads."""

    def __init__(self, place: PlanStore) -> None:
        self._place = place

    # Done

    async def propagate(self, plan_id: str, seen: Seen, task: Task) -> None:
        """A task is done: those who wait for nothing more are ready."""
        await self.look(plan_id, seen, task.record.succ)

    async def look(
        self,
        plan_id: str,
        seen: Seen,
        names: Sequence[str],
        taker: ReadyTaker | None = None,
        ended: set[str] | None = None,
    ) -> None:
        """Make those ready whose dependencies are done; some are taken along.

        Nothing becomes ready in a plan that is not: who ends, or recovers, the plan sees to the rest.

        Args:
            plan_id: of which plan.
            seen: the plan as it was read.
            names: of tasks that may wait.
            taker: takes some along.
            ended: tasks that are known to have ended since the plan was started or recovered.
        """
        known = set[str]() if ended is None else ended
        for at in range(0, len(names), _TOGETHER):
            if seen[1].state is not PlanState.READY:
                return
            tasks = await self._place.tasks(plan_id, names[at : at + _TOGETHER])
            waiting = [each for each in tasks if each.record.state is TaskState.WAITING]
            free = await self._place.free(plan_id, seen[1], waiting, known)
            for some in portions(free, _READY_TOGETHER):
                await self._make_ready(plan_id, seen, some, taker)

    async def _make_ready(self, plan_id: str, seen: Seen, tasks: Sequence[Task], taker: ReadyTaker | None) -> None:
        """Together; without those that others were faster with; one by one where one was rewritten."""
        along = NOBODY if taker is None else taker.along(tasks)
        try:
            done = await self._ready_together(plan_id, seen, tasks, along)
        except (Conflict, OutcomeUnknown) as error:
            if taker is not None and isinstance(error, OutcomeUnknown):
                taker.unsure(along)
        else:
            if taker is not None:
                taker.landed(along, done)
            return
        before = {each.name: each.entry.version for each in tasks}
        found = [
            each for each in await self._place.tasks(plan_id, list(before)) if each.record.state is TaskState.WAITING
        ]
        same = [each for each in found if each.entry.version == before[each.name]]
        with suppress(Conflict, OutcomeUnknown):
            if same:
                await self._ready_together(plan_id, seen, same, NOBODY)
                found = [each for each in found if each not in same]
        for each in found:
            await self._try_ready(plan_id, each.name)

    async def _ready_together(self, plan_id: str, seen: Seen, tasks: Sequence[Task], along: Along) -> Committed:
        """All or none."""
        items = along.items()
        edits = [self._place.edges.made_ready(plan_id, seen, each, items.get(each.name)) for each in tasks]
        checks = list(dict.fromkeys(check for each in edits for check in each.checks))
        ops = list(dict.fromkeys(op for each in edits for op in each.ops))
        done: Committed = await ask(self._place.store.commit, checks, ops)
        return done

    async def _try_ready(self, plan_id: str, name: str) -> None:
        """Alone, until it is ready, or waits for something; each time the plan is read first."""
        while True:
            try:
                seen = await self._place.plan(plan_id)
            except NoSuchPlan:
                return
            if seen[1].state is not PlanState.READY:
                return
            found = [
                each for each in await self._place.tasks(plan_id, [name]) if each.record.state is TaskState.WAITING
            ]
            if not found or not await self._place.free(plan_id, seen[1], found, set()):
                return
            if await self._place.commit(self._place.edges.made_ready(plan_id, seen, found[0])):
                return

    async def complete(self, plan_id: str) -> None:
        """End the plan if nothing of it is left. Asked by whoever ended a task that left nobody behind it."""
        place = self._place
        adds_key = place.keys.adds(plan_id)
        while not await place.is_anything_left(plan_id):
            try:
                entry, plan = await place.plan(plan_id)
            except NoSuchPlan:
                return
            if plan.state is not PlanState.READY:
                return
            adds = await ask(place.store.get, adds_key)  # before what is left: an added task is noticed
            if await place.is_anything_left(plan_id):
                return
            woken = await wake(place, plan_id, plan)
            if await place.commit(place.edges.completed(entry, plan, adds, adds_key, now_ms()).and_also(woken)):
                return

    # Failed

    async def skip_behind(self, claim: QueueClaim, plan_id: str, task: Task, turn: int) -> None:
        """Skip all that can never run, since a task has failed; through what another had skipped before it died.

        Raises:
            OwnershipLost: the claim is over.
        """
        left, seen = deque(task.record.succ), {task.name}
        while left:
            name = left.popleft()
            if name not in seen:
                seen.add(name)
                left.extend(await self._skip(claim, plan_id, name, turn))

    async def _skip(self, claim: QueueClaim, plan_id: str, name: str, turn: int) -> Iterable[str]:
        """What comes after it too."""
        place = self._place
        while True:
            held(claim)
            entry, plan = await place.plan(plan_id)
            found = await place.tasks(plan_id, [name])
            if not found or plan.turn != turn:
                return ()
            task = found[0]
            if task.record.state.is_lost:
                return task.record.succ
            if task.record.state is not TaskState.WAITING or plan.state not in (PlanState.READY, PlanState.CANCELLING):
                return ()
            if await place.commit(place.edges.skipped(plan_id, entry, task), claim.fence):
                return task.record.succ


def held(claim: QueueClaim) -> None:
    """Refuse to go on with a claim that may be over.

    Raises:
        OwnershipLost: it is not held, by our own clock.
    """
    if not claim.is_held:
        raise OwnershipLost(f"the claim of {claim.item.path} is over; what it did so far stands")
