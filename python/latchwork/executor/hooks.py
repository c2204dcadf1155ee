"""Callbacks of an executor's worker loop: which tasks a worker claims, from which partitions, and how each run ends.

A worker takes tasks from its own partition of the queue, from the shared one, from those of members that have left and,
when idle, from the partition of the busiest member.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from latchwork._base.interrupts import mutex
from latchwork._base.user_code import call_user
from latchwork.errors import BadRecord, Closed, Conflict, ForkedProcess, InvalidKey, LatchworkError
from latchwork.executor.errors import NoSuchMember, TaskDied
from latchwork.executor.finished import create_finished_ops
from latchwork.executor.items import TaskItem, delete_copies_ops, may_run, parse_blob_ref, parse_task
from latchwork.executor.keys import ANY, DETACHED, ONLY_COPY, Keys, member_partition, parse_task_id, partition_member
from latchwork.executor.stored import TaskLocation
from latchwork.executor.targets import Member
from latchwork.primitives import ConsumerShard, QueueClaim, QueueItem, WorkQueue
from latchwork.store import Backoff, Store
from latchwork.store.steps import ask
from latchwork.tasks import (
    PICKLED,
    BlobRef,
    Blobs,
    DeadLetter,
    Done,
    Functions,
    Outcome,
    Release,
    Retry,
    Run,
    Settlement,
    StoredCall,
    UnknownFunction,
    WorkerHooks,
    retry_pause_s,
    type_name,
)
from latchwork.types import Check, Committed, Create, Exists, Fence, Op, Put

_log = logging.getLogger(__name__)

#: Larger outcomes are stored as blobs, and their key holds a reference.
INLINE_BYTES = 100_000
#: Number of departed submitters to remember. Their tasks are removed long before they are forgotten.
_MOST_GONE = 10_000
#: Seconds to keep a cancellation mark for a task that has not started here.
MARKED_S = 5.0
_ONCE = Retry()
#: Longest pause in seconds between cleanup attempts.
_LONGEST_S = 5.0


class WorkerProfile:
    """Decides which tasks a worker takes, by its functions and labels. Thread-safe.

    Args:
        member_id: The worker's member ID.
        functions: The functions it can run.
        allow_pickle: Whether it runs pickled functions.
        labels: Its labels.
        accept: User callback that decides whether to take a task, given its function's name.
    """

    def __init__(
        self,
        member_id: str,
        functions: Functions,
        *,
        allow_pickle: bool,
        labels: Mapping[str, Any],
        accept: Callable[[str], bool] | None,
    ) -> None:
        self.member_id = member_id
        self.partition = member_partition(member_id)
        self.functions = functions
        self.allow_pickle = allow_pickle
        self.labels = dict(labels)
        self._accept = accept

    def can_run(self, function: str) -> bool:
        """Return whether the worker can run a function, given its name."""
        return self.allow_pickle if function == PICKLED else function in self.functions

    def should_take(self, item: TaskItem, partition: str, members: Collection[str] | None) -> bool:
        """Return whether the worker should take a task from a partition.

        Args:
            item: The task.
            partition: The partition that the task is in.
            members: IDs of the current members; None if unknown. Matters only in partitions of other members.
        """
        if not self.can_run(item.function):  # no other member takes from our partition
            return partition == self.partition and not _is_pinned_to(item, self.member_id)
        if self._accept is not None and not call_user(self._accept, item.function):
            return False
        if partition in (ANY, self.partition):
            return may_run(item, self.member_id, self.labels)
        owner = partition_member(partition)
        is_gone = members is not None and owner not in members
        target = item.target
        if isinstance(target, Member) and target.id != self.member_id:
            return is_gone and target.otherwise != "wait"  # to run or fail it
        return (is_gone or not item.is_kept) and may_run(item, self.member_id, self.labels)


class ExecutorHooks(WorkerHooks):
    """The callbacks of an executor's worker loop. Thread-safe.

    Args:
        store: The store.
        keys: The executor's keys.
        backlog: Its work queue.
        node: The worker's profile.
        members: Returns the IDs of the current members; None if unknown.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        backlog: WorkQueue,
        node: WorkerProfile,
        members: Callable[[], Collection[str] | None],
    ) -> None:
        self._store = store
        self._keys = keys
        self._backlog = backlog
        self._node = node
        self._members = members
        self._blobs = Blobs(store, keys.data)
        self._large = LargeOutcomes(store, self._blobs)
        self._lock = mutex()
        self._orphans: dict[str, None] = {}
        self._helped: str | None = None
        self._running: dict[str, tuple[str, str]] = {}
        self._cancelled_ids: dict[str, float] = {}
        self._departed_found: set[str] = set()
        self._departed: dict[str, None] = {}

    # Partitions

    def select_partitions(self) -> Sequence[str]:
        """Return the partitions from which this worker takes tasks: its own, the shared one, and those of members that
        have left.

        When the worker is idle, also the partition of the member that it helps.
        """
        helped = self._helped
        return [self._node.partition, ANY, *self.orphaned_partitions, *([helped] if helped is not None else [])]

    def list_watched_partitions(self) -> Sequence[str]:
        """Return the partitions whose new tasks wake this worker: its own and the shared one."""
        return [self._node.partition, ANY]

    def add_orphaned_partition(self, partition: str) -> None:
        """Start to take tasks from the partition of a member that has left."""
        with self._lock:
            self._orphans[partition] = None

    def remove_orphaned_partition(self, partition: str) -> None:
        """Stop taking tasks from the partition of a member that has left. Called when the partition is empty."""
        with self._lock:
            self._orphans.pop(partition, None)

    @property
    def orphaned_partitions(self) -> list[str]:
        """The partitions of members that have left, from which this worker also takes tasks. Excludes members that have
        joined again.
        """
        members = self._members() or ()
        with self._lock:
            return [each for each in self._orphans if partition_member(each) not in members]

    def set_helped_partition(self, partition: str | None) -> None:
        """Set the partition of another member from which this worker also takes tasks. None for no such partition."""
        with self._lock:
            self._helped = partition

    # Selection

    def get_preferred_shard(self, partition: str) -> ConsumerShard:
        """Return the shard of a partition that this worker searches first.

        The worker's own partition is a single shard. The shared partition has one shard for each member.
        """
        if partition == self._node.partition:
            return ConsumerShard(0, 1)
        members = sorted(self._members() or ())
        if partition != ANY or self._node.member_id not in members:
            return ConsumerShard()
        return ConsumerShard(members.index(self._node.member_id), len(members))

    def should_claim(self, item: QueueItem) -> bool:
        """Return whether to claim an item. Invalid items are claimed too, so that they can be dead-lettered."""
        partition = item.partition
        try:
            found = parse_task(item.value)
        except BadRecord:
            return True
        return self._node.should_take(
            found, partition, None if partition in (ANY, self._node.partition) else self._members()
        )

    def build_claim_ops(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """Return the check that the submitter of a task is online, for the transaction that claims the task."""
        try:
            return self._submitter_checks(parse_task(item.value)), ()
        except BadRecord:
            return (), ()

    def build_dead_letter_ops(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """Return the checks and writes that store the outcome of a task for its submitter, for the transaction that
        dead-letters the task.
        """
        try:
            found = parse_task(item.value)
        except BadRecord:
            return self._build_undecodable_ops(item)
        return (), self._build_dead_outcome_ops(
            found, Outcome.from_exception(_died(found, item.attempts, item.why)), keep=item.id
        )

    def on_claim_refused(self, item: QueueItem) -> bool:
        """Handle a claim that was refused because the task's submitter is gone: schedule the removal of its tasks.

        Returns:
            Always False: the item will not become claimable.
        """
        try:
            submitter_id = parse_task(item.value).submitter_id
        except BadRecord:
            return False
        self.add_departed([submitter_id])
        return False

    def add_departed(self, submitter_ids: Iterable[str]) -> None:
        """Record submitters that are gone, so that their tasks are removed in the background."""
        with self._lock:
            self._departed_found.update(submitter_ids)

    def pop_departed(self) -> list[str]:
        """Return the recorded submitters that are gone, sorted, and clear the record."""
        with self._lock:
            found, self._departed_found = self._departed_found, set()
        return sorted(found)

    # Running tasks

    def on_submitter_left(self, submitter_id: str) -> list[str]:
        """Prevent the tasks of a submitter from starting on this worker. Return the paths of its tasks that are running
        here.
        """
        with self._lock:
            self._departed[submitter_id] = None
            if len(self._departed) > _MOST_GONE:
                del self._departed[next(iter(self._departed))]
            return [path for path, owner in self._running.values() if owner == submitter_id]

    def list_running_submitters(self) -> set[str]:
        """Return the IDs of the submitters whose tasks are running here. Detached tasks have no submitter."""
        with self._lock:
            return {owner for _, owner in self._running.values()} - {DETACHED}

    def on_cancelled(self, item_id: str) -> str | None:
        """Handle the cancellation of a task. Return the path of its queue item if the task is running here.

        Otherwise return None, and prevent the task from starting here for ``MARKED_S`` seconds.

        Args:
            item_id: ID of its queue item.
        """
        now = self._store.clock.now()
        with self._lock:
            found = self._running.get(item_id)
            if found is not None:
                return found[0]
            self._cancelled_ids = {each: until for each, until in self._cancelled_ids.items() if until > now}
            self._cancelled_ids[item_id] = now + MARKED_S
            return None

    def on_run_ended(self, path: str, item_id: str) -> None:
        """Record that a task is no longer running here.

        Args:
            path: Path of its queue item.
            item_id: ID of its queue item.
        """
        with self._lock:
            if self._running.get(item_id, ("", ""))[0] == path:
                del self._running[item_id]

    # Start and end of a run

    def prepare_run(self, claim: QueueClaim) -> Run | Settlement:
        """Return the call to run for a claim. If this worker must not run the task, return how the claim ends."""
        try:
            item = parse_task(claim.value)
        except BadRecord as error:
            return DeadLetter(str(error)[:500])
        target = item.target
        if isinstance(target, Member) and target.id != self._node.member_id and target.otherwise == "fail":
            left = NoSuchMember(f"member {target.id!r} left before it had run task {item.id} of {item.function!r}")
            return self._done(item, Outcome.from_exception(left), claim)
        if not self._node.can_run(item.function):
            return self._settle_unknown_function(item, claim)
        with self._lock:
            if self._cancelled_ids.pop(claim.item.id, None) is not None:
                return Release("it was cancelled", count=False)
            if item.submitter_id in self._departed:  # it left between our claim and this call
                return Release("its submitter is gone", count=False)
            self._running[claim.item.id] = (claim.item.path, item.submitter_id)
        registered = self._node.functions.get(item.function) if item.function != PICKLED else None
        timeout_s = item.timeout_s or (None if registered is None else registered.timeout_s)
        call = (
            StoredCall(item.function, item.payload)
            if item.blob is None
            else partial(self._call, item.function, item.blob)
        )
        return Run(call, item.id, timeout_s, claim.item.failures + 1)

    def _settle_unknown_function(self, item: TaskItem, claim: QueueClaim) -> Settlement:
        """Return how to settle the claim of a task whose function is not registered on this worker.

        The task fails if only this member may run it. Otherwise it is released to the other members.

        Args:
            item: The task.
            claim: Its claim.
        """
        target = item.target
        if isinstance(target, Member) and target.otherwise == "fail":
            unknown = UnknownFunction.for_name(item.function, (each.name for each in self._node.functions))
            return self._done(item, Outcome.from_exception(unknown, is_final=True), claim)
        return Release(f"member {self._node.member_id} has no such function", count=False, partition=ANY)

    def _call(self, function: str, blob: BlobRef) -> StoredCall:
        return StoredCall(function, self._blobs.read(blob))

    def handle_outcome(self, claim: QueueClaim, outcome: Outcome) -> Settlement:
        """Return how to settle the claim of a finished run: release the task for a retry, or store its outcome for the
        submitter.
        """
        item = parse_task(claim.value)
        self.on_run_ended(claim.item.path, claim.item.id)
        with self._lock:
            if item.submitter_id in self._departed:
                return Release("its submitter is gone", count=False)
        if outcome.failure is None:
            return self._done(item, outcome, claim)
        attempt = claim.item.failures + 1
        pause_s = retry_pause_s(self._retry(item), attempt, outcome) if policy_allows_retry(item, outcome) else None
        if pause_s is not None:
            why = f"attempt {attempt} failed on {self._node.member_id}: {outcome.failure.summary}"[:300]
            partition = self._choose_release_partition(claim)
            return Release(why, after_s=pause_s, count=False, failed=True, partition=partition)
        return self._done(item, outcome, claim)

    def on_claim_lost(self, claim: QueueClaim) -> None:
        """Record that a task is no longer running here, because its claim was lost."""
        self.on_run_ended(claim.item.path, claim.item.id)

    def _choose_release_partition(self, claim: QueueClaim) -> str | None:
        """Return the partition to which a task is released. None leaves the task where it is.

        A task from the partition of another member goes to the shared partition.
        """
        partition = claim.item.path.partition("/")[0]
        return None if partition in (ANY, self._node.partition) else ANY

    def _retry(self, item: TaskItem) -> Retry:
        """Return the retry policy of a task: that of its submitter, or else that of its function."""
        own = _ONCE if item.function == PICKLED else self._node.functions.get(item.function).retry
        return own if item.retry is None else item.retry.to_retry()

    def on_claim_ended(self, claim: QueueClaim) -> bool:
        """Schedule the deletion of the blob that the claim's run has written, unless a stored result refers to it.

        Returns:
            Always False: the end of a claim makes no other item claimable.
        """
        self._large.delete_unreferenced(claim)
        return False

    def _done(self, item: TaskItem, outcome: Outcome, claim: QueueClaim) -> Done:
        stored = outcome.to_bytes()
        on_committed: Callable[..., object] = bool
        if len(stored) > INLINE_BYTES:
            ref = self._large.write(claim, item.submitter_id, item.result_key(self._keys), stored)
            stored, on_committed = ref.to_bytes(), partial(self._large.mark_blob_referenced, claim)
        ops = self._build_outcome_ops(item, outcome, stored, keep=claim.item.id)
        return Done(tuple(self._submitter_checks(item)), tuple(ops), on_committed)

    def _submitter_checks(self, item: TaskItem) -> list[Check]:
        """Return the check that the submitter of a task is online. Empty for a detached task."""
        return [] if item.submitter_id == DETACHED else [Exists(self._keys.submitter_key(item.submitter_id))]

    def _build_dead_outcome_ops(self, item: TaskItem, outcome: Outcome, *, keep: str) -> list[Op]:
        """Return the writes that store the outcome of a dead-lettered task and remove its other copies.

        Args:
            item: The task.
            outcome: Its outcome, a failure that is small enough to be stored without a blob.
            keep: Item ID of the copy that becomes a dead letter.
        """
        return self._build_outcome_ops(item, outcome, outcome.to_bytes(), keep=keep)

    def _build_undecodable_ops(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """Return the writes that fail a task whose queue item cannot be decoded. The item's key contains the task's ID.

        If another copy of the task is in the queue, there are no writes, only a check that the other copy still exists:
        running it gives the task's result.
        """
        task_id, _, copy = item.id.rpartition(".")
        try:
            submitter_id, number = parse_task_id(task_id)
        except InvalidKey:
            return (), ()
        other = self._find_other_copy(task_id, item) if copy != ONLY_COPY else None
        if other is not None:
            return [Exists(other)], ()
        outcome = Outcome.from_exception(BadRecord(f"task {task_id} is stored damaged: {item.why}"), is_final=True)
        is_detached = submitter_id == DETACHED
        key = self._keys.outcome_key(task_id) if is_detached else self._keys.result_key(submitter_id, number)
        location = TaskLocation(task_id, (item.partition,), item.sort_key, key)
        return (), [Put(key, outcome.to_bytes()), *create_finished_ops(self._keys, location, outcome)]

    def _find_other_copy(self, task_id: str, item: QueueItem) -> str | None:
        """Return the key of another stored copy of a task; None if there is none.

        A copy may be moved to the shared partition, and never from there. Therefore the shared partition is read last.
        """
        for partition in sorted({*self._backlog.partitions(), ANY}, key=lambda each: each == ANY):
            prefix = self._backlog.key(partition, item.sort_key, item.id).rpartition("/")[0]
            for name in self._store.children(prefix):
                if name != item.id and name.rpartition(".")[0] == task_id:
                    return f"{prefix}/{name}"
        return None

    def _build_outcome_ops(self, item: TaskItem, outcome: Outcome, stored: bytes, *, keep: str) -> list[Op]:
        ops: list[Op] = [Create(item.result_key(self._keys), stored)]
        if item.is_detached:
            ops += create_finished_ops(self._keys, TaskLocation.from_item(item, self._keys), outcome)
        if item.blob is not None:
            ops += self._blobs.delete_ops(item.blob)
        return [*ops, *delete_copies_ops(self._backlog, item, keep)]


def _is_pinned_to(item: TaskItem, member_id: str) -> bool:
    """Return whether a task may run only on this member, even if it has to wait for the member to be able to run it."""
    target = item.target
    return isinstance(target, Member) and target.id == member_id and target.otherwise == "wait"


def _died(item: TaskItem, attempts: int, why: str) -> TaskDied:
    what = f"task {item.id} of {item.function!r}" if item.function else f"task {item.id}"
    return TaskDied(f"{what} was taken {attempts} times and ended never; the last: {why or 'its node died'}")


def policy_allows_retry(item: TaskItem, outcome: Outcome) -> bool:
    """Return whether the submitter's retry policy covers the exception of a run. True without such a policy.

    Args:
        item: The task.
        outcome: Outcome of the run.
    """
    if outcome.failure is None or item.retry is None:
        return True
    kind = outcome.failure.loaded_class
    names = [outcome.failure.type_name] if kind is None else [type_name(each) for each in kind.__mro__[:-1]]
    on = item.retry.on
    return not set(names).isdisjoint(on) or (kind is None and type_name(Exception) in on)


@dataclass(frozen=True, slots=True)
class _Written:
    ref: BlobRef
    result_key: str


class LargeOutcomes:
    """The large outcomes that one worker has written as blobs, by claim. Thread-safe.

    Args:
        store: The store.
        blobs: Storage of large values.
    """

    def __init__(self, store: Store, blobs: Blobs) -> None:
        self._store = store
        self._blobs = blobs
        self._lock = mutex()
        self._written: dict[QueueClaim, _Written] = {}

    def write(self, claim: QueueClaim, owner: str, result_key: str, stored: bytes) -> BlobRef:
        """Write the outcome of a claim as a blob. Idempotent: a repeated call returns the first reference.

        Args:
            claim: The claim.
            owner: Owner of the blob: the ID of the submitter.
            result_key: Key of the result that will refer to the blob.
            stored: The encoded outcome.
        """
        with self._lock:
            found = self._written.get(claim)
        if found is None:
            found = _Written(self._blobs.write(owner, stored), result_key)
            with self._lock:
                self._written[claim] = found
        return found.ref

    def mark_blob_referenced(self, claim: QueueClaim, done: Committed | None) -> None:
        """Record that a stored result refers to the blob of a large outcome, so that the blob is kept.

        Args:
            claim: The claim of the task.
            done: Result of the commit; None if its answer was lost. Then ``delete_unreferenced`` reads the result.
        """
        if done is None:
            return
        with self._lock:
            self._written.pop(claim, None)

    def delete_unreferenced(self, claim: QueueClaim) -> None:
        """Delete the outcome of an ended claim in the background, unless a result refers to it. Does no I/O."""
        if not self._written:
            return
        with self._lock:
            found = self._written.pop(claim, None)
        if found is not None:
            backoff = Backoff(longest_s=_LONGEST_S)
            self._store.cleanup.add(partial(self._delete_if_unreferenced, found, claim.fence, backoff))

    async def _delete_if_unreferenced(self, written: _Written, fence: Fence, backoff: Backoff) -> float | None:
        """Try once to delete the blob of a large outcome, if no stored result refers to it or ever will. Runs in the
        cleanup thread of the store.

        Args:
            written: The outcome.
            fence: Fence of its claim.
            backoff: Pauses between attempts.
        Returns:
            Seconds until the next attempt; None if no further attempt is needed.
        """
        try:
            is_referenced = await self._is_referenced(written, fence)
        except (Closed, ForkedProcess):
            return None
        except LatchworkError as error:
            _log.info("large value %s is not deleted yet: %s", written.ref.id, error)
            is_referenced = None
        if is_referenced is False:
            self._blobs.delete_soon(written.ref)
        return backoff.next_s() if is_referenced is None else None

    async def _is_referenced(self, written: _Written, fence: Fence) -> bool | None:
        """Return whether a stored result refers to the blob of a large outcome.

        None while the claim is held, because such a result may still be written.
        """
        try:
            await ask(self._store.commit, [fence], [])
        except Conflict:  # the claim has ended permanently
            result = await ask(self._store.get, written.result_key)
            return result is not None and parse_blob_ref(result.value) == written.ref
        return None
