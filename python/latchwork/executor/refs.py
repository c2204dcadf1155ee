"""Detached tasks, which outlive their submitter and can be read by any process that knows their ID.

A record with the location of the task is written in one transaction with its queue items, so an ID is used only once.
The record and the outcome are kept until the task is forgotten, or until ``result_ttl_s`` has passed.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from msgspec.structs import replace

from latchwork._base.decoding import encode
from latchwork._base.event import Signal
from latchwork.errors import Closed, Conflict, OutcomeUnknown, WaitTimeout
from latchwork.executor.errors import NoSuchTask, TaskCancelled, TaskExists
from latchwork.executor.finished import FinishedTasks, create_finished_ops
from latchwork.executor.items import TaskItem, parse_blob_ref
from latchwork.executor.keys import DETACHED, Keys, task_sort_key
from latchwork.executor.pickers import Picker
from latchwork.executor.placement import TaskPlacer
from latchwork.executor.stored import DetachedTaskRecord, StoredTasks, TaskLocation, TaskState
from latchwork.executor.submitter_session import INLINE_BYTES, build_put_copies_ops
from latchwork.primitives import WorkQueue
from latchwork.store import Backoff, Store
from latchwork.store.steps import Pause, ask, blocking, coroutine_of
from latchwork.tasks import Blobs, Outcome, Payloads
from latchwork.types import Change, Create, Entry, Op

_PATIENCE_S = 30.0


class DetachedTasks:
    """Stores the detached tasks of one executor. Thread-safe.

    Args:
        store: The store.
        keys: The executor's keys.
        payloads: Decodes results.
        result_annotation: Returns the annotation of a function's result, by name.
    """

    def __init__(self, store: Store, keys: Keys, payloads: Payloads, result_annotation: Callable[[str], Any]) -> None:
        self.store = store
        self.keys = keys
        self.payloads = payloads
        self.result_annotation = result_annotation
        self.backlog = WorkQueue(store, keys.backlog)
        self.stored = StoredTasks(store, keys, self.backlog)
        self.finished = FinishedTasks(store, keys, self.stored)
        self.blobs = Blobs(store, keys.data)
        self._placer = TaskPlacer(store, keys)

    def close(self) -> None:
        """Stop watching the executor's members, and close the work queue."""
        self._placer.close()
        self.backlog.close()

    async def put(self, item: TaskItem, picker: Picker, copies: int) -> TaskRef:
        """Store a task under its ID, and return a reference to it. Idempotent for the same call.

        Args:
            item: The task.
            picker: Picks the preferred member.
            copies: Number of copies that may run at a time.
        Raises:
            TaskExists: The ID belongs to a different call.
            NoSuchMember: The only member that may run it is not online.
            Unavailable, OutcomeUnknown: The task is not stored, or its status is unknown.
        """
        digest = hashlib.sha256(f"{item.function}\n".encode() + item.payload).hexdigest()[:32]
        ready = replace(
            item, submitter_id=DETACHED, sort_key=task_sort_key(item.priority, int(time.time() * 1000), DETACHED)
        )
        if len(ready.payload) <= INLINE_BYTES:
            return await self._put_until_known(ready, picker, copies, digest, lambda: None)
        blob = await coroutine_of(self.blobs.write)(DETACHED, ready.payload)
        ready = replace(ready, payload=b"", blob=blob)
        return await self._put_until_known(ready, picker, copies, digest, partial(self.blobs.delete_soon, blob))

    async def _put_until_known(
        self, ready: TaskItem, picker: Picker, copies: int, digest: str, forget: Callable[[], None]
    ) -> TaskRef:
        """Store a task. Retries until this process knows whether the task was stored.

        Args:
            ready: The task.
            picker: Picks the preferred member.
            copies: Number of copies.
            digest: Digest of the call, which identifies a repeated submission.
            forget: Deletes the blob of the task. Called if no stored record can refer to the blob.
        """
        nonce, clock, backoff, is_doubtful = uuid.uuid4().hex, self.store.clock, Backoff(), False
        until = clock.now() + _PATIENCE_S
        while True:
            try:
                placed = replace(ready, partitions=await self._placer.choose_partitions(ready, picker, copies))
                checks = self._placer.build_member_checks(placed.partitions, placed.target)
                await ask(self.store.commit, checks, self._ops(placed, digest, nonce))
            except Conflict as error:
                existing = await ask(self.store.get, self.keys.record_key(ready.id))
                if existing is None:
                    self._placer.record_departed(error.failed)
                    continue
                known = DetachedTaskRecord.from_entry(existing)
                if known.nonce != nonce:
                    forget()
                if known.digest != digest:
                    raise TaskExists(
                        f"task {ready.id!r} is a different call, of {known.function or '?'!r}; use another id"
                    ) from error
            except OutcomeUnknown:
                is_doubtful = True
                if clock.now() >= until:
                    raise
                await Pause(clock, Signal(), backoff.next_s())
                continue
            except Exception:  # also from a user's picker
                if not is_doubtful:
                    forget()
                raise
            return TaskRef(self, ready.id)

    def _ops(self, item: TaskItem, digest: str, nonce: str) -> list[Op]:
        known = DetachedTaskRecord(item.function, item.partitions, item.sort_key, digest, nonce, item.result_ttl_s)
        items = dict.fromkeys(build_put_copies_ops(self.backlog, item))
        return [Create(self.keys.record_key(item.id), encode(known)), *items]


