"""Reading, locating and removing of stored tasks.

A task is stored as queue items, one per copy, until it has an outcome. One transaction removes all items and creates
the outcome. An item may be moved to the shared partition, and never from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from msgspec import Struct, field

from latchwork._base.decoding import Decoder, Seconds
from latchwork._base.event import Signal
from latchwork.errors import BadRecord, Conflict, OutcomeUnknown
from latchwork.executor.errors import TaskCancelled
from latchwork.executor.items import TaskItem, parse_task
from latchwork.executor.keys import ANY, DETACHED, Keys, make_item_ids, queued_at_s
from latchwork.primitives import QueueItem, WorkQueue
from latchwork.store import Backoff, Session, Store
from latchwork.store.steps import Pause, ask, coroutine_of
from latchwork.tasks import BadPayload, Blobs, Outcome, type_name
from latchwork.types import Check, Entry, Op, Put

Phase = Literal["submitted", "queued", "running", "done", "failed", "cancelled", "gone"]

#: Seconds to retry a write whose outcome is unknown.
_PATIENCE_S = 30.0
#: Keys to read in one call.
_TOGETHER = 80


@dataclass(frozen=True, slots=True)
class TaskState:
    """The stored state of a task.

    Attributes:
        phase: ``submitted`` (not stored yet), ``queued``, ``running`` (also between two tries), ``done``, ``failed``,
            ``cancelled``, or ``gone`` (its result was fetched or it was forgotten).
        running_on: Members that hold a copy, sorted.
        attempts: Number of claims of the copy claimed most often.
        failures: Number of attempts that raised an error and were retried.
        queued_at_s: When it was stored, in Unix seconds by its submitter's clock; 0 if unknown.
        why: Reason of the last release, or how it failed.
    """

    phase: Phase
    running_on: tuple[str, ...] = ()
    attempts: int = 0
    failures: int = 0
    queued_at_s: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class TaskLocation:
    """Where the items and the outcome of a task are stored.

    Attributes:
        id: Its task ID.
        partitions: The partition of each copy.
        sort_key: The sort key of its copies.
        result_key: The key of its outcome.
        function: Its function's name.
        result_ttl_s: Seconds for which the result of a detached task is kept; None until it is forgotten.
    """

    id: str
    partitions: tuple[str, ...]
    sort_key: str
    result_key: str
    function: str = ""
    result_ttl_s: float | None = None

    @property
    def is_detached(self) -> bool:
        """Whether the task outlives its submitter."""
        return self.id.startswith(f"{DETACHED}.")

    @classmethod
    def from_item(cls, item: TaskItem, keys: Keys) -> TaskLocation:
        """Return the location of the task of a queue item."""
        return cls(item.id, item.partitions, item.sort_key, item.result_key(keys), item.function, item.result_ttl_s)


class DetachedTaskRecord(Struct, frozen=True, omit_defaults=True):
    """The record of a detached task.

    Attributes:
        function: Its function's name.
        partitions: The partition of each copy.
        sort_key: The sort key of its copies.
        digest: Digest of the call, to detect an ID reused for another call.
        nonce: Unique per submission, to recognize a put whose answer was lost.
        result_ttl_s: Seconds for which its result is kept; None until it is forgotten.
    """

    function: str = field(name="fn")
    partitions: tuple[str, ...] = field(name="on")
    sort_key: str = field(name="sort")
    digest: str
    nonce: str
    result_ttl_s: Seconds | None = field(default=None, name="ttl")

    @classmethod
    def from_entry(cls, entry: Entry) -> DetachedTaskRecord:
        """Decode the record of a detached task. An unreadable record has no partitions."""
        return _KNOWN.find(entry.value) or cls("", (), "", "", "")

    def to_location(self, keys: Keys, task_id: str) -> TaskLocation:
        """Return where the queue items and the outcome of the task are stored."""
        return TaskLocation(
            task_id, self.partitions, self.sort_key, keys.outcome_key(task_id), self.function, self.result_ttl_s
        )


_KNOWN: Decoder[DetachedTaskRecord] = Decoder(DetachedTaskRecord, "a detached task")


class StoredTasks:
    """Reads and removes the stored tasks of one executor. Thread-safe.

    Args:
        store: The store.
        keys: The executor's keys.
        backlog: Its work queue.
    """

    def __init__(self, store: Store, keys: Keys, backlog: WorkQueue) -> None:
        self._store = store
        self._keys = keys
        self._backlog = backlog
        self._blobs = Blobs(store, keys.data)

    def list_item_keys(self, location: TaskLocation) -> tuple[list[str], list[str]]:
        """Return the keys of a task's queue items.

        Returns:
            The keys at which the copies were stored, and the keys to which they may have been moved since.
        """
        ids = make_item_ids(location.id, len(location.partitions))
        pairs = list(zip(location.partitions, ids, strict=True))
        first = [self._backlog.key(partition, location.sort_key, item) for partition, item in pairs]
        return first, [self._backlog.key(ANY, location.sort_key, item) for partition, item in pairs if partition != ANY]

    async def read_items(self, location: TaskLocation) -> list[QueueItem]:
        """Read the stored copies of a task."""
        return (await self._read_all_items({0: location}))[0]

    async def find_missing(self, locations: Mapping[int, TaskLocation]) -> set[int]:
        """Return the numbers of the tasks of which neither a queue item nor an outcome is stored.

        Args:
            locations: Where the tasks are stored, by number.
        """
        left = set(locations)
        for look in range(3):
            wanted = [(number, key) for number in sorted(left) for key in self._keys_for_step(locations[number], look)]
            for start in range(0, len(wanted), _TOGETHER):
                part = wanted[start : start + _TOGETHER]
                found = await ask(self._store.get_many, [key for _, key in part])
                left -= {number for (number, _), entry in zip(part, found, strict=True) if entry is not None}
        return left

    def _keys_for_step(self, location: TaskLocation, step: int) -> list[str]:
        """Return the keys of a task to read in one step of a search.

        Args:
            location: Where the task is stored.
            step: 0 for the original partitions, 1 for the shared partition, 2 for the outcome.
        """
        first, moved = self.list_item_keys(location)
        return (first, moved, [location.result_key])[step]

    async def read_state(self, location: TaskLocation) -> TaskState:
        """Read the current state of a task."""
        items = await self.read_items(location)
        at_s = queued_at_s(location.sort_key)
        if items:
            holders = await coroutine_of(self._backlog.holders)(items)
            running = tuple(sorted(holder.label for holder in holders if holder is not None))
            latest = max(items, key=lambda item: item.attempts)
            failures = max(item.failures for item in items)
            return TaskState("running" if running else "queued", running, latest.attempts, failures, at_s, latest.why)
        entry = await ask(self._store.get, location.result_key)
        return TaskState("gone", queued_at_s=at_s) if entry is None else decode_final_state(entry.value, at_s)

    async def remove(
        self,
        location: TaskLocation,
        session: Session | None,
        *,
        interrupt: bool,
        has_outcome: Callable[[], bool],
        ops: Callable[[], Sequence[Op]] = tuple,
    ) -> bool:
        """Remove a task from the store.

        A write whose outcome is unknown is repeated until it is known, so that it cannot take effect later.

        Args:
            location: Where the task is stored.
            session: Session that the requests to stop running copies are bound to; None keeps a request until the
                member has read it.
            interrupt: Also remove a running task.
            has_outcome: Returns whether this client has already fetched the outcome of the task.
            ops: Returns additional writes for the same transaction.
        Returns:
            Whether the task was removed. False if it has ended, or is running and ``interrupt`` is not set.
        """
        has_tried = False
        while True:
            items = await self.read_items(location)
            if not items:
                return await self._was_cancelled(location, has_outcome, has_tried=has_tried)
            holders = await coroutine_of(self._backlog.holders)(items)
            if any(holders) and not interrupt:
                return False
            held, writes = self._removal_parts(items, holders, session, interrupt=interrupt)
            try:
                await self._commit_until_known(held, [*writes, *ops()])
            except Conflict:  # perhaps caused by our own earlier attempt
                has_tried = True
                continue
            return True

    async def remove_all(
        self,
        locations: Mapping[int, TaskLocation],
        session: Session,
        *,
        interrupt: bool,
        has_outcome: Callable[[int], bool],
    ) -> set[int]:
        """Remove tasks from the store, in batches.

        Args:
            locations: Where the tasks are stored, by number.
            session: Session that the requests to stop running copies are bound to.
            interrupt: Also remove running tasks.
            has_outcome: Returns whether this client has already fetched the outcome of a task.
        Returns:
            The numbers of the removed tasks.
        """
        removed: set[int] = set()
        found = await self._read_all_items(locations)
        flat = [item for items in found.values() for item in items]
        holders: dict[str, Any] = {}
        for start in range(0, len(flat), _TOGETHER):
            part = flat[start : start + _TOGETHER]
            holders.update(
                zip((item.path for item in part), await coroutine_of(self._backlog.holders)(part), strict=True)
            )
        alone = [number for number in locations if not found[number]]
        batch: dict[int, tuple[list[Check], list[Op]]] = {}
        for number, items in found.items():
            claim_holders = [holders[item.path] for item in items]
            if not items or (any(claim_holders) and not interrupt):
                continue
            removal = self._removal_parts(items, claim_holders, session, interrupt=interrupt)
            if batch and sum(len(ops) for _, ops in [*batch.values(), removal]) > _TOGETHER:
                removed |= await self._remove_batch(batch, alone)
                batch = {}
            batch[number] = removal
        removed |= await self._remove_batch(batch, alone)
        for number in alone:
            over = partial(has_outcome, number)
            if await self.remove(locations[number], session, interrupt=interrupt, has_outcome=over):
                removed.add(number)
        return removed

    async def _remove_batch(self, batch: Mapping[int, tuple[list[Check], list[Op]]], alone: list[int]) -> set[int]:
        """Remove a batch of tasks in one transaction.

        Args:
            batch: Checks and writes by number of the task.
            alone: If the transaction is refused, the numbers of the tasks are added to this list, to be removed
                separately.
        Returns:
            The numbers of the removed tasks.
        """
        if not batch:
            return set()
        checks = [check for part, _ in batch.values() for check in part]
        try:
            await self._commit_until_known(checks, [op for _, ops in batch.values() for op in ops])
        except Conflict:
            alone += batch
            return set()
        return set(batch)

    async def _read_all_items(self, locations: Mapping[int, TaskLocation]) -> dict[int, list[QueueItem]]:
        """Read the stored copies of several tasks, by number.

        The original partitions are read before the shared partition, so that a copy that is moved meanwhile is found.
        """
        found: dict[int, list[QueueItem]] = {number: [] for number in locations}
        for look in (0, 1):
            wanted = [
                (number, key)
                for number, location in locations.items()
                if len(found[number]) < len(location.partitions)
                for key in self.list_item_keys(location)[look]
            ]
            for start in range(0, len(wanted), _TOGETHER):
                part = wanted[start : start + _TOGETHER]
                items = await coroutine_of(self._backlog.find_all)([key for _, key in part])
                for (number, _), item in zip(part, items, strict=True):
                    if item is not None and item.id not in {each.id for each in found[number]}:
                        found[number].append(item)
        return found

    def _removal_parts(
        self,
        items: Sequence[QueueItem],
        holders: Sequence[Any],
        session: Session | None,
        *,
        interrupt: bool,
    ) -> tuple[list[Check], list[Op]]:
        """Return the checks and writes that remove a task and ask the members that run it to stop.

        Args:
            items: Stored copies of the task.
            holders: For each copy, the claim of the member that runs it, or None.
            session: Session that the requests to stop are bound to; None for no session.
            interrupt: Whether to remove the task although it is running.
        """
        parts = [self._backlog.removal_ops(item, even_if_claimed=interrupt) for item in items]
        marks = [
            Put(self._keys.cancel_key(holder.label, item.id), b"", session)
            for item, holder in zip(items, holders, strict=True)
            if holder is not None and holder.label
        ]
        ops = [*(op for _, each in parts for op in each), *self._build_blob_deletion(items[0]), *marks]
        return [check for checks, _ in parts for check in checks], ops

    def _build_blob_deletion(self, item: QueueItem) -> list[Op]:
        """Return the operations that delete the blob of a task. Empty if it has no blob."""
        try:
            blob = parse_task(item.value).blob
        except BadRecord:
            return []
        return [] if blob is None else self._blobs.delete_ops(blob)

    async def _was_cancelled(self, location: TaskLocation, has_outcome: Callable[[], bool], *, has_tried: bool) -> bool:
        """Return whether a task without stored copies was canceled.

        That is so if it has no outcome and none was fetched, or if an earlier attempt of this client has canceled it.

        Args:
            location: Where the task is stored.
            has_outcome: Returns whether this client has already fetched the outcome of the task.
            has_tried: Whether there was an earlier attempt.
        """
        entry = await ask(self._store.get, location.result_key)
        if entry is None:
            return not has_outcome()
        return has_tried and decode_final_state(entry.value).phase == "cancelled"

    async def _commit_until_known(self, checks: Sequence[Check], ops: Sequence[Op]) -> None:
        """Commit a transaction, and retry until its outcome is known."""
        clock, backoff = self._store.clock, Backoff()
        until = clock.now() + _PATIENCE_S
        while True:
            try:
                await ask(self._store.commit, checks, ops)
            except OutcomeUnknown:
                if clock.now() >= until:
                    raise
                await Pause(clock, Signal(), backoff.next_s())
            else:
                return


def decode_final_state(value: bytes, at_s: float = 0.0) -> TaskState:
    """Return the state of a task that has ended, from its stored outcome.

    Args:
        value: The stored outcome.
        at_s: When the task was queued, in Unix seconds.
    """
    try:
        outcome = Outcome.from_bytes(value)
    except BadPayload as error:
        return TaskState("failed", queued_at_s=at_s, why=str(error))
    return to_task_state(outcome, at_s)


def to_task_state(outcome: Outcome, at_s: float = 0.0) -> TaskState:
    """Return the state of a task that ended with this outcome.

    Args:
        outcome: The outcome.
        at_s: When the task was queued, in Unix seconds.
    """
    if outcome.failure is None:
        return TaskState("done", queued_at_s=at_s)
    is_cancelled = outcome.failure.type_name == CANCELLED
    return TaskState("cancelled" if is_cancelled else "failed", queued_at_s=at_s, why=outcome.failure.summary)


#: Type name of the outcome of a task that another client canceled. A task itself may raise any ``CancelledError``.
CANCELLED = type_name(TaskCancelled)
