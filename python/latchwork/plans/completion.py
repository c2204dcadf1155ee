"""Batched completion of tasks: the consequences of many finished tasks are read together and decided one after the
other.

While one batch is being written, new completions gather for the next. A worker waits briefly for calls that are about
to return. The first attempt delegates the successors to a task that ends later, see
``Transitions.complete_delegating``: it takes one transaction, whose checks other completions may break. A refused
completion, or one without such a task, gets a second attempt: first the results, then the successors of all of these
together, then the queue items, with checks that no other completion can break.

A cache of each plan chooses the task that a completion relies on, and saves reads. The transaction checks that task.
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
from latchwork.tasks import Done, Ending, Outcome, Release
from latchwork.types import Check, Committed, Entry

#: Maximum number of cached tasks per plan.
_TASKS = 20_000
#: Number of rounds for which a completion counts as being in flight.
_ROUNDS = 4
#: Maximum number of completions that do not delegate after a refusal.
_MAX_CAUTIOUS = 4096

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


@dataclass(eq=False, slots=True)
class Completion:
    """A task whose call has returned, and that is to be completed.

    Attributes:
        claim: Claim of its queue item.
        plan_id, name: ID of the plan and name of the task.
        outcome: Outcome of the call.
        result: Stored form of the outcome.
        plan, task: Plan and task as they were when the call began; None on a second attempt, which reads them again.
        entry: Entry of the plan as this worker knows it; None if no ready task may be claimed.
        ending: Future of how the claim ends.
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
        """Set how the claim ends, unless that is set already."""
        if not self.ending.done():
            self.ending.set_result(ending)

    def fail(self, error: Exception) -> None:
        """Set an error as the result of the future, unless it has a result already."""
        if not self.ending.done():
            self.ending.set_exception(error)


def get_plan_at_start(end: Completion) -> StoredPlan | None:
    """Return the plan as it was when the call of a completion began; None if that is not known."""
    return None if end.entry is None or end.plan is None else (end.entry, end.plan)


def has_no_failures(end: Completion) -> bool:
    """Return whether no task of the plan had failed when the call began, and the plan was ready."""
    return end.entry is not None and end.plan is not None and end.plan.state is PlanState.READY and not end.plan.failed


def find_last_predecessors(completions: Sequence[Completion]) -> dict[str, str]:
    """Return for each successor the name of the last of these completions that it depends on."""
    return {each: end.name for end in completions if end.task is not None for each in end.task.record.successors}


def can_complete_in_batch(plan: PlanRecord, task: Task) -> bool:
    """Return whether a task can be completed in a batch: it is ready, its plan is active, and it has few successors."""
    is_live = plan.state in (PlanState.READY, PlanState.CANCELLING)
    return is_live and task.record.state is TaskState.READY and len(task.record.successors) <= MAX_LINKED


def split_into_batches(completions: Sequence[tuple[Completion, Task]]) -> list[list[tuple[Completion, Task]]]:
    """Split completions, in order, into batches that fit into one transaction each."""
    found: list[list[tuple[Completion, Task]]] = []
    room = 0
    for end, task in completions:
        cost = 5 + (len(end.result) + len(task.entry.value)) // 10_000
        if room < cost:
            found.append([])
            room = MAX_WRITES
        found[-1].append((end, task))
        room -= cost
    return found


