"""Batched completion of tasks: the results of many finished tasks are stored together, and their successors become
ready.

While one batch is being written, new completions gather for the next. A worker waits briefly for calls that are about
to return. The first attempt *delegates* the successors: it leaves them to another task of the plan that ends later, see
``Transitions.build_delegating_completion``. This takes one transaction, and other completions may break its checks. A
refused completion, or one for which there is no such task, gets a second attempt. It writes first the results, then the
successors of all these tasks, then the queue items, with checks that no other completion can break.

A cache of each plan chooses the task to which a completion delegates, and saves reads. The transaction checks that this
task has not ended.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from weakref import WeakSet

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.errors import Closed, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.plan_store import PlanStore
from latchwork.plans.propagation import NO_CLAIMS, EagerClaimer, EagerClaims, Propagation, check_held
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState
from latchwork.plans.transitions import MAX_LINKED, MAX_WRITES, StoredPlan, TxnPart
from latchwork.primitives import QueueClaim
from latchwork.store import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.steps import Pause
from latchwork.tasks import Done, Outcome, Release, Settlement
from latchwork.types import Check, Committed, Entry

#: Maximum number of cached tasks per plan.
_TASKS = 20_000
#: Number of rounds for which a completion counts as being in flight.
_ROUNDS = 4
#: Maximum number of completions that do not delegate after a refusal.
_MAX_PAUSE = 4096

#: Calls that typically take longer than this are not waited for.
_SHORT_S = 0.02

#: Maximum number of cached plans.
_PLANS = 32
#: Number of dependencies that are checked first, and the factor for each further step.
_FIRST_LOOK, _LONGER = 2, 8
#: Number of pending tasks from which a witness is chosen.
_WITNESSES = 64
#: How often, and for how many seconds each, a round waits for more completions. A large round costs little more than a
#: small one.
_WAITS, _WAIT_S = 4, 0.001
#: Seconds after which an idle batcher reads ahead. The thread that commits sends its request first.
_IDLE_S = 0.0002


@dataclass(eq=False, slots=True)
class Completion:
    """A task whose call has returned and whose outcome is to be stored.

    Attributes:
        claim: Claim of its queue item.
        plan_id, name: ID of the plan and name of the task.
        outcome: Outcome of the call.
        result: Stored form of the outcome.
        plan, task: Plan and task as they were when the call began; None on a second attempt, which reads them again.
        entry: Entry of the plan as this worker knows it; None if no ready task may be claimed.
        settlement: Future that tells the worker loop what to do with the queue item, for example to delete it.
    """

    claim: QueueClaim
    plan_id: str
    name: str
    outcome: Outcome
    result: bytes
    plan: PlanRecord | None = None
    task: Task | None = None
    entry: Entry | None = None
    settlement: Future[Settlement] = field(default_factory=Future)

    def set_settlement(self, settlement: Settlement) -> None:
        """Resolve the future: tell the worker loop how to settle the claim. Does nothing if the future is done."""
        if not self.settlement.done():
            self.settlement.set_result(settlement)

    def set_exception(self, error: Exception) -> None:
        """Fail the future with an exception. Does nothing if the future is done."""
        if not self.settlement.done():
            self.settlement.set_exception(error)


def get_plan_at_call_start(completion: Completion) -> StoredPlan | None:
    """Return the plan's entry and record as they were read before the task's function was called; None if unknown."""
    return None if completion.entry is None or completion.plan is None else (completion.entry, completion.plan)


def had_no_failures_at_call_start(completion: Completion) -> bool:
    """Return whether the plan was ready and had no failed task when the task's function was called."""
    return (
        completion.entry is not None
        and completion.plan is not None
        and completion.plan.state is PlanState.READY
        and not completion.plan.failed
    )


def map_to_last_predecessors(completions: Sequence[Completion]) -> dict[str, str]:
    """Map each successor of these completed tasks to the last task in the sequence that it depends on.

    Returns:
        Names of completed tasks, by the name of the successor.
    """
    return {
        each: completion.name
        for completion in completions
        if completion.task is not None
        for each in completion.task.record.successors
    }


def can_complete_in_batch(plan: PlanRecord, task: Task) -> bool:
    """Return whether a task can be completed in a batch: it is ready, its plan is active, and it has few successors."""
    is_live = plan.state in (PlanState.READY, PlanState.CANCELLING)
    return is_live and task.record.state is TaskState.READY and len(task.record.successors) <= MAX_LINKED


