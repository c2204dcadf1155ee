"""Detached tasks that have ended: their list, and the removal of their results after ``result_ttl_s``.

       <name>/finished/<bucket>/<id>      when and how the task ended

The transaction that ends a detached task writes this mark. The one that forgets or requeues the task deletes it. A
bucket is the earliest time at which its tasks can expire: submission plus TTL, in steps of four minutes. It follows
from the record of the task, so no search is needed to delete the mark. A sweep lists the buckets and reads the due
ones. Each removal checks the mark, the record and the outcome, so another task that got the same ID stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from msgspec import Struct, field

from latchwork._base.decoding import Count, Decoder, Seconds, encode
from latchwork.errors import Conflict, LatchworkError
from latchwork.executor.items import parse_blob_ref
from latchwork.executor.keys import Keys, queued_at_s
from latchwork.executor.stored import DetachedTaskRecord, StoredTasks, TaskLocation, to_task_state
from latchwork.store import Store
from latchwork.store.steps import ask
from latchwork.tasks import Blobs, Outcome
from latchwork.types import Absent, At, Check, Delete, Entry, Op, Put

EndPhase = Literal["done", "failed", "cancelled"]

#: The bucket of tasks that never expire. It sorts after all others.
_NEVER = "never"
#: Binary logarithm of the width of a bucket in milliseconds: 262 s.
_BUCKET_BITS = 18
#: Tasks to remove in one transaction, marks to read in one call, and tasks to remove in one sweep, about.
_TOGETHER, _PAGE, _MOST = 20, 500, 2_000
_MOST_WHY = 200


class FinishedMark(Struct, frozen=True, omit_defaults=True):
    """The stored note that a detached task has ended, and how.

    Attributes:
        function: Its function's name.
        phase: How it ended.
        ended_ms: When it ended, in milliseconds since the epoch, by the clock of the process that ended it.
        result_ttl_s: Seconds after which it expires; None for never.
        why: Why it failed.
    """

    function: str = field(name="fn")
    phase: EndPhase
    ended_ms: Count = field(name="at")
    result_ttl_s: Seconds | None = field(default=None, name="ttl")
    why: str = ""

    @property
    def expires_ms(self) -> float | None:
        """When the task expires, in milliseconds since the epoch; None for never."""
        return None if self.result_ttl_s is None else self.ended_ms + self.result_ttl_s * 1000.0

    def is_expired(self, now_ms: float) -> bool:
        """Return whether the task has expired at a time in milliseconds since the epoch."""
        return self.expires_ms is not None and self.expires_ms <= now_ms


_MARK: Decoder[FinishedMark] = Decoder(FinishedMark, "a finished task")


@dataclass(frozen=True, slots=True)
class FinishedTask:
    """A detached task that has ended and is still stored.

    Attributes:
        id: Its task ID.
        function: Its function's name; empty if pickled.
        phase: ``done``, ``failed`` or ``cancelled``.
        why: How it failed.
        ended_at_s: When it ended, in Unix seconds by the clock of the process that ended it.
        expires_at_s: When it expires, likewise; None if it is kept until it is forgotten.
    """

    id: str
    function: str
    phase: EndPhase
    why: str
    ended_at_s: float
    expires_at_s: float | None


def finished_key(keys: Keys, location: TaskLocation) -> str:
    """Return the key that marks a detached task as ended."""
    bucket = _NEVER
    if location.result_ttl_s is not None:
        bucket = f"{int((queued_at_s(location.sort_key) + location.result_ttl_s) * 1000) >> _BUCKET_BITS:010x}"
    return f"{keys.finished}/{bucket}/{location.id}"


def create_finished_ops(keys: Keys, location: TaskLocation, outcome: Outcome) -> list[Op]:
    """Return the writes that list a detached task as finished. There are none for other tasks."""
    if not location.is_detached:
        return []
    state = to_task_state(outcome)
    now_ms = int(time.time() * 1000)
    phase = cast("EndPhase", state.phase)
    mark = FinishedMark(location.function, phase, now_ms, location.result_ttl_s, state.why[:_MOST_WHY])
    return [Put(finished_key(keys, location), encode(mark))]


class FinishedTasks:
    """Reads and deletes the detached tasks of one executor that have ended. Thread-safe.

    Args:
        store: The store.
        keys: The executor's keys.
        stored: Its stored tasks.
    """

    def __init__(self, store: Store, keys: Keys, stored: StoredTasks) -> None:
        self._store = store
        self._keys = keys
        self._stored = stored
        self._blobs = Blobs(store, keys.data)

    async def read(self, limit: int) -> list[FinishedTask]:
        """Return up to ``limit`` finished tasks, the first ones to expire first."""
        found: list[FinishedTask] = []
        for entry in await ask(self._store.list, self._keys.finished, recursive=True, limit=limit):
            mark = _MARK.find(entry.value)
            if mark is not None:
                expires_at_s = None if mark.expires_ms is None else mark.expires_ms / 1000.0
                task_id, at_s = entry.key.rpartition("/")[2], mark.ended_ms / 1000.0
                found.append(FinishedTask(task_id, mark.function, mark.phase, mark.why, at_s, expires_at_s))
        return found

    async def forget(self, task_id: str) -> bool:
        """Delete everything that is stored of a finished task. Return False if there is no such task.

        Raises:
            LatchworkError: The task has not ended.
        """
        while True:
            record, outcome = await ask(self._store.get_many, [self._keys.record(task_id), self._keys.outcome(task_id)])
            if record is None:
                return False
            location = DetachedTaskRecord.from_entry(record).to_location(self._keys, task_id)
            if outcome is None and await self._stored.read_items(location):
                raise LatchworkError(f"task {task_id} is not over; cancel it before it is forgotten")
            checks, ops = self._removal(location, record, outcome)
            try:
                await ask(self._store.commit, checks, [*ops, Delete(finished_key(self._keys, location))])
            except Conflict:  # it ended, or another client forgot it
                continue
            return True

    async def forget_expired(self, now_s: float) -> int:
        """Delete tasks that have expired, at most a few thousand. Return their number."""
        now_ms, count = now_s * 1000.0, 0
        for bucket in sorted(await ask(self._store.children, self._keys.finished)):
            if bucket == _NEVER or _bucket_start_ms(bucket) > now_ms or count >= _MOST:
                break
            count += await self._forget_below(f"{self._keys.finished}/{bucket}", lambda mark: mark.is_expired(now_ms))
        return count

    async def forget_older(self, ended_before_s: float) -> int:
        """Delete tasks that ended before a time in Unix seconds. Return their number."""
        before_ms = ended_before_s * 1000.0
        return await self._forget_below(self._keys.finished, lambda mark: mark.ended_ms <= before_ms)

    async def _forget_below(self, prefix: str, chosen: Callable[[FinishedMark], bool]) -> int:
        """Delete the chosen tasks whose marks are below a prefix, and marks that cannot be read. Return the number of
        tasks.
        """
        count, after = 0, None
        while True:
            page = await ask(self._store.list, prefix, recursive=True, limit=_PAGE, start_after=after)
            wanted = [each for each in page if (mark := _MARK.find(each.value)) is None or chosen(mark)]
            for start in range(0, len(wanted), _TOGETHER):
                count += await self._forget_marked(wanted[start : start + _TOGETHER])
            if len(page) < _PAGE:
                return count
            after = page[-1].key

    async def _forget_marked(self, marks: Sequence[Entry]) -> int:
        """Delete the tasks of these marks. Return their number. A task that changes meanwhile is kept."""
        ids = [each.key.rpartition("/")[2] for each in marks]
        keys = [key for each in ids for key in (self._keys.record(each), self._keys.outcome(each))]
        found = await ask(self._store.get_many, keys)
        parts = []
        for mark, task_id, record, outcome in zip(marks, ids, found[::2], found[1::2], strict=True):
            checks: list[Check] = [At(mark)]
            ops: list[Op] = [Delete(mark.key)]
            if record is not None:
                location = DetachedTaskRecord.from_entry(record).to_location(self._keys, task_id)
                if finished_key(self._keys, location) == mark.key:  # else another task has the ID
                    more, deletes = self._removal(location, record, outcome)
                    checks, ops = [*checks, *more], [*ops, *deletes]
            parts.append((checks, ops))
        together = ([check for part, _ in parts for check in part], [op for _, part in parts for op in part])
        try:
            await ask(self._store.commit, *together)
        except Conflict:
            return sum([await self._committed(*part) for part in parts])
        return len(parts)

    async def _committed(self, checks: Sequence[Check], ops: Sequence[Op]) -> bool:
        try:
            await ask(self._store.commit, checks, ops)
        except Conflict:
            return False
        return True

    def _removal(self, location: TaskLocation, record: Entry, outcome: Entry | None) -> tuple[list[Check], list[Op]]:
        """Return the checks and writes that delete the record and the outcome of a task."""
        ref = None if outcome is None else parse_blob_ref(outcome.value)
        same: Check = Absent(location.result_key) if outcome is None else At(outcome)
        blob = [] if ref is None else self._blobs.delete_ops(ref)
        return [At(record), same], [Delete(record.key), Delete(location.result_key), *blob]


def _bucket_start_ms(bucket: str) -> float:
    """Return the time from which tasks in a bucket expire, in milliseconds since the epoch; 0 if the bucket's name is
    unreadable.
    """
    try:
        return float(int(bucket, 16) << _BUCKET_BITS)
    except ValueError:
        return 0.0
