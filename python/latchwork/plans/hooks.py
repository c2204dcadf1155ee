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
from latchwork.plans.completion import Completion, CompletionBatcher, RunTracker
from latchwork.plans.control import ChildPlans, PlanBusy, PlanControl
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import PARTITION, split_id
from latchwork.plans.limits import ParallelLimiter
from latchwork.plans.peers import PeerSharding
from latchwork.plans.plan_store import PlanStore
from latchwork.plans.progress import EagerClaimer, Propagation, check_held
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState, decode_item, max_result_bytes
from latchwork.plans.states import MAX_LINKED, StoredPlan, TxnPart
from latchwork.plans.wakeups import is_ending
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
_MAX_EACH, _MAX_BYTES = 4_000, 8_000_000
#: What one takes besides its bytes.
_COST = 200
#: A plan from its start to its removal: another one of its id has another number of its builder's.
_PlanKey = tuple[str, int, str]

#: A task that so many workers died of has failed.
MAX_WORKER_DEATHS = 5
_CONTROL = "@"
#: Of so many plans the records are kept as they were parsed.
_MAX_PLANS = 1_000
_GONE = frozenset({PlanState.REMOVING, PlanState.DRAFT})
#: What was read for a claim: names of results, the entry of its task, and those of the results.
_ClaimReads = tuple[list[str], "Entry | None", "list[Entry | None]"]


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
        child: the draft of the plan that was returned, once it is write_draft.
    """

    is_call: bool = False
    trouble: str = ""
    is_together: bool = False
    plan: tuple[Entry, PlanRecord] | None = None
    task: Task | None = None
    result: bytes = b""
    child: tuple[str, Entry] | None = None


def is_undecodable(outcome: Outcome) -> bool:
    """Whether the call could not be made from what is stored: no worker can."""
    failure = outcome.failure
    return failure is not None and failure.name in (BadPayload.__name__, BadRecord.__name__)


def is_retryable(task: Task, failure: Failure) -> bool:
    """Whether an exception is of a class that the task is tried again for; one that is not known here is."""
    kind = failure.loaded_class
    names = task.record.retry.on
    return kind is None or any(type_name(each) in names for each in kind.__mro__)


class ResultCache:
    """What is remembered of the results of done tasks. Safe to share between threads.

    Only what a ready task depends on may be told: results of other tasks may be failures, which a recover undoes.
    """

    def __init__(self, most_bytes: int = _MAX_BYTES) -> None:
        self._most_bytes = most_bytes
        self._mutex = mutex()
        self._kept: OrderedDict[tuple[_PlanKey, str], bytes] = OrderedDict()
        self._bytes = 0

    def get(self, plan_id: str, plan: PlanRecord, names: Iterable[str]) -> dict[str, bytes]:
        """The payloads of those of these tasks that are remembered."""
        plan_key, found = _plan_key(plan_id, plan), {}
        with self._mutex:
            for name in names:
                payload = self._kept.get((plan_key, name))
                if payload is not None:
                    self._kept.move_to_end((plan_key, name))
                    found[name] = payload
        return found

    def add(self, plan_id: str, plan: PlanRecord, payloads: Mapping[str, bytes]) -> None:
        """Remember these, where they are small."""
        plan_key = _plan_key(plan_id, plan)
        with self._mutex:
            for name, payload in payloads.items():
                if len(payload) <= _MAX_EACH and (plan_key, name) not in self._kept:
                    self._kept[plan_key, name] = payload
                    self._bytes += len(payload) + _COST
            while self._bytes > self._most_bytes:
                _, ended_deps = self._kept.popitem(last=False)
                self._bytes -= len(ended_deps) + _COST


def _plan_key(plan_id: str, plan: PlanRecord) -> _PlanKey:
    return plan_id, plan.started_ms, plan.nonce


class PlanHooks(WorkerHooks):
    """Tells a feeder what items of plans are. Safe to share between threads.

    Args:
        plan_store: where the plans are.
        plans: a mirror of their records.
        payloads: reads arguments and results.
        progress, control: what follows.
        failed: told of each try that raised: plan, task, and what.
        children: plans that tasks have started.
        limits: the places of limited plans.
        peers: the other workers.
        claimer: takes claims_ahead what becomes ready.
        runs: which runs are about to return.
        stop: set when the worker closes.
    """

    def __init__(
        self,
        plan_store: PlanStore,
        plans: Mirror,
        *,
        payloads: Payloads,
        progress: Propagation,
        control: PlanControl,
        failed: Callable[[str, str, Failure], object],
        children: ChildPlans,
        limits: ParallelLimiter,
        peers: PeerSharding,
        claimer: EagerClaimer,
        runs: RunTracker,
        stop: Signal,
    ) -> None:
        self._plan_store = plan_store
        self._plans = plans
        self._payloads = payloads
        self._progress = progress
        self._control = control
        self._failed = failed
        self._children = children
        self._limits = limits
        self._peers = peers
        self._runs = runs
        self._stop = stop
        self._backoffs: dict[str, Backoff] = {}
        self._contexts: WeakKeyDictionary[QueueClaim, ClaimContext] = WeakKeyDictionary()
        self._reads: WeakKeyDictionary[QueueClaim, _ClaimReads] = WeakKeyDictionary()
        self._results = ResultCache()
        self._records: dict[str, tuple[Entry, PlanRecord]] = {}
        #: By the path of an item that runs, the token of the creation of its plan.
        self._plan_created: dict[str, int] = {}
        self._batcher = CompletionBatcher(
            plan_store, progress, self._finish_task, stop, claimer, expects_more=runs.expects_return
        )

    def close(self) -> None:
        """Decide on no further ends. Twice is fine."""
        self._batcher.close()

    takes_instead = True

    # Taking

    def lanes(self) -> Sequence[str]:
        """All items are in one lane."""
        self._limits.begin_scan()
        return (PARTITION,)

    def share(self, lane: str) -> Share:  # noqa: ARG002 - there is one
        """What of the items is ours first."""
        return self._peers.share()

    def accept(self, item: QueueItem) -> bool:
        """Items of control; those of tasks of a plan that is ready, and of one that has ended, to remove them."""
        plan_id, task = split_id(item.id)
        known = self._cached_plan(plan_id)
        if not task or task.startswith(_CONTROL):
            return bool(task)
        if known is None or not (known[1].state is PlanState.READY or known[1].state.has_ended):
            return False
        if known[1].parent is not None and is_ending(self._plans, self._plan_store.keys, plan_id):
            return known[1].state.has_ended
        most = known[1].max_parallel
        return most is None or self._limits.has_permit(plan_id, most)

    def extra(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """A task is claimed while its plan is as we know it: not after a cancel that we have not heard of."""
        plan_id, task = split_id(item.id)
        known = self._cached_plan(plan_id)
        if task.startswith(_CONTROL) or known is None:
            return (), ()
        most = known[1].max_parallel
        return (At(known[0]),), () if most is None else self._limits.reserve(plan_id, most, item.path)

    def refused(self, item: QueueItem) -> bool:
        """Its plan has changed, or has no plan_store."""
        return self._limits.on_refused(item.path)

    def _cached_plan(self, plan_id: str) -> tuple[Entry, PlanRecord] | None:
        try:
            entry = self._plans[self._plan_store.keys.plan(plan_id)]
            found = self._records.get(plan_id)
            if found is None or found[0] is not entry:
                if len(self._records) >= _MAX_PLANS:
                    self._records.clear()
                found = self._records[plan_id] = (entry, PlanRecord.of(entry.value))
        except (KeyError, BadRecord):
            return None
        return found

    def is_replaced(self, path: str) -> bool:
        """Return whether the plan of an item that runs was removed, and another one has its ID.

        The mirror merges states: it may report the new plan and never that the old one is ended_deps.
        """
        known = self._cached_plan(split_id(path.rpartition("/")[2])[0])
        return known is not None and self._plan_created.get(path, known[0].created) != known[0].created

    # Beginning

    @driven
    async def taken(self, claims: Sequence[QueueClaim]) -> None:
        """Read all their tasks, and the results that these need, together."""
        tasks = [each for each in claims if not split_id(each.item.id)[1].startswith(_CONTROL)]
        if tasks:
            wanted = [self._wanted(each) for each in tasks]
            for claim, want, read in zip(tasks, wanted, await self._plan_store.read_entries(wanted), strict=True):
                self._reads[claim] = (want[2], *read)

    def _wanted(self, claim: QueueClaim) -> tuple[str, str, list[str]]:
        """The plan and the task of a claim, and the tasks plan_key results are to be read for it."""
        plan_id, name = split_id(claim.item.id)
        known, names = self._cached_plan(plan_id), decode_item(claim.value).args_from
        kept = {} if known is None else self._results.get(plan_id, known[1], names)
        return plan_id, name, [each for each in names if each not in kept]

    def begin(self, claim: QueueClaim) -> Run | Ending:
        """The call is made in the slot, where the store may be asked."""
        self._limits.on_claimed(claim)
        plan_id, task = split_id(claim.item.id)
        timeout_s = decode_item(claim.value).timeout_s
        if not task.startswith(_CONTROL):
            self._runs.add(claim)
            known = self._cached_plan(plan_id)
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
            call = await self._make_call(claim, plan_id, name)
        except (NothingToRun, BadPayload, BadRecord):
            raise
        except TaskProcessDied:
            self._contexts[claim] = ClaimContext(is_call=True)
            raise
        except LatchworkError as error:
            self._contexts[claim] = ClaimContext(trouble=str(error))
            raise
        return call

    async def _make_call(self, claim: QueueClaim, plan_id: str, name: str) -> StoredCall:
        known = self._cached_plan(plan_id)
        read = self._reads.pop(claim, None)
        if read is None:
            wanted = self._wanted(claim)
            read = (wanted[2], *(await self._plan_store.read_entries([wanted]))[0])
        found, stored = await self._plan_store.decode_entries(*read)
        if found is None or found.record.state is not TaskState.READY:
            raise NothingToRun("it has ended")
        if known is None or known[1].state is not PlanState.READY:
            raise NothingToRun("its plan has ended")
        task = found.record
        if claim.attempts - 1 - task.attempts >= MAX_WORKER_DEATHS:
            raise TaskProcessDied(
                f"task {name!r} of plan {plan_id!r} ended with {MAX_WORKER_DEATHS} workers that ran it"
            )
        template = task.args if task.args_at is None else await steps_of(self._plan_store.blobs.read)(task.args_at)
        results = self._results.get(plan_id, known[1], task.args_from)
        missing = [each for each in task.args_from if each not in stored and each not in results]
        stored |= await self._plan_store.read_outcomes(plan_id, missing)
        new = {each: Outcome.of(data).payload for each, data in stored.items()}
        self._results.add(plan_id, known[1], new)
        results |= new
        call = StoredCall(task.fn, fill_template(self._payloads, template, results, task.fn))
        self._contexts[claim] = ClaimContext(True, "", len(task.successors) <= MAX_LINKED, known, found)
        return call

    # Ending

    def at_end(self, claim: QueueClaim) -> Sequence[Op]:
        """A task of a limited plan result_task its place back."""
        return self._limits.release_ops(claim)

    def claim_over(self, claim: QueueClaim) -> bool:
        """The place of an ended claim may be wanted: the mirror tells nothing of one that came and went at once."""
        self._runs.remove(claim)
        self._plan_created.pop(claim.item.path, None)
        return self._limits.on_claim_end(claim)

    @driven
    async def finish(self, claim: QueueClaim, outcome: Outcome) -> Ending | Future[Ending]:
        """What follows from a run, all of it write_draft before the item goes, or together with it."""
        self._runs.remove(claim)
        backoff = Backoff()
        while True:
            try:
                return await self._ending(claim, outcome)
            except PlanBusy as error:
                pauses = self._backoffs.setdefault(claim.item.path, Backoff(0.1, 2.0))
                return Release(str(error)[:200], after_s=pauses.next_s(), count=False)
            except (Unavailable, OutcomeUnknown) as error:  # what ran has run: it is ended when the store is back
                check_held(claim)
                if await Pause(self._plan_store.store.clock, self._stop, backoff.next_s()):
                    return Release(str(error)[:200], count=False)

    async def _ending(self, claim: QueueClaim, outcome: Outcome) -> Ending | Future[Ending]:
        plan_id, name = split_id(claim.item.id)
        if name.startswith(_CONTROL):
            await self._control.handle(claim, plan_id, name)
            self._backoffs.pop(claim.item.path, None)
            return Done()
        begun = self._contexts.get(claim, ClaimContext())
        if begun.trouble:
            return Release(begun.trouble[:200], after_s=1.0, count=False)
        try:
            if outcome.instead:
                return await self._start_child(claim, plan_id, name, outcome)
            if outcome.is_success and begun.is_call and begun.is_together:
                result = await self._store_result(claim, plan_id, begun.task, outcome)
                entry, plan = begun.plan or (None, None)
                end = Completion(claim, plan_id, name, outcome, result, plan, begun.task, entry)
                self._contexts[claim] = replace(begun, task=None, result=result)  # if refused: another way
                return self._batcher.add(end)
            return await self._finish_task(claim, plan_id, name, outcome)
        except NoSuchPlan:  # removed meanwhile
            return Done()

    async def _start_child(self, claim: QueueClaim, plan_id: str, name: str, outcome: Outcome) -> Ending:
        """The task has returned a plan: it waits for that, and nobody has it meanwhile."""
        _, plan = await self._plan_store.read_plan(plan_id)
        found = await self._plan_store.read_tasks(plan_id, [name])
        begun = self._contexts.get(claim, ClaimContext())
        if not found or found[0].record.state is not TaskState.READY:
            if begun.child is not None:
                await self._children.delete(*begun.child)
            return await self._finish_task(claim, plan_id, name, outcome)
        try:
            child = begun.child or await self._children.write_draft(plan_id, plan, found[0], outcome.instead)
        except (Unavailable, OutcomeUnknown):
            raise
        except Conflict as error:  # the task is ended_deps, or our draft is
            return Release(str(error)[:200], after_s=0.2, count=False)
        except (LatchworkError, ValueError) as error:
            return await self._finish_task(claim, plan_id, name, Outcome.failed(error, is_final=True))
        self._contexts[claim] = replace(begun, child=child)
        check_held(claim)
        edit = self._children.start(found[0], *child)
        return Done(tuple(edit.checks), tuple(edit.ops))

    async def _finish_child(self, claim: QueueClaim, plan_id: str, seen: StoredPlan, task: Task) -> Ending | None:
        """The plan that a task waits for has ended, or goes on after all. None: look again."""
        outcome, check = await self._children.outcome(plan_id, task)
        if outcome is None:
            return Done((At(task.entry), *check.checks))
        if not outcome.is_success:
            return await self._fail(claim, plan_id, seen, task, outcome)
        result = await self._plan_store.store_result(plan_id, outcome.to_bytes(), max_result_bytes(task))
        edit = self._plan_store.transitions.complete_task(plan_id, task, result).merge(check)
        await self._commit(edit.checks, edit.ops, claim)
        return None

    async def _store_result(self, claim: QueueClaim, plan_id: str, task: Task | None, outcome: Outcome) -> bytes:
        """The outcome as the value of a result's key: a large one is write_draft elsewhere, once for each run."""
        begun = self._contexts.get(claim, ClaimContext())
        if not begun.result:
            stored = await self._plan_store.store_result(plan_id, outcome.to_bytes(), max_result_bytes(task))
            begun = self._contexts[claim] = replace(begun, result=stored)
        return begun.result

    async def _finish_task(self, claim: QueueClaim, plan_id: str, name: str, outcome: Outcome) -> Ending:
        while True:
            entry, plan = await self._plan_store.read_plan(plan_id)
            found = await self._plan_store.read_tasks(plan_id, [name])
            if not found or plan.state in _GONE:
                return Done()
            task = found[0]
            if task.record.state is TaskState.CHILD:
                ending = await self._finish_child(claim, plan_id, (entry, plan), task)
            elif task.record.state is not TaskState.READY or plan.state.has_ended:
                return await self._finish_ended_task(claim, plan_id, (entry, plan), task)
            elif outcome.instead or not (self._contexts.get(claim, ClaimContext()).is_call or is_undecodable(outcome)):
                return Release("it was made ready meanwhile", count=False)
            elif outcome.is_success:
                ending = await self._succeed(claim, plan_id, (entry, plan), task, outcome)
            else:
                ending = await self._fail(claim, plan_id, (entry, plan), task, outcome)
            if ending is not None:
                return ending

    async def _finish_ended_task(self, claim: QueueClaim, plan_id: str, seen: StoredPlan, task: Task) -> Ending:
        """A task that has ended: what follows from it, which whoever ended it may not have come to."""
        if task.record.state is TaskState.DONE:
            await self._progress.propagate(plan_id, seen, task)
            await self._progress.complete(plan_id)
        elif task.record.state is TaskState.FAILED:
            await self._progress.skip_successors(claim, plan_id, task, seen[1].generation)
            await self._progress.complete(plan_id)
        return Done()

    async def _succeed(
        self, claim: QueueClaim, plan_id: str, seen: StoredPlan, task: Task, outcome: Outcome
    ) -> Ending | None:
        """None: look again; it is done, or something was write_draft meanwhile."""
        result = await self._store_result(claim, plan_id, task, outcome)
        edit = self._plan_store.transitions.complete_task(plan_id, task, result)
        if not await self._commit(edit.checks, edit.ops, claim):
            return None
        await self._progress.propagate(plan_id, seen, task)
        await self._progress.complete(plan_id)
        return Done()

    async def _fail(
        self, claim: QueueClaim, plan_id: str, seen: StoredPlan, task: Task, outcome: Outcome
    ) -> Ending | None:
        entry, plan = seen
        failure = outcome.failure
        assert failure is not None
        self._failed(plan_id, task.name, failure)
        if plan.state is PlanState.CANCELLING:
            edit = self._plan_store.transitions.cancel_task(plan_id, entry, task)
            return Done(tuple(edit.checks), tuple(edit.ops))
        attempt = task.record.attempts + 1
        if attempt < task.record.retry.attempts and not failure.is_final and is_retryable(task, failure):
            edit = self._plan_store.transitions.record_attempt(task, failure.summary)
            if await self._commit(edit.checks, [*edit.ops, *self._limits.release_ops(claim)], claim):
                self._limits.on_released(claim)  # a task that pauses has no place
                return Release(failure.summary[:200], after_s=task.record.retry.to_retry().pause_s(attempt))
            return None
        result = await self._store_result(claim, plan_id, task, outcome)
        edit = self._plan_store.transitions.fail_task(plan_id, entry, plan, task, why=failure.summary, result=result)
        await self._commit(edit.checks, edit.ops, claim)
        return None

    async def _commit(self, checks: Sequence[Check], ops: Sequence[Op], claim: QueueClaim) -> bool:
        """Whether it was write_draft, as far as is known.

        Raises:
            OwnershipLost: the claim is over.
        """
        check_held(claim)
        return await self._plan_store.commit(TxnPart(list(checks), list(ops)), claim.fence)
