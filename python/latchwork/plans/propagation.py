"""Consequences of a task's end: its successors become ready or are skipped, and the plan ends when no task is left.

Several workers may do each step at once, and repeatedly: a ready task never becomes unready, and each write checks the
state that it was based on.

A worker may claim some tasks in the same transaction that makes them ready (an eager claim). No other worker ever sees
such a task as free. Only a worker with free slots that has just searched the queue does this, so that earlier items are
not delayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from latchwork.errors import Conflict, OutcomeUnknown, OwnershipLost
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import PARTITION, item_id, split_item_id
from latchwork.plans.plan_store import PlanStore, now_ms
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState
from latchwork.plans.transitions import StoredPlan, batch_tasks, encode_item_settings
from latchwork.plans.wakeups import build_parent_wakeup
from latchwork.primitives import CreateClaimed, QueueClaim, WorkQueue
from latchwork.store import Session
from latchwork.store.steps import ask
from latchwork.types import Committed, Entry, Op

#: Number of successors that are checked together, and made ready together. Each of the latter takes up to four writes.
_TOGETHER, _MAX_READY = 200, 22


@dataclass(slots=True)
class EagerClaims:
    """Claims that are part of the transaction that makes their tasks ready.

    Attributes:
        puts: By task name, the writes that create the task's queue item and claim it.
    """

    puts: dict[str, CreateClaimed] = field(default_factory=dict)

    def build_item_ops(self) -> dict[str, Sequence[Op]]:
        """Return the writes that create and claim the queue item of each task, by task name."""
        return {name: put.ops for name, put in self.puts.items()}

    def to_claims(self, committed: Committed | None) -> list[QueueClaim]:
        """Return the claims that the transaction has made.

        Args:
            committed: Result of the commit; None if the answer was lost. Then no claim is returned: the worker's next
                search of the queue finds the claims if the transaction was committed.
        """
        claims = []
        for put in self.puts.values():
            claim = None if committed is None else put.to_claim(committed)
            if claim is None:
                put.mark_unconfirmed()
            else:
                claims.append(claim)
        return claims


#: For a transaction that claims nothing.
NO_CLAIMS = EagerClaims()


class EagerClaimer:
    """Claims tasks for this worker in the same transaction that makes them ready (eager claims).

    Only the thread that completes tasks chooses. The thread that learns of a commit runs its claims.

    Args:
        plan_store: Access to the stored plans.
        backlog: Work queue whose claims this worker runs.
        session: Session that the claims are bound to.
    """

    def __init__(self, plan_store: PlanStore, backlog: WorkQueue, session: Session) -> None:
        self._plan_store = plan_store
        self._backlog = backlog
        self._session = session
        self._in_doubt: dict[str, list[EagerClaims]] = {}
        self._written: WeakKeyDictionary[QueueClaim, Entry] = WeakKeyDictionary()
        #: Number of free slots, and the function that runs claims; set by the worker.
        self.free_slots: Callable[[], int] = int
        self.start_runs: Callable[[Sequence[QueueClaim]], object] = bool

    def for_plan(self, plan_id: str, entry: Entry, plan: PlanRecord) -> PlanClaimer:
        """Return a claimer for the tasks of one plan.

        Args:
            plan_id: ID of the plan.
            entry: Entry of the plan's record, which is checked when tasks become ready.
            plan: The decoded record.
        """
        return PlanClaimer(self, plan_id, entry, plan)

    def run_claims(self, eager_claims: EagerClaims, committed: Committed | None) -> None:
        """Run the tasks that a transaction has claimed. Their records are known, because the transaction wrote them.

        Args:
            eager_claims: The claims of the transaction.
            committed: Result of the commit; None if the answer was lost.
        """
        claims = eager_claims.to_claims(committed)
        if committed is None or not claims:
            return
        written = {entry.key: entry for entry in committed.entries}
        for claim in claims:
            self._written[claim] = written[self._plan_store.keys.task_key(*split_item_id(claim.item.id))]
        self.start_runs(claims)

    def pop_written_task_entry(self, claim: QueueClaim) -> Entry | None:
        """Return the entry of a task's record as the transaction of its eager claim wrote it, and forget it.

        Returns:
            None if the task was claimed in another way.
        """
        return self._written.pop(claim, None)

    def on_outcome_unknown(self, plan_id: str, eager_claims: EagerClaims) -> None:
        """Remember the eager claims of a transaction whose outcome is unknown."""
        self._in_doubt.setdefault(plan_id, []).append(eager_claims)

    def drop_unconfirmed_claims(self, plan_id: str) -> None:
        """Forget the eager claims of transactions whose outcome was unknown.

        Call it when these transactions can no longer be committed.
        """
        for eager_claims in self._in_doubt.pop(plan_id, ()):
            eager_claims.to_claims(None)

    def choose_claims(
        self, plan_id: str, stored_plan: tuple[Entry, PlanRecord], tasks: Iterable[Task], *, already_chosen: int = 0
    ) -> EagerClaims:
        """Choose which of these tasks this worker claims in the transaction that makes them ready.

        Chooses as many as there are free slots, and none in a plan with ``max_parallel``.

        Args:
            plan_id: ID of the plan.
            stored_plan: Entry and record of the plan. The transaction checks that they have not changed.
            tasks: Tasks in order of preference.
            already_chosen: Number of claims that were just chosen and are not committed yet.
        """
        if stored_plan[1].state is not PlanState.READY or stored_plan[1].max_parallel is not None:
            return NO_CLAIMS
        some = list(tasks)
        some = some[: max(0, self.free_slots() - already_chosen)] if some else some
        if not some:
            return NO_CLAIMS
        return EagerClaims({each.name: self._build_claim(plan_id, stored_plan[1], each) for each in some})

    def _build_claim(self, plan_id: str, plan: PlanRecord, task: Task) -> CreateClaimed:
        sort_key = self._plan_store.transitions.get_sort_key(plan, task.record)
        value = encode_item_settings(task.record)
        return self._backlog.create_claimed(
            PARTITION, sort_key, item_id(plan_id, task.name), value, session=self._session
        )


@dataclass(frozen=True, slots=True)
class PlanClaimer:
    """Claims tasks of one plan in the transaction that makes them ready, by means of an ``EagerClaimer``."""

    claimer: EagerClaimer
    plan_id: str
    entry: Entry
    plan: PlanRecord

    def choose_claims(self, tasks: Iterable[Task]) -> EagerClaims:
        """Choose which of these tasks this worker claims in the transaction that makes them ready."""
        return self.claimer.choose_claims(self.plan_id, (self.entry, self.plan), tasks)

    def on_committed(self, eager_claims: EagerClaims, committed: Committed) -> None:
        """Run the tasks that a committed transaction has claimed.

        Args:
            eager_claims: The claims in the transaction.
            committed: The result of the commit.
        """
        if eager_claims.puts:
            self.claimer.run_claims(eager_claims, committed)

    def on_outcome_unknown(self, eager_claims: EagerClaims) -> None:
        """Remember the eager claims of a transaction whose outcome is unknown."""
        self.claimer.on_outcome_unknown(self.plan_id, eager_claims)


class Propagation:
    """Updates the successors of ended tasks, and ends plans whose tasks have all ended. Thread-safe."""

    def __init__(self, plan_store: PlanStore) -> None:
        self._plan_store = plan_store

    # Completing

    async def update_successors(self, plan_id: str, stored_plan: StoredPlan, task: Task) -> None:
        """Make the successors of a done task ready if all of their dependencies are done."""
        await self.make_ready(plan_id, stored_plan, task.record.successors)

    async def make_ready(
        self,
        plan_id: str,
        stored_plan: StoredPlan,
        names: Sequence[str],
        plan_claimer: PlanClaimer | None = None,
        known_ended: set[str] | None = None,
    ) -> None:
        """Make waiting tasks ready if all of their dependencies are done, and claim some of them for this worker.

        Does nothing unless the plan is ready: cancelling or recovering the plan handles its tasks.

        Args:
            plan_id: ID of the plan.
            stored_plan: Entry and record of the plan as they were read.
            names: Names of tasks that may be waiting.
            plan_claimer: Chooses the tasks that this worker claims; None claims none.
            known_ended: Names of tasks known to have ended since the plan was started or recovered; this call adds the
                ones that it finds.
        """
        known_ended = set[str]() if known_ended is None else known_ended
        for at in range(0, len(names), _TOGETHER):
            if stored_plan[1].state is not PlanState.READY:
                return
            tasks = await self._plan_store.read_tasks(plan_id, names[at : at + _TOGETHER])
            waiting = [each for each in tasks if each.record.state is TaskState.WAITING]
            free = await self._plan_store.find_ready_tasks(plan_id, stored_plan[1], waiting, known_ended)
            for some in batch_tasks(free, _MAX_READY):
                await self._make_ready(plan_id, stored_plan, some, plan_claimer)

    async def _make_ready(
        self, plan_id: str, stored_plan: StoredPlan, tasks: Sequence[Task], plan_claimer: PlanClaimer | None
    ) -> None:
        """Make tasks ready in one transaction. If that fails, retry first the unchanged tasks together, then the others
        one by one.
        """
        eager_claims = NO_CLAIMS if plan_claimer is None else plan_claimer.choose_claims(tasks)
        try:
            done = await self._make_ready_atomically(plan_id, stored_plan, tasks, eager_claims)
        except (Conflict, OutcomeUnknown) as error:
            if plan_claimer is not None and isinstance(error, OutcomeUnknown):
                plan_claimer.on_outcome_unknown(eager_claims)
        else:
            if plan_claimer is not None:
                plan_claimer.on_committed(eager_claims, done)
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
                await self._make_ready_atomically(plan_id, stored_plan, same, NO_CLAIMS)
                found = [each for each in found if each not in same]
        for each in found:
            await self._make_one_ready(plan_id, each.name)

    async def _make_ready_atomically(
        self, plan_id: str, stored_plan: StoredPlan, tasks: Sequence[Task], eager_claims: EagerClaims
    ) -> Committed:
        """Make all of these tasks ready in one transaction, and return the result of the commit.

        Args:
            plan_id: ID of the plan.
            stored_plan: Entry and record of the plan as they were read.
            tasks: Waiting tasks whose dependencies are done.
            eager_claims: Claims of some of these tasks, for the same transaction.
        Raises:
            Conflict: A check failed, so no task became ready.
            OutcomeUnknown: The answer was lost.
        """
        items = eager_claims.build_item_ops()
        parts = [
            self._plan_store.transitions.build_ready(plan_id, stored_plan, each, items.get(each.name)) for each in tasks
        ]
        checks = list(dict.fromkeys(check for each in parts for check in each.checks))
        ops = list(dict.fromkeys(op for each in parts for op in each.ops))
        done: Committed = await ask(self._plan_store.store.commit, checks, ops)
        return done

    async def _make_one_ready(self, plan_id: str, name: str) -> None:
        """Make one task ready if it is waiting and all of its dependencies are done. Retries after conflicts."""
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
            if not found or not await self._plan_store.find_ready_tasks(plan_id, stored_plan[1], found, set()):
                return
            if await self._plan_store.commit(self._plan_store.transitions.build_ready(plan_id, stored_plan, found[0])):
                return

    async def complete_plan(self, plan_id: str) -> None:
        """End a plan if all of its tasks have ended."""
        plan_store = self._plan_store
        adds_key = plan_store.keys.additions_key(plan_id)
        while not await plan_store.has_unfinished_tasks(plan_id):
            try:
                entry, plan = await plan_store.read_plan(plan_id)
            except NoSuchPlan:
                return
            if plan.state is not PlanState.READY:
                return
            adds = await ask(plan_store.store.get, adds_key)  # read before the check, so that an added task is noticed
            if await plan_store.has_unfinished_tasks(plan_id):
                return
            wakeup = await build_parent_wakeup(plan_store, plan_id, plan)
            if await plan_store.commit(
                plan_store.transitions.build_plan_completion(entry, plan, adds, adds_key, now_ms()).merge(wakeup)
            ):
                return

    # Failing

    async def skip_successors(self, claim: QueueClaim, plan_id: str, task: Task, generation: int) -> None:
        """Skip all tasks that depend on a failed task, directly or indirectly. Continues where a dead worker has
        stopped.

        Args:
            claim: Claim of the failed task's queue item; its fence guards the writes.
            plan_id: ID of the plan.
            task: The failed task.
            generation: Generation of the plan; nothing is skipped after it has changed.
        Raises:
            OwnershipLost: The claim has ended.
        """
        left, handled = deque(task.record.successors), {task.name}
        while left:
            name = left.popleft()
            if name not in handled:
                handled.add(name)
                left.extend(await self._skip_task(claim, plan_id, name, generation))

    async def _skip_task(self, claim: QueueClaim, plan_id: str, name: str, generation: int) -> Iterable[str]:
        """Skip one task. Return the names of its successors; none if the task cannot be skipped."""
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
            if await plan_store.commit(plan_store.transitions.build_skip(plan_id, entry, task), claim.fence):
                return task.record.successors


def check_held(claim: QueueClaim) -> None:
    """Check by the local clock that a claim is still held.

    Raises:
        OwnershipLost: The claim may have ended.
    """
    if not claim.is_held:
        raise OwnershipLost(f"the claim of {claim.item.path} has ended; earlier writes remain")
