"""One task in the store: where it is, what its state is, and how it is taken back.

A task is there as its items, one for each copy, until its outcome is there: one transaction removes all of the first
and makes the second. An item may be moved to the lane of all, and never from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from latchwork.errors import BadRecord, Conflict, OutcomeUnknown
from latchwork.executor.errors import TaskCancelled
from latchwork.executor.items import TaskItem, task_of
from latchwork.executor.keys import ANY, Keys, item_id_of, queued_at_s
from latchwork.primitives import QueueItem, WorkQueue
from latchwork.store import Backoff, Session, Store
from latchwork.store.steps import Pause, Signal, ask, steps_of
from latchwork.tasks import BadPayload, Blobs, Outcome, type_name
from latchwork.types import Check, Op, Put

Phase = Literal["submitted", "queued", "running", "done", "failed", "cancelled", "gone"]

#: Seconds to go on trying to find out how a write ended.
_PATIENCE_S = 30.0
#: So many keys are read in one call.
_TOGETHER = 80


@dataclass(frozen=True, slots=True)
class TaskState:
    """What the store says of a task.

    Attributes:
        phase: ``submitted``: not stored yet; ``queued``; ``running``, also between two tries; ``done``, ``failed``,
            ``cancelled``; ``gone``: nothing of it is there, its result was fetched or it was forgotten.
        running_on: the members that have a copy of it, sorted.
        attempts: how often it was taken, of the copy that was taken most.
        queued_at_s: when it was stored, in Unix seconds by its submitter's clock; 0 when that is not known.
        why: what the last one that gave it back said, or how it failed.
    """

    phase: Phase
    running_on: tuple[str, ...] = ()
    attempts: int = 0
    queued_at_s: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class TaskLocation:
    """Where a task is: what its submitter remembers of it.

    Attributes:
        id: of the task.
        lanes: of its copies.
        shelf: where they are there.
        result_key: where its outcome comes to.
    """

    id: str
    lanes: tuple[str, ...]
    shelf: str
    result_key: str

    @classmethod
    def of(cls, item: TaskItem, keys: Keys) -> TaskLocation:
        """The place of a task as it is stored."""
        return cls(item.id, item.lanes, item.shelf, item.result_key(keys))


class StoredTasks:
    """The tasks of one executor, as they are stored. Safe to share between threads.

    Args:
        store: where it is.
        keys: its keys.
        backlog: its tasks.
    """

    def __init__(self, store: Store, keys: Keys, backlog: WorkQueue) -> None:
        self._store = store
        self._keys = keys
        self._backlog = backlog
        self._blobs = Blobs(store, keys.data)

    def keys_of(self, place: TaskLocation) -> tuple[list[str], list[str]]:
        """The keys of its copies where they were put, and where they may have been moved to."""
        ids = [item_id_of(place.id, copy) for copy in range(len(place.lanes))]
        pairs = list(zip(place.lanes, ids, strict=True))
        first = [self._backlog.key(lane, place.shelf, item) for lane, item in pairs]
        return first, [self._backlog.key(ANY, place.shelf, item) for lane, item in pairs if lane != ANY]

    async def items(self, place: TaskLocation) -> list[QueueItem]:
        """The copies that are there. In this order: one that is moved meanwhile is found, twice at most."""
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
        """Of tasks that may be there, those of which there is neither an item nor an outcome. Looks in this order."""
        left = set(places)
        for look in range(3):
            wanted = [(number, key) for number in sorted(left) for key in self._looked_at(places[number], look)]
            for start in range(0, len(wanted), _TOGETHER):
                part = wanted[start : start + _TOGETHER]
                found = await ask(self._store.get_many, [key for _, key in part])
                left -= {number for (number, _), entry in zip(part, found, strict=True) if entry is not None}
        return left

    def _looked_at(self, place: TaskLocation, look: int) -> list[str]:
        """What to look at first, second and last: where it was put, where it may have been moved to, how it ended."""
        first, moved = self.keys_of(place)
        return (first, moved, [place.result_key])[look]

    async def state(self, place: TaskLocation) -> TaskState:
        """What the store says of a task."""
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
        """Remove a task: False when it is over, or runs and is not to be interrupted.

        What was sent and not answered is sent again until it is known how it ended: it must not land later, when nobody
        counts on it any more.

        Args:
            place: where it is.
            session: by which members are told that they need not go on; None: until they have read it.
            interrupt: also when it runs.
            is_over: whether its outcome was fetched here.
            ops: written in the same transaction.
            checks: must hold too.
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
            except Conflict:  # by an earlier try of ours, perhaps
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
        """Remove tasks, many in one transaction; the numbers of those that were removed. See ``take_back``."""
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
        """Remove a batch; all of it goes to ``alone`` when one of it is not as it was read."""
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
        """The copies that are there, by task. Looks where they were put first, then where they may have been moved."""
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
        """The checks and writes that remove a task, and tell those that run it."""
        parts = [self._backlog.removal(item, if_taken=interrupt) for item in items]
        marks = [
            Put(self._keys.cancel(holder.label, item.id), b"", session)
            for item, holder in zip(items, holders, strict=True)
            if holder is not None and holder.label
        ]
        ops = [*(op for _, each in parts for op in each), *self._blob_of(items[0]), *marks]
        return [check for checks, _ in parts for check in checks], ops

    def _blob_of(self, item: QueueItem) -> list[Op]:
        """The writes that delete what is kept beside a task."""
        try:
            blob = task_of(item.value).blob
        except BadRecord:
            return []
        return [] if blob is None else self._blobs.delete_ops(blob)

    async def _is_taken_back(self, place: TaskLocation, is_over: Callable[[], bool], *, has_tried: bool) -> bool:
        """Of a task without items: whether it has no outcome either, or that of being cancelled, perhaps by our try."""
        entry = await ask(self._store.get, place.result_key)
        if entry is None:
            return not is_over()
        return has_tried and ended(entry.value).phase == "cancelled"

    async def _surely(self, checks: Sequence[Check], ops: Sequence[Op]) -> None:
        """Commit, again and again until it is known how that ended."""
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
    """The state of a task that has this outcome."""
    try:
        outcome = Outcome.of(value)
    except BadPayload as error:
        return TaskState("failed", queued_at_s=at_s, why=str(error))
    if outcome.failure is None:
        return TaskState("done", queued_at_s=at_s)
    is_cancelled = outcome.failure.type_name == CANCELLED
    return TaskState("cancelled" if is_cancelled else "failed", queued_at_s=at_s, why=outcome.failure.summary)


#: The outcome of a task that another client cancelled: a task itself may raise any ``CancelledError``.
CANCELLED = type_name(TaskCancelled)
