"""Detached tasks that have ended: their list, and the removal of their results after ``result_ttl_s``.

    <name>/finished/<bucket>/<id>      when and how the task ended

The transaction that ends a detached task creates this marker. The transaction that forgets or requeues the task deletes
it. A bucket is the earliest time at which its tasks can expire: submission plus TTL, in steps of four minutes. It
follows from the record of the task, so no search is needed to delete the marker. A sweep lists the buckets and reads
those that are due. Each removal checks the marker, the record and the outcome, so another task that got the same ID
stays.
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
    """The stored marker of a detached task that has ended.

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
        """Return whether the time for which the finished task is kept has passed.

        Args:
            now_ms: Current time in milliseconds since the epoch.
        """
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
    """Return the key of the marker of a detached task that has ended."""
    bucket = _NEVER
    if location.result_ttl_s is not None:
        bucket = f"{int((queued_at_s(location.sort_key) + location.result_ttl_s) * 1000) >> _BUCKET_BITS:010x}"
    return f"{keys.finished}/{bucket}/{location.id}"


def create_finished_ops(keys: Keys, location: TaskLocation, outcome: Outcome) -> list[Op]:
    """Return the write that marks a detached task as ended. Empty for other tasks.

    Args:
        keys: The executor's keys.
        location: Where the task is stored.
        outcome: Outcome of the task.
    """
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
        """Return up to ``limit`` finished tasks. The tasks that expire first come first."""
        found: list[FinishedTask] = []
        for entry in await ask(self._store.list, self._keys.finished, recursive=True, limit=limit):
            mark = _MARK.find(entry.value)
            if mark is not None:
                expires_at_s = None if mark.expires_ms is None else mark.expires_ms / 1000.0
                task_id, at_s = entry.key.rpartition("/")[2], mark.ended_ms / 1000.0
                found.append(FinishedTask(task_id, mark.function, mark.phase, mark.why, at_s, expires_at_s))
        return found

    async def forget(self, task_id: str) -> bool:
        """Delete all stored data of a task that has ended. Return False if there is no such task.

        Raises:
            LatchworkError: The task has not ended.
        """
        while True:
            record, outcome = await ask(
                self._store.get_many, [self._keys.record_key(task_id), self._keys.outcome_key(task_id)]
            )
            if record is None:
                return False
            location = DetachedTaskRecord.from_entry(record).to_location(self._keys, task_id)
            if outcome is None and await self._stored.read_items(location):
                raise LatchworkError(f"task {task_id} has not ended; cancel it before you delete its record")
            checks, ops = self._removal(location, record, outcome)
            try:
                await ask(self._store.commit, checks, [*ops, Delete(finished_key(self._keys, location))])
            except Conflict:  # it ended, or another client forgot it
                continue
            return True

    async def delete_expired(self, now_s: float) -> int:
        """Delete tasks that have expired, at most a few thousand.

        Args:
            now_s: Current time in Unix seconds.
        Returns:
            The number of deleted tasks.
        """
        now_ms, count = now_s * 1000.0, 0
        for bucket in sorted(await ask(self._store.children, self._keys.finished)):
            if bucket == _NEVER or _bucket_start_ms(bucket) > now_ms or count >= _MOST:
                break
            count += await self._delete_finished_below(
                f"{self._keys.finished}/{bucket}", lambda mark: mark.is_expired(now_ms)
            )
        return count

    async def delete_ended_before(self, ended_before_s: float) -> int:
        """Delete the tasks that ended before a time in Unix seconds. Return their number."""
        before_ms = ended_before_s * 1000.0
        return await self._delete_finished_below(self._keys.finished, lambda mark: mark.ended_ms <= before_ms)

    async def _delete_finished_below(self, prefix: str, should_delete: Callable[[FinishedMark], bool]) -> int:
        """Delete finished tasks whose markers are below a key prefix. Unreadable markers are deleted too.

        Args:
            prefix: The prefix.
            should_delete: Returns whether to delete the task of a marker.
        Returns:
            The number of deleted tasks.
        """
        count, after = 0, None
        while True:
            page = await ask(self._store.list, prefix, recursive=True, limit=_PAGE, start_after=after)
            wanted = [each for each in page if (mark := _MARK.find(each.value)) is None or should_delete(mark)]
            for start in range(0, len(wanted), _TOGETHER):
                count += await self._delete_marked_tasks(wanted[start : start + _TOGETHER])
            if len(page) < _PAGE:
                return count
            after = page[-1].key

    async def _delete_marked_tasks(self, marks: Sequence[Entry]) -> int:
        """Delete finished tasks together with their markers. A task that has changed since its marker was read is kept.

        Args:
            marks: Entries of the markers. There is a marker for each finished task.
        Returns:
            The number of deleted tasks.
        """
        ids = [each.key.rpartition("/")[2] for each in marks]
        keys = [key for each in ids for key in (self._keys.record_key(each), self._keys.outcome_key(each))]
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
    """Return the earliest time at which tasks in a bucket expire, in milliseconds since the epoch. 0 for an invalid
    bucket.

    Args:
        bucket: Name of the bucket: a part of the key of each marker.
    """
    try:
        return float(int(bucket, 16) << _BUCKET_BITS)
    except ValueError:
        return 0.0
