"""Consequences of a task's end: successors become ready or are skipped, and the plan ends when no task is left.

Each step may be done by several workers at once, and repeatedly: a ready task never becomes unready, and each write
checks the state that led to it.

A worker claims some of the tasks that become ready in the same transaction. No other worker ever sees such a task as
free. Only a worker with free slots that has just searched the queue does this, so that earlier items are not delayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from latchwork.errors import Conflict, OutcomeUnknown, OwnershipLost
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import PARTITION, item_id, split_id
from latchwork.plans.plan_store import PlanStore, now_ms
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState
from latchwork.plans.transitions import StoredPlan, batch_tasks, item_value
from latchwork.plans.wakeups import build_parent_wakeup
from latchwork.primitives import CreateClaimed, QueueClaim, WorkQueue
from latchwork.store import Session
from latchwork.store.steps import ask
from latchwork.types import Committed, Entry, Op

#: Number of successors that are checked together, and made ready together. Each of the latter takes up to four writes.
_TOGETHER, _READY_TOGETHER = 200, 22


@dataclass(slots=True)
class EagerClaims:
    """Claims that are part of a transaction that makes tasks ready.

    Attributes:
        puts: By task name, the writes that create its queue item and claim it.
    """

    puts: dict[str, CreateClaimed] = field(default_factory=dict)

    def create_item_ops(self) -> dict[str, Sequence[Op]]:
        """Return, for each task that becomes ready, the writes that put it into the work queue."""
        return {name: put.ops for name, put in self.puts.items()}

    def to_claims(self, done: Committed | None) -> list[QueueClaim]:
        """Return the claims after the commit. After a lost answer the result is empty; the next search finds the
        claims.
        """
        claims = []
        for put in self.puts.values():
            claim = None if done is None else put.to_claim(done)
            if claim is None:
                put.mark_unconfirmed()
            else:
                claims.append(claim)
        return claims


#: For a transaction that claims nothing.
NO_CLAIMS = EagerClaims()


class EagerClaimer:
    """Chooses the tasks that this worker claims while it makes them ready. Used only by the thread that completes
    tasks.

    Args:
        plan_store: Where the plans are stored.
        backlog: Work queue whose claims this worker runs.
        session: Session that the claims are bound to.
    """

    def __init__(self, plan_store: PlanStore, backlog: WorkQueue, session: Session) -> None:
        self._plan_store = plan_store
        self._backlog = backlog
        self._session = session
        self._unknown: dict[str, list[EagerClaims]] = {}
        self._written: WeakKeyDictionary[QueueClaim, Entry] = WeakKeyDictionary()
        #: Number of free slots, and the function that runs claims; set by the worker.
        self.free_slots: Callable[[], int] = int
        self.start_runs: Callable[[Sequence[QueueClaim]], object] = bool

    def for_plan(self, plan_id: str, entry: Entry, plan: PlanRecord) -> PlanClaimer:
        """Return a claimer for the tasks of one plan."""
        return PlanClaimer(self, plan_id, entry, plan)

    def run_claims(self, eager_claims: EagerClaims, done: Committed | None) -> None:
        """Run the claims of a committed transaction. Their tasks are as the transaction wrote them."""
        claims = eager_claims.to_claims(done)
        if done is None or not claims:
            return
        written = {entry.key: entry for entry in done.entries}
        for claim in claims:
            self._written[claim] = written[self._plan_store.keys.task(*split_id(claim.item.id))]
        self.start_runs(claims)

    def pop_written_entry(self, claim: QueueClaim) -> Entry | None:
        """Return the entry of a claim's task if the transaction of the claim wrote it, and forget it; else None."""
        return self._written.pop(claim, None)

    def on_unknown(self, plan_id: str, eager_claims: EagerClaims) -> None:
        """Remember claims whose transaction has an unknown outcome."""
        self._unknown.setdefault(plan_id, []).append(eager_claims)

    def resolve_unknown(self, plan_id: str) -> None:
        """Stop waiting for the claims of a plan whose outcome was unknown: they are committed by now, or never
        will be.
        """
        for eager_claims in self._unknown.pop(plan_id, ()):
            eager_claims.to_claims(None)

    def choose_claims(
        self, plan_id: str, stored_plan: tuple[Entry, PlanRecord], tasks: Iterable[Task], *, had: int = 0
    ) -> EagerClaims:
        """Choose which of the tasks that are about to become ready this worker claims.

        Args:
            plan_id: ID of the plan.
            stored_plan: The plan as it is checked when the tasks become ready.
            tasks: Tasks in order of preference.
            had: Number of claims that were just chosen and are not committed yet.
        """
        if stored_plan[1].state is not PlanState.READY or stored_plan[1].max_parallel is not None:
            return NO_CLAIMS
        some = list(tasks)
        some = some[: max(0, self.free_slots() - had)] if some else some
        if not some:
            return NO_CLAIMS
        return EagerClaims({each.name: self._put(plan_id, stored_plan[1], each) for each in some})

    def _put(self, plan_id: str, plan: PlanRecord, task: Task) -> CreateClaimed:
        sort_key = self._plan_store.transitions.sort_key(plan, task.record)
        value = item_value(task.record)
        return self._backlog.create_claimed(
            PARTITION, sort_key, item_id(plan_id, task.name), value, session=self._session
        )


