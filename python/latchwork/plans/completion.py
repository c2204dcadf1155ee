"""The ends of many tasks at once: what follows from them is read together, and decided for one after the other.

While one round is on its way, new ends gather for the next. A worker waits a moment for runs that are about to return.
A first try passes on, see ``Transitions.passed_on``: one transaction, plan_key checks other ends may break. An end that is
refused, or has no other end to leave the look to, comes a second time: result first, then the look for all of these
together, then the item, with checks that no other end can break.

What is remembered of a plan chooses which task an end witnesses on, and saves reads. Each end checks what it witnesses on.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakSet

from latchwork.errors import Closed, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.interrupts import mutex
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.plan_store import PlanStore
from latchwork.plans.progress import NO_CLAIMS, EagerClaimer, EagerClaims, Propagation, check_held
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState
from latchwork.plans.states import MAX_LINKED, MAX_WRITES, StoredPlan, TxnPart
from latchwork.primitives import QueueClaim
from latchwork.store import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.steps import Pause, Signal
from latchwork.tasks import Done, Ending, Outcome, Release
from latchwork.types import Check, Committed, Entry

#: So many tasks of a plan are remembered.
_TASKS = 20_000
#: So many rounds an end is taken to be on its way.
_ROUNDS = 4
#: So many ends at most look themselves before one leaves that to others again.
_MAX_CAUTIOUS = 4096

#: Calls that take longer are not waited for.
_SHORT_S = 0.02

#: So many plans are remembered.
_PLANS = 32
#: So many of what a task waits for are asked for at first; then more.
_FIRST_LOOK, _LONGER = 2, 8
#: Of so many tasks that have not ended one is chosen that others rely on.
_WITNESSES = 64
#: So many times so many seconds ends wait for others that are about to come: a round of many costs little more than one
#: of one.
_WAITS, _WAIT_S = 4, 0.001


@dataclass(eq=False, slots=True)
class Completion:
    """A run that returned.

    Attributes:
        claim: of its item.
        plan_id, name: which task it is.
        outcome: what it returned.
        result: the same as it is stored.
        plan, task: as they were when it began; None: read them, and look.
        entry: the plan's, as this worker knows it; None: what becomes ready is not taken claims_ahead.
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


def plan_at_start(end: Completion) -> StoredPlan | None:
    """The plan as it was when an end began."""
    return None if end.entry is None or end.plan is None else (end.entry, end.plan)


def has_no_failures(end: Completion) -> bool:
    """Whether all that has ended of its plan is done, as long as the plan is as it was then."""
    return end.entry is not None and end.plan is not None and end.plan.state is PlanState.READY and not end.plan.failed


def last_predecessor(ends: Sequence[Completion]) -> dict[str, str]:
    """By successor, the last of these that it comes after."""
    return {each: end.name for end in ends if end.task is not None for each in end.task.record.successors}


def is_simple(plan: PlanRecord, task: Task) -> bool:
    """Whether it is to be done, as expected, and has not many successors."""
    is_live = plan.state in (PlanState.READY, PlanState.CANCELLING)
    return is_live and task.record.state is TaskState.READY and len(task.record.successors) <= MAX_LINKED


