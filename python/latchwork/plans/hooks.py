"""What a worker does with a claimed item: which call it is, and how its claim ends. One object for each worker.

A task's item stays, claimed, until what follows from its end is done. So a worker that dies between the result and the
look at the successors leaves a free item of a task that is done, and the worker that takes it next only looks.

A result that a worker has read does not change, so it is read once and not for each task that needs it. Only small ones
are kept, as many as a limit of bytes allows, the last used ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from latchwork.errors import BadRecord, Conflict, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.interrupts import mutex
from latchwork.plans.completion import CompletionBatcher, End, TaskEnds
from latchwork.plans.control import Children, NotYet, PlanControl
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import LANE, split_id
from latchwork.plans.limits import Limits
from latchwork.plans.peers import PeerSharding
from latchwork.plans.plan_store import PlanStore
from latchwork.plans.progress import Handing, Progress, held
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState, read_needs, room_for_result
from latchwork.plans.states import MOST_TOGETHER, Edit, Seen
from latchwork.plans.wakeups import ends
from latchwork.primitives import QueueClaim, QueueItem, Share
from latchwork.store import Backoff, Mirror
from latchwork.store.steps import Pause, Signal, driven, steps_of
from latchwork.tasks import (
    BadPayload,
    Done,
    Ending,
    Failure,
    Outcome,
    Payloads,
    Release,
    Run,
    StoredCall,
    TaskProcessDied,
    WorkerHooks,
    fill_template,
    type_name,
)
from latchwork.types import At, Check, Entry, Op

#: So large a result is kept, and so many bytes of them.
_MOST_EACH, _MOST_BYTES = 4_000, 8_000_000
#: What one takes besides its bytes.
_COST = 200
#: A plan from its start to its removal: another one of its id has another number of its builder's.
_Whose = tuple[str, int, str]

#: A task that so many workers died of has failed.
MOST_DEATHS = 5
_CONTROL = "@"
#: Of so many plans the records are kept as they were parsed.
_MOST_PLANS = 1_000
_GONE = frozenset({PlanState.REMOVING, PlanState.DRAFT})
#: What was read for a claim: names of results, the entry of its task, and those of the results.
_Read = tuple[list[str], "Entry | None", "list[Entry | None]"]


class NothingToRun(LatchworkError):
    """The item needs no call: it is one of control, or of a task that has ended."""


@dataclass(frozen=True, slots=True)
class ClaimContext:
    """How the call of a claim was made.

    Attributes:
        is_call: whether it was one.
        trouble: what the store raised while it was made.
        is_together: whether its end is decided with those of others: it has few successors.
        plan, task: as they were read; no task any more once an end by them was tried.
        result: the outcome as it is stored, once it is.
        child: the draft of the plan that was returned, once it is written.
    """

    is_call: bool = False
    trouble: str = ""
    is_together: bool = False
    plan: tuple[Entry, PlanRecord] | None = None
    task: Task | None = None
    result: bytes = b""
    child: tuple[str, Entry] | None = None


def is_wrong(outcome: Outcome) -> bool:
    """Whether the call could not be made from what is stored: no worker can."""
    failure = outcome.failure
    return failure is not None and failure.name in (BadPayload.__name__, BadRecord.__name__)


def is_retried(task: Task, failure: Failure) -> bool:
    """Whether an exception is of a class that the task is tried again for; one that is not known here is."""
    kind = failure.loaded_class
    names = task.record.retry.on
    return kind is None or any(type_name(each) in names for each in kind.__mro__)


class Results:
    """What is remembered of the results of done tasks. Safe to share between threads.

    Only what a ready task depends on may be told: results of other tasks may be failures, which a recover undoes.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._mutex = mutex()
        self._kept: OrderedDict[tuple[_Whose, str], bytes] = OrderedDict()
        self._bytes = 0

    def known(self, plan_id: str, plan: PlanRecord, names: Iterable[str]) -> dict[str, bytes]:
        """The payloads of those of these tasks that are remembered."""
        whose, found = _whose(plan_id, plan), {}
        with self._mutex:
            for name in names:
                payload = self._kept.get((whose, name))
                if payload is not None:
                    self._kept.move_to_end((whose, name))
                    found[name] = payload
        return found

    def keep(self, plan_id: str, plan: PlanRecord, payloads: Mapping[str, bytes]) -> None:
        """Remember these, where they are small."""
        whose = _whose(plan_id, plan)
        with self._mutex:
            for name, payload in payloads.items():
                if len(payload) <= _MOST_EACH and (whose, name) not in self._kept:
                    self._kept[whose, name] = payload
                    self._bytes += len(payload) + _COST
            while self._bytes > self._most_bytes:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= len(gone) + _COST