@dataclass(frozen=True, slots=True)
class PlanClaimer:
    """An `EagerClaimer` for the tasks of one plan."""

    claimer: EagerClaimer
    plan_id: str
    entry: Entry
    plan: PlanRecord

    def choose_claims(self, tasks: Iterable[Task]) -> EagerClaims:
        """Choose which of these tasks this worker claims."""
        return self.claimer.choose_claims(self.plan_id, (self.entry, self.plan), tasks)

    def on_committed(self, eager_claims: EagerClaims, done: Committed) -> None:
        """Run the claims of a committed transaction."""
        if eager_claims.puts:
            self.claimer.run_claims(eager_claims, done)

    def on_unknown(self, eager_claims: EagerClaims) -> None:
        """Remember claims whose transaction has an unknown outcome; see `EagerClaimer.resolve_unknown`."""
        self.claimer.on_unknown(self.plan_id, eager_claims)


class Propagation:
    """Updates the successors of ended tasks, and ends plans without remaining tasks. Thread-safe."""

    def __init__(self, plan_store: PlanStore) -> None:
        self._plan_store = plan_store

    # Completing

    async def propagate(self, plan_id: str, stored_plan: StoredPlan, task: Task) -> None:
        """Make those successors of a done task ready whose dependencies are all done."""
        await self.make_ready(plan_id, stored_plan, task.record.successors)

    async def make_ready(
        self,
        plan_id: str,
        stored_plan: StoredPlan,
        names: Sequence[str],
        taker: PlanClaimer | None = None,
        ended: set[str] | None = None,
    ) -> None:
        """Make those of these tasks ready whose dependencies are all done, and claim some of them.

        Does nothing in a plan that is not ready: ending or recovering it handles the rest.

        Args:
            plan_id: ID of the plan.
            stored_plan: The plan as it was read.
            names: Names of tasks that may be waiting.
            taker: Claims some of them for this worker.
            ended: Tasks known to have ended since the plan was started or recovered.
        """
        known = set[str]() if ended is None else ended
        for at in range(0, len(names), _TOGETHER):
            if stored_plan[1].state is not PlanState.READY:
                return
            tasks = await self._plan_store.read_tasks(plan_id, names[at : at + _TOGETHER])
            waiting = [each for each in tasks if each.record.state is TaskState.WAITING]
            free = await self._plan_store.filter_ready(plan_id, stored_plan[1], waiting, known)
            for some in batch_tasks(free, _READY_TOGETHER):
                await self._make_ready(plan_id, stored_plan, some, taker)

    async def _make_ready(
        self, plan_id: str, stored_plan: StoredPlan, tasks: Sequence[Task], taker: PlanClaimer | None
    ) -> None:
        """Make tasks ready in one transaction. If that fails, retry those that have changed one by one."""
        eager_claims = NO_CLAIMS if taker is None else taker.choose_claims(tasks)
        try:
            done = await self._ready_together(plan_id, stored_plan, tasks, eager_claims)
        except (Conflict, OutcomeUnknown) as error:
            if taker is not None and isinstance(error, OutcomeUnknown):
                taker.on_unknown(eager_claims)
        else:
            if taker is not None:
                taker.on_committed(eager_claims, done)
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
                await self._ready_together(plan_id, stored_plan, same, NO_CLAIMS)
                found = [each for each in found if each not in same]
        for each in found:
            await self._try_ready(plan_id, each.name)

    async def _ready_together(
        self, plan_id: str, stored_plan: StoredPlan, tasks: Sequence[Task], eager_claims: EagerClaims
    ) -> Committed:
        """Make all of these tasks ready in one transaction, or none."""
        items = eager_claims.create_item_ops()
        edits = [
            self._plan_store.transitions.make_ready(plan_id, stored_plan, each, items.get(each.name)) for each in tasks
        ]
        checks = list(dict.fromkeys(check for each in edits for check in each.checks))
        ops = list(dict.fromkeys(op for each in edits for op in each.ops))
        done: Committed = await ask(self._plan_store.store.commit, checks, ops)
        return done

    async def _try_ready(self, plan_id: str, name: str) -> None:
        """Make one task ready, unless it is no longer waiting or still has an unfinished dependency. Retries after
        conflicts.
        """
        while True:
            try:
                stored_plan = await self._plan_store.read_plan(plan_id)
            except NoSuchPlan:
                return
            if stored_plan[1].state is not PlanState.READY:
                return
            found = [
                each
                for each in await self._plan_store.read_tasks(plan_id, [name])
                if each.record.state is TaskState.WAITING
            ]
            if not found or not await self._plan_store.filter_ready(plan_id, stored_plan[1], found, set()):
                return
            if await self._plan_store.commit(self._plan_store.transitions.make_ready(plan_id, stored_plan, found[0])):
                return

    async def complete_plan(self, plan_id: str) -> None:
        """End a plan if none of its tasks is unfinished."""
        plan_store = self._plan_store
        adds_key = plan_store.keys.adds(plan_id)
        while not await plan_store.has_pending(plan_id):
            try:
                entry, plan = await plan_store.read_plan(plan_id)
            except NoSuchPlan:
                return
            if plan.state is not PlanState.READY:
                return
            adds = await ask(plan_store.store.get, adds_key)  # read before the check, so that an added task is noticed
            if await plan_store.has_pending(plan_id):
                return
            wakeup = await build_parent_wakeup(plan_store, plan_id, plan)
            if await plan_store.commit(
                plan_store.transitions.complete_plan(entry, plan, adds, adds_key, now_ms()).merge(wakeup)
            ):
                return

    # Failing

    async def skip_successors(self, claim: QueueClaim, plan_id: str, task: Task, generation: int) -> None:
        """Skip all tasks that can never run because a task has failed. Continues where a dead worker has stopped.

        Raises:
            OwnershipLost: The claim has ended.
        """
        left, handled = deque(task.record.successors), {task.name}
        while left:
            name = left.popleft()
            if name not in handled:
                handled.add(name)
                left.extend(await self._skip(claim, plan_id, name, generation))

    async def _skip(self, claim: QueueClaim, plan_id: str, name: str, generation: int) -> Iterable[str]:
        """Skip one task. Return the names of its successors."""
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
    """Check that a claim is still held, by the local clock.

    Raises:
        OwnershipLost: The claim may have ended.
    """
    if not claim.is_held:
        raise OwnershipLost(f"the claim of {claim.item.path} has ended; earlier writes remain")
