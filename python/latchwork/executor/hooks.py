"""Decides which tasks a worker takes, from which lanes, and how each run ends. Performs little I/O.

A worker takes tasks from its own lane, from the lane of all, from the lanes of members that have left and, when idle,
from the lane of the busiest member.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from latchwork._base.interrupts import mutex
from latchwork._base.user_code import call_user
from latchwork.errors import BadRecord, Closed, Conflict, ForkedProcess, LatchworkError
from latchwork.executor.errors import NoSuchMember, TaskDied
from latchwork.executor.finished import mark_ops
from latchwork.executor.items import TaskItem, may_run, other_copies, ref_of, task_of
from latchwork.executor.keys import ANY, DETACHED, Keys, lane_of, member_of
from latchwork.executor.stored import TaskLocation
from latchwork.executor.targets import Member
from latchwork.primitives import QueueClaim, QueueItem, Share, WorkQueue
from latchwork.store import Backoff, Store
from latchwork.store.steps import ask
from latchwork.tasks import (
    PICKLED,
    BlobRef,
    Blobs,
    Bury,
    Done,
    Ending,
    Functions,
    Outcome,
    Release,
    Retry,
    Run,
    StoredCall,
    UnknownFunction,
    WorkerHooks,
    after_failure,
    type_name,
)
from latchwork.types import Check, Committed, Create, Exists, Fence, Op

_log = logging.getLogger(__name__)

#: Larger outcomes are stored as blobs, and their key holds a reference.
INLINE_BYTES = 100_000
#: Number of departed submitters to remember. Their tasks are removed long before they are forgotten.
_MOST_GONE = 10_000
#: Seconds to keep a cancellation mark for a task that has not started here.
MARKED_S = 5.0
_TRIED = re.compile(r"try (\d{1,6}) failed")
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
        self.lane = lane_of(member_id)
        self.functions = functions
        self.allow_pickle = allow_pickle
        self.labels = dict(labels)
        self._accept = accept

    def knows(self, function: str) -> bool:
        """Return whether the worker can run a function."""
        return self.allow_pickle if function == PICKLED else function in self.functions

    def suits(self, item: TaskItem, lane: str, members: Collection[str] | None) -> bool:
        """Return whether to take a task from a lane.

        Args:
            item: The task.
            lane: Its lane.
            members: IDs of the current members; None if unknown. Matters only in lanes of other members.
        """
        if not self.knows(item.function):  # no other member takes from our lane
            return lane == self.lane and not _waits_for(item, self.member_id)
        if self._accept is not None and not call_user(self._accept, item.function):
            return False
        if lane in (ANY, self.lane):
            return may_run(item, self.member_id, self.labels)
        owner = member_of(lane)
        is_gone = members is not None and owner not in members
        target = item.target
        if isinstance(target, Member) and target.id != self.member_id:
            return is_gone and target.otherwise != "wait"  # to run or fail it
        return (is_gone or not item.is_kept) and may_run(item, self.member_id, self.labels)


class ExecutorHooks(WorkerHooks):
    """The hooks of an executor's worker loop.

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
        self._longest: str | None = None
        self._running: dict[str, tuple[str, str]] = {}
        self._marked: dict[str, float] = {}
        self._submitters_gone: set[str] = set()
        self._gone: dict[str, None] = {}

    # Lanes

    def lanes(self) -> Sequence[str]:
        """Return our lane, the lane of all, orphaned lanes, and the lane of the member to help."""
        with self._lock:
            more = [*self._orphans, *([self._longest] if self._longest is not None else [])]
        return [self._node.lane, ANY, *more]

    def waits(self) -> Sequence[str]:
        """Return our lane and the lane of all."""
        return [self._node.lane, ANY]

    def adopt(self, lane: str) -> None:
        """Add a lane whose member has left."""
        with self._lock:
            self._orphans[lane] = None

    def disown(self, lane: str) -> None:
        """Remove a lane that has a member again, or is empty."""
        with self._lock:
            self._orphans.pop(lane, None)

    @property
    def orphans(self) -> list[str]:
        """The lanes without a member from which we take tasks."""
        with self._lock:
            return list(self._orphans)

    def help(self, lane: str | None) -> None:
        """Also take from this lane when idle; None stops helping."""
        with self._lock:
            self._longest = lane

    # Selection

    def share(self, lane: str) -> Share:
        """Return our share of a lane: all of our own lane, and an equal part of the lane of all."""
        if lane == self._node.lane:
            return Share(0, 1)
        members = sorted(self._members() or ())
        if lane != ANY or self._node.member_id not in members:
            return Share()
        return Share(members.index(self._node.member_id), len(members))

    def accept(self, item: QueueItem) -> bool:
        """Return whether to take an item. Invalid items are taken too, so that they can be dead-lettered."""
        lane = item.partition
        try:
            found = task_of(item.value)
        except BadRecord:
            return True
        return self._node.suits(found, lane, None if lane in (ANY, self._node.lane) else self._members())

    def extra(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """Return the check that the task's submitter is online, for the claim's transaction."""
        try:
            return self._wanted(task_of(item.value)), ()
        except BadRecord:
            return (), ()

    def extra_dead(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """Return the writes that go with a dead letter: the task's outcome, for its submitter."""
        try:
            found = task_of(item.value)
        except BadRecord:
            return (), ()
        return (), self._over(found, Outcome.failed(_died(found, item.attempts, item.why)), keep=item.id)

    def refused(self, item: QueueItem) -> bool:
        """Note that the task's submitter is gone, so that its tasks are removed in the background."""
        try:
            sid = task_of(item.value).sid
        except BadRecord:
            return False
        self.note_gone([sid])
        return False

    def note_gone(self, sids: Iterable[str]) -> None:
        """Note submitters that are gone, so that their tasks are removed in the background."""
        with self._lock:
            self._submitters_gone.update(sids)

    def submitters_gone(self) -> list[str]:
        """Return and clear the submitters whose tasks were refused, sorted."""
        with self._lock:
            found, self._submitters_gone = self._submitters_gone, set()
        return sorted(found)

    # Running tasks

    def gone(self, sid: str) -> list[str]:
        """Note that a submitter is gone, and return the paths of its tasks that run here.

        None of its tasks will start here.
        """
        with self._lock:
            self._gone[sid] = None
            if len(self._gone) > _MOST_GONE:
                del self._gone[next(iter(self._gone))]
            return [path for path, owner in self._running.values() if owner == sid]

    def owners(self) -> set[str]:
        """Return the submitters of the tasks that run here, except detached tasks."""
        with self._lock:
            return {owner for _, owner in self._running.values()} - {DETACHED}

    def cancelled(self, item_id: str) -> str | None:
        """Return the path of a cancelled task if it runs here.

        Otherwise prevent it from starting for ``MARKED_S`` seconds.
        """
        now = self._store.clock.now()
        with self._lock:
            found = self._running.get(item_id)
            if found is not None:
                return found[0]
            self._marked = {each: until for each, until in self._marked.items() if until > now}
            self._marked[item_id] = now + MARKED_S
            return None

    def over(self, path: str, item_id: str) -> None:
        """Note that a task no longer runs here."""
        with self._lock:
            if self._running.get(item_id, ("", ""))[0] == path:
                del self._running[item_id]

    # Start and end of a run

    def begin(self, claim: QueueClaim) -> Run | Ending:
        """Return the run for a claim, or its ending if it is not to run."""
        try:
            item = task_of(claim.value)
        except BadRecord as error:
            return Bury(f"it is no task: {error}"[:500])
        target = item.target
        if isinstance(target, Member) and target.id != self._node.member_id and target.otherwise == "fail":
            left = NoSuchMember(f"member {target.id!r} left before it had run task {item.id} of {item.function!r}")
            return self._done(item, Outcome.failed(left), claim)
        if not self._node.knows(item.function):
            return self._elsewhere(item, claim)
        with self._lock:
            if self._marked.pop(claim.item.id, None) is not None:
                return Release("it was cancelled", count=False)
            if item.sid in self._gone:  # it left between our claim and this call
                return Release("its submitter is gone", count=False)
            self._running[claim.item.id] = (claim.item.path, item.sid)
        attempt = tries_of(_why(claim)) + 1
        registered = self._node.functions.get(item.function) if item.function != PICKLED else None
        timeout_s = item.timeout_s or (None if registered is None else registered.timeout_s)
        call = (
            StoredCall(item.function, item.payload)
            if item.blob is None
            else partial(self._call, item.function, item.blob)
        )
        return Run(call, item.id, timeout_s, attempt)

    def _elsewhere(self, item: TaskItem, claim: QueueClaim) -> Ending:
        """Return the ending of a task in our lane whose function we lack.

        The task is released to other members, or fails if only we may run it.
        """
        target = item.target
        if isinstance(target, Member) and target.otherwise == "fail":
            unknown = UnknownFunction.for_name(item.function, (each.name for each in self._node.functions))
            return self._done(item, Outcome.failed(unknown, is_final=True), claim)
        return Release(f"member {self._node.member_id} has no such function", count=False, lane=ANY)

    def _call(self, function: str, blob: BlobRef) -> StoredCall:
        return StoredCall(function, self._blobs.read(blob))

    def finish(self, claim: QueueClaim, outcome: Outcome) -> Ending:
        """Return a retry, or the outcome for the task's submitter."""
        item = task_of(claim.value)
        self.over(claim.item.path, claim.item.id)
        with self._lock:
            if item.sid in self._gone:
                return Release("its submitter is gone", count=False)
        if outcome.failure is None:
            return self._done(item, outcome, claim)
        attempt = tries_of(_why(claim)) + 1
        pause_s = after_failure(self._retry(item), attempt, outcome) if is_retried(item, outcome) else None
        if pause_s is not None:
            why = f"try {attempt} failed on {self._node.member_id}: {outcome.failure.summary}"
            return Release(why[:300], after_s=pause_s, count=False, lane=self._home_of(claim))
        return self._done(item, outcome, claim)

    def lost(self, claim: QueueClaim) -> None:
        """Note that the claim was lost."""
        self.over(claim.item.path, claim.item.id)

    def why(self, claim: QueueClaim, why: str) -> str:
        """Return a release reason that includes the number of failed tries, which is stored nowhere else."""
        return said_with_tries(tries_of(_why(claim)), why)

    def at_last(self, claim: QueueClaim, why: str) -> Sequence[Op]:
        """Return the writes of the outcome of a task that was claimed too often."""
        try:
            item = task_of(claim.value)
        except BadRecord:
            return ()
        return self._over(item, Outcome.failed(_died(item, claim.attempts, why)), keep=claim.item.id)

    def _home_of(self, claim: QueueClaim) -> str | None:
        """Return the lane to which a task is released.

        None keeps its lane. A task from another member's lane goes to the lane of all.
        """
        lane = claim.item.path.partition("/")[0]
        return None if lane in (ANY, self._node.lane) else ANY

    def _retry(self, item: TaskItem) -> Retry:
        """Return the submitter's retry policy, or else the function's."""
        own = _ONCE if item.function == PICKLED else self._node.functions.get(item.function).retry
        return own if item.retry is None else item.retry.to_retry()

    def claim_over(self, claim: QueueClaim) -> bool:
        """Delete the claim's large outcome if no result refers to it."""
        self._large.over(claim)
        return False

    def _done(self, item: TaskItem, outcome: Outcome, claim: QueueClaim) -> Done:
        stored = outcome.to_bytes()
        landed: Callable[..., object] = bool
        if len(stored) > INLINE_BYTES:
            ref = self._large.write(claim, item.sid, item.result_key(self._keys), stored)
            stored, landed = ref.to_bytes(), partial(self._large.named, claim)
        ops = self._ended(item, outcome, stored, keep=claim.item.id)
        return Done(tuple(self._wanted(item)), tuple(ops), landed)

    def _wanted(self, item: TaskItem) -> list[Check]:
        """Return the check that the submitter is online."""
        return [] if item.sid == DETACHED else [Exists(self._keys.sub(item.sid))]

    def _over(self, item: TaskItem, outcome: Outcome, *, keep: str) -> list[Op]:
        """Return the writes of a small outcome, and of the removal of the other copies. The claim removes its copy."""
        return self._ended(item, outcome, outcome.to_bytes(), keep=keep)

    def _ended(self, item: TaskItem, outcome: Outcome, stored: bytes, *, keep: str) -> list[Op]:
        ops: list[Op] = [Create(item.result_key(self._keys), stored)]
        if item.is_detached:
            ops += mark_ops(self._keys, TaskLocation.for_item(item, self._keys), outcome)
        if item.blob is not None:
            ops += self._blobs.delete_ops(item.blob)
        return [*ops, *other_copies(self._backlog, item, keep)]


def _waits_for(item: TaskItem, member_id: str) -> bool:
    """Return whether a task waits until the member with this ID can run it."""
    target = item.target
    return isinstance(target, Member) and target.id == member_id and target.otherwise == "wait"


def _died(item: TaskItem, attempts: int, why: str) -> TaskDied:
    what = f"task {item.id} of {item.function!r}" if item.function else f"task {item.id}"
    return TaskDied(f"{what} was taken {attempts} times and ended never; the last: {why or 'its node died'}")


def is_retried(item: TaskItem, outcome: Outcome) -> bool:
    """Return whether the submitter's policy retries this error; True if it names no exception classes."""
    if outcome.failure is None or item.retry is None:
        return True
    kind = outcome.failure.loaded_class
    names = [outcome.failure.type_name] if kind is None else [type_name(each) for each in kind.__mro__[:-1]]
    on = item.retry.on
    return not set(names).isdisjoint(on) or (kind is None and type_name(Exception) in on)


def tries_of(why: str) -> int:
    """Return the number of failed tries that a release reason records."""
    found = _TRIED.match(why)
    return int(found.group(1)) if found is not None else 0


def said_with_tries(tries: int, why: str) -> str:
    """Prefix a release reason with the number of failed tries. Pure."""
    return f"try {tries} failed; then {why or 'given back'}" if tries > tries_of(why) else why


def _why(claim: QueueClaim) -> str:
    return str(getattr(claim.item, "why", ""))


@dataclass(frozen=True, slots=True)
class _Written:
    ref: BlobRef
    result_key: str


class LargeOutcomes:
    """Large outcomes of one worker's claims. Thread-safe.

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
        """Write the outcome of a claim. Idempotent: a retry returns the first reference."""
        with self._lock:
            found = self._written.get(claim)
        if found is None:
            found = _Written(self._blobs.write(owner, stored), result_key)
            with self._lock:
                self._written[claim] = found
        return found.ref

    def named(self, claim: QueueClaim, done: Committed | None) -> None:
        """Note that a stored result refers to the outcome. After a lost answer ``over`` finds out whether one does."""
        if done is None:
            return
        with self._lock:
            self._written.pop(claim, None)

    def over(self, claim: QueueClaim) -> None:
        """Delete the claim's outcome in the background if no result refers to it. Performs no I/O."""
        if not self._written:
            return
        with self._lock:
            found = self._written.pop(claim, None)
        if found is not None:
            backoff = Backoff(longest_s=_LONGEST_S)
            self._store.cleanup.add(partial(self._clear, found, claim.fence, backoff))

    async def _clear(self, written: _Written, fence: Fence, backoff: Backoff) -> float | None:
        """Check once whether a result refers to the outcome, and delete it if none will. A ``CleanupJob``."""
        try:
            is_named = await self._is_named(written, fence)
        except (Closed, ForkedProcess):
            return None
        except LatchworkError as error:
            _log.info("large value %s is not cleared yet: %s", written.ref.id, error)
            is_named = None
        if is_named is False:
            self._blobs.forget(written.ref)
        return backoff.next_s() if is_named is None else None

    async def _is_named(self, written: _Written, fence: Fence) -> bool | None:
        """Return whether a result refers to the outcome; None while one may still be written.

        Checks the claim first.
        """
        try:
            await ask(self._store.commit, [fence], [])
        except Conflict:  # the claim has ended permanently
            result = await ask(self._store.get, written.result_key)
            return result is not None and ref_of(result.value) == written.ref
        return None
