"""What follows from the end of a task: successors become ready or are skipped, and the plan ends when none is left.

Each step may be done by several workers at once, and again: readiness never becomes false, and each write checks what
it was decided by.

A worker takes some of the tasks that become ready claims_ahead, in the transaction that makes them ready. Such a task is never
seen free: no worker looks for it, and no other one wants it. Only a worker with room takes one claims_ahead, and one that has
looked a moment ago: items that come first are not kept waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from latchwork.errors import Conflict, OutcomeUnknown, OwnershipLost
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import PARTITION, item_id
from latchwork.plans.plan_store import PlanStore, now_ms
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState
from latchwork.plans.states import StoredPlan, batch_tasks, item_value
from latchwork.plans.wakeups import wake_parent
from latchwork.primitives import CreateClaimed, QueueClaim, WorkQueue
from latchwork.store import Session
from latchwork.store.steps import ask
from latchwork.types import Committed, Entry, Op

#: So many successors are looked at together, and made ready together: each of these costs up to four writes.
_TOGETHER, _READY_TOGETHER = 200, 22


@dataclass(slots=True)
class EagerClaims:
    """Tasks of one transaction that are taken claims_ahead.

    Attributes:
        puts: by task, what puts its item and takes it.
    """

    puts: dict[str, CreateClaimed] = field(default_factory=dict)

    def items(self) -> dict[str, Sequence[Op]]:
        """By task, the writes that put its item."""
        return {name: put.ops for name, put in self.puts.items()}

    def taken(self, done: Committed | None) -> list[QueueClaim]:
        """The claims, once they were write_draft; of an answer that is lost the next look finds them."""
        claims = []
        for put in self.puts.values():
            claim = None if done is None else put.taken(done)
            if claim is None:
                put.doubtful()
            else:
                claims.append(claim)
        return claims


#: Of a transaction that takes nothing claims_ahead.
NO_CLAIMS = EagerClaims()


class EagerClaimer:
    """Takes tasks claims_ahead. For the thread that decides on ends.

    Args:
        plan_store: where the plans are.
        backlog: plan_key claims are run.
        session: what claims live by.
    """

    def __init__(self, plan_store: PlanStore, backlog: WorkQueue, session: Session) -> None:
        self._plan_store = plan_store
        self._backlog = backlog
        self._session = session
        self._unknown: dict[str, list[EagerClaims]] = {}
        #: How many the worker has room for now, and what runs them: the feeder's.
        self.spare: Callable[[], int] = int
        self.begin: Callable[[Sequence[QueueClaim]], object] = bool

    def for_plan(self, plan_id: str, entry: Entry, plan: PlanRecord) -> PlanClaimer:
        """Takes claims_ahead what a look at one plan finds."""
        return PlanClaimer(self, plan_id, entry, plan)

    def on_unknown(self, plan_id: str, claims_ahead: EagerClaims) -> None:
        """It may have committed, or may yet."""
        self._unknown.setdefault(plan_id, []).append(claims_ahead)

    def settle(self, plan_id: str) -> None:
        """All that was to be ready of a plan is: what was unsure has committed, or never will."""
        for claims_ahead in self._unknown.pop(plan_id, ()):
            claims_ahead.taken(None)

    def choose(
        self, plan_id: str, seen: tuple[Entry, PlanRecord], tasks: Iterable[Task], *, had: int = 0
    ) -> EagerClaims:
        """Those of these tasks, about to be ready, that are for us.

        Args:
            plan_id: of which plan.
            seen: the plan, as it is checked where tasks become ready: as for a claim.
            tasks: in the order in which they are wanted.
            had: how many were chosen a moment ago, and are not here yet.
        """
        if seen[1].state is not PlanState.READY or seen[1].max_parallel is not None:
            return NO_CLAIMS
        some = list(tasks)
        some = some[: max(0, self.spare() - had)] if some else some
        if not some:
            return NO_CLAIMS
        return EagerClaims({each.name: self._put(plan_id, seen[1], each) for each in some})

    def _put(self, plan_id: str, plan: PlanRecord, task: Task) -> CreateClaimed:
        shelf = self._plan_store.transitions.sort_key(plan, task.record)
        value = item_value(task.record)
        return self._backlog.create_claimed(PARTITION, shelf, item_id(plan_id, task.name), value, session=self._session)


@dataclass(frozen=True, slots=True)
class PlanClaimer:
    """What a look at the tasks of one plan does with those that it makes ready."""

    claimer: EagerClaimer
    plan_id: str
    entry: Entry
    plan: PlanRecord

    def choose(self, tasks: Iterable[Task]) -> EagerClaims:
        """Those of these that are taken claims_ahead."""
        return self.claimer.choose(self.plan_id, (self.entry, self.plan), tasks)

    def on_committed(self, claims_ahead: EagerClaims, done: Committed) -> None:
        """They are ours."""
        if claims_ahead.puts:
            self.claimer.begin(claims_ahead.taken(done))

    def on_unknown(self, claims_ahead: EagerClaims) -> None:
        """Nobody knows: ``EagerClaimer.settle`` does, once they are ready one way or the other."""
        self.claimer.on_unknown(self.plan_id, claims_ahead)


class Propagation:
    """The steps after a task's end. Safe to share between threads."""

    def __init__(self, plan_store: PlanStore) -> None:
        self._plan_store = plan_store

    # Done

    async def propagate(self, plan_id: str, seen: StoredPlan, task: Task) -> None:
        """A task is done: those who wait for nothing more are ready."""
        await self.make_ready(plan_id, seen, task.record.successors)

    async def make_ready(
        self,
        plan_id: str,
        seen: StoredPlan,
        names: Sequence[str],
        taker: PlanClaimer | None = None,
        ended: set[str] | None = None,
    ) -> None:
        """Make those ready plan_key dependencies are done; some are taken claims_ahead.

        Nothing becomes ready in a plan that is not: who ends, or recovers, the plan sees to the rest.

        Args:
            plan_id: of which plan.
            seen: the plan as it was read.
            names: of tasks that may wait.
            taker: takes some claims_ahead.
            ended: tasks that are known to have ended since the plan was started or recovered.
        """
        known = set[str]() if ended is None else ended
        for at in range(0, len(names), _TOGETHER):
            if seen[1].state is not PlanState.READY:
                return
            tasks = await self._plan_store.read_tasks(plan_id, names[at : at + _TOGETHER])
            waiting = [each for each in tasks if each.record.state is TaskState.WAITING]
            free = await self._plan_store.filter_ready(plan_id, seen[1], waiting, known)
            for some in batch_tasks(free, _READY_TOGETHER):
                await self._make_ready(plan_id, seen, some, taker)

    async def _make_ready(
        self, plan_id: str, seen: StoredPlan, tasks: Sequence[Task], taker: PlanClaimer | None
    ) -> None:
        """Together; without those that others were faster with; one by one where one was rewritten."""
        claims_ahead = NO_CLAIMS if taker is None else taker.choose(tasks)
        try:
            done = await self._ready_together(plan_id, seen, tasks, claims_ahead)
        except (Conflict, OutcomeUnknown) as error:
            if taker is not None and isinstance(error, OutcomeUnknown):
                taker.on_unknown(claims_ahead)
        else:
            if taker is not None:
                taker.on_committed(claims_ahead, done)
            return
        before = {each.name: each.entry.version for each in tasks}
        found = [
            each
            for each in await self._plan_store.read_tasks(plan_id, list(before))
            if each.record.state is TaskState.WAITING
        ]
        same = [each for each in found if each.entry.version == before[each.name]]
        with suppress(Conflict, OutcomeUnknown):
            if same:
                await self._ready_together(plan_id, seen, same, NO_CLAIMS)
                found = [each for each in found if each not in same]
        for each in found:
            await self._try_ready(plan_id, each.name)

    async def _ready_together(
        self, plan_id: str, seen: StoredPlan, tasks: Sequence[Task], claims_ahead: EagerClaims
    ) -> Committed:
        """All or none."""
        items = claims_ahead.items()
        edits = [self._plan_store.transitions.make_ready(plan_id, seen, each, items.get(each.name)) for each in tasks]
        checks = list(dict.fromkeys(check for each in edits for check in each.checks))
        ops = list(dict.fromkeys(op for each in edits for op in each.ops))
        done: Committed = await ask(self._plan_store.store.commit, checks, ops)
        return done

    async def _try_ready(self, plan_id: str, name: str) -> None:
        """Alone, until it is ready, or waits for something; each time the plan is read first."""
        while True:
            try:
                seen = await self._plan_store.read_plan(plan_id)
            except NoSuchPlan:
                return
            if seen[1].state is not PlanState.READY:
                return
            found = [
                each
                for each in await self._plan_store.read_tasks(plan_id, [name])
                if each.record.state is TaskState.WAITING
            ]
            if not found or not await self._plan_store.filter_ready(plan_id, seen[1], found, set()):
                return
            if await self._plan_store.commit(self._plan_store.transitions.make_ready(plan_id, seen, found[0])):
                return

    async def complete(self, plan_id: str) -> None:
        """Completion the plan if nothing of it is left. Asked by whoever ended a task that left nobody behind it."""
        plan_store = self._plan_store
        adds_key = plan_store.keys.adds(plan_id)
        while not await plan_store.has_pending(plan_id):
            try:
                entry, plan = await plan_store.read_plan(plan_id)
            except NoSuchPlan:
                return
            if plan.state is not PlanState.READY:
                return
            adds = await ask(plan_store.store.get, adds_key)  # before what is left: an added task is noticed
            if await plan_store.has_pending(plan_id):
                return
            wakeup = await wake_parent(plan_store, plan_id, plan)
            if await plan_store.commit(
                plan_store.transitions.complete_plan(entry, plan, adds, adds_key, now_ms()).merge(wakeup)
            ):
                return

    # Failed

    async def skip_successors(self, claim: QueueClaim, plan_id: str, task: Task, generation: int) -> None:
        """Skip all that can never run, since a task has failed; through what another had skipped before it died.

        Raises:
            OwnershipLost: the claim is over.
        """
        left, seen = deque(task.record.successors), {task.name}
        while left:
            name = left.popleft()
            if name not in seen:
                seen.add(name)
                left.extend(await self._skip(claim, plan_id, name, generation))

    async def _skip(self, claim: QueueClaim, plan_id: str, name: str, generation: int) -> Iterable[str]:
        """What comes after it too."""
        plan_store = self._plan_store
        while True:
            check_held(claim)
            entry, plan = await plan_store.read_plan(plan_id)
            found = await plan_store.read_tasks(plan_id, [name])
            if not found or plan.generation != generation:
                return ()
            task = found[0]
            if task.record.state.is_unsuccessful:
                return task.record.successors
            if task.record.state is not TaskState.WAITING or plan.state not in (PlanState.READY, PlanState.CANCELLING):
                return ()
            if await plan_store.commit(plan_store.transitions.skip_task(plan_id, entry, task), claim.fence):
                return task.record.successors


def check_held(claim: QueueClaim) -> None:
    """Refuse to go on with a claim that may be over.

    Raises:
        OwnershipLost: it is not check_held, by our own clock.
    """
    if not claim.is_held:
        raise OwnershipLost(f"the claim of {claim.item.path} is over; what it did so far stands")