class TaskRef:
    """A reference to a detached task, by ID: ``executor.ref("d.nightly-7")``. Thread-safe.

    Attributes:
        id: The task ID.
    """

    __slots__ = ("_tasks", "id")

    def __init__(self, tasks: DetachedTasks, task_id: str) -> None:
        self.id = task_id
        self._tasks = tasks

    def __repr__(self) -> str:
        return f"<TaskRef {self.id}>"

    @blocking
    async def state(self) -> TaskState:
        """Read the task's current state from the store.

        Raises:
            NoSuchTask: There is no such task.
        """
        location, _ = await self._read_location()
        return await self._tasks.stored.read_state(location)

    @blocking
    async def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the result of the task and return it. It is kept until the task is forgotten or expires.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Raises:
            TimeoutError: The task has not ended in time.
            CancelledError: The task was canceled.
            NoSuchTask: There is no such task, or it was forgotten meanwhile.
            Exception: The exception of the task.
        """
        location, known = await self._read_location()
        entry = await self._wait_for_outcome(location.result_key, known.nonce, timeout_s)
        ref = parse_blob_ref(entry.value)
        value = entry.value if ref is None else await coroutine_of(self._tasks.blobs.read)(ref)
        hint = self._tasks.result_annotation(known.function)
        try:
            return Outcome.from_bytes(value).result(self._tasks.payloads, hint, f"the result of {known.function!r}")
        except TaskCancelled as error:
            raise CancelledError(str(error)) from None

    async def _wait_for_outcome(self, key: str, nonce: str, timeout_s: float | None) -> Entry:
        """Wait for the outcome of the task, and return its entry.

        The record of the task is watched too. A watch may miss an outcome that is written and deleted quickly, and then
        another task may have the same ID.

        Args:
            key: Key of the outcome.
            nonce: Random ID in the record of the task, which distinguishes it from other tasks with the same ID.
            timeout_s: Seconds to wait; None waits forever.
        """
        clock, store = self._tasks.store.clock, self._tasks.store
        until = None if timeout_s is None else clock.now() + timeout_s
        forgotten = Signal()

        def look(batch: Sequence[Change]) -> None:
            entry = batch[-1].entry if batch else None
            if entry is None or DetachedTaskRecord.from_entry(entry).nonce != nonce:
                forgotten.set()
                watch.close()

        with store.watch(key) as watch, store.watch(self._tasks.keys.record_key(self.id)) as record:
            record.subscribe(look)
            while True:
                left_s = None if until is None else max(0.0, until - clock.now())
                try:
                    batch = await coroutine_of(watch.next)(left_s)
                except WaitTimeout:
                    raise TimeoutError(f"task {self.id} has not ended within {timeout_s:g} s") from None
                except Closed:
                    if forgotten.is_set():
                        raise self._unknown_error() from None
                    raise
                found = [change.entry for change in batch if change.entry is not None]
                if found:
                    return found[-1]

    @blocking
    async def cancel(self, *, interrupt: bool = False) -> bool:
        """Cancel the task and remove its copies from the queue. A wait for its result then raises ``CancelledError``.

        Args:
            interrupt: Also cancel a running task: signal it to stop, and drop its result.
        Returns:
            Whether the task was canceled. False if it has ended, or is running and ``interrupt`` is not set.
        """
        location, _ = await self._read_location()
        cancelled = Outcome.from_exception(TaskCancelled(f"task {self.id} was cancelled"))
        ops = [
            Create(location.result_key, cancelled.to_bytes()),
            *create_finished_ops(self._tasks.keys, location, cancelled),
        ]
        return await self._tasks.stored.remove(
            location, None, interrupt=interrupt, has_outcome=lambda: False, ops=lambda: ops
        )

    @blocking
    async def forget(self) -> bool:
        """Delete the record and the result of the task. Return False if there is no such task.

        Raises:
            LatchworkError: The task has not ended. Cancel it first.
        """
        return await self._tasks.finished.forget(self.id)

    async def _read_location(self) -> tuple[TaskLocation, DetachedTaskRecord]:
        entry = await ask(self._tasks.store.get, self._tasks.keys.record_key(self.id))
        if entry is None:
            raise self._unknown_error()
        known = DetachedTaskRecord.from_entry(entry)
        return known.to_location(self._tasks.keys, self.id), known

    def _unknown_error(self) -> NoSuchTask:
        return NoSuchTask(
            f"no detached task {self.id!r} is known; it was never submitted here, was forgotten, or has expired"
        )
