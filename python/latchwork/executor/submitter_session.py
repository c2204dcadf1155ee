"""One incarnation of a submitter: its session, the key that shows it is online, and the collector of its results.

The collector watches for results, ends the futures, and deletes what was read. The worker watch notices when an
executor has tasks and no worker.
"""

from __future__ import annotations

import logging
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
from latchwork.clock import Clock
from latchwork.errors import Closed, Conflict, LatchworkError, OutcomeUnknown, SessionLost, Unavailable, WaitTimeout
from latchwork.executor.futures import TaskTicket
from latchwork.executor.items import TaskItem, ref_of
from latchwork.executor.keys import ANY, NAME, Keys, new_sid, number_of, shelf_of
from latchwork.executor.pickers import Picker
from latchwork.executor.placing import Placing, is_for_all
from latchwork.primitives import WorkQueue
from latchwork.store import Backoff, Session, Store, Watch
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.steps import Pause, Steps, ask, steps_of
from latchwork.tasks import BlobRef, Blobs, Outcome, Payloads
from latchwork.types import At, Change, Delete, Entry, Op, Put

_log = logging.getLogger(__name__)


#: Larger payloads are stored as blobs.
INLINE_BYTES = 3000
#: Results that were read are deleted with the next put of tasks. They are deleted separately if there are this many,
#: or no result has arrived for this many seconds.
_MOST_DELETED = 60
_IDLE_S = 1.0
#: Seconds to retry reading the last results while the server is unreachable.
_PATIENCE_S = 5.0
#: Seconds without a result until the first look, between looks that find no worker, and until the warning.
_FIRST_S, _AGAIN_S, WARN_S = 0.5, 1.0, 5.0
#: Seconds until the next look while there are workers.
_RARELY_S = 60.0


@dataclass(slots=True)
class SubmitterSession:
    """One incarnation of a submitter.

    Attributes:
        sid: Its unique ID, never reused.
        session: Its session, whose end ends it.
        sub: The key that shows it is online.
        collector: Collects its results.
    """

    sid: str
    session: Session
    sub: Entry
    collector: Collector

    def lost_error(self, executor: str) -> SessionLost:
        """Return the error with which its tasks' futures fail when the session is lost."""
        return SessionLost(
            f"the session of submitter {self.sid} of executor {executor!r} has ended, and nodes drop its tasks: "
            "submit again, give a longer session_ttl_s, or on_session_lost='resubmit'"
        )


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """How to place a task.

    Attributes:
        picker: Chooses the preferred member.
        copies: Number of copies.
    """

    picker: Picker
    copies: int = 1


async def open_line(
    store: Store, keys: Keys, payloads: Payloads, tasks: ResultSink, *, ttl_s: float, label: str
) -> SubmitterSession:
    """Open a session and write its key. Does not start to collect results.

    Raises:
        Unavailable, OutcomeUnknown: The server could not be reached.
    """
    session = await ask(store.open_session, ttl_s)
    sid = new_sid()
    said = encode({"label": label, "host": socket.gethostname(), "pid": os.getpid()})
    try:
        sub = await ask(store.put, keys.sub(sid), said, session=session)
    except BaseException:
        session.close()
        raise
    return SubmitterSession(sid, session, sub, Collector(store, keys, sid, payloads, tasks))


def named(error: Exception, ticket: TaskTicket) -> Exception:
    """Add the task's name to a library error about storing it; return any other error unchanged."""
    kind = type(error)
    if not isinstance(error, LatchworkError) or kind.__init__ is not Exception.__init__ or ticket.what in str(error):
        return error
    made = kind(f"task {ticket.id or ticket.number} of {ticket.what} is not stored: {error}")
    made.__cause__ = error
    return made


async def write_anew(store: Store, line: SubmitterSession) -> None:
    """Rewrite the key that shows we are online, so that earlier transactions that check its version cannot commit.

    Raises:
        SessionLost: The session has ended.
        Unavailable, OutcomeUnknown: The server was unreachable until the session ended.
    """
    backoff = Backoff()
    while True:
        now = await ask(store.get, line.sub.key)
        if now is None or now.owner != line.session.id:
            raise SessionLost(f"submitter {line.sid} is not there any more, its key {line.sub.key!r} is gone")
        try:
            done = await ask(store.commit, [At(now)], [Put(now.key, now.value, line.session)])
        except Conflict:
            continue
        except (OutcomeUnknown, Unavailable):
            if line.session.remaining_s() <= 0.0:
                raise
            await Pause(store.clock, line.session.lost, backoff.next_s())
        else:
            line.sub = done.entries[0]
            return


