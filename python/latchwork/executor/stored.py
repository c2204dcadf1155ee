"""Reads, locates and cancels tasks in the store.

A task exists as its items, one per copy, until its outcome exists. One transaction removes all items and creates the
outcome. An item may be moved to the lane of all, and never from there.
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
from latchwork.executor.items import TaskItem, task_of
from latchwork.executor.keys import ANY, DETACHED, Keys, item_id_of, queued_at_s
from latchwork.primitives import QueueItem, WorkQueue
from latchwork.store import Backoff, Session, Store
from latchwork.store.steps import Pause, ask, steps_of
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
        queued_at_s: When it was stored, in Unix seconds by its submitter's clock; 0 if unknown.
        why: Reason of the last release, or how it failed.
    """

    phase: Phase
    running_on: tuple[str, ...] = ()
    attempts: int = 0
    queued_at_s: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class TaskLocation:
    """A task's location, as its submitter remembers it.

    Attributes:
        id: Its task ID.
        lanes: The lane of each copy.
        shelf: The sort key of its copies.
        result_key: The key of its outcome.
        function: Its function's name.
        result_ttl_s: Seconds for which the result of a detached task is kept; None until it is forgotten.
    """

    id: str
    lanes: tuple[str, ...]
    shelf: str
    result_key: str
    function: str = ""
    result_ttl_s: float | None = None

    @property
    def is_detached(self) -> bool:
        """Whether the task outlives its submitter."""
        return self.id.startswith(f"{DETACHED}.")

    @classmethod
    def for_item(cls, item: TaskItem, keys: Keys) -> TaskLocation:
        """Return the location of a stored task."""
        return cls(item.id, item.lanes, item.shelf, item.result_key(keys), item.function, item.result_ttl_s)


class KnownTask(Struct, frozen=True, omit_defaults=True):
    """The record of a detached task.

    Attributes:
        function: Its function's name.
        lanes: The lane of each copy.
        shelf: The sort key of its copies.
        digest: Digest of the call, to detect an ID reused for another call.
        nonce: Unique per submission, to recognize a put whose answer was lost.
        result_ttl_s: Seconds for which its result is kept; None until it is forgotten.
    """

    function: str = field(name="fn")
    lanes: tuple[str, ...]
    shelf: str
    digest: str
    nonce: str
    result_ttl_s: Seconds | None = field(default=None, name="ttl")

    @classmethod
    def from_entry(cls, entry: Entry) -> KnownTask:
        """Parse a record; an unreadable one has no lanes."""
        return _KNOWN.find(entry.value) or cls("", (), "", "", "")

    def place(self, keys: Keys, task_id: str) -> TaskLocation:
        """Return the task's location."""
        return TaskLocation(task_id, self.lanes, self.shelf, keys.outcome(task_id), self.function, self.result_ttl_s)


_KNOWN: Decoder[KnownTask] = Decoder(KnownTask, "a detached task")