def batches(ends: Sequence[tuple[Completion, Task]]) -> list[list[tuple[Completion, Task]]]:
    """As many as fit into each transaction."""
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
    """What a worker remembers of one plan, since its start or its last recover.

    Attributes:
        tasks: successors, as they were read.
        waits: by successor what it waits for, without the last ones that are known to have ended.
        ended: tasks that have ended: they stay so until a recover.
        last: a task that had not ended, and may be the last to.
        in_flight: ends of the rounds before, on their way.
        cautious: so many ends look themselves, since ends that left that to others were refused.
        next_cautious: so many after the next refusal.
    """

    tasks: dict[str, Task] = field(default_factory=dict)
    waits: dict[str, list[str]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    last: str | None = None
    in_flight: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=_ROUNDS))
    cautious: int = 0
    next_cautious: int = 64

    def on_refused(self) -> None:
        """What an end relied on has ended too: others end what depends on the same just now."""
        self.last = None
        if not self.cautious:
            self.cautious, self.next_cautious = self.next_cautious, min(_MAX_CAUTIOUS, 4 * self.next_cautious)

    def take_caution(self, ends: int) -> bool:
        """Whether these look themselves."""
        was, self.cautious = self.cautious, max(0, self.cautious - ends)
        return was > 0

    def add(self, tasks: Iterable[Task]) -> None:
        """Successors that were read."""
        if len(self.tasks) > _TASKS:
            self.tasks.clear()
            self.waits.clear()
        for task in tasks:
            self.tasks[task.name] = task
            self.waits[task.name] = list(task.record.deps)

    def forget(self, names: Iterable[str]) -> None:
        """Successors that may have been rewritten."""
        for name in names:
            self.tasks.pop(name, None)
            self.waits.pop(name, None)

    def is_waiting(self, name: str) -> bool:
        """Whether a successor waits."""
        task = self.tasks.get(name)
        return task is not None and task.record.state is TaskState.WAITING

    def is_ending(self, name: str, away: Callable[[str], bool]) -> bool:
        """Whether a task has ended, or is about to."""
        return name in self.ended or away(name)

    def candidates(self, name: str, away: Callable[[str], bool], most: int) -> list[str]:
        """What a successor may wait for, the last first, without what has ended or is about to."""
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
    """The runs of one worker that have not returned. Safe to share between threads.

    Args:
        typical_s: how long calls take.
    """

    def __init__(self, typical_s: Callable[[], float]) -> None:
        self._typical_s = typical_s
        self._mutex = mutex()
        self._runs: WeakSet[QueueClaim] = WeakSet()

    def add(self, claim: QueueClaim) -> None:
        """It is to be run."""
        with self._mutex:
            self._runs.add(claim)

    def remove(self, claim: QueueClaim) -> None:
        """It has returned, or will not. Twice is fine."""
        with self._mutex:
            self._runs.discard(claim)

    def expects_return(self) -> bool:
        """Whether another end is to be expected in a moment."""
        with self._mutex:
            return bool(self._runs) and self._typical_s() < _SHORT_S