async def until(bell: Notifier, clock: Clock, is_so: Callable[[], bool], timeout_s: float | None) -> bool:
    """Wait until a condition holds, evaluated with the notifier's mutex held; False on timeout."""
    ends_at = None if timeout_s is None else clock.now() + timeout_s
    while True:
        with bell.mutex:
            if is_so():
                return True
            version = bell.version
        left_s = None if ends_at is None else max(0.0, ends_at - clock.now())
        if left_s == 0.0:
            return False
        await bell.changed_since(version, clock, left_s)


class Preparing:
    """Prepares tasks for storing: chooses their lanes, and writes large payloads as blobs. Thread-safe.

    Args:
        store: The store.
        keys: The executor's keys.
        backlog: Its work queue.
        placing: Chooses lanes.
    """

    def __init__(self, store: Store, keys: Keys, backlog: WorkQueue, placing: Placing) -> None:
        self._backlog = backlog
        self._placing = placing
        self._blobs = Blobs(store, keys.data)
        self._written: dict[int, BlobRef] = {}
        self._shelf = ""

    async def ready(
        self, item: TaskItem, number: int, line: SubmitterSession, wanted: PlacementRequest, at_ms: int
    ) -> TaskItem:
        """Return the item to store.

        Raises:
            NoSuchMember: The only member that may run it is not online.
        """
        shelf = shelf_of(item.priority, at_ms, line.sid)
        shelf = self._shelf = self._shelf if self._shelf == shelf else shelf  # one string object shared by all tickets
        lanes = (ANY,) if is_for_all(item, wanted.picker, wanted.copies) else ()
        ready = replace(item, sid=line.sid, number=number, shelf=shelf, lanes=lanes)
        if not lanes:
            ready = replace(ready, lanes=await self._placing.place(ready, wanted.picker, wanted.copies))
        return await self._fitting(ready)

    async def _fitting(self, item: TaskItem) -> TaskItem:
        """Move a large payload to a blob, written once and before the item that refers to it."""
        if len(item.payload) <= INLINE_BYTES:
            return item
        ref = self._written.get(item.number)
        if ref is None or ref.owner != item.sid:
            ref = await steps_of(self._blobs.write)(item.sid, item.payload)
            self._written[item.number] = ref
        return replace(item, payload=b"", blob=ref)

    def forget(self, number: int) -> None:
        """Forget the blob of a task that has ended."""
        self._written.pop(number, None)


def copies_ops(backlog: WorkQueue, item: TaskItem) -> list[Op]:
    """Return the writes that put all copies of a task into their lanes. May contain duplicates."""
    stored = item.to_bytes()
    ops: list[Op] = []
    for lane, each in zip(item.lanes, item.item_ids, strict=True):
        ops += backlog.put_ops(lane, item.shelf, {each: stored})
    return ops


class ResultSink(Protocol):
    """The receiver of results."""

    def ticket(self, number: int) -> TaskTicket | None:
        """Return the task with this number if it has not ended."""
        ...

    def end(self, ticket: TaskTicket, tell: Callable[[], object]) -> None:
        """End a task; ``tell`` ends its future."""
        ...