class StoredTasks:
    """The stored tasks of one executor. Thread-safe.

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

    def keys_of(self, place: TaskLocation) -> tuple[list[str], list[str]]:
        """Return the keys where a task's copies were put, and the keys to which they may have been moved."""
        ids = [item_id_of(place.id, copy) for copy in range(len(place.lanes))]
        pairs = list(zip(place.lanes, ids, strict=True))
        first = [self._backlog.key(lane, place.shelf, item) for lane, item in pairs]
        return first, [self._backlog.key(ANY, place.shelf, item) for lane, item in pairs if lane != ANY]

    async def items(self, place: TaskLocation) -> list[QueueItem]:
        """Return a task's stored copies. Reads original lanes first, so that a copy moved meanwhile is found."""
        ids = [item_id_of(place.id, copy) for copy in range(len(place.lanes))]
        found: dict[str, QueueItem] = {}
        for lanes in (place.lanes, [ANY] * len(ids)):
            wanted = [(lane, each) for lane, each in zip(lanes, ids, strict=True) if each not in found]
            for lane, each in wanted:
                item = await steps_of(self._backlog.find)(lane, place.shelf, each)
                if item is not None:
                    found[each] = item
        return list(found.values())

    async def missing(self, places: Mapping[int, TaskLocation]) -> set[int]:
        """Return the tasks of which neither an item nor an outcome is stored. Reads items first."""
        left = set(places)
        for look in range(3):
            wanted = [(number, key) for number in sorted(left) for key in self._looked_at(places[number], look)]
            for start in range(0, len(wanted), _TOGETHER):
                part = wanted[start : start + _TOGETHER]
                found = await ask(self._store.get_many, [key for _, key in part])
                left -= {number for (number, _), entry in zip(part, found, strict=True) if entry is not None}
        return left

    def _looked_at(self, place: TaskLocation, look: int) -> list[str]:
        """Return the keys to read in each step: original lanes, then the lane of all, then the outcome."""
        first, moved = self.keys_of(place)
        return (first, moved, [place.result_key])[look]

    async def state(self, place: TaskLocation) -> TaskState:
        """Return the stored state of a task."""
        items = await self.items(place)
        at_s = queued_at_s(place.shelf)
        if items:
            holders = [await steps_of(self._backlog.holder)(item) for item in items]
            running = tuple(sorted(holder.label for holder in holders if holder is not None))
            latest = max(items, key=lambda item: item.attempts)
            return TaskState("running" if running else "queued", running, latest.attempts, at_s, latest.why)
        entry = await ask(self._store.get, place.result_key)
        return TaskState("gone", queued_at_s=at_s) if entry is None else ended(entry.value, at_s)

    async def take_back(
        self,
        place: TaskLocation,
        session: Session | None,
        *,
        interrupt: bool,
        is_over: Callable[[], bool],
        ops: Callable[[], Sequence[Op]] = tuple,
        checks: Sequence[Check] = (),
    ) -> bool:
        """Remove a task; False if it has ended, or runs and may not be interrupted.

        A write whose outcome is unknown is repeated until it is known, so that it cannot take effect later.

        Args:
            place: The task's location.
            session: Owner of the cancellation marks for members; None keeps a mark until the member has read it.
            interrupt: Also remove a running task.
            is_over: Returns whether its outcome was fetched by this client.
            ops: Writes for the same transaction.
            checks: Further checks for the same transaction.
        """
        has_tried = False
        while True:
            items = await self.items(place)
            if not items:
                return await self._is_taken_back(place, is_over, has_tried=has_tried)
            holders = [await steps_of(self._backlog.holder)(item) for item in items]
            if any(holders) and not interrupt:
                return False
            held, writes = self._removal(items, holders, session, interrupt=interrupt)
            try:
                await self._surely([*held, *checks], [*writes, *ops()])
            except Conflict:  # perhaps caused by our own earlier attempt
                has_tried = True
                continue
            return True

    async def take_back_all(
        self,
        places: Mapping[int, TaskLocation],
        session: Session,
        *,
        interrupt: bool,
        is_over: Callable[[int], bool],
    ) -> set[int]:
        """Remove tasks in batches, and return the numbers of the removed ones. See ``take_back``."""
        removed: set[int] = set()
        found = await self._items_of(places)
        flat = [item for items in found.values() for item in items]
        holders: dict[str, Any] = {}
        for start in range(0, len(flat), _TOGETHER):
            part = flat[start : start + _TOGETHER]
            holders.update(zip((item.path for item in part), await steps_of(self._backlog.holders)(part), strict=True))
        alone = [number for number in places if not found[number]]
        batch: dict[int, tuple[list[Check], list[Op]]] = {}
        for number, items in found.items():
            held_by = [holders[item.path] for item in items]
            if not items or (any(held_by) and not interrupt):
                continue
            removal = self._removal(items, held_by, session, interrupt=interrupt)
            if batch and sum(len(ops) for _, ops in [*batch.values(), removal]) > _TOGETHER:
                removed |= await self._removed(batch, alone)
                batch = {}
            batch[number] = removal
        removed |= await self._removed(batch, alone)
        for number in alone:
            over = partial(is_over, number)
            if await self.take_back(places[number], session, interrupt=interrupt, is_over=over):
                removed.add(number)
        return removed

    async def _removed(self, batch: Mapping[int, tuple[list[Check], list[Op]]], alone: list[int]) -> set[int]:
        """Remove a batch; if any of it has changed, add all of it to ``alone``."""
        if not batch:
            return set()
        checks = [check for part, _ in batch.values() for check in part]
        try:
            await self._surely(checks, [op for _, ops in batch.values() for op in ops])
        except Conflict:
            alone += batch
            return set()
        return set(batch)

    async def _items_of(self, places: Mapping[int, TaskLocation]) -> dict[int, list[QueueItem]]:
        """Return the stored copies by task. Reads original lanes first, then the lane of all."""
        found: dict[int, list[QueueItem]] = {number: [] for number in places}
        seen: set[tuple[int, str]] = set()
        for look in (0, 1):
            wanted = [(number, key) for number, place in places.items() for key in self.keys_of(place)[look]]
            for start in range(0, len(wanted), _TOGETHER):
                part = wanted[start : start + _TOGETHER]
                items = await steps_of(self._backlog.find_all)([key for _, key in part])
                for (number, _), item in zip(part, items, strict=True):
                    if item is not None and (number, item.id) not in seen:
                        seen.add((number, item.id))
                        found[number].append(item)
        return found

    def _removal(
        self,
        items: Sequence[QueueItem],
        holders: Sequence[Any],
        session: Session | None,
        *,
        interrupt: bool,
    ) -> tuple[list[Check], list[Op]]:
        """Return the checks and writes that remove a task and signal the members that run it."""
        parts = [self._backlog.removal(item, if_taken=interrupt) for item in items]
        marks = [
            Put(self._keys.cancel(holder.label, item.id), b"", session)
            for item, holder in zip(items, holders, strict=True)
            if holder is not None and holder.label
        ]
        ops = [*(op for _, each in parts for op in each), *self._blob_of(items[0]), *marks]
        return [check for checks, _ in parts for check in checks], ops

    def _blob_of(self, item: QueueItem) -> list[Op]:
        """Return the writes that delete a task's blob."""
        try:
            blob = task_of(item.value).blob
        except BadRecord:
            return []
        return [] if blob is None else self._blobs.delete_ops(blob)

    async def _is_taken_back(self, place: TaskLocation, is_over: Callable[[], bool], *, has_tried: bool) -> bool:
        """Return whether a task without items was cancelled.

        True if no outcome exists or was fetched, or if an earlier attempt of ours cancelled it.
        """
        entry = await ask(self._store.get, place.result_key)
        if entry is None:
            return not is_over()
        return has_tried and ended(entry.value).phase == "cancelled"

    async def _surely(self, checks: Sequence[Check], ops: Sequence[Op]) -> None:
        """Commit, and retry until the outcome is known."""
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


def ended(value: bytes, at_s: float = 0.0) -> TaskState:
    """Return the state of a task with this outcome."""
    try:
        outcome = Outcome.from_bytes(value)
    except BadPayload as error:
        return TaskState("failed", queued_at_s=at_s, why=str(error))
    return state_of(outcome, at_s)


def state_of(outcome: Outcome, at_s: float = 0.0) -> TaskState:
    """Return the state of a task that ended in this way."""
    if outcome.failure is None:
        return TaskState("done", queued_at_s=at_s)
    is_cancelled = outcome.failure.type_name == CANCELLED
    return TaskState("cancelled" if is_cancelled else "failed", queued_at_s=at_s, why=outcome.failure.summary)


#: Type name of the outcome of a task that another client cancelled. A task itself may raise any ``CancelledError``.
CANCELLED = type_name(TaskCancelled)