def _whose(plan_id: str, plan: PlanRecord) -> _Whose:
    return plan_id, plan.started_ms, plan.nonce


class PlanHooks(WorkerHooks):
    """Tells a feeder what items of plans are. Safe to share between threads.

    Args:
        place: where the plans are.
        plans: a mirror of their records.
        payloads: reads arguments and results.
        progress, control: what follows.
        failed: told of each try that raised: plan, task, and what.
        children: plans that tasks have started.
        limits: the places of limited plans.
        mates: the other workers.
        handing: takes along what becomes ready.
        company: which runs are about to return.
        stop: set when the worker closes.
    """

    def __init__(
        self,
        place: PlanStore,
        plans: Mirror,
        *,
        payloads: Payloads,
        progress: Progress,
        control: PlanControl,
        failed: Callable[[str, str, Failure], object],
        children: Children,
        limits: Limits,
        mates: PeerSharding,
        handing: Handing,
        company: CompletionBatcher,
        stop: Signal,
    ) -> None:
        self._place = place
        self._plans = plans
        self._payloads = payloads
        self._progress = progress
        self._control = control
        self._failed = failed
        self._children = children
        self._limits = limits
        self._mates = mates
        self._company = company
        self._stop = stop
        self._pauses: dict[str, Backoff] = {}
        self._begun: WeakKeyDictionary[QueueClaim, ClaimContext] = WeakKeyDictionary()
        self._read: WeakKeyDictionary[QueueClaim, _Read] = WeakKeyDictionary()
        self._results = Results()
        self._records: dict[str, tuple[Entry, PlanRecord]] = {}
        #: By the path of an item that runs, the token of the creation of its plan.
        self._plan_created: dict[str, int] = {}
        self._ends = TaskEnds(place, progress, self._end_task, stop, handing, comes=company.comes)

    def close(self) -> None:
        """Decide on no further ends. Twice is fine."""
        self._ends.close()

    takes_instead = True

    # Taking

    def lanes(self) -> Sequence[str]:
        """All items are in one lane."""
        self._limits.next_look()
        return (LANE,)

    def share(self, lane: str) -> Share:  # noqa: ARG002 - there is one
        """What of the items is ours first."""
        return self._mates.share()

    def accept(self, item: QueueItem) -> bool:
        """Items of control; those of tasks of a plan that is ready, and of one that has ended, to remove them."""
        plan_id, task = split_id(item.id)
        known = self._known(plan_id)
        if not task or task.startswith(_CONTROL):
            return bool(task)
        if known is None or not (known[1].state is PlanState.READY or known[1].state.has_ended):
            return False
        if known[1].parent is not None and ends(self._plans, self._place.keys, plan_id):
            return known[1].state.has_ended
        most = known[1].max_parallel
        return most is None or self._limits.has_room(plan_id, most)

    def extra(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """A task is claimed while its plan is as we know it: not after a cancel that we have not heard of."""
        plan_id, task = split_id(item.id)
        known = self._known(plan_id)
        if task.startswith(_CONTROL) or known is None:
            return (), ()
        most = known[1].max_parallel
        return (At(known[0]),), () if most is None else self._limits.choose(plan_id, most, item.path)

    def refused(self, item: QueueItem) -> bool:
        """Its plan has changed, or has no place."""
        return self._limits.refused(item.path)

    def _known(self, plan_id: str) -> tuple[Entry, PlanRecord] | None:
        try:
            entry = self._plans[self._place.keys.plan(plan_id)]
            found = self._records.get(plan_id)
            if found is None or found[0] is not entry:
                if len(self._records) >= _MOST_PLANS:
                    self._records.clear()
                found = self._records[plan_id] = (entry, PlanRecord.of(entry.value))
        except (KeyError, BadRecord):
            return None
        return found

    def is_replaced(self, path: str) -> bool:
        """Return whether the plan of an item that runs was removed, and another one has its ID.

        The mirror merges states: it may report the new plan and never that the old one is gone.
        """
        known = self._known(split_id(path.rpartition("/")[2])[0])
        return known is not None and self._plan_created.get(path, known[0].created) != known[0].created

    # Beginning

    @driven
    async def taken(self, claims: Sequence[QueueClaim]) -> None:
        """Read all their tasks, and the results that these need, together."""
        tasks = [each for each in claims if not split_id(each.item.id)[1].startswith(_CONTROL)]
        if tasks:
            wanted = [self._wanted(each) for each in tasks]
            for claim, want, read in zip(tasks, wanted, await self._place.tasks_and_entries(wanted), strict=True):
                self._read[claim] = (want[2], *read)

    def _wanted(self, claim: QueueClaim) -> tuple[str, str, list[str]]:
        """The plan and the task of a claim, and the tasks whose results are to be read for it."""
        plan_id, name = split_id(claim.item.id)
        known, names = self._known(plan_id), read_needs(claim.value).args_from
        kept = {} if known is None else self._results.known(plan_id, known[1], names)
        return plan_id, name, [each for each in names if each not in kept]

    def begin(self, claim: QueueClaim) -> Run | Ending:
        """The call is made in the slot, where the store may be asked."""
        self._limits.begun(claim)
        plan_id, task = split_id(claim.item.id)
        timeout_s = read_needs(claim.value).timeout_s
        if not task.startswith(_CONTROL):
            self._company.begun(claim)
            known = self._known(plan_id)
            if known is not None:
                self._plan_created[claim.item.path] = known[0].created
        return Run(
            lambda: self._call(claim, plan_id, task),
            claim.item.id,
            timeout_s,
            claim.attempts,
        )

    @driven
    async def _call(self, claim: QueueClaim, plan_id: str, name: str) -> StoredCall:
        if name.startswith(_CONTROL):
            raise NothingToRun("control")
        try:
            call = await self._made(claim, plan_id, name)
        except (NothingToRun, BadPayload, BadRecord):
            raise
        except TaskProcessDied:
            self._begun[claim] = ClaimContext(is_call=True)
            raise
        except LatchworkError as error:
            self._begun[claim] = ClaimContext(trouble=str(error))
            raise
        return call

    async def _made(self, claim: QueueClaim, plan_id: str, name: str) -> StoredCall:
        known = self._known(plan_id)
        read = self._read.pop(claim, None)
        if read is None:
            wanted = self._wanted(claim)
            read = (wanted[2], *(await self._place.tasks_and_entries([wanted]))[0])
        found, stored = await self._place.read_outcomes(*read)
        if found is None or found.record.state is not TaskState.READY:
            raise NothingToRun("it has ended")
        if known is None or known[1].state is not PlanState.READY:
            raise NothingToRun("its plan has ended")
        task = found.record
        if claim.attempts - 1 - task.attempts >= MOST_DEATHS:
            raise TaskProcessDied(f"task {name!r} of plan {plan_id!r} ended with {MOST_DEATHS} workers that ran it")
        template = task.args if task.args_at is None else await steps_of(self._place.blobs.read)(task.args_at)
        results = self._results.known(plan_id, known[1], task.args_from)
        missing = [each for each in task.args_from if each not in stored and each not in results]
        stored |= await self._place.outcomes(plan_id, missing)
        new = {each: Outcome.of(data).payload for each, data in stored.items()}
        self._results.keep(plan_id, known[1], new)
        results |= new
        call = StoredCall(task.fn, fill_template(self._payloads, template, results, task.fn))
        self._begun[claim] = ClaimContext(True, "", len(task.succ) <= MOST_TOGETHER, known, found)
        return call

    # Ending

    def at_end(self, claim: QueueClaim) -> Sequence[Op]:
        """A task of a limited plan gives its place back."""
        return self._limits.end(claim)

    def claim_over(self, claim: QueueClaim) -> bool:
        """The place of an ended claim may be wanted: the mirror tells nothing of one that came and went at once."""
        self._company.returned(claim)
        self._plan_created.pop(claim.item.path, None)
        return self._limits.over(claim)

    @driven
    async def finish(self, claim: QueueClaim, outcome: Outcome) -> Ending | Future[Ending]:
        """What follows from a run, all of it written before the item goes, or together with it."""
        self._company.returned(claim)
        backoff = Backoff()
        while True:
            try:
                return await self._ending(claim, outcome)
            except NotYet as error:
                pauses = self._pauses.setdefault(claim.item.path, Backoff(0.1, 2.0))
                return Release(str(error)[:200], after_s=pauses.next_s(), count=False)
            except (Unavailable, OutcomeUnknown) as error:  # what ran has run: it is ended when the store is back
                held(claim)
                if await Pause(self._place.store.clock, self._stop, backoff.next_s()):
                    return Release(str(error)[:200], count=False)

    async def _ending(self, claim: QueueClaim, outcome: Outcome) -> Ending | Future[Ending]:
        plan_id, name = split_id(claim.item.id)
        if name.startswith(_CONTROL):
            await self._control.handle(claim, plan_id, name)
            self._pauses.pop(claim.item.path, None)
            return Done()
        begun = self._begun.get(claim, ClaimContext())
        if begun.trouble:
            return Release(begun.trouble[:200], after_s=1.0, count=False)
        try:
            if outcome.instead:
                return await self._hand_over(claim, plan_id, name, outcome)
            if outcome.is_success and begun.is_call and begun.is_together:
                result = await self._stored(claim, plan_id, begun.task, outcome)
                entry, plan = begun.plan or (None, None)
                end = End(claim, plan_id, name, outcome, result, plan, begun.task, entry)
                self._begun[claim] = replace(begun, task=None, result=result)  # if refused: another way
                return self._ends.add(end)
            return await self._end_task(claim, plan_id, name, outcome)
        except NoSuchPlan:  # removed meanwhile
            return Done()

    async def _hand_over(self, claim: QueueClaim, plan_id: str, name: str, outcome: Outcome) -> Ending:
        """The task has returned a plan: it waits for that, and nobody has it meanwhile."""
        _, plan = await self._place.plan(plan_id)
        found = await self._place.tasks(plan_id, [name])
        begun = self._begun.get(claim, ClaimContext())
        if not found or found[0].record.state is not TaskState.READY:
            if begun.child is not None:
                await self._children.drop(*begun.child)
            return await self._end_task(claim, plan_id, name, outcome)
        try:
            child = begun.child or await self._children.written(plan_id, plan, found[0], outcome.instead)
        except (Unavailable, OutcomeUnknown):
            raise
        except Conflict as error:  # the task is gone, or our draft is
            return Release(str(error)[:200], after_s=0.2, count=False)
        except (LatchworkError, ValueError) as error:
            return await self._end_task(claim, plan_id, name, Outcome.failed(error, is_final=True))
        self._begun[claim] = replace(begun, child=child)
        held(claim)
        edit = self._children.begun(found[0], *child)
        return Done(tuple(edit.checks), tuple(edit.ops))

    async def _end_child(self, claim: QueueClaim, plan_id: str, seen: Seen, task: Task) -> Ending | None:
        """The plan that a task waits for has ended, or goes on after all. None: look again."""
        outcome, check = await self._children.outcome(plan_id, task)
        if outcome is None:
            return Done((At(task.entry), *check.checks))
        if not outcome.is_success:
            return await self._fail(claim, plan_id, seen, task, outcome)
        result = await self._place.stored_result(plan_id, outcome.to_bytes(), room_for_result(task))
        edit = self._place.edges.done(plan_id, task, result).and_also(check)
        await self._commit(edit.checks, edit.ops, claim)
        return None

    async def _stored(self, claim: QueueClaim, plan_id: str, task: Task | None, outcome: Outcome) -> bytes:
        """The outcome as the value of a result's key: a large one is written elsewhere, once for each run."""
        begun = self._begun.get(claim, ClaimContext())
        if not begun.result:
            stored = await self._place.stored_result(plan_id, outcome.to_bytes(), room_for_result(task))
            begun = self._begun[claim] = replace(begun, result=stored)
        return begun.result

    async def _end_task(self, claim: QueueClaim, plan_id: str, name: str, outcome: Outcome) -> Ending:
        while True:
            entry, plan = await self._place.plan(plan_id)
            found = await self._place.tasks(plan_id, [name])
            if not found or plan.state in _GONE:
                return Done()
            task = found[0]
            if task.record.state is TaskState.CHILD:
                ending = await self._end_child(claim, plan_id, (entry, plan), task)
            elif task.record.state is not TaskState.READY or plan.state.has_ended:
                return await self._pass_on(claim, plan_id, (entry, plan), task)
            elif outcome.instead or not (self._begun.get(claim, ClaimContext()).is_call or is_wrong(outcome)):
                return Release("it was made ready meanwhile", count=False)
            elif outcome.is_success:
                ending = await self._succeed(claim, plan_id, (entry, plan), task, outcome)
            else:
                ending = await self._fail(claim, plan_id, (entry, plan), task, outcome)
            if ending is not None:
                return ending

    async def _pass_on(self, claim: QueueClaim, plan_id: str, seen: Seen, task: Task) -> Ending:
        """A task that has ended: what follows from it, which whoever ended it may not have come to."""
        if task.record.state is TaskState.DONE:
            await self._progress.propagate(plan_id, seen, task)
            await self._progress.complete(plan_id)
        elif task.record.state is TaskState.FAILED:
            await self._progress.skip_behind(claim, plan_id, task, seen[1].turn)
            await self._progress.complete(plan_id)
        return Done()

    async def _succeed(
        self, claim: QueueClaim, plan_id: str, seen: Seen, task: Task, outcome: Outcome
    ) -> Ending | None:
        """None: look again; it is done, or something was written meanwhile."""
        result = await self._stored(claim, plan_id, task, outcome)
        edit = self._place.edges.done(plan_id, task, result)
        if not await self._commit(edit.checks, edit.ops, claim):
            return None
        await self._progress.propagate(plan_id, seen, task)
        await self._progress.complete(plan_id)
        return Done()

    async def _fail(self, claim: QueueClaim, plan_id: str, seen: Seen, task: Task, outcome: Outcome) -> Ending | None:
        entry, plan = seen
        failure = outcome.failure
        assert failure is not None
        self._failed(plan_id, task.name, failure)
        if plan.state is PlanState.CANCELLING:
            edit = self._place.edges.cancelled(plan_id, entry, task)
            return Done(tuple(edit.checks), tuple(edit.ops))
        attempt = task.record.attempts + 1
        if attempt < task.record.retry.attempts and not failure.is_final and is_retried(task, failure):
            edit = self._place.edges.tried(task, failure.summary)
            if await self._commit(edit.checks, [*edit.ops, *self._limits.end(claim)], claim):
                self._limits.given_back(claim)  # a task that pauses has no place
                return Release(failure.summary[:200], after_s=task.record.retry.to_retry().pause_s(attempt))
            return None
        result = await self._stored(claim, plan_id, task, outcome)
        edit = self._place.edges.failed(plan_id, entry, plan, task, why=failure.summary, result=result)
        await self._commit(edit.checks, edit.ops, claim)
        return None

    async def _commit(self, checks: Sequence[Check], ops: Sequence[Op], claim: QueueClaim) -> bool:
        """Whether it was written, as far as is known.

        Raises:
            OwnershipLost: the claim is over.
        """
        held(claim)
        return await self._place.commit(Edit(list(checks), list(ops)), claim.fence)
