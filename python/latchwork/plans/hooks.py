"""Callbacks by which a worker loop runs the queue items of plans: the call to run for an item, and how its claim ends.

The queue item of a task stays claimed until all consequences of the task's end are written. If a worker dies before
that, the item of a done task becomes free, and the next worker only updates the successors.

The results of done tasks never change. Small results are therefore cached up to a total size, and the least recently
used ones are dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.errors import BadRecord, Conflict, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.plans.completion import CallTracker, Completion, CompletionBatcher
from latchwork.plans.control import ChildPlans, PlanBusy, PlanControl
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import PARTITION, split_item_id
from latchwork.plans.permits import ParallelLimiter
from latchwork.plans.plan_store import PlanStore
from latchwork.plans.propagation import EagerClaimer, Propagation, check_held
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState, decode_item_settings, max_result_bytes
from latchwork.plans.task_sharding import WorkerSharding
from latchwork.plans.transitions import MAX_LINKED, StoredPlan, TxnPart
from latchwork.plans.wakeups import is_plan_ending
from latchwork.primitives import ConsumerShard, QueueClaim, QueueItem
from latchwork.store import Backoff, Mirror
from latchwork.store.steps import Pause, blocking, coroutine_of
from latchwork.tasks import (
    BadPayload,
    Done,
    Failure,
    Outcome,
    Payloads,
    Release,
    Run,
    Settlement,
    StoredCall,
    TaskProcessDied,
    WorkerHooks,
    fill_template,
    type_name,
)
from latchwork.types import At, Check, Entry, Op

#: Maximum size of a cached result, and of all of them, in bytes.
_MAX_EACH, _MAX_BYTES = 4_000, 8_000_000
#: Overhead of one cached result in bytes.
_COST = 200
#: Identifies one life of a plan: another plan with the same ID has another nonce.
_PlanKey = tuple[str, int, str]

#: A task fails after so many workers have died while running it.
MAX_WORKER_DEATHS = 5
_CONTROL = "@"
#: Maximum number of cached plan records.
_MAX_PLANS = 1_000
_GONE = frozenset({PlanState.REMOVING, PlanState.DRAFT})
#: What was read for a claim: names of results, the entry of its task, and the entries of the results.
_ClaimReads = tuple[list[str], "Entry | None", "list[Entry | None]"]


class NothingToRun(LatchworkError):
    """The item needs no call: it is a control operation, or its task has ended."""


class ClaimContext(Struct, frozen=True):
    """What a worker knows about the call of a claim.

    Attributes:
        is_call: Whether the call was made.
        trouble: Error of the store while the call was prepared; empty if there was none.
        is_batched: Whether the task is completed in a batch with others, because it has few successors.
        plan, task: Plan and task as they were read; no task after a batched completion was tried.
        result: The stored form of the outcome, once it exists.
        child: ID and entry of the draft of a returned child plan, once it is written.
    """

    is_call: bool = False
    trouble: str = ""
    is_batched: bool = False
    plan: tuple[Entry, PlanRecord] | None = None
    task: Task | None = None
    result: bytes = b""
    child: tuple[str, Entry] | None = None


def is_undecodable(outcome: Outcome) -> bool:
    """Return whether a call failed because its stored data could not be decoded, so that every worker would fail."""
    failure = outcome.failure
    return failure is not None and failure.name in (BadPayload.__name__, BadRecord.__name__)


def is_retryable(task: Task, failure: Failure) -> bool:
    """Return whether the retry policy of a task covers an exception. An exception whose class is unknown here is
    covered.
    """
    kind = failure.loaded_class
    names = task.record.retry.on
    return kind is None or any(type_name(each) in names for each in kind.__mro__)


class ResultCache:
    """A cache of the results of done tasks. Thread-safe.

    Use it only for dependencies of a ready task. Other results may be failures, which a recovery deletes.

    Args:
        max_bytes: Maximum total size of the cached results.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._mutex = mutex()
        self._kept: OrderedDict[tuple[_PlanKey, str], bytes] = OrderedDict()
        self._bytes = 0
        self._names: dict[str, set[tuple[_PlanKey, str]]] = {}

    def get(self, plan_id: str, plan: PlanRecord, names: Iterable[str]) -> dict[str, bytes]:
        """Return the cached payloads of tasks, by name. Tasks that are not cached are left out.

        Args:
            plan_id: ID of the plan.
            plan: Its record, which identifies it among plans that had the same ID.
            names: Names of the tasks.
        """
        plan_key, found = _plan_key(plan_id, plan), {}
        with self._mutex:
            for name in names:
                payload = self._kept.get((plan_key, name))
                if payload is not None:
                    self._kept.move_to_end((plan_key, name))
                    found[name] = payload
        return found

    def add(self, plan_id: str, plan: PlanRecord, payloads: Mapping[str, bytes]) -> None:
        """Cache the payloads that are small enough.

        Args:
            plan_id: ID of the plan.
            plan: Its record, which identifies it among plans that had the same ID.
            payloads: Encoded results by task name.
        """
        plan_key = _plan_key(plan_id, plan)
        with self._mutex:
            for name, payload in payloads.items():
                if len(payload) <= _MAX_EACH and (plan_key, name) not in self._kept:
                    self._kept[plan_key, name] = payload
                    self._names.setdefault(plan_id, set()).add((plan_key, name))
                    self._bytes += len(payload) + _COST
            while self._bytes > self._max_bytes:
                self._drop(next(iter(self._kept)))

    def drop_plan_cache(self, plan_id: str) -> None:
        """Drop the results of a plan that has ended."""
        with self._mutex:
            for key in self._names.get(plan_id, set()).copy():
                self._drop(key)

    def _drop(self, key: tuple[_PlanKey, str]) -> None:
        self._bytes -= len(self._kept.pop(key)) + _COST
        names = self._names[key[0][0]]
        names.discard(key)
        if not names:
            del self._names[key[0][0]]