@dataclass(eq=False, slots=True)
class PlanCache:
    """What a worker remembers about a plan since the plan was started or recovered.

    Attributes:
        tasks: Successors as they were read, by name.
        waits: For each successor the names of its dependencies, without those at the end that have ended.
        ended: Names of tasks that have ended. They stay so until a recovery.
        last: Name of a task that had not ended, and may be the last one to end.
        in_flight: Names of tasks whose completions were sent in earlier rounds and may not be committed yet.
        cautious: Number of completions that are not to delegate, after a delegating one was refused.
        next_cautious: The value of ``cautious`` after the next refusal.
    """

    tasks: dict[str, Task] = field(default_factory=dict)
    waits: dict[str, list[str]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    last: str | None = None
    in_flight: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=_ROUNDS))
    cautious: int = 0
    next_cautious: int = 64

    def on_delegation_refused(self) -> None:
        """Stop delegating for a number of completions, because a delegating one was refused.

        The task that it relied on has ended too, so related tasks end at about the same time.
        """
        self.last = None
        if not self.cautious:
            self.cautious, self.next_cautious = self.next_cautious, min(_MAX_CAUTIOUS, 4 * self.next_cautious)

    def should_avoid_delegating(self, completions: int) -> bool:
        """Return whether the next completions must not delegate their successors, and count that many as handled."""
        was, self.cautious = self.cautious, max(0, self.cautious - completions)
        return was > 0

    def add(self, tasks: Iterable[Task]) -> None:
        """Add successors that were read from the store."""
        if len(self.tasks) > _TASKS:
            self.tasks.clear()
            self.waits.clear()
        for task in tasks:
            self.tasks[task.name] = task
            self.waits[task.name] = list(task.record.deps)

    def forget(self, names: Iterable[str]) -> None:
        """Remove successors from the cache, because they may have been rewritten in the store."""
        for name in names:
            self.tasks.pop(name, None)
            self.waits.pop(name, None)

    def is_waiting(self, name: str) -> bool:
        """Return whether a successor is in the cache and waits for its dependencies."""
        task = self.tasks.get(name)
        return task is not None and task.record.state is TaskState.WAITING

    def is_ending(self, name: str, is_in_flight: Callable[[str], bool]) -> bool:
        """Return whether a task has ended or its completion is in flight."""
        return name in self.ended or is_in_flight(name)

    def list_unfinished_deps(self, name: str, is_in_flight: Callable[[str], bool], most: int) -> list[str]:
        """Return up to ``most`` dependencies of a successor that may not have ended, the last ones first."""
        waits = self.waits[name]
        while waits and waits[-1] in self.ended:
            waits.pop()
        found: list[str] = []
        for dep in reversed(waits):
            if dep not in self.ended and not is_in_flight(dep):
                found.append(dep)
                if len(found) >= most:
                    break
        return found


class RunTracker:
    """The calls of one worker that have not returned. Thread-safe.

    Args:
        typical_s: Returns how many seconds calls typically take.
    """

    def __init__(self, typical_s: Callable[[], float]) -> None:
        self._typical_s = typical_s
        self._mutex = mutex()
        self._runs: WeakSet[QueueClaim] = WeakSet()

    def add(self, claim: QueueClaim) -> None:
        """Add a call that is about to run."""
        with self._mutex:
            self._runs.add(claim)

    def remove(self, claim: QueueClaim) -> None:
        """Remove a call that has returned or will not return. Idempotent."""
        with self._mutex:
            self._runs.discard(claim)

    def expects_return(self) -> bool:
        """Return whether another call is likely to return within milliseconds."""
        with self._mutex:
            return bool(self._runs) and self._typical_s() < _SHORT_S