def split_into_batches(completions: Sequence[tuple[Completion, Task]]) -> list[list[tuple[Completion, Task]]]:
    """Split completions, in order, into batches that fit into one transaction each."""
    found: list[list[tuple[Completion, Task]]] = []
    room = 0
    for completion, task in completions:
        cost = 5 + (len(completion.result) + len(task.entry.value)) // 10_000
        if room < cost:
            found.append([])
            room = MAX_WRITES
        found[-1].append((completion, task))
        room -= cost
    return found


@dataclass(eq=False, slots=True)
class PlanCache:
    """A worker's cache of the tasks of one plan, valid until the plan is recovered.

    Attributes:
        tasks: Successors as they were read, by name.
        waits: For each successor the names of its dependencies. Ended dependencies are removed from the end of the
            list.
        ended: Names of tasks that have ended.
        last: Name of a task that had not ended when it was last checked, and may be the last one to end.
        in_flight: Names of tasks whose completions were sent in earlier rounds and may not be committed yet.
        pause_left: Number of completions that must not delegate yet, after a delegating one was refused.
        next_pause: Value of ``pause_left`` after the next refusal.
    """

    tasks: dict[str, Task] = field(default_factory=dict)
    waits: dict[str, list[str]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    last: str | None = None
    in_flight: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=_ROUNDS))
    pause_left: int = 0
    next_pause: int = 64

    def pause_delegation(self) -> None:
        """Suspend delegation for the next completions, because the transaction of a delegating completion was refused.

        Delegation leaves the successors of a completed task to another unfinished task. The refusal means that the
        other task has ended too, so tasks of this plan end at about the same time and delegation rarely succeeds.
        """
        self.last = None
        if not self.pause_left:
            self.pause_left, self.next_pause = self.next_pause, min(_MAX_PAUSE, 4 * self.next_pause)

    def count_down_delegation_pause(self, count: int) -> bool:
        """Return whether delegation is suspended, and subtract completions from the length of the suspension.

        Args:
            count: Number of completions that are about to be handled.
        """
        was, self.pause_left = self.pause_left, max(0, self.pause_left - count)
        return was > 0

    def add(self, tasks: Iterable[Task]) -> None:
        """Cache tasks that were read from the store. They are successors of completed tasks."""
        if len(self.tasks) > _TASKS:
            self.tasks.clear()
            self.waits.clear()
        for task in tasks:
            self.tasks[task.name] = task
            self.waits[task.name] = list(task.record.deps)

    def forget(self, names: Iterable[str]) -> None:
        """Remove tasks from the cache, because they may have changed in the store."""
        for name in names:
            self.tasks.pop(name, None)
            self.waits.pop(name, None)

    def is_waiting(self, name: str) -> bool:
        """Return whether a successor is in the cache and waits for its dependencies."""
        task = self.tasks.get(name)
        return task is not None and task.record.state is TaskState.WAITING

    def is_ending(self, name: str, is_in_flight: Callable[[str], bool]) -> bool:
        """Return whether a task has ended or its completion is in flight.

        Args:
            name: Name of the task.
            is_in_flight: Returns whether the completion of a task has been sent and may not be committed yet.
        """
        return name in self.ended or is_in_flight(name)

    def list_unfinished_deps(self, name: str, is_in_flight: Callable[[str], bool], max_count: int) -> list[str]:
        """Return up to ``max_count`` dependencies of a successor that may not have ended, the last ones first.

        Args:
            name: Name of the successor.
            is_in_flight: Returns whether the completion of a task has been sent; such tasks are left out.
            max_count: Maximum number of names.
        """
        waits = self.waits[name]
        while waits and waits[-1] in self.ended:
            waits.pop()
        found: list[str] = []
        for dep in reversed(waits):
            if dep not in self.ended and not is_in_flight(dep):
                found.append(dep)
                if len(found) >= max_count:
                    break
        return found


class CallTracker:
    """The calls of one worker that have not returned yet. Thread-safe.

    Args:
        typical_call_s: Returns the typical duration of a call in seconds.
    """

    def __init__(self, typical_call_s: Callable[[], float]) -> None:
        self._typical_s = typical_call_s
        self._mutex = mutex()
        self._runs: WeakSet[QueueClaim] = WeakSet()

    def add(self, claim: QueueClaim) -> None:
        """Add the claim of a call that is about to run."""
        with self._mutex:
            self._runs.add(claim)

    def remove(self, claim: QueueClaim) -> None:
        """Remove the claim of a call that has returned or will not return. Idempotent."""
        with self._mutex:
            self._runs.discard(claim)

    def expects_return_soon(self) -> bool:
        """Return whether a call is likely to return within milliseconds: one is running, and calls are typically
        short.
        """
        with self._mutex:
            return bool(self._runs) and self._typical_s() < _SHORT_S