def _plan_key(plan_id: str, plan: PlanRecord) -> _PlanKey:
    return plan_id, plan.started_ms, plan.nonce


class PlanHooks(WorkerHooks):
    """The callbacks of the worker loop for queue items of plans. Thread-safe.

    Args:
        plan_store: Access to the stored plans.
        plans: Mirror of the records of all plans: a local copy that follows the store.
        payloads: Decodes arguments and results.
        propagation: Updates successors and plans.
        control: Executes control operations.
        failed: Called with the plan, the task and the failure of each failed attempt.
        children: Starts, cancels and recovers child plans.
        limits: Permits of plans with ``max_parallel``.
        peers: Divides the tasks among the workers.
        claimer: Claims tasks that become ready.
        runs: Tracks the running calls.
        stop: Set when the worker closes.
    """

    def __init__(
        self,
        plan_store: PlanStore,
        plans: Mirror,
        *,
        payloads: Payloads,
        propagation: Propagation,
        control: PlanControl,
        failed: Callable[[str, str, Failure], object],
        children: ChildPlans,
        limits: ParallelLimiter,
        peers: WorkerSharding,
        claimer: EagerClaimer,
        runs: CallTracker,
        stop: Signal,
    ) -> None:
        self._plan_store = plan_store
        self._plans = plans
        self._payloads = payloads
        self._propagation = propagation
        self._control = control
        self._on_failed = failed
        self._children = children
        self._limits = limits
        self._peers = peers
        self._claimer = claimer
        self._runs = runs
        self._stop = stop
        self._backoffs: dict[str, Backoff] = {}
        self._contexts: WeakKeyDictionary[QueueClaim, ClaimContext] = WeakKeyDictionary()
        self._reads: WeakKeyDictionary[QueueClaim, _ClaimReads] = WeakKeyDictionary()
        self._results = ResultCache()
        self._records: dict[str, tuple[Entry, PlanRecord]] = {}
        #: Creation token of the plan, by the path of a running item.
        self._plan_created: dict[str, int] = {}
        self._batcher = CompletionBatcher(
            plan_store,
            propagation,
            self._finish_task,
            stop,
            claimer,
            keep_result=self._keep_result,
            expects_more=runs.expects_return_soon,
        )

    def close(self) -> None:
        """Finish the scheduled completions of tasks and accept no more. Idempotent."""
        self._batcher.close()

    def drop_plan_cache(self, plan_id: str) -> None:
        """Drop all cached data of a plan that has ended."""
        self._results.drop_plan_cache(plan_id)
        self._batcher.drop_plan_cache(plan_id)
        self._records.pop(plan_id, None)

    allows_deferred = True

    # Claiming

    def select_partitions(self) -> Sequence[str]:
        """Return the partitions to search, which is always the one partition of the queue. Called once per search."""
        self._limits.begin_search()
        return (PARTITION,)

    def get_preferred_shard(self, partition: str) -> ConsumerShard:  # noqa: ARG002 - there is one
        """Return the shard of the queue that this worker searches first: its share among the workers of these plans."""
        return self._peers.get_shard()

    def should_claim(self, item: QueueItem) -> bool:
        """Return whether to claim an item: a control operation, a task of a ready plan, or a leftover item of an ended
        plan.
        """
        plan_id, task = split_item_id(item.id)
        known = self._cached_plan(plan_id)
        if not task or task.startswith(_CONTROL):
            return bool(task)
        if known is None or not (known[1].state is PlanState.READY or known[1].state.has_ended):
            return False
        if known[1].parent is not None and is_plan_ending(self._plans, self._plan_store.keys, plan_id):
            return known[1].state.has_ended
        most = known[1].max_parallel
        return most is None or self._limits.has_free_permit(plan_id, most)

    def build_claim_ops(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """Return additional checks and writes for the transaction that claims an item.

        They check that the plan has not changed, and take a permit if the plan has ``max_parallel``.
        """
        plan_id, task = split_item_id(item.id)
        known = self._cached_plan(plan_id)
        if task.startswith(_CONTROL) or known is None:
            return (), ()
        most = known[1].max_parallel
        return (At(known[0]),), () if most is None else self._limits.reserve_permit(plan_id, most, item.path)

    def on_claim_refused(self, item: QueueItem) -> bool:
        """Give back the permit that was reserved for an item whose claim was refused.

        Returns:
            Whether to search the queue again.
        """
        return self._limits.on_claim_refused(item.path)

    def _cached_plan(self, plan_id: str) -> tuple[Entry, PlanRecord] | None:
        try:
            entry = self._plans[self._plan_store.keys.plan_key(plan_id)]
            found = self._records.get(plan_id)
            if found is None or found[0] is not entry:
                if len(self._records) >= _MAX_PLANS:
                    self._records.clear()
                found = (entry, PlanRecord.from_bytes(entry.value))
                if not found[1].state.has_ended:
                    self._records[plan_id] = found
        except (KeyError, BadRecord):
            return None
        return found

    def is_plan_replaced(self, path: str) -> bool:
        """Return whether the plan of a running item was removed and another plan has its ID.

        The mirror merges changes, so it may report the new plan without reporting the deletion of the old one.

        Args:
            path: Path of the queue item.
        """
        known = self._cached_plan(split_item_id(path.rpartition("/")[2])[0])
        return known is not None and self._plan_created.get(path, known[0].created) != known[0].created

    # Starting

    @blocking
    async def prepare_claims(self, claims: Sequence[QueueClaim]) -> None:
        """Prefetch the records of newly claimed tasks and the results of their dependencies, in few requests.

        A task that was claimed in the transaction that made it ready is not read: its record is known. ``_make_call``
        reads the results that such a task is missing.
        """
        wanted: dict[QueueClaim, tuple[str, str, list[str]]] = {}
        for claim in claims:
            if split_item_id(claim.item.id)[1].startswith(_CONTROL):
                continue
            entry = self._claimer.pop_written_task_entry(claim)
            if entry is not None:
                self._reads[claim] = ([], entry, [])
            else:
                wanted[claim] = self._find_missing_results(claim)
        if wanted:
            found = await self._plan_store.read_entries(list(wanted.values()))
            for (claim, want), read in zip(wanted.items(), found, strict=True):
                self._reads[claim] = (want[2], *read)

    def _keep_result(self, completion: Completion) -> None:
        if completion.plan is not None:
            self._results.add(completion.plan_id, completion.plan, {completion.name: completion.outcome.payload})

    def _find_missing_results(self, claim: QueueClaim) -> tuple[str, str, list[str]]:
        """Find the results that must be read before the task of a claim can run.

        Returns:
            The ID of the plan, the name of the task, and the names of the tasks whose results are not cached.
        """
        plan_id, name = split_item_id(claim.item.id)
        known, names = self._cached_plan(plan_id), decode_item_settings(claim.value).args_from
        kept = {} if known is None else self._results.get(plan_id, known[1], names)
        return plan_id, name, [each for each in names if each not in kept]

    def prepare_run(self, claim: QueueClaim) -> Run | Settlement:
        """Return the run for a claim. The run reads its arguments in its own thread, where it may use the store."""
        self._limits.assign_permit(claim)
        plan_id, task = split_item_id(claim.item.id)
        timeout_s = decode_item_settings(claim.value).timeout_s
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

    @blocking
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
            wanted = self._find_missing_results(claim)
            read = (wanted[2], *(await self._plan_store.read_entries([wanted]))[0])
        found, stored = await self._plan_store.decode_entries(*read)
        if found is None or found.record.state is not TaskState.READY:
            raise NothingToRun("it has ended")
        if known is None or known[1].state is not PlanState.READY:
            raise NothingToRun("its plan has ended")
        task = found.record
        if claim.attempts - 1 - task.attempts >= MAX_WORKER_DEATHS:
            raise TaskProcessDied(
                f"task {name!r} of plan {plan_id!r} was running when {MAX_WORKER_DEATHS} workers died"
            )
        template = task.args if task.args_at is None else await coroutine_of(self._plan_store.blobs.read)(task.args_at)
        results = self._results.get(plan_id, known[1], task.args_from)
        missing = [each for each in task.args_from if each not in stored and each not in results]
        stored |= await self._plan_store.read_outcomes(plan_id, missing)
        new = {each: Outcome.from_bytes(data).payload for each, data in stored.items()}
        self._results.add(plan_id, known[1], new)
        results |= new
        call = StoredCall(task.fn, fill_template(self._payloads, template, results, task.fn))
        self._contexts[claim] = ClaimContext(True, "", len(task.successors) <= MAX_LINKED, known, found)
        return call

    # Settling claims

    def build_settlement_ops(self, claim: QueueClaim) -> Sequence[Op]:
        """Return the write that frees the ``max_parallel`` permit of a claim. Empty if the plan has no such limit."""
        return self._limits.build_release_ops(claim)

    def on_claim_ended(self, claim: QueueClaim) -> bool:
        """Drop the state of a claim that has ended.

        Returns:
            Whether to search for items again, because the claim released a permit.
        """
        self._runs.remove(claim)
        self._plan_created.pop(claim.item.path, None)
        return self._limits.on_claim_ended(claim)

    @blocking
    async def handle_outcome(self, claim: QueueClaim, outcome: Outcome) -> Settlement | Future[Settlement]:
        """Store the consequences of a finished task, and return how to settle its claim.

        The consequences are stored before the queue item is deleted, or in the same transaction: the task's result or
        failure, tasks that become ready or are skipped, and the end of the plan. Retries while the store is down.
        """
        self._runs.remove(claim)
        backoff = Backoff()
        while True:
            try:
                return await self._handle_outcome(claim, outcome)
            except PlanBusy as error:
                pauses = self._backoffs.setdefault(claim.item.path, Backoff(0.1, 2.0))
                return Release(str(error)[:200], after_s=pauses.next_s(), count=False)
            except (Unavailable, OutcomeUnknown) as error:  # the call has run, so retry until the store is back
                check_held(claim)
                if await Pause(self._plan_store.store.clock, self._stop, backoff.next_s()):
                    return Release(str(error)[:200], count=False)

    async def _handle_outcome(self, claim: QueueClaim, outcome: Outcome) -> Settlement | Future[Settlement]:
        plan_id, name = split_item_id(claim.item.id)
        if name.startswith(_CONTROL):
            await self._control.execute(claim, plan_id, name)
            self._backoffs.pop(claim.item.path, None)
            return Done()
        context = self._contexts.get(claim, ClaimContext())
        if context.trouble:
            return Release(context.trouble[:200], after_s=1.0, count=False)
        try:
            if outcome.deferred:
                return await self._start_child(claim, plan_id, name, outcome)
            if outcome.is_success and context.is_call and context.is_batched:
                result = await self._get_result_value(claim, plan_id, context.task, outcome)
                entry, plan = context.plan or (None, None)
                completion = Completion(claim, plan_id, name, outcome, result, plan, context.task, entry)
                self._contexts[claim] = replace(
                    context, task=None, result=result
                )  # if it is refused, `_finish_task` completes it
                return self._batcher.add(completion)
            return await self._finish_task(claim, plan_id, name, outcome)
        except NoSuchPlan:  # removed in the meantime
            return Done()

    async def _start_child(self, claim: QueueClaim, plan_id: str, name: str, outcome: Outcome) -> Settlement:
        """Start the child plan that a task has returned. The task then waits for it, and no worker holds the task
        meanwhile.
        """
        _, plan = await self._plan_store.read_plan(plan_id)
        found = await self._plan_store.read_tasks(plan_id, [name])
        context = self._contexts.get(claim, ClaimContext())
        if not found or found[0].record.state is not TaskState.READY:
            if context.child is not None:
                await self._children.delete_draft(*context.child)
            return await self._finish_task(claim, plan_id, name, outcome)
        try:
            child = context.child or await self._children.write_draft(plan_id, plan, found[0], outcome.deferred)
        except (Unavailable, OutcomeUnknown):
            raise
        except Conflict as error:  # the task or the draft is gone
            return Release(str(error)[:200], after_s=0.2, count=False)
        except (LatchworkError, ValueError) as error:
            return await self._finish_task(claim, plan_id, name, Outcome.from_exception(error, is_final=True))
        self._contexts[claim] = replace(context, child=child)
        check_held(claim)
        part = self._children.build_child_start(found[0], *child)
        return Done(tuple(part.checks), tuple(part.ops))

    async def _finish_parent_task(
        self, claim: QueueClaim, plan_id: str, stored_plan: StoredPlan, task: Task
    ) -> Settlement | None:
        """End a task that waits for a child plan: with the result of the child plan, or with its failure.

        Args:
            claim: Claim of the task's queue item.
            plan_id: ID of the plan of the task.
            stored_plan: Entry and record of this plan.
            task: The task, which waits for the child plan.
        Returns:
            What to do with the queue item, such as to delete it; None if the task must be read again. If the child plan
            has not ended, the item is deleted, and the end of the child plan creates another one.
        """
        outcome, check = await self._children.read_outcome(plan_id, task)
        if outcome is None:
            return Done((At(task.entry), *check.checks))
        if not outcome.is_success:
            return await self._fail(claim, plan_id, stored_plan, task, outcome)
        result = await self._plan_store.encode_result_value(plan_id, outcome.to_bytes(), max_result_bytes(task))
        part = self._plan_store.transitions.build_completion(plan_id, task, result).merge(check)
        await self._commit(part.checks, part.ops, claim)
        return None

    async def _get_result_value(self, claim: QueueClaim, plan_id: str, task: Task | None, outcome: Outcome) -> bytes:
        """Return the stored form of an outcome. A large outcome is written as a blob, once per execution of
        the task.
        """
        context = self._contexts.get(claim, ClaimContext())
        if not context.result:
            stored = await self._plan_store.encode_result_value(plan_id, outcome.to_bytes(), max_result_bytes(task))
            context = self._contexts[claim] = replace(context, result=stored)
        return context.result

    async def _finish_task(self, claim: QueueClaim, plan_id: str, name: str, outcome: Outcome) -> Settlement:
        while True:
            entry, plan = await self._plan_store.read_plan(plan_id)
            found = await self._plan_store.read_tasks(plan_id, [name])
            if not found or plan.state in _GONE:
                return Done()
            task = found[0]
            if task.record.state is TaskState.CHILD:
                settlement = await self._finish_parent_task(claim, plan_id, (entry, plan), task)
            elif task.record.state is not TaskState.READY or plan.state.has_ended:
                return await self._finish_ended_task(claim, plan_id, (entry, plan), task)
            elif outcome.deferred or not (self._contexts.get(claim, ClaimContext()).is_call or is_undecodable(outcome)):
                return Release("the task has become ready again", count=False)
            elif outcome.is_success:
                settlement = await self._succeed(claim, plan_id, (entry, plan), task, outcome)
            else:
                settlement = await self._fail(claim, plan_id, (entry, plan), task, outcome)
            if settlement is not None:
                return settlement

    async def _finish_ended_task(
        self, claim: QueueClaim, plan_id: str, stored_plan: StoredPlan, task: Task
    ) -> Settlement:
        """Update the successors of a task that has ended, in case the worker that ended it died before it
        could do so.
        """
        if task.record.state is TaskState.DONE:
            await self._propagation.update_successors(plan_id, stored_plan, task)
            await self._propagation.complete_plan(plan_id)
        elif task.record.state is TaskState.FAILED:
            await self._propagation.skip_successors(claim, plan_id, task, stored_plan[1].generation)
            await self._propagation.complete_plan(plan_id)
        return Done()

    async def _succeed(
        self, claim: QueueClaim, plan_id: str, stored_plan: StoredPlan, task: Task, outcome: Outcome
    ) -> Settlement | None:
        """Store the result of a task and update its successors.

        Returns:
            What to do with the queue item, such as to delete it; None if the task must be read again.
        """
        result = await self._get_result_value(claim, plan_id, task, outcome)
        part = self._plan_store.transitions.build_completion(plan_id, task, result)
        if not await self._commit(part.checks, part.ops, claim):
            return None
        await self._propagation.update_successors(plan_id, stored_plan, task)
        await self._propagation.complete_plan(plan_id)
        return Done()

    async def _fail(
        self, claim: QueueClaim, plan_id: str, stored_plan: StoredPlan, task: Task, outcome: Outcome
    ) -> Settlement | None:
        entry, plan = stored_plan
        failure = outcome.failure
        assert failure is not None
        self._on_failed(plan_id, task.name, failure)
        if plan.state is PlanState.CANCELLING:
            part = self._plan_store.transitions.build_task_cancel(plan_id, entry, task)
            return Done(tuple(part.checks), tuple(part.ops))
        attempt = task.record.attempts + 1
        if attempt < task.record.retry.attempts and not failure.is_final and is_retryable(task, failure):
            part = self._plan_store.transitions.build_failed_attempt(task, failure.summary)
            if await self._commit(part.checks, [*part.ops, *self._limits.build_release_ops(claim)], claim):
                self._limits.on_permit_released_early(claim)  # a task that pauses holds no permit
                return Release(failure.summary[:200], after_s=task.record.retry.to_retry().pause_s(attempt))
            return None
        result = await self._get_result_value(claim, plan_id, task, outcome)
        part = self._plan_store.transitions.build_failure(
            plan_id, entry, plan, task, reason=failure.summary, result=result
        )
        await self._commit(part.checks, part.ops, claim)
        return None

    async def _commit(self, checks: Sequence[Check], ops: Sequence[Op], claim: QueueClaim) -> bool:
        """Commit checks and writes together with the fence of the claim.

        Returns:
            Whether they were committed. False if a check failed or the answer was lost.
        Raises:
            OwnershipLost: The claim has ended.
        """
        check_held(claim)
        return await self._plan_store.commit(TxnPart(list(checks), list(ops)), claim.fence)
