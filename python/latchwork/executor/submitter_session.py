"""The session of a submitter: the key that shows that it is online, and the collection of its results.

A collector watches for results, completes the futures, and deletes the results that were read. The worker watch notices
when an executor has tasks and no worker.
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from latchwork._base.decoding import encode
from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.trouble_log import TroubleLog
from latchwork.clock import Clock
from latchwork.errors import Closed, Conflict, LatchworkError, OutcomeUnknown, SessionLost, Unavailable, WaitTimeout
from latchwork.executor.futures import TaskTicket
from latchwork.executor.items import TaskItem, parse_blob_ref
from latchwork.executor.keys import ANY, NAME, Keys, generate_submitter_id, parse_result_number, task_sort_key
from latchwork.executor.pickers import Picker
from latchwork.executor.placement import TaskPlacer, needs_no_member
from latchwork.primitives import WorkQueue
from latchwork.store import Backoff, Session, Store, Watch
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.steps import Pause, StepCoroutine, ask, coroutine_of
from latchwork.tasks import BlobRef, Blobs, Outcome, Payloads
from latchwork.types import Change, Create, Delete, Entry, Exists, Op

_log = logging.getLogger(__name__)


#: Larger payloads are stored as blobs.
INLINE_BYTES = 3000
#: Results that were read are deleted with the next put of tasks. They are deleted separately if there are this many,
#: or no result has arrived for this many seconds. The last one stays while tasks wait for results: ZooKeeper removes
#: a parent without keys, and the next result would have to create it again.
_MOST_DELETED = 60
_IDLE_S = 1.0
#: Seconds to retry reading the last results while the server is unreachable.
_PATIENCE_S = 5.0
#: Seconds without a result until the first look, between looks that find no worker, and until the warning. A look waits
#: for ``WARN_S`` after a result, because it delays the next task, and each task on a slow link takes long.
_FIRST_S, _AGAIN_S, WARN_S = 0.5, 1.0, 5.0
#: Seconds until the next look while there are workers.
_RARELY_S = 60.0


@dataclass(slots=True)
class SubmitterSession:
    """One session of a submitter with the store. A later session of the same submitter has another ID.

    Attributes:
        submitter_id: Its unique ID, never reused.
        session: Its session.
        collector: Collects its results.
        fence: Number of its current fence. Every transaction that queues tasks checks that this fence exists.
    """

    submitter_id: str
    session: Session
    collector: ResultCollector
    fence: int = 0

    def build_lost_error(self, executor: str) -> SessionLost:
        """Return the error with which the futures of its tasks fail when the session is lost.

        Args:
            executor: Name of the executor.
        """
        return SessionLost(
            f"the session of submitter {self.submitter_id} of executor {executor!r} has ended, and nodes drop its "
            "tasks: submit again, give a longer session_ttl_s, or on_session_lost='resubmit'"
        )


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """How to choose the members for a task.

    Attributes:
        picker: Chooses the preferred member.
        copies: Number of copies, each for another member.
    """

    picker: Picker
    copies: int = 1


async def open_submitter_session(
    store: Store, keys: Keys, payloads: Payloads, tasks: ResultSink, *, ttl_s: float, label: str
) -> SubmitterSession:
    """Open a session, and write the key that shows that the submitter is online, and its first fence. Does not start
    to collect results.

    Args:
        store: The store.
        keys: The executor's keys.
        payloads: Decodes results.
        tasks: Receives the results.
        ttl_s: TTL of the session in seconds.
        label: Label shown to other clients.
    Raises:
        Unavailable, OutcomeUnknown: The server could not be reached.
    """
    session = await ask(store.open_session, ttl_s)
    submitter_id = generate_submitter_id()
    about = encode({"label": label, "host": socket.gethostname(), "pid": os.getpid()})
    online = Create(keys.submitter_key(submitter_id), about, session)
    try:
        await ask(store.commit, [], [online, Create(keys.fence_key(submitter_id, 0), b"", session)])
    except BaseException:
        session.close()
        raise
    return SubmitterSession(submitter_id, session, ResultCollector(store, keys, submitter_id, payloads, tasks))


def add_task_name(error: Exception, ticket: TaskTicket) -> Exception:
    """Return an error with the name of a task added to its message. Errors of other libraries are returned
    unchanged.
    """
    kind = type(error)
    if not isinstance(error, LatchworkError) or kind.__init__ is not Exception.__init__ or ticket.what in str(error):
        return error
    made = kind(f"task {ticket.id or ticket.number} of {ticket.what} is not stored: {error}")
    made.__cause__ = error
    return made


async def replace_fence(store: Store, keys: Keys, submitter_session: SubmitterSession) -> None:
    """Replace the fence of a submitter. Earlier transactions that check the old fence can then no longer commit.

    A fence is never created again: its transaction checks the fence before it, which is then deleted.

    Raises:
        SessionLost: The session has ended.
        Unavailable, OutcomeUnknown: The server was unreachable until the session ended.
    """
    submitter_id, session, number = submitter_session.submitter_id, submitter_session.session, submitter_session.fence
    old, new = keys.fence_key(submitter_id, number), keys.fence_key(submitter_id, number + 1)
    backoff = Backoff()
    while True:
        try:
            await ask(store.commit, [Exists(old)], [Delete(old), Create(new, b"", session)])
        except (OutcomeUnknown, Unavailable):
            if session.remaining_s() <= 0.0:
                raise
            await Pause(store.clock, session.lost, backoff.next_s())
            continue
        except Conflict:
            if await ask(store.get, new) is None:  # else an earlier try was committed
                raise SessionLost(f"submitter {submitter_id} is not online any more, its key {old!r} is gone") from None
        submitter_session.fence = number + 1
        return


async def wait_until(notifier: Notifier, clock: Clock, condition: Callable[[], bool], timeout_s: float | None) -> bool:
    """Wait until a condition holds.

    Args:
        notifier: Notified when the condition may have changed.
        clock: Measures the timeout.
        condition: Returns whether the condition holds; called with the mutex of the notifier held.
        timeout_s: Seconds to wait; None waits forever.
    Returns:
        Whether it holds; False after the timeout.
    """
    ends_at = None if timeout_s is None else clock.now() + timeout_s
    while True:
        with notifier.mutex:
            if condition():
                return True
            version = notifier.version
        left_s = None if ends_at is None else max(0.0, ends_at - clock.now())
        if left_s == 0.0:
            return False
        await notifier.wait_for_change(version, clock, left_s)


class TaskPreparer:
    """Prepares tasks for storing: chooses their partitions, and writes large payloads as blobs. Thread-safe.

    Args:
        store: The store.
        keys: The executor's keys.
        backlog: Its work queue.
        placing: Chooses the partitions.
    """

    def __init__(self, store: Store, keys: Keys, backlog: WorkQueue, placing: TaskPlacer) -> None:
        self._backlog = backlog
        self._placer = placing
        self._blobs = Blobs(store, keys.data)
        self._written: dict[int, BlobRef] = {}
        self._sort_key = ""

    async def prepare(
        self, item: TaskItem, number: int, submitter_session: SubmitterSession, wanted: PlacementRequest, at_ms: int
    ) -> TaskItem:
        """Return the queue item to store for a task, with its ID, partitions and sort key.

        Args:
            item: The task.
            number: Its number within the submitter.
            submitter_session: The current session of the submitter.
            wanted: How to choose the members for the task.
            at_ms: Current time in milliseconds since the epoch.
        Raises:
            NoSuchMember: The only member that may run it is not online.
        """
        sort_key = task_sort_key(item.priority, at_ms, submitter_session.submitter_id)
        sort_key = self._sort_key = (
            self._sort_key if self._sort_key == sort_key else sort_key
        )  # one string object shared by all tickets
        partitions = (ANY,) if needs_no_member(item, wanted.picker, wanted.copies) else ()
        ready = replace(
            item, submitter_id=submitter_session.submitter_id, number=number, sort_key=sort_key, partitions=partitions
        )
        if not partitions:
            ready = replace(ready, partitions=await self._placer.choose_partitions(ready, wanted.picker, wanted.copies))
        return await self._move_large_payload(ready)

    async def _move_large_payload(self, item: TaskItem) -> TaskItem:
        """Write a large payload as a blob, once. Return the task with a reference to the blob instead of the
        payload.
        """
        if len(item.payload) <= INLINE_BYTES:
            return item
        ref = self._written.get(item.number)
        if ref is None or ref.owner != item.submitter_id:
            ref = await coroutine_of(self._blobs.write)(item.submitter_id, item.payload)
            self._written[item.number] = ref
        return replace(item, payload=b"", blob=ref)

    def forget(self, number: int) -> None:
        """Drop the cached blob reference of a task that has ended."""
        self._written.pop(number, None)


def build_put_copies_ops(backlog: WorkQueue, item: TaskItem) -> list[Op]:
    """Return the writes that put all copies of a task into their queue partitions. They may contain duplicates."""
    stored = item.to_bytes()
    ops: list[Op] = []
    for partition, each in zip(item.partitions, item.item_ids, strict=True):
        ops += backlog.put_ops(partition, item.sort_key, {each: stored})
    return ops


class ResultSink(Protocol):
    """Receives the results that a collector has read."""

    @property
    def has_tasks(self) -> bool:
        """Whether any task has not ended."""
        ...

    def get_ticket(self, number: int) -> TaskTicket | None:
        """Return the data about the task with this number. None if the task has ended."""
        ...

    def end_task(self, ticket: TaskTicket, end_future: Callable[[], object]) -> None:
        """Record that a task has ended, and complete its future.

        Args:
            ticket: The submitter's data about the task.
            end_future: Completes the future.
        """
        ...


class ResultCollector:
    """Reads the results of one submitter in a thread, and completes the futures of its tasks. Thread-safe.

    Args:
        store: The store.
        keys: The executor's keys.
        submitter_id: ID of the submitter.
        payloads: Decodes results.
        tasks: Receives the results.
    """

    def __init__(self, store: Store, keys: Keys, submitter_id: str, payloads: Payloads, tasks: ResultSink) -> None:
        self._store = store
        self._prefix = keys.results_prefix(submitter_id)
        self._what = f"results of submitter {submitter_id} of executor {keys.name!r}"
        self._name = f"latchwork-results-{keys.name}"
        self._payloads = payloads
        self._blobs = Blobs(store, keys.data)
        self._tasks = tasks
        self._read: list[str] = []
        self._lock = mutex()
        self._watch: Watch | None = None
        self._stop = Signal()
        self._background: Background | None = None

    def start(self) -> None:
        """Start to collect results."""
        self._background = Background(self._run, self._name)

    def take_deletions(self, max_count: int, *, keeps_last: bool = True) -> list[Op]:
        """Remove and return writes that delete results already read, for another transaction.

        Args:
            max_count: Maximum number of writes.
            keeps_last: Whether to leave the last result.
        """
        with self._lock:
            part = self._read[: max(0, min(max_count, len(self._read) - keeps_last))]
            del self._read[: len(part)]
        return [Delete(key) for key in part]

    def requeue_deletions(self, deletions: Iterable[Op]) -> None:
        """Put back writes from ``take_deletions`` that may not have been committed, so that they are taken again.
        Idempotent.
        """
        with self._lock:
            self._read[:0] = [op.key for op in deletions]

    async def finish(self) -> None:
        """Stop the thread, then read the remaining results.

        Call it after the session has ended, when no more results can arrive.
        """
        await self._stop_watching()
        wait_until, backoff = self._store.clock.now() + _PATIENCE_S, Backoff()
        while True:
            try:
                for entry in await ask(self._store.list, self._prefix, recursive=True):
                    self._handle_result(entry)
            except LatchworkError as error:
                _log.info("%s: not all results are read yet: %s", self._what, error)
                if isinstance(error, Closed) or self._store.clock.now() >= wait_until:
                    return
                await Pause(self._store.clock, Signal(), backoff.next_s())
            else:
                return

    async def close(self) -> None:
        """Stop the thread, and delete all results if the server can be reached."""
        await self._stop_watching()
        try:
            await ask(self._store.delete_tree, self._prefix)
        except LatchworkError as error:
            _log.info("%s: left for the workers to delete: %s", self._what, error)

    async def _stop_watching(self) -> None:
        self._stop.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()
        if self._background is not None and not self._background.is_running_here:
            await self._background

    async def _run(self) -> None:
        backoff, trouble = Backoff(), TroubleLog(_log)
        while not self._stop.is_set():
            try:
                await self._watch_results(backoff, trouble)
            except Closed:
                if not self._stop.is_set():
                    _log.info("%s: the store was closed", self._what)
                return
            except LatchworkError as error:
                trouble.record_failure(error, "%s cannot be read, trying again", self._what)
                await Pause(self._store.clock, self._stop, backoff.next_s())

    async def _watch_results(self, backoff: Backoff, trouble: TroubleLog) -> None:
        with self._store.watch(self._prefix) as watch:
            watch.is_relevant = _has_results
            with self._lock:
                self._watch = watch
            while not self._stop.is_set():
                try:
                    batch = await coroutine_of(watch.next)(_IDLE_S if self._read else None)
                except WaitTimeout:
                    batch = ()
                for change in batch:
                    if change.entry is not None:
                        self._handle_result(change.entry)
                backoff.reset()
                trouble.record_success("%s can be read again", self._what)
                if len(self._read) >= _MOST_DELETED or not batch:
                    await self._delete()

    def _handle_result(self, entry: Entry) -> None:
        number = parse_result_number(entry.key)
        ticket = None if number is None else self._tasks.get_ticket(number)
        ref = parse_blob_ref(entry.value)
        if ticket is not None:
            self._tasks.end_task(ticket, self._build_completion(ticket, entry.value, ref))
        self._read += [op.key for op in self._blobs.delete_ops(ref)] if ref is not None else []
        self._read.append(entry.key)

    def _build_completion(self, ticket: TaskTicket, value: bytes, ref: BlobRef | None) -> Callable[[], object]:
        """Return a function that completes the future of a task.

        Args:
            ticket: The task.
            value: The encoded outcome.
            ref: Reference to the blob that contains the outcome; None if ``value`` contains it.
        """
        try:
            whole = value if ref is None else self._blobs.read(ref)
            result: Any = Outcome.from_bytes(whole).result(self._payloads, ticket.hint, f"the result of {ticket.what}")
        except BaseException as error:
            return partial(ticket.future.complete_with_exception, error.with_traceback(None))
        return partial(ticket.future.complete_with_result, result)

    async def _delete(self) -> None:
        """Delete the results already read. If that fails, they are deleted together with later ones."""
        while deletions := self.take_deletions(_MOST_DELETED, keeps_last=self._tasks.has_tasks):
            try:
                await ask(self._store.commit, [], deletions)
            except LatchworkError as error:
                _log.info("%s: %d results that were read are not deleted yet: %s", self._what, len(deletions), error)
                self.requeue_deletions(deletions)
                await Pause(self._store.clock, self._stop, 1.0)
                return


def _has_results(changes: Sequence[Change]) -> bool:
    """Return whether any change is a write. Only this process deletes results, so deletions are ignored."""
    return any(change.entry is not None for change in changes)


class WorkerWatch:
    """Checks whether any worker is online while tasks wait for results, and logs a warning if there is none.

    Only one thread may call ``check_workers``.

    Args:
        clock: The store's clock.
        name: The executor's name.
        has_members: Reads whether any worker is online.
    """

    def __init__(self, clock: Clock, name: str, has_members: Callable[[], StepCoroutine[bool]]) -> None:
        self._clock = clock
        self._name = name
        self._has_members = has_members
        self._quiet_since: float | None = None
        self._check_at = 0.0
        self._seen_at = -math.inf
        self._is_missing = self._has_warned = False

    def on_result(self) -> None:
        """Record that a result has arrived, which shows that there is a worker."""
        self._seen_at = self._clock.now()
        self._quiet_since = None
        self._is_missing = False

    def missing_worker_hint(self) -> str:
        """Return text for the end of a message: that no worker is online. Empty if one is, or if that is unknown."""
        if not self._is_missing:
            return ""
        add_task_name = "" if self._name == NAME else f" --name {self._name}"
        return f': no worker is online; start one with "latchwork executor run --import MODULE{add_task_name}"'

    async def check_workers(self, *, is_waiting: bool) -> float | None:
        """Check whether a worker is online, if the last check is long enough ago.

        Args:
            is_waiting: Whether tasks wait for results.
        Returns:
            Seconds until the next check; None while no task waits.
        """
        if not is_waiting:
            self._quiet_since, self._has_warned = None, False
            return None
        now, since = self._clock.now(), self._quiet_since
        if since is None:
            since = self._quiet_since = now
            self._check_at = max(now + _FIRST_S, self._seen_at + WARN_S)
        if now < self._check_at:
            return self._check_at - now
        try:
            self._is_missing = not await self._has_members()
        except LatchworkError as error:
            _log.debug("executor %s: its workers will be listed later: %s", self._name, error)
            self._check_at = now + _AGAIN_S
            return _AGAIN_S
        if self._is_missing and now >= since + WARN_S and not self._has_warned:
            self._has_warned = True
            _log.warning("executor %s has waiting tasks%s", self._name, self.missing_worker_hint())
        left_s = _AGAIN_S if self._is_missing else _RARELY_S
        if self._is_missing and now < since + WARN_S:
            left_s = min(left_s, since + WARN_S - now)
        self._check_at = now + left_s
        return left_s
