"""Batched completion of tasks: the consequences of many ends are read together and decided one after the other.

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
    """A call that has returned.

    Attributes:
        claim: Claim of its item.
        plan_id, name: Plan and task.
        outcome: Outcome of the call.
        result: Stored form of the outcome.
        plan, task: Plan and task as they were when the call began; None on a second attempt, which reads them.
        entry: Entry of the plan as this worker knows it; None if no ready task may be claimed.
        ending: Future of how its claim ends.
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
        """Resolve the future with the end of the claim."""
        if not self.ending.done():
            self.ending.set_result(ending)

    def fail(self, error: Exception) -> None:
        """Resolve the future with an error."""
        if not self.ending.done():
            self.ending.set_exception(error)


def plan_at_start(end: Completion) -> StoredPlan | None:
    """Return the plan as it was when the call began."""
    return None if end.entry is None or end.plan is None else (end.entry, end.plan)


def has_no_failures(end: Completion) -> bool:
    """Return whether every ended task of the plan is done, as long as the plan is unchanged."""
    return end.entry is not None and end.plan is not None and end.plan.state is PlanState.READY and not end.plan.failed


def last_predecessor(ends: Sequence[Completion]) -> dict[str, str]:
    """Return, for each successor, the name of the last of these completions that it depends on."""
    return {each: end.name for end in ends if end.task is not None for each in end.task.record.successors}


def is_simple(plan: PlanRecord, task: Task) -> bool:
    """Return whether a task is ready, its plan live, and its successors few, so that it can be completed in a batch."""
    is_live = plan.state in (PlanState.READY, PlanState.CANCELLING)
    return is_live and task.record.state is TaskState.READY and len(task.record.successors) <= MAX_LINKED


def batches(ends: Sequence[tuple[Completion, Task]]) -> list[list[tuple[Completion, Task]]]:
    """Split completions into batches that fit into one transaction each."""
    found: list[list[tuple[Completion, Task]]] = []
    room = 0
    for end, task in ends:
        cost = 5 + (len(end.result) + len(task.entry.value)) // 10_000
        if room < cost:
            found.append([])
            room = MAX_WRITES
        found[-1].append((end, task))
        room -= cost
    return found


@dataclass(eq=False, slots=True)
class PlanCache:
    """What a worker remembers of a plan since its start or last recovery.

    Attributes:
        tasks: Successors as they were read.
        waits: By successor, its dependencies without the last ones that are known to have ended.
        ended: Tasks that have ended; this holds until a recovery.
        last: A task that had not ended, and may be the last one to end.
        in_flight: Completions of earlier rounds that are still on their way.
        cautious: Number of completions that do not delegate, after a delegating one was refused.
        next_cautious: The same number for the next refusal.
    """

    tasks: dict[str, Task] = field(default_factory=dict)
    waits: dict[str, list[str]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    last: str | None = None
    in_flight: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=_ROUNDS))
    cautious: int = 0
    next_cautious: int = 64

    def on_refused(self) -> None:
        """Become cautious: a task that a completion relied on has ended too, so related tasks end at the same time."""
        self.last = None
        if not self.cautious:
            self.cautious, self.next_cautious = self.next_cautious, min(_MAX_CAUTIOUS, 4 * self.next_cautious)

    def take_caution(self, ends: int) -> bool:
        """Return whether these completions must not delegate, and count them."""
        was, self.cautious = self.cautious, max(0, self.cautious - ends)
        return was > 0

    def add(self, tasks: Iterable[Task]) -> None:
        """Add successors that were read."""
        if len(self.tasks) > _TASKS:
            self.tasks.clear()
            self.waits.clear()
        for task in tasks:
            self.tasks[task.name] = task
            self.waits[task.name] = list(task.record.deps)

    def forget(self, names: Iterable[str]) -> None:
        """Forget successors that may have been rewritten."""
        for name in names:
            self.tasks.pop(name, None)
            self.waits.pop(name, None)

    def is_waiting(self, name: str) -> bool:
        """Return whether a successor is waiting."""
        task = self.tasks.get(name)
        return task is not None and task.record.state is TaskState.WAITING

    def is_ending(self, name: str, away: Callable[[str], bool]) -> bool:
        """Return whether a task has ended or is about to."""
        return name in self.ended or away(name)

    def candidates(self, name: str, away: Callable[[str], bool], most: int) -> list[str]:
        """Return dependencies of a successor that may not have ended, last ones first."""
        waits = self.waits[name]
        while waits and waits[-1] in self.ended:
            waits.pop()
        found: list[str] = []
        for dep in reversed(waits):
            if dep not in self.ended and not away(dep):
                found.append(dep)
                if len(found) >= most:
                    break
        return found


