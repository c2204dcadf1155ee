"""Brings the results of one submitter: watches where they come to, tells the futures, deletes what was read.

A result that was read is deleted after its future was told: until then it proves that the task is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from latchwork.errors import Closed, LatchworkError, WaitTimeout
from latchwork.executor.futures import TaskTicket
from latchwork.executor.items import ref_of
from latchwork.executor.keys import Keys, number_of
from latchwork.interrupts import mutex
from latchwork.store import Backoff, Store, Watch
from latchwork.store.driving.background import Background
from latchwork.store.steps import Pause, Signal, ask, steps_of
from latchwork.tasks import BlobRef, Blobs, Outcome, Payloads
from latchwork.types import Change, Delete, Entry

_log = logging.getLogger(__name__)

#: Results are deleted when so many were read, or none has come for a while.
_MOST_DELETED = 60
_IDLE_S = 0.05
#: Seconds for what is done at the end, when the server cannot be reached.
_PATIENCE_S = 5.0


class Ends(Protocol):
    """Whose tasks these are."""

    def ticket(self, number: int) -> TaskTicket | None:
        """The task of this number, if it is not over."""
        ...

    def end(self, ticket: TaskTicket, tell: Callable[[], object]) -> None:
        """A task is over: its future is told by the call."""
        ...


class Collector:
    """The results of one submitter. Has a thread; safe to share between threads.

    Args:
        store: the store.
        keys: the executor's keys.
        sid: of the submitter.
        payloads: how results are read.
        tasks: whose they are.
    """

    def __init__(self, store: Store, keys: Keys, sid: str, payloads: Payloads, tasks: Ends) -> None:
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
        """Begin to collect."""
        self._background = Background(self._run, self._name)

    async def finish(self) -> None:
        """The session has ended, so that nothing comes any more: take what there is, and end."""
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
        """End, and leave nothing behind if the server can be reached."""
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
        if self._background is not None and not self._background.is_mine:
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
        """The call that tells the future of a task how it ended."""
        try:
            whole = value if ref is None else self._blobs.read(ref)
            result: Any = Outcome.of(whole).result(self._payloads, ticket.hint, f"the result of {ticket.what}")
        except BaseException as error:
            return partial(ticket.future.end_raising, error.with_traceback(None))
        return partial(ticket.future.end_with, result)

    async def _delete(self) -> None:
        """Delete what was read; what cannot be deleted now is tried with the next."""
        while self._read:
            part = self._read[:_MOST_DELETED]
            try:
                await ask(self._store.commit, [], [Delete(key) for key in part])
            except LatchworkError as error:
                _log.info("%s: %d that were read stay for now: %s", self._what, len(part), error)
                await Pause(self._store.clock, self._stop, 1.0)
                return
            del self._read[: len(part)]
