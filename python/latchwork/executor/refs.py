"""Detached tasks: they outlive who submitted them, and are known to every process by their id.

What is written: a record that says where the task was put, with its items, in one transaction; so an id is put once.
Record and outcome stay until somebody forgets them.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from latchwork._base.decoding import Decoder, encode
from latchwork.errors import Closed, Conflict, LatchworkError, OutcomeUnknown, WaitTimeout
from latchwork.executor.errors import NoSuchTask, TaskCancelled, TaskExists
from latchwork.executor.items import TaskItem, ref_of
from latchwork.executor.keys import DETACHED, Keys, shelf_of
from latchwork.executor.pickers import Picker
from latchwork.executor.placing import Placing
from latchwork.executor.stored import StoredTasks, TaskLocation, TaskState
from latchwork.executor.submitter_session import INLINE_BYTES, copies_ops
from latchwork.primitives import WorkQueue
from latchwork.store import Backoff, Store
from latchwork.store.steps import Pause, Signal, ask, driven, steps_of
from latchwork.tasks import Blobs, Outcome, Payloads
from latchwork.types import Absent, At, Change, Check, Create, Delete, Entry, Op

_PATIENCE_S = 30.0


class KnownTask(Struct, frozen=True):
    """What the record of a detached task says.

    Attributes:
        function: its name.
        lanes: where its copies were put.
        shelf: where they are there.
        digest: of the call: the same id must not have another one.
        nonce: of who put it: a put whose answer was lost is known by it.
    """

    function: str = field(name="fn")
    lanes: tuple[str, ...]
    shelf: str
    digest: str
    nonce: str


_KNOWN: Decoder[KnownTask] = Decoder(KnownTask, "a detached task")
#: Takes the place of a record that cannot be read.
_UNKNOWN = KnownTask("", (), "", "", "")


class Detached:
    """The detached tasks of one executor. Safe to share between threads.

    Args:
        store: the store.
        keys: its keys.
        payloads: how results are read.
        hint_of: the annotation of a function's result, by its name.
    """

    def __init__(self, store: Store, keys: Keys, payloads: Payloads, hint_of: Callable[[str], Any]) -> None:
        self.store = store
        self.keys = keys
        self.payloads = payloads
        self.hint_of = hint_of
        self.backlog = WorkQueue(store, keys.backlog)
        self.stored = StoredTasks(store, keys, self.backlog)
        self.blobs = Blobs(store, keys.data)
        self._placing = Placing(store, keys)

    def close(self) -> None:
        """Follow nothing any more."""
        self._placing.close()
        self.backlog.close()

    async def put(self, item: TaskItem, picker: Picker, copies: int) -> TaskRef:
        """Store a task, whose id is its own; twice is once.

        Raises:
            TaskExists: the id has another call.
            NoSuchMember: the member that alone may run it is not there.
            Unavailable, OutcomeUnknown: it is not stored, or perhaps is.
        """
        digest = hashlib.sha256(f"{item.function}\n".encode() + item.payload).hexdigest()[:32]
        ready = replace(item, sid=DETACHED, shelf=shelf_of(item.priority, int(time.time() * 1000), DETACHED))
        if len(ready.payload) <= INLINE_BYTES:
            return await self._put(ready, picker, copies, digest, lambda: None)
        blob = await steps_of(self.blobs.write)(DETACHED, ready.payload)
        ready = replace(ready, payload=b"", blob=blob)
        return await self._put(ready, picker, copies, digest, partial(self.blobs.forget, blob))

    async def _put(
        self, ready: TaskItem, picker: Picker, copies: int, digest: str, forget: Callable[[], None]
    ) -> TaskRef:
        """Store it; ``forget`` is called when what is beside it is certainly not named by a record."""
        nonce, clock, backoff, is_doubtful = uuid.uuid4().hex, self.store.clock, Backoff(), False
        until = clock.now() + _PATIENCE_S
        while True:
            try:
                placed = replace(ready, lanes=await self._placing.place(ready, picker, copies))
                checks = self._placing.checks(placed.lanes, placed.target)
                await ask(self.store.commit, checks, self._ops(placed, digest, nonce))
            except Conflict as error:
                there = await ask(self.store.get, self.keys.record(ready.id))
                if there is None:
                    self._placing.refused(error.failed)
                    continue
                known = _KNOWN.find(there.value) or _UNKNOWN
                if known.nonce != nonce:
                    forget()
                if known.digest != digest:
                    raise TaskExists(
                        f"task {ready.id!r} is another call, of {known.function or '?'!r}; give an id of its own"
                    ) from error
            except OutcomeUnknown:
                is_doubtful = True
                if clock.now() >= until:
                    raise
                await Pause(clock, Signal(), backoff.next_s())
                continue
            except Exception:  # of a picker of the user's, too
                if not is_doubtful:
                    forget()
                raise
            return TaskRef(self, ready.id)

    def _ops(self, item: TaskItem, digest: str, nonce: str) -> list[Op]:
        known = KnownTask(item.function, item.lanes, item.shelf, digest, nonce)
        items = dict.fromkeys(copies_ops(self.backlog, item))
        return [Create(self.keys.record(item.id), encode(known)), *items]


class TaskRef:
    """A detached task, by its id: ``executor.ref("d.nightly-7")``. Safe to share between threads.

    Attributes:
        id: of the task.
    """

    __slots__ = ("_tasks", "id")

    def __init__(self, tasks: Detached, task_id: str) -> None:
        self.id = task_id
        self._tasks = tasks

    def __repr__(self) -> str:
        return f"<TaskRef {self.id}>"

    @driven
    async def state(self) -> TaskState:
        """What the store says of it now.

        Raises:
            NoSuchTask: it is not known.
        """
        place, _ = await self._place()
        return await self._tasks.stored.state(place)

    @driven
    async def result(self, timeout_s: float | None = None) -> Any:
        """Wait for its value; it stays until it is forgotten.

        Raises:
            TimeoutError: it is not over.
            CancelledError: it was cancelled.
            NoSuchTask: it is not known, or was forgotten meanwhile.
            Exception: the task's own.
        """
        place, known = await self._place()
        entry = await self._outcome(place.result_key, known.nonce, timeout_s)
        ref = ref_of(entry.value)
        value = entry.value if ref is None else await steps_of(self._tasks.blobs.read)(ref)
        hint = self._tasks.hint_of(known.function)
        try:
            return Outcome.of(value).result(self._tasks.payloads, hint, f"the result of {known.function!r}")
        except TaskCancelled as error:
            raise CancelledError(str(error)) from None

    async def _outcome(self, key: str, nonce: str, timeout_s: float | None) -> Entry:
        """Wait for the outcome of the task whose record has this nonce.

        The record is watched too: an outcome that is written and forgotten between two states of a watch is not
        reported, and another task may have the ID by then.
        """
        clock, store = self._tasks.store.clock, self._tasks.store
        until = None if timeout_s is None else clock.now() + timeout_s
        forgotten = Signal()

        def look(batch: Sequence[Change]) -> None:
            entry = batch[-1].entry if batch else None
            if entry is None or (_KNOWN.find(entry.value) or _UNKNOWN).nonce != nonce:
                forgotten.set()
                watch.close()

        with store.watch(key) as watch, store.watch(self._tasks.keys.record(self.id)) as record:
            record.subscribe(look)
            while True:
                left_s = None if until is None else max(0.0, until - clock.now())
                try:
                    batch = await steps_of(watch.next)(left_s)
                except WaitTimeout:
                    raise TimeoutError(f"task {self.id} is not over within {timeout_s:g} s") from None
                except Closed:
                    if forgotten.is_set():
                        raise self._unknown() from None
                    raise
                found = [change.entry for change in batch if change.entry is not None]
                if found:
                    return found[-1]

    @driven
    async def cancel(self, *, interrupt: bool = False) -> bool:
        """Take it back, everywhere; who waits for its result gets ``CancelledError``.

        Args:
            interrupt: also when it runs: it is told to stop, and what it returns is dropped.
        Returns:
            False: it runs, or is over.
        """
        place, _ = await self._place()
        cancelled = Outcome.failed(TaskCancelled(f"task {self.id} was cancelled")).to_bytes()
        ops: Sequence[Op] = [Create(place.result_key, cancelled)]
        return await self._tasks.stored.take_back(
            place, None, interrupt=interrupt, is_over=lambda: False, ops=lambda: ops
        )

    @driven
    async def forget(self) -> bool:
        """Delete what is known of it, its result too; False if it is not known.

        Raises:
            LatchworkError: it is not over; cancel it before.
        """
        tasks, key = self._tasks, self._tasks.keys.record(self.id)
        record, outcome = await ask(tasks.store.get_many, [key, tasks.keys.outcome(self.id)])
        if record is None:
            return False
        place, _ = _place_of(tasks.keys, self.id, record)
        if outcome is None and await tasks.stored.items(place):
            raise LatchworkError(f"task {self.id} is not over; cancel it before it is forgotten")
        ref = None if outcome is None else ref_of(outcome.value)
        blob = [] if ref is None else tasks.blobs.delete_ops(ref)
        same: Check = Absent(place.result_key) if outcome is None else At(outcome)
        await ask(tasks.store.commit, [At(record), same], [Delete(key), Delete(place.result_key), *blob])
        return True

    async def _place(self) -> tuple[TaskLocation, KnownTask]:
        entry = await ask(self._tasks.store.get, self._tasks.keys.record(self.id))
        if entry is None:
            raise self._unknown()
        return _place_of(self._tasks.keys, self.id, entry)

    def _unknown(self) -> NoSuchTask:
        return NoSuchTask(f"no detached task {self.id!r} is known; it was never submitted here, or was forgotten")


def _place_of(keys: Keys, task_id: str, entry: Entry) -> tuple[TaskLocation, KnownTask]:
    known = _KNOWN.find(entry.value) or _UNKNOWN
    return TaskLocation(task_id, known.lanes, known.shelf, keys.outcome(task_id)), known