class RunTracker:
    """Tracks the calls of one worker that have not returned. Thread-safe.

    Args:
        typical_s: Returns how long calls typically take.
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
        """Return whether another call is likely to return very soon."""
        with self._mutex:
            return bool(self._runs) and self._typical_s() < _SHORT_S


class CompletionBatcher:
    """Completes tasks in batches, in its own thread. Thread-safe.

    Args:
        plan_store: Where the plans are stored.
        propagation: Updates successors.
        complete_one: Completes a single task in whatever state it is.
        stop: Set when the worker closes.
        claimer: Claims tasks that become ready; None claims none.
        keep_result: Called with a committed completion whose result this worker needs next. Must be quick.
        expects_more: Returns whether another call is likely to return very soon.
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

    def forget(self, plan_id: str) -> None:
        """Drop the cache of a plan that has ended."""
        with self._notifier.mutex:
            if self._thread is not None:
                self._ended.append(plan_id)
                self._notifier.notify_all()

    def close(self) -> None:
        """Finish the scheduled completions and stop. Idempotent."""
        with self._notifier.mutex:
            self._is_closed = True
            self._notifier.notify_all()
            thread = self._thread
        if thread is not None and not thread.is_running_here:
            thread.block()

    async def _run(self) -> None:
        while True:
            with self._notifier.mutex:
                version, ends, self._waiting = self._notifier.version, self._waiting, []
                committed, self._committed = self._committed, []
                ended, self._ended = set(self._ended), []
                is_ending = self._is_closed and not ends and not committed
            if is_ending:
                return
            for key in [key for key in self._plans if key[0] in ended]:
                del self._plans[key]
            for eager_claims, done in committed:
                if self._claimer is not None:
                    self._claimer.run(eager_claims, done)
            if not ends:
                if committed:
                    continue
                await self._notifier.changed_since(version, self._clock, None)
                await self._wait_for_more()
                continue
            by_plan: dict[tuple[str, int], list[Completion]] = {}
            for end in ends:
                generation = -1 if end.plan is None else end.plan.generation
                by_plan.setdefault((end.plan_id, generation), []).append(end)
            for (plan_id, _), some in by_plan.items():
                await self._decide(plan_id, some)

    async def _wait_for_more(self) -> None:
        """Wait briefly if another call is about to return."""
        for _ in range(_WAITS):
            if not self._expects_more() or await Pause(self._clock, self._stop, _WAIT_S):
                return

    async def _decide(self, plan_id: str, ends: list[Completion]) -> None:
        """Complete all of these, however long the store is unavailable: the calls have already run."""
        backoff = Backoff()
        while left := [end for end in ends if not end.ending.done()]:
            try:
                await self._decide_once(plan_id, left)
            except (Unavailable, OutcomeUnknown) as error:
                if await Pause(self._clock, self._stop, backoff.next_s()):
                    _release_all(left, error)
                await self._drop_lost(left)
            except Exception as error:
                for end in left:
                    end.fail(error)

    async def _decide_once(self, plan_id: str, ends: Sequence[Completion]) -> None:
        again = [end for end in ends if end.task is None]
        first = [end for end in ends if end.task is not None]
        if again:
            await self._complete_and_check(plan_id, again)
        if first and (left := await self._complete_delegating(plan_id, first)):
            await self._complete_and_check(plan_id, left)

    def _on_committed(
        self, known: PlanCache, end: Completion, eager_claims: EagerClaims, done: Committed | None
    ) -> None:
        """Record a committed completion. Called in the thread of the group commit, so it must be fast."""
        known.ended.add(end.name)
        if eager_claims.puts:
            if done is not None:
                self._keep_result(end)
            with self._notifier.mutex:
                self._committed.append((eager_claims, done))
                self._notifier.notify_all()

    async def _drop_lost(self, ends: Sequence[Completion]) -> None:
        for end in ends:
            if not end.claim.is_held:
                await self._complete_alone(end)

    # First attempt

    async def _complete_delegating(self, plan_id: str, ends: Sequence[Completion]) -> list[Completion]:
        """Complete the tasks that can delegate their successors, and return the rest."""
        plan = ends[0].plan
        assert plan is not None
        known = self._cache(plan_id, plan)
        if known.take_caution(len(ends)):
            return list(ends)
        own = {end.name: at for at, end in enumerate(ends)}
        before = frozenset().union(*known.in_flight)
        tasks = [end.task for end in ends if end.task is not None]
        others = await self._find_pending_deps(plan_id, known, tasks, lambda name: name in own or name in before)
        left: list[Completion] = []
        came: dict[str, list[str]] = {}
        behind = last_predecessor(ends)
        claimed: list[str] = []
        for at, end in enumerate(ends):
            assert end.task is not None
            witnesses: dict[str, None] = {}
            ended_deps: dict[str, None] = {}
            ready: list[Task] = []
            for each in end.task.record.successors:
                if each in others:
                    witnesses[others[each]] = None
                elif not known.is_waiting(each):
                    continue
                elif own[behind[each]] > at:
                    witnesses[behind[each]] = None
                else:
                    ready.append(known.tasks[each])
                    in_flight = (dep for dep in ready[-1].record.deps if dep in before and dep not in known.ended)
                    ended_deps |= dict.fromkeys((*in_flight, *came.get(each, ())))
                came.setdefault(each, []).append(end.name)
            if (
                not ready
                and not witnesses
                and (another := await self._find_witness(plan_id, known, own, before)) is not None
            ):
                witnesses[another] = None
            eager_claims = self._choose_claims(end, ready, len(claimed))
            edit = None
            if not ready or has_no_failures(end):
                edit = self._plan_store.transitions.complete_delegating(
                    plan_id,
                    plan_at_start(end),
                    end.task,
                    end.result,
                    ready=ready,
                    witnesses=witnesses,
                    ended_deps=ended_deps,
                    items=eager_claims.items(),
                )
            if edit is None:
                left.append(end)
            else:
                claimed += eager_claims.puts
                landed = partial(self._on_committed, known, end, eager_claims)
                end.end(Done(tuple(edit.checks), tuple(edit.ops), landed))
        known.in_flight.append(frozenset(own))
        await self._read_ahead(plan_id, known, claimed)
        return left

    async def _read_ahead(self, plan_id: str, known: PlanCache, claimed: Iterable[str]) -> None:
        """Read what the completions of these tasks will need, while the tasks are claimed and run.

        Only while no completion waits, and only successors that probably wait for nothing else.
        """
        with self._notifier.mutex:
            if self._waiting:
                return
        tasks = [known.tasks[name].record for name in claimed]
        names = [
            each
            for task in tasks
            for each, late in zip_longest(task.successors, task.late, fillvalue="")
            if not late and each not in known.tasks
        ]
        if 0 < len(names) <= MAX_LINKED:
            with suppress(LatchworkError):  # then they are read when they are needed
                known.add(await self._plan_store.read_tasks(plan_id, names))

    def _choose_claims(self, end: Completion, tasks: Sequence[Task], had: int) -> EagerClaims:
        if self._claimer is None or end.entry is None or end.plan is None:
            return NO_CLAIMS
        return self._claimer.choose(end.plan_id, (end.entry, end.plan), tasks, had=had)

    async def _find_pending_deps(
        self, plan_id: str, known: PlanCache, ended: Iterable[Task], away: Callable[[str], bool]
    ) -> dict[str, str]:
        """Return, for each successor of these tasks, one of its dependencies that has not ended.

        Dependencies for which `away` is true are excluded, because they are about to end.
        """
        tasks = [each.record for each in ended]
        hints = {each: late for task in tasks for each, late in zip(task.successors, task.late, strict=False) if late}
        may_be = {
            each: [late] for each, late in hints.items() if each not in known.tasks and not known.is_ending(late, away)
        }
        live: set[str] = set()
        found = await self._filter_pending(plan_id, known, may_be, live)
        names = [
            each for each in dict.fromkeys(each for task in tasks for each in task.successors) if each not in found
        ]
        unknown = [each for each in names if each not in known.tasks]
        if unknown:
            known.add(await self._plan_store.read_tasks(plan_id, unknown))
        most, left = _FIRST_LOOK, [each for each in names if known.is_waiting(each)]
        while left:
            may_be = {each: known.candidates(each, away, most) for each in left}
            found |= await self._filter_pending(plan_id, known, may_be, live)
            left = [each for each, deps in may_be.items() if deps and each not in found]
            most *= _LONGER
        return found

    async def _filter_pending(
        self, plan_id: str, known: PlanCache, may_be: Mapping[str, Sequence[str]], live: set[str]
    ) -> dict[str, str]:
        """Return, for each successor, its first candidate that has not ended.

        `live` contains tasks already known to be pending, and gets more.
        """
        asked = dict.fromkeys(dep for deps in may_be.values() for dep in deps if dep not in live)
        there = await self._plan_store.filter_pending(plan_id, list(asked))
        live |= there
        known.ended.update(dep for dep in asked if dep not in there)
        return {each: dep for each, deps in may_be.items() for dep in reversed(deps) if dep in live}

    async def _find_witness(
        self, plan_id: str, known: PlanCache, own: Iterable[str], before: Iterable[str]
    ) -> str | None:
        """Return a task of the plan that has not ended, preferably one that will not end soon."""
        if known.last is None or known.last in own or known.last in before:
            ending = {*own, *before}
            names = [
                each
                for each in await self._plan_store.list_pending(plan_id, _WITNESSES + len(ending))
                if each not in ending
            ]
            known.last = max(names, default=None)
        return known.last

    def _cache(self, plan_id: str, plan: PlanRecord) -> PlanCache:
        key = (plan_id, plan.started_ms, plan.generation)
        known = self._plans.setdefault(key, PlanCache())
        self._plans.move_to_end(key)
        if len(self._plans) > _PLANS:
            self._plans.popitem(last=False)
        return known

    # Second attempt

    async def _complete_and_check(self, plan_id: str, ends: Sequence[Completion]) -> None:
        """Write the results, then handle the successors of all of them, then end the claims."""
        try:
            entry, plan, found = await self._read_for(plan_id, ends)
        except NoSuchPlan:  # removed in the meantime
            for end in ends:
                end.end(Done())
            return
        ended: list[tuple[Completion, Task]] = []
        simple = [(end, found[end.name]) for end in ends if end.name in found and is_simple(plan, found[end.name])]
        for some in batches(simple):
            ended += await self._write_results(plan_id, some)
        for end in ends:
            if all(end is not each for each, _ in simple):
                await self._complete_alone(end)
        if ended:
            known = self._cache(plan_id, plan)
            known.ended.update(end.name for end, _ in ended)
            await self._check_successors(plan_id, (entry, plan), known, [task for _, task in ended])
        for end, _ in ended:
            end.end(Done())

    async def _check_successors(self, plan_id: str, seen: StoredPlan, known: PlanCache, ended: Sequence[Task]) -> None:
        """Handle the successors of tasks whose ends are committed.

        A task that has not ended by now will see these ends when it ends itself. Successors that depend on such a task
        are left to it, and so is the end of the plan.
        """
        others = await self._find_pending_deps(plan_id, known, ended, lambda _: False)
        successors = dict.fromkeys(each for task in ended for each in task.record.successors)
        free = [each for each in successors if each not in others]
        if free:
            takes = None if self._claimer is None else self._claimer.for_plan(plan_id, *seen)
            await self._propagation.make_ready(plan_id, seen, free, takes, known.ended)
        if not others:
            await self._propagation.complete(plan_id)
        if self._claimer is not None:
            self._claimer.settle(plan_id)

    async def _read_for(self, plan_id: str, ends: Sequence[Completion]) -> tuple[Entry, PlanRecord, dict[str, Task]]:
        """Return the plan and the tasks of these completions.

        The first attempt uses them as they were when the calls began. The second attempt reads them again.
        """
        known = {end.name: end.task for end in ends if end.task is not None}
        seen = plan_at_start(ends[-1])
        if seen is not None and len(known) == len(ends):
            return *seen, known
        entry, plan = await self._plan_store.read_plan(plan_id)
        found = {task.name: task for task in await self._plan_store.read_tasks(plan_id, [end.name for end in ends])}
        remembered = self._cache(plan_id, plan)
        remembered.on_refused()
        remembered.forget([each for task in found.values() for each in task.record.successors])
        return entry, plan, found

    async def _write_results(self, plan_id: str, some: list[tuple[Completion, Task]]) -> list[tuple[Completion, Task]]:
        """Write these results in one transaction and return them.

        If that fails, complete each alone and return none.
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


def _release_all(ends: Iterable[Completion], error: LatchworkError) -> None:
    for end in ends:
        end.end(Release(str(error)[:200], count=False))