class CompletionBatcher:
    """Completes tasks in batches, in its own thread. Thread-safe.

    Args:
        plan_store: Where the plans are stored.
        propagation: Updates successors and plans.
        complete_one: Completes a single task in whatever state it is.
        stop: Set when the worker closes.
        claimer: Claims tasks that become ready; None claims none.
        keep_result: Called with a committed completion whose result this worker needs next. Must be quick.
        expects_more: Returns whether another call is likely to return within milliseconds.
    """

    def __init__(
        self,
        plan_store: PlanStore,
        propagation: Propagation,
        complete_one: Callable[[QueueClaim, str, str, Outcome], Awaitable[Ending]],
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
        self._committed: list[tuple[EagerClaims, Committed | None]] = []

    def add(self, end: Completion) -> Future[Ending]:
        """Schedule a completion, and return the future of how its claim ends.

        Raises:
            Closed: The batcher was closed.
        """
        with self._notifier.mutex:
            if self._is_closed:
                raise Closed("the worker of this plan was closed")
            if self._thread is None:  # started first, so that an interrupt leaves no completion without a thread
                self._thread = Background(self._run, f"latchwork-plans-ends-{self._plan_store.keys.name}")
            self._waiting.append(end)
            self._notifier.notify_all()
        return end.ending

    def drop_cached(self, plan_id: str) -> None:
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
                committed, self._committed = self._committed, []
                ended, self._ended = set(self._ended), []
                is_ending = self._is_closed and not completions and not committed
            if is_ending:
                return
            for key in [key for key in self._plans if key[0] in ended]:
                del self._plans[key]
            for eager_claims, done in committed:
                if self._claimer is not None:
                    self._claimer.run_claims(eager_claims, done)
            if not completions:
                if committed:
                    continue
                await self._notifier.changed_since(version, self._clock, None)
                await self._wait_for_more()
                continue
            by_plan: dict[tuple[str, int], list[Completion]] = {}
            for end in completions:
                generation = -1 if end.plan is None else end.plan.generation
                by_plan.setdefault((end.plan_id, generation), []).append(end)
            for (plan_id, _), some in by_plan.items():
                await self._complete_with_retries(plan_id, some)

    async def _wait_for_more(self) -> None:
        """Wait for some milliseconds if another call is about to return."""
        for _ in range(_WAITS):
            if not self._expects_more() or await Pause(self._clock, self._stop, _WAIT_S):
                return

    async def _complete_with_retries(self, plan_id: str, completions: list[Completion]) -> None:
        """Complete all of these tasks, however long the store is unavailable, because their calls have already run."""
        backoff = Backoff()
        while left := [end for end in completions if not end.ending.done()]:
            try:
                await self._complete_once(plan_id, left)
            except (Unavailable, OutcomeUnknown) as error:
                if await Pause(self._clock, self._stop, backoff.next_s()):
                    for end in left:
                        end.end(Release(str(error)[:200], count=False))
                for end in left:
                    if not end.claim.is_held:
                        await self._complete_alone(end)
            except Exception as error:
                for end in left:
                    end.fail(error)

    async def _complete_once(self, plan_id: str, completions: Sequence[Completion]) -> None:
        retried = [end for end in completions if end.task is None]
        first = [end for end in completions if end.task is not None]
        if retried:
            await self._complete_and_check(plan_id, retried)
        if first and (left := await self._complete_delegating(plan_id, first)):
            await self._complete_and_check(plan_id, left)

    def _on_committed(
        self, cache: PlanCache, end: Completion, eager_claims: EagerClaims, done: Committed | None
    ) -> None:
        """Remember a committed completion. Called in the thread of the group commit, so it must be quick."""
        cache.ended.add(end.name)
        if eager_claims.puts:
            if done is not None:
                self._keep_result(end)
            with self._notifier.mutex:
                self._committed.append((eager_claims, done))
                self._notifier.notify_all()

    # First attempt

    async def _complete_delegating(self, plan_id: str, completions: Sequence[Completion]) -> list[Completion]:
        """Complete those tasks whose successors can be left to another task, which ends later and makes them ready.
        Return the other completions.
        """
        plan = completions[0].plan
        assert plan is not None
        cache = self._get_cache(plan_id, plan)
        if cache.should_avoid_delegating(len(completions)):
            return list(completions)
        own = {end.name: at for at, end in enumerate(completions)}
        in_flight = frozenset().union(*cache.in_flight)
        tasks = [end.task for end in completions if end.task is not None]
        others = await self._find_pending_deps(plan_id, cache, tasks, lambda name: name in own or name in in_flight)
        left: list[Completion] = []
        finished_deps: dict[str, list[str]] = {}
        last_predecessors = find_last_predecessors(completions)
        claimed: list[str] = []
        for at, end in enumerate(completions):
            assert end.task is not None
            witnesses: dict[str, None] = {}
            ended_deps: dict[str, None] = {}
            ready: list[Task] = []
            for each in end.task.record.successors:
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
                finished_deps.setdefault(each, []).append(end.name)
            if (
                not ready
                and not witnesses
                and (another := await self._find_witness(plan_id, cache, own, in_flight)) is not None
            ):
                witnesses[another] = None
            eager_claims = self._choose_claims(end, ready, len(claimed))
            edit = None
            if not ready or has_no_failures(end):
                edit = self._plan_store.transitions.complete_delegating(
                    plan_id,
                    get_plan_at_start(end),
                    end.task,
                    end.result,
                    ready=ready,
                    witnesses=witnesses,
                    ended_deps=ended_deps,
                    items=eager_claims.create_item_ops(),
                )
            if edit is None:
                left.append(end)
            else:
                claimed += eager_claims.puts
                on_committed = partial(self._on_committed, cache, end, eager_claims)
                end.end(Done(tuple(edit.checks), tuple(edit.ops), on_committed))
        cache.in_flight.append(frozenset(own))
        await self._read_ahead(plan_id, cache, claimed)
        return left

    async def _read_ahead(self, plan_id: str, cache: PlanCache, claimed: Iterable[str]) -> None:
        """Read the successors of tasks that were just claimed, so that they are cached when these tasks complete.

        Does so only while no completion waits, and only for successors that probably have no other unfinished
        dependency.
        """
        with self._notifier.mutex:
            if self._waiting:
                return
        tasks = [cache.tasks[name].record for name in claimed]
        names = [
            each
            for task in tasks
            for each, late in zip_longest(task.successors, task.late, fillvalue="")
            if not late and each not in cache.tasks
        ]
        if 0 < len(names) <= MAX_LINKED:
            with suppress(LatchworkError):  # then they are read when they are needed
                cache.add(await self._plan_store.read_tasks(plan_id, names))

    def _choose_claims(self, end: Completion, tasks: Sequence[Task], had: int) -> EagerClaims:
        if self._claimer is None or end.entry is None or end.plan is None:
            return NO_CLAIMS
        return self._claimer.choose_claims(end.plan_id, (end.entry, end.plan), tasks, had=had)

    async def _find_pending_deps(
        self, plan_id: str, cache: PlanCache, ended: Iterable[Task], is_in_flight: Callable[[str], bool]
    ) -> dict[str, str]:
        """Return, for each successor of these tasks, one of its dependencies that has not ended.

        Dependencies for which ``is_in_flight`` is true are excluded, because they are about to end.
        """
        tasks = [each.record for each in ended]
        hints = {each: late for task in tasks for each, late in zip(task.successors, task.late, strict=False) if late}
        candidates = {
            each: [late]
            for each, late in hints.items()
            if each not in cache.tasks and not cache.is_ending(late, is_in_flight)
        }
        live: set[str] = set()
        found = await self._filter_pending(plan_id, cache, candidates, live)
        names = [
            each for each in dict.fromkeys(each for task in tasks for each in task.successors) if each not in found
        ]
        unknown = [each for each in names if each not in cache.tasks]
        if unknown:
            cache.add(await self._plan_store.read_tasks(plan_id, unknown))
        most, left = _FIRST_LOOK, [each for each in names if cache.is_waiting(each)]
        while left:
            candidates = {each: cache.list_unfinished_deps(each, is_in_flight, most) for each in left}
            found |= await self._filter_pending(plan_id, cache, candidates, live)
            left = [each for each, deps in candidates.items() if deps and each not in found]
            most *= _LONGER
        return found

    async def _filter_pending(
        self, plan_id: str, cache: PlanCache, candidates: Mapping[str, Sequence[str]], live: set[str]
    ) -> dict[str, str]:
        """Return, for each successor, one of its candidates that has not ended.

        Args:
            plan_id: ID of the plan.
            cache: Cache of the plan.
            candidates: For each successor, dependencies that may not have ended.
            live: Names of tasks already known to be unfinished; newly found ones are added.
        """
        asked = dict.fromkeys(dep for deps in candidates.values() for dep in deps if dep not in live)
        pending = await self._plan_store.filter_pending(plan_id, list(asked))
        live |= pending
        cache.ended.update(dep for dep in asked if dep not in pending)
        return {each: dep for each, deps in candidates.items() for dep in reversed(deps) if dep in live}

    async def _find_witness(
        self, plan_id: str, cache: PlanCache, own: Iterable[str], in_flight: Iterable[str]
    ) -> str | None:
        """Return the name of a task of the plan that has not ended, preferably one that will not end soon. None if
        there is none.
        """
        if cache.last is None or cache.last in own or cache.last in in_flight:
            ending = {*own, *in_flight}
            names = [
                each
                for each in await self._plan_store.list_pending(plan_id, _WITNESSES + len(ending))
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

    async def _complete_and_check(self, plan_id: str, completions: Sequence[Completion]) -> None:
        """Write the results of these tasks, then update the successors of all of them, then end the claims."""
        try:
            entry, plan, found = await self._read_plan_and_tasks(plan_id, completions)
        except NoSuchPlan:  # removed in the meantime
            for end in completions:
                end.end(Done())
            return
        ended: list[tuple[Completion, Task]] = []
        simple = [
            (end, found[end.name])
            for end in completions
            if end.name in found and can_complete_in_batch(plan, found[end.name])
        ]
        for some in split_into_batches(simple):
            ended += await self._write_results(plan_id, some)
        for end in completions:
            if all(end is not each for each, _ in simple):
                await self._complete_alone(end)
        if ended:
            cache = self._get_cache(plan_id, plan)
            cache.ended.update(end.name for end, _ in ended)
            await self._check_successors(plan_id, (entry, plan), cache, [task for _, task in ended])
        for end, _ in ended:
            end.end(Done())

    async def _check_successors(
        self, plan_id: str, stored_plan: StoredPlan, cache: PlanCache, ended: Sequence[Task]
    ) -> None:
        """Update the successors of tasks whose results were committed.

        A task that is still unfinished will see these results when it ends itself. So successors that depend on such a
        task are left to it, and so is the end of the plan.
        """
        others = await self._find_pending_deps(plan_id, cache, ended, lambda _: False)
        successors = dict.fromkeys(each for task in ended for each in task.record.successors)
        free = [each for each in successors if each not in others]
        if free:
            takes = None if self._claimer is None else self._claimer.for_plan(plan_id, *stored_plan)
            await self._propagation.make_ready(plan_id, stored_plan, free, takes, cache.ended)
        if not others:
            await self._propagation.complete_plan(plan_id)
        if self._claimer is not None:
            self._claimer.resolve_unknown(plan_id)

    async def _read_plan_and_tasks(
        self, plan_id: str, completions: Sequence[Completion]
    ) -> tuple[Entry, PlanRecord, dict[str, Task]]:
        """Return the plan and the tasks of these completions.

        The first attempt uses them as they were when the calls began. The second attempt reads them again.
        """
        tasks = {end.name: end.task for end in completions if end.task is not None}
        stored_plan = get_plan_at_start(completions[-1])
        if stored_plan is not None and len(tasks) == len(completions):
            return *stored_plan, tasks
        entry, plan = await self._plan_store.read_plan(plan_id)
        found = {
            task.name: task for task in await self._plan_store.read_tasks(plan_id, [end.name for end in completions])
        }
        remembered = self._get_cache(plan_id, plan)
        remembered.on_delegation_refused()
        remembered.forget([each for task in found.values() for each in task.record.successors])
        return entry, plan, found

    async def _write_results(self, plan_id: str, some: list[tuple[Completion, Task]]) -> list[tuple[Completion, Task]]:
        """Write these results in one transaction, and return the completions whose results were written.

        If that fails, complete each task separately and return none.
        """
        if all(end.claim.is_held for end, _ in some):
            edits = [self._plan_store.transitions.complete_task(plan_id, task, end.result) for end, task in some]
            checks: list[Check] = [end.claim.fence for end, _ in some]
            checks += [check for each in edits for check in each.checks]
            if await self._plan_store.commit(TxnPart(checks, [op for each in edits for op in each.ops])):
                return some
        for end, _ in some:
            await self._complete_alone(end)
        return []

    async def _complete_alone(self, end: Completion) -> None:
        try:
            check_held(end.claim)
            end.end(await self._complete_one(end.claim, end.plan_id, end.name, end.outcome))
        except NoSuchPlan:  # removed in the meantime
            end.end(Done())
        except (Unavailable, OutcomeUnknown):
            raise
        except LatchworkError as error:
            end.fail(error)