class CompletionBatcher:
    """Completes tasks in batches, in its own thread. Thread-safe.

    Args:
        plan_store: Access to the stored plans.
        propagation: Updates successors and plans.
        complete_one: Completes a single task in any state.
        stop: Set when the worker closes.
        claimer: Claims tasks that become ready; None claims none.
        keep_result: Called with a committed completion whose result this worker needs next. Must be quick.
        expects_more: Returns whether another call is likely to return within milliseconds.
    """

    def __init__(
        self,
        plan_store: PlanStore,
        propagation: Propagation,
        complete_one: Callable[[QueueClaim, str, str, Outcome], Awaitable[Settlement]],
        stop: Signal,
        claimer: EagerClaimer | None = None,
        *,
        keep_result: Callable[[Completion], object] = bool,
        expects_more: Callable[[], bool] = bool,
    ) -> None:
        self._plan_store = plan_store
        self._expects_more = expects_more
        self._propagation = propagation
        self._complete_one = complete_one
        self._clock = plan_store.store.clock
        self._stop = stop
        self._notifier = Notifier()
        self._waiting: list[Completion] = []
        self._thread: Background | None = None
        self._is_closed = False
        self._plans: OrderedDict[tuple[str, int, int], PlanCache] = OrderedDict()
        self._ended: list[str] = []
        self._claimer = claimer
        self._keep_result = keep_result
        #: The tasks that were claimed in the last round, with their plan: their successors are read ahead.
        self._claimed: list[tuple[str, PlanCache, list[str]]] = []

    def add(self, completion: Completion) -> Future[Settlement]:
        """Schedule the completion of a task for the next batch.

        Returns:
            A future that tells the worker loop how to settle the claim.
        Raises:
            Closed: The batcher was closed.
        """
        with self._notifier.mutex:
            if self._is_closed:
                raise Closed("the worker of this plan was closed")
            if self._thread is None:  # started first, so that an interrupt leaves no completion without a thread
                self._thread = Background(self._run, f"latchwork-plans-ends-{self._plan_store.keys.name}")
            self._waiting.append(completion)
            self._notifier.notify_all()
        return completion.settlement

    def drop_plan_cache(self, plan_id: str) -> None:
        """Drop the cache of a plan that has ended."""
        with self._notifier.mutex:
            if self._thread is not None:
                self._ended.append(plan_id)
                self._notifier.notify_all()

    def close(self) -> None:
        """Finish the scheduled completions and stop the thread. Idempotent."""
        with self._notifier.mutex:
            self._is_closed = True
            self._notifier.notify_all()
            thread = self._thread
        if thread is not None and not thread.is_running_here:
            thread.block()

    async def _run(self) -> None:
        while True:
            with self._notifier.mutex:
                version, completions, self._waiting = self._notifier.version, self._waiting, []
                ended, self._ended = set(self._ended), []
                is_ending = self._is_closed and not completions
            if is_ending:
                return
            for key in [key for key in self._plans if key[0] in ended]:
                del self._plans[key]
            claimed, self._claimed = self._claimed, []
            if not completions:
                if claimed and not await self._notifier.wait_for_change(version, self._clock, _IDLE_S):
                    await self._prefetch_successors(claimed)
                    continue
                await self._notifier.wait_for_change(version, self._clock, None)
                await self._wait_for_more()
                continue
            by_plan: dict[tuple[str, int], list[Completion]] = {}
            for completion in completions:
                generation = -1 if completion.plan is None else completion.plan.generation
                by_plan.setdefault((completion.plan_id, generation), []).append(completion)
            for (plan_id, _), some in by_plan.items():
                await self._complete_with_retries(plan_id, some)

    async def _wait_for_more(self) -> None:
        """Wait a few milliseconds for more completions, while another call is about to return."""
        for _ in range(_WAITS):
            if not self._expects_more() or await Pause(self._clock, self._stop, _WAIT_S):
                return

    async def _complete_with_retries(self, plan_id: str, completions: list[Completion]) -> None:
        """Complete all of these tasks. Retry as long as the store is unavailable, because their calls have already
        run.
        """
        backoff = Backoff()
        while left := [completion for completion in completions if not completion.settlement.done()]:
            try:
                await self._complete_once(plan_id, left)
            except (Unavailable, OutcomeUnknown) as error:
                if await Pause(self._clock, self._stop, backoff.next_s()):
                    for completion in left:
                        completion.set_settlement(Release(str(error)[:200], count=False))
                for completion in left:
                    if not completion.claim.is_held:
                        await self._complete_alone(completion)
            except Exception as error:
                for completion in left:
                    completion.set_exception(error)

    async def _complete_once(self, plan_id: str, completions: Sequence[Completion]) -> None:
        retried = [completion for completion in completions if completion.task is None]
        first = [completion for completion in completions if completion.task is not None]
        if retried:
            await self._complete_and_update_successors(plan_id, retried)
        if first and (left := await self._complete_and_delegate(plan_id, first)):
            await self._complete_and_update_successors(plan_id, left)

    def _on_committed(
        self, cache: PlanCache, completion: Completion, eager_claims: EagerClaims, committed: Committed | None
    ) -> None:
        """Handle the commit of a completion: update the cache, and run the tasks claimed in the same transaction.

        Called by the thread of the group commit, so it must be quick.

        Args:
            cache: Cache of the plan.
            completion: The completion.
            eager_claims: Claims that were part of its transaction.
            committed: Result of the commit; None if the answer was lost.
        """
        cache.ended.add(completion.name)
        if eager_claims.puts and self._claimer is not None:
            if committed is not None:
                self._keep_result(completion)
            self._claimer.run_claims(eager_claims, committed)

    # First attempt

    async def _complete_and_delegate(self, plan_id: str, completions: Sequence[Completion]) -> list[Completion]:
        """Complete tasks whose successors can be left to another unfinished task, which makes them ready when it ends.

        Returns:
            The completions for which there is no such task. The caller completes them by the second attempt.
        """
        plan = completions[0].plan
        assert plan is not None
        cache = self._get_cache(plan_id, plan)
        if cache.count_down_delegation_pause(len(completions)):
            return list(completions)
        own = {completion.name: at for at, completion in enumerate(completions)}
        in_flight = frozenset().union(*cache.in_flight)
        tasks = [completion.task for completion in completions if completion.task is not None]
        others = await self._find_unfinished_deps(plan_id, cache, tasks, lambda name: name in own or name in in_flight)
        left: list[Completion] = []
        finished_deps: dict[str, list[str]] = {}
        last_predecessors = map_to_last_predecessors(completions)
        claimed: list[str] = []
        for at, completion in enumerate(completions):
            assert completion.task is not None
            witnesses: dict[str, None] = {}
            ended_deps: dict[str, None] = {}
            ready: list[Task] = []
            for each in completion.task.record.successors:
                if each in others:
                    witnesses[others[each]] = None
                elif not cache.is_waiting(each):
                    continue
                elif own[last_predecessors[each]] > at:
                    witnesses[last_predecessors[each]] = None
                else:
                    ready.append(cache.tasks[each])
                    unconfirmed = (dep for dep in ready[-1].record.deps if dep in in_flight and dep not in cache.ended)
                    ended_deps |= dict.fromkeys((*unconfirmed, *finished_deps.get(each, ())))
                finished_deps.setdefault(each, []).append(completion.name)
            if (
                not ready
                and not witnesses
                and (another := await self._find_unfinished_task(plan_id, cache, own, in_flight)) is not None
            ):
                witnesses[another] = None
            eager_claims = self._choose_claims(completion, ready, len(claimed))
            part = None
            if not ready or had_no_failures_at_call_start(completion):
                part = self._plan_store.transitions.build_delegating_completion(
                    plan_id,
                    get_plan_at_call_start(completion),
                    completion.task,
                    completion.result,
                    ready=ready,
                    witnesses=witnesses,
                    ended_deps=ended_deps,
                    items=eager_claims.build_item_ops(),
                )
            if part is None:
                left.append(completion)
            else:
                claimed += eager_claims.puts
                on_committed = partial(self._on_committed, cache, completion, eager_claims)
                completion.set_settlement(Done(tuple(part.checks), tuple(part.ops), on_committed))
        cache.in_flight.append(frozenset(own))
        self._claimed.append((plan_id, cache, claimed))
        return left

    async def _prefetch_successors(self, claimed_tasks: Iterable[tuple[str, PlanCache, list[str]]]) -> None:
        """Read the successors of tasks that were just claimed, so that they are cached when these tasks complete.

        Reads only successors that probably have no other unfinished dependency.

        Args:
            claimed_tasks: IDs and caches of plans, and the names of the claimed tasks of each.
        """
        for plan_id, cache, claimed_names in claimed_tasks:
            tasks = [cache.tasks[name].record for name in claimed_names if name in cache.tasks]
            names = [
                each
                for task in tasks
                for each, late in zip_longest(task.successors, task.late, fillvalue="")
                if not late and each not in cache.tasks
            ]
            if 0 < len(names) <= MAX_LINKED:
                with suppress(LatchworkError):  # then they are read when they are needed
                    cache.add(await self._plan_store.read_tasks(plan_id, names))

    def _choose_claims(self, completion: Completion, tasks: Sequence[Task], already_chosen: int) -> EagerClaims:
        if self._claimer is None or completion.entry is None or completion.plan is None:
            return NO_CLAIMS
        return self._claimer.choose_claims(
            completion.plan_id, (completion.entry, completion.plan), tasks, already_chosen=already_chosen
        )

    async def _find_unfinished_deps(
        self, plan_id: str, cache: PlanCache, ended: Iterable[Task], is_in_flight: Callable[[str], bool]
    ) -> dict[str, str]:
        """Find, for each successor of these tasks, one of its dependencies that has not ended.

        Args:
            plan_id: ID of the plan.
            cache: Cache of the plan.
            ended: Tasks that have ended or are about to end.
            is_in_flight: Returns whether a task is about to end; such dependencies are excluded.
        Returns:
            The name of the dependency, by the name of the successor. Successors without such a dependency are left out.
        """
        tasks = [each.record for each in ended]
        hints = {each: late for task in tasks for each, late in zip(task.successors, task.late, strict=False) if late}
        candidates = {
            each: [late]
            for each, late in hints.items()
            if each not in cache.tasks and not cache.is_ending(late, is_in_flight)
        }
        live: set[str] = set()
        found = await self._pick_unfinished_deps(plan_id, cache, candidates, live)
        names = [
            each for each in dict.fromkeys(each for task in tasks for each in task.successors) if each not in found
        ]
        unknown = [each for each in names if each not in cache.tasks]
        if unknown:
            cache.add(await self._plan_store.read_tasks(plan_id, unknown))
        most, left = _FIRST_LOOK, [each for each in names if cache.is_waiting(each)]
        while left:
            candidates = {each: cache.list_unfinished_deps(each, is_in_flight, most) for each in left}
            found |= await self._pick_unfinished_deps(plan_id, cache, candidates, live)
            left = [each for each, deps in candidates.items() if deps and each not in found]
            most *= _LONGER
        return found

    async def _pick_unfinished_deps(
        self, plan_id: str, cache: PlanCache, candidates: Mapping[str, Sequence[str]], known_pending: set[str]
    ) -> dict[str, str]:
        """Map each successor to one of its candidates that has not ended.

        Args:
            plan_id: ID of the plan.
            cache: Cache of the plan.
            candidates: By successor, names of dependencies that may not have ended.
            known_pending: Names of tasks known not to have ended; this call adds the ones that it finds.
        Returns:
            The name of the dependency, by the name of the successor. Successors without such a dependency are left out.
        """
        asked = dict.fromkeys(dep for deps in candidates.values() for dep in deps if dep not in known_pending)
        pending = await self._plan_store.find_unfinished_tasks(plan_id, list(asked))
        known_pending |= pending
        cache.ended.update(dep for dep in asked if dep not in pending)
        return {each: dep for each, deps in candidates.items() for dep in reversed(deps) if dep in known_pending}

    async def _find_unfinished_task(
        self, plan_id: str, cache: PlanCache, own: Iterable[str], in_flight: Iterable[str]
    ) -> str | None:
        """Find a task of the plan that has not ended, preferably one that will not end soon.

        The transaction checks this task as a witness that the plan has not ended.

        Args:
            plan_id: ID of the plan.
            cache: Cache of the plan.
            own: Names of the tasks that this batch completes.
            in_flight: Names of tasks whose completions may not be committed yet.
        Returns:
            The name of the task; None if all other tasks have ended.
        """
        if cache.last is None or cache.last in own or cache.last in in_flight:
            ending = {*own, *in_flight}
            names = [
                each
                for each in await self._plan_store.list_unfinished_tasks(plan_id, _WITNESSES + len(ending))
                if each not in ending
            ]
            cache.last = max(names, default=None)
        return cache.last

    def _get_cache(self, plan_id: str, plan: PlanRecord) -> PlanCache:
        key = (plan_id, plan.started_ms, plan.generation)
        cache = self._plans.setdefault(key, PlanCache())
        self._plans.move_to_end(key)
        if len(self._plans) > _PLANS:
            self._plans.popitem(last=False)
        return cache

    # Second attempt

    async def _complete_and_update_successors(self, plan_id: str, completions: Sequence[Completion]) -> None:
        """Write the results of these tasks, then update all of their successors, then end the claims."""
        try:
            entry, plan, found = await self._read_plan_and_tasks(plan_id, completions)
        except NoSuchPlan:  # removed in the meantime
            for completion in completions:
                completion.set_settlement(Done())
            return
        ended: list[tuple[Completion, Task]] = []
        simple = [
            (completion, found[completion.name])
            for completion in completions
            if completion.name in found and can_complete_in_batch(plan, found[completion.name])
        ]
        for some in split_into_batches(simple):
            ended += await self._write_results(plan_id, some)
        for completion in completions:
            if all(completion is not each for each, _ in simple):
                await self._complete_alone(completion)
        if ended:
            cache = self._get_cache(plan_id, plan)
            cache.ended.update(completion.name for completion, _ in ended)
            await self._release_successors(plan_id, (entry, plan), cache, [task for _, task in ended])
        for completion, _ in ended:
            completion.set_settlement(Done())

    async def _release_successors(
        self, plan_id: str, stored_plan: StoredPlan, cache: PlanCache, ended: Sequence[Task]
    ) -> None:
        """Make the successors of completed tasks ready, and end the plan if all of its tasks have ended.

        Call it after the results of the tasks were committed. A successor with another unfinished dependency is
        skipped: that dependency releases it when it ends.
        """
        others = await self._find_unfinished_deps(plan_id, cache, ended, lambda _: False)
        successors = dict.fromkeys(each for task in ended for each in task.record.successors)
        free = [each for each in successors if each not in others]
        if free:
            takes = None if self._claimer is None else self._claimer.for_plan(plan_id, *stored_plan)
            await self._propagation.make_ready(plan_id, stored_plan, free, takes, cache.ended)
        if not others:
            await self._propagation.complete_plan(plan_id)
        if self._claimer is not None:
            self._claimer.drop_unconfirmed_claims(plan_id)

    async def _read_plan_and_tasks(
        self, plan_id: str, completions: Sequence[Completion]
    ) -> tuple[Entry, PlanRecord, dict[str, Task]]:
        """Return the entry and the record of the plan, and the tasks of these completions by name.

        The first attempt uses the plan and the tasks as they were when the calls began. The second attempt reads them
        again.
        """
        tasks = {completion.name: completion.task for completion in completions if completion.task is not None}
        stored_plan = get_plan_at_call_start(completions[-1])
        if stored_plan is not None and len(tasks) == len(completions):
            return *stored_plan, tasks
        entry, plan = await self._plan_store.read_plan(plan_id)
        found = {
            task.name: task
            for task in await self._plan_store.read_tasks(plan_id, [completion.name for completion in completions])
        }
        remembered = self._get_cache(plan_id, plan)
        remembered.pause_delegation()
        remembered.forget([each for task in found.values() for each in task.record.successors])
        return entry, plan, found

    async def _write_results(self, plan_id: str, batch: list[tuple[Completion, Task]]) -> list[tuple[Completion, Task]]:
        """Write the results of a batch in one transaction. If it is refused, complete each task separately.

        Returns:
            The batch if its transaction was committed; otherwise an empty list.
        """
        if all(completion.claim.is_held for completion, _ in batch):
            parts = [
                self._plan_store.transitions.build_completion(plan_id, task, completion.result)
                for completion, task in batch
            ]
            checks: list[Check] = [completion.claim.fence for completion, _ in batch]
            checks += [check for each in parts for check in each.checks]
            if await self._plan_store.commit(TxnPart(checks, [op for each in parts for op in each.ops])):
                return batch
        for completion, _ in batch:
            await self._complete_alone(completion)
        return []

    async def _complete_alone(self, completion: Completion) -> None:
        try:
            check_held(completion.claim)
            completion.set_settlement(
                await self._complete_one(completion.claim, completion.plan_id, completion.name, completion.outcome)
            )
        except NoSuchPlan:  # removed in the meantime
            completion.set_settlement(Done())
        except (Unavailable, OutcomeUnknown):
            raise
        except LatchworkError as error:
            completion.set_exception(error)