class Collector:
    """Collects the results of one submitter in a thread. Thread-safe.

    Args:
        store: The store.
        keys: The executor's keys.
        sid: The submitter's ID.
        payloads: Decodes results.
        tasks: Receives the results.
    """

    def __init__(self, store: Store, keys: Keys, sid: str, payloads: Payloads, tasks: ResultSink) -> None:
        self._store = store
        self._prefix = keys.results_of(sid)
        self._what = f"results of submitter {sid} of executor {keys.name!r}"
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
        """Start to collect."""
        self._background = Background(self._run, self._name)

    def take_read(self, most: int) -> list[Op]:
        """Take up to this many writes that delete results already read. Each is returned once."""
        with self._lock:
            part = self._read[:most]
            del self._read[: len(part)]
        return [Delete(key) for key in part]

    def give_back(self, deletions: Iterable[Op]) -> None:
        """Put back writes that may not have been committed, to be taken again. Idempotent."""
        with self._lock:
            self._read += [op.key for op in deletions]

    async def finish(self) -> None:
        """Stop, then read the remaining results. Called after the session has ended, so no more can arrive."""
        await self._end()
        until, backoff = self._store.clock.now() + _PATIENCE_S, Backoff()
        while True:
            try:
                for entry in await ask(self._store.list, self._prefix, recursive=True):
                    self._take(entry)
            except LatchworkError as error:
                _log.info("%s: not all are read: %s", self._what, error)
                if isinstance(error, Closed) or self._store.clock.now() >= until:
                    return
                await Pause(self._store.clock, Signal(), backoff.next_s())
            else:
                return

    async def close(self) -> None:
        """Stop, and delete all results if the server is reachable."""
        await self._end()
        try:
            await ask(self._store.delete_tree, self._prefix)
        except LatchworkError as error:
            _log.info("%s: left to the members to delete: %s", self._what, error)

    async def _end(self) -> None:
        self._stop.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()
        if self._background is not None and not self._background.is_running_here:
            await self._background

    async def _run(self) -> None:
        backoff = Backoff()
        while not self._stop.is_set():
            try:
                await self._follow(backoff)
            except Closed:
                if not self._stop.is_set():
                    _log.info("%s: the store was closed", self._what)
                return
            except LatchworkError as error:
                _log.warning("%s cannot be read, trying again: %s", self._what, error)
                await Pause(self._store.clock, self._stop, backoff.next_s())

    async def _follow(self, backoff: Backoff) -> None:
        with self._store.watch(self._prefix) as watch:
            watch.matters = _has_results
            with self._lock:
                self._watch = watch
            while not self._stop.is_set():
                try:
                    batch = await steps_of(watch.next)(_IDLE_S if self._read else None)
                except WaitTimeout:
                    batch = ()
                self._take_all(batch)
                backoff.reset()
                if len(self._read) >= _MOST_DELETED or not batch:
                    await self._delete()

    def _take_all(self, batch: Iterable[Change]) -> None:
        for change in batch:
            if change.entry is not None:
                self._take(change.entry)

    def _take(self, entry: Entry) -> None:
        number = number_of(entry.key)
        ticket = None if number is None else self._tasks.ticket(number)
        ref = ref_of(entry.value)
        if ticket is not None:
            self._tasks.end(ticket, self._told(ticket, entry.value, ref))
        self._read += [op.key for op in self._blobs.delete_ops(ref)] if ref is not None else []
        self._read.append(entry.key)

    def _told(self, ticket: TaskTicket, value: bytes, ref: BlobRef | None) -> Callable[[], object]:
        """Return the call that ends a task's future with its outcome."""
        try:
            whole = value if ref is None else self._blobs.read(ref)
            result: Any = Outcome.from_bytes(whole).result(self._payloads, ticket.hint, f"the result of {ticket.what}")
        except BaseException as error:
            return partial(ticket.future.end_raising, error.with_traceback(None))
        return partial(ticket.future.end_with, result)

    async def _delete(self) -> None:
        """Delete results already read; on failure, retry with the next ones."""
        while deletions := self.take_read(_MOST_DELETED):
            try:
                await ask(self._store.commit, [], deletions)
            except LatchworkError as error:
                _log.info("%s: %d that were read stay for now: %s", self._what, len(deletions), error)
                self.give_back(deletions)
                await Pause(self._store.clock, self._stop, 1.0)
                return


def _has_results(changes: Sequence[Change]) -> bool:
    """Return whether any key was written. Our own deletions do not count."""
    return any(change.entry is not None for change in changes)


class WorkerWatch:
    """Looks for workers while tasks wait without results, and warns if there is none. Only one thread calls ``look``.

    Args:
        clock: The store's clock.
        name: The executor's name.
        has_members: Reads whether any worker is online.
    """

    def __init__(self, clock: Clock, name: str, has_members: Callable[[], Steps[bool]]) -> None:
        self._clock = clock
        self._name = name
        self._has_members = has_members
        self._quiet_since: float | None = None
        self._look_at = 0.0
        self._is_missing = self._has_warned = False

    def progress(self) -> None:
        """Note that a result has arrived."""
        self._quiet_since = None
        self._is_missing = False

    def why(self) -> str:
        """Return a message suffix saying that no worker is online; empty if there is one, or if unknown."""
        if not self._is_missing:
            return ""
        named = "" if self._name == NAME else f" --name {self._name}"
        return f': no worker is there; start one with "latchwork executor run --import MODULE{named}"'

    async def look(self, *, is_waiting: bool) -> float | None:
        """Look for workers if due; return the seconds until the next look, or None while no task waits."""
        if not is_waiting:
            self._quiet_since, self._has_warned = None, False
            return None
        now, since = self._clock.now(), self._quiet_since
        if since is None:
            since = self._quiet_since = now
            self._look_at = now + _FIRST_S
        if now < self._look_at:
            return self._look_at - now
        try:
            self._is_missing = not await self._has_members()
        except LatchworkError as error:
            _log.debug("executor %s: its workers are looked for later: %s", self._name, error)
            self._look_at = now + _AGAIN_S
            return _AGAIN_S
        if self._is_missing and now >= since + WARN_S and not self._has_warned:
            self._has_warned = True
            _log.warning("executor %s has tasks that wait%s", self._name, self.why())
        left_s = _AGAIN_S if self._is_missing else _RARELY_S
        if self._is_missing and now < since + WARN_S:
            left_s = min(left_s, since + WARN_S - now)
        self._look_at = now + left_s
        return left_s