class CompletionBatcher:
    """Decides on ends, in a thread of its own. Safe to share between threads.

    Args:
        plan_store: where the plans are.
        progress: what follows.
        alone: ends one task by itself, in whatever state it is found.
        stop: set when the worker closes.
        claimer: takes claims_ahead what becomes ready; None: nothing is.
        comes: whether another end is to be expected in a moment.
    """

    def __init__(
        self,
        plan_store: PlanStore,
        progress: Propagation,
        complete_one: Callable[[QueueClaim, str, str, Outcome], Awaitable[Ending]],
        stop: Signal,
        claimer: EagerClaimer | None = None,
        *,
        expects_more: Callable[[], bool] = bool,
    ) -> None:
        self._plan_store = plan_store
        self._expects_more = expects_more
        self._progress = progress
        self._complete_one = complete_one
        self._clock = plan_store.store.clock
        self._stop = stop
        self._notifier = Notifier()
        self._waiting: list[Completion] = []
        self._thread: Background | None = None
        self._is_closed = False
        self._plans: OrderedDict[tuple[str, int, int], PlanCache] = OrderedDict()
        self._claimer = claimer
        self._committed: list[tuple[EagerClaims, Committed | None]] = []

    def add(self, end: Completion) -> Future[Ending]:
        """Decide on an end, soon. Returns at once.

        Raises:
            Closed: it was closed.
        """
        with self._notifier.mutex:
            if self._is_closed:
                raise Closed("the worker of this plan was closed")
            if self._thread is None:  # first: an interrupt behind it leaves nothing that nobody decides on
                self._thread = Background(self._run, f"latchwork-plans-ends-{self._plan_store.keys.name}")
            self._waiting.append(end)
            self._notifier.ring()
        return end.ending

    def close(self) -> None:
        """Decide on what has come, and nothing more. Twice is fine."""
        with self._notifier.mutex:
            self._is_closed = True
            self._notifier.ring()
            thread = self._thread
        if thread is not None and not thread.is_mine:
            thread.block()

    async def _run(self) -> None:
        while True:
            with self._notifier.mutex:
                rings, ends, self._waiting = self._notifier.rings, self._waiting, []
                committed, self._committed = self._committed, []
                is_ending = self._is_closed and not ends and not committed
            if is_ending:
                return
            for claims_ahead, done in committed:
                self._begin(claims_ahead.taken(done))
            if not ends:
                if committed:
                    continue
                await self._notifier.rung(rings, self._clock, None)
                await self._wait_for_more()
                continue
            by_plan: dict[tuple[str, int], list[Completion]] = {}
            for end in ends:
                generation = -1 if end.plan is None else end.plan.generation
                by_plan.setdefault((end.plan_id, generation), []).append(end)
            for (plan_id, _), some in by_plan.items():
                await self._decide(plan_id, some)

    async def _wait_for_more(self) -> None:
        """Wait a moment for runs, if some is to come."""
        for _ in range(_WAITS):
            if not self._expects_more() or await Pause(self._clock, self._stop, _WAIT_S):
                return

    async def _decide(self, plan_id: str, ends: list[Completion]) -> None:
        """All of these, however long the store is away: what ran has run."""
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

    def _begin(self, claims: Sequence[QueueClaim]) -> None:
        if self._claimer is not None and claims:
            self._claimer.begin(claims)

    def _on_committed(self, known: PlanCache, name: str, claims_ahead: EagerClaims, done: Committed | None) -> None:
        """In the thread of the group commit: quick."""
        known.ended.add(name)
        if claims_ahead.puts:
            with self._notifier.mutex:
                self._committed.append((claims_ahead, done))
                self._notifier.ring()

    async def _drop_lost(self, ends: Sequence[Completion]) -> None:
        for end in ends:
            if not end.claim.is_held:
                await self._complete_alone(end)

    # The first try

    async def _complete_delegating(self, plan_id: str, ends: Sequence[Completion]) -> list[Completion]:
        """Completion what leaves the look to others; the rest."""
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
        behind, had = last_predecessor(ends), 0
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
            claims_ahead = self._choose_claims(end, ready, had)
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
                    items=claims_ahead.items(),
                )
            if edit is None:
                left.append(end)
            else:
                had += len(claims_ahead.puts)
                end.end(
                    Done(
                        tuple(edit.checks), tuple(edit.ops), partial(self._on_committed, known, end.name, claims_ahead)
                    )
                )
        known.in_flight.append(frozenset(own))
        return left

    def _choose_claims(self, end: Completion, tasks: Sequence[Task], had: int) -> EagerClaims:
        if self._claimer is None or end.entry is None or end.plan is None:
            return NO_CLAIMS
        return self._claimer.choose(end.plan_id, (end.entry, end.plan), tasks, had=had)

    async def _find_pending_deps(
        self, plan_id: str, known: PlanCache, ended: Iterable[Task], away: Callable[[str], bool]
    ) -> dict[str, str]:
        """By successor of these a task that it waits for, and that has not ended, besides those that are away."""
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
        """By successor the first of these that has not ended; ``live`` has such as were asked for, and gets more."""
        asked = dict.fromkeys(dep for deps in may_be.values() for dep in deps if dep not in live)
        there = await self._plan_store.filter_pending(plan_id, list(asked))
        live |= there
        known.ended.update(dep for dep in asked if dep not in there)
        return {each: dep for each, deps in may_be.items() for dep in reversed(deps) if dep in live}

    async def _find_witness(
        self, plan_id: str, known: PlanCache, own: Iterable[str], before: Iterable[str]
    ) -> str | None:
        """A task of the plan that has not ended, and will most likely not soon."""
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

    # The second

    async def _complete_and_check(self, plan_id: str, ends: Sequence[Completion]) -> None:
        """Write results, then look at all that comes after them, then the items go."""
        try:
            entry, plan, found = await self._read_for(plan_id, ends)
        except NoSuchPlan:  # removed meanwhile
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
        """What comes after these, which have committed.

        A task that is seen now, behind their ends, not to have ended is one plan_key end is to come, and finds theirs: to
        it is left what waits for it, and the end of the plan.
        """
        others = await self._find_pending_deps(plan_id, known, ended, lambda _: False)
        successors = dict.fromkeys(each for task in ended for each in task.record.successors)
        free = [each for each in successors if each not in others]
        if free:
            takes = None if self._claimer is None else self._claimer.for_plan(plan_id, *seen)
            await self._progress.make_ready(plan_id, seen, free, takes, known.ended)
        if not others:
            await self._progress.complete(plan_id)
        if self._claimer is not None:
            self._claimer.settle(plan_id)

    async def _read_for(self, plan_id: str, ends: Sequence[Completion]) -> tuple[Entry, PlanRecord, dict[str, Task]]:
        """The plan and the tasks of these: as they began at the first try, read anew at the second."""
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
        """Write these results, all or none; of which that is known. The others were ended one by one."""
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
        except NoSuchPlan:  # removed meanwhile
            end.end(Done())
        except (Unavailable, OutcomeUnknown):
            raise
        except LatchworkError as error:
            end.fail(error)


def _release_all(ends: Iterable[Completion], error: LatchworkError) -> None:
    for end in ends:
        end.end(Release(str(error)[:200], count=False))
