"""A watch: an iterator of batches of changes. The first batch is the current state.

Unread changes of the same key are merged, so a slow reader needs memory for at most one change per key.
``WatchedState`` converts a backend's events to the changed entries.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from latchwork.backends.base import BackendWatch, Broken, Current, Delta, Snapshot, WatchEvent
from latchwork.clock import Clock
from latchwork.errors import Closed, LatchworkError, WaitTimeout
from latchwork.store.dispatch import Dispatcher, SerialDrain
from latchwork.store.driving.notifier import Notifier
from latchwork.store.forks import ForkGuard
from latchwork.store.keys import Scope
from latchwork.store.observers import check_listener
from latchwork.store.steps import blocking
from latchwork.types import Change, Entry

if TYPE_CHECKING:
    from typing import Self
_log = logging.getLogger(__name__)

T = TypeVar("T")
Batch = tuple[Change, ...]
#: Whether to wake the reader of a watch for new changes.
RelevanceFilter = Callable[[Sequence[Change]], bool]


class ChangeBuffer:
    """Collects the changes for one reader, and merges those of the same key. Not thread-safe.

    Its owner must hold a mutex during every call.
    """

    def __init__(self) -> None:
        self._pending: dict[str, Change] = {}
        self._first = True
        self.filled = False

    def is_filled(self) -> bool:
        """Whether a batch of changes is ready."""
        return self.filled

    def add(self, changes: list[Change], *, ready: bool, is_relevant: RelevanceFilter | None = None) -> bool:
        """Add changes, and return whether a batch is ready.

        The first batch is ready once the first snapshot has arrived, even if it is empty.

        Args:
            changes: The changes to add.
            ready: Whether the first snapshot has arrived.
            is_relevant: If given, a later batch is ready only when this function returns True for one of its changes.
        """
        for change in changes:
            self._pending.pop(change.key, None)
            self._pending[change.key] = change
        if not self.filled and ready:
            self.filled = self._first or (bool(changes) and (is_relevant is None or is_relevant(changes)))
        return self.filled

    def take(self) -> Batch:
        """Remove and return all collected changes.

        The first batch is sorted by key. Later ones are in the order of the changes.
        """
        batch = tuple(self._pending.values())
        if self._first:
            batch = tuple(sorted(batch, key=lambda change: change.key))
        self._pending = {}
        self._first = False
        self.filled = False
        return batch


class WatchReceiver:
    """The receiver of a backend's watch events, which keeps the resulting state. Base class of ``Watch`` and
    ``Mirror``.

    Thread-safe. ``close()`` may be called anywhere, also in callbacks. In a forked child it does not affect the
    parent's watch.
    """

    def __init__(self, prefix: str, scope: Scope, clock: Clock, *, keep_values: bool) -> None:
        self.prefix = prefix
        self._scope = scope
        self._clock = clock
        self._home = ForkGuard(f"the watch of {prefix!r}", made="opened", remedy="connect again in the child")
        self._changed = Notifier()
        self._tracker = WatchedState(keep_values=keep_values)
        self._error: LatchworkError | None = None
        self._siblings: tuple[str, ...] | None = None
        self._closed = False
        self._backend: BackendWatch | None = None
        self._on_close: Callable[[WatchReceiver], None] = lambda _feed: None
        self._is_shut = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def attach(self, watch: BackendWatch, on_close: Callable[[WatchReceiver], None]) -> None:
        """Connect this object to a watch of the backend.

        Args:
            watch: The watch, which is closed with this object.
            on_close: Called once when this object is closed.
        """
        self._on_close = on_close
        self._backend = watch
        if self._closed:
            watch.close()

    def __call__(self, event: WatchEvent) -> None:
        """Process an event of the backend's watch. Never blocks or raises."""
        with self._changed.mutex:
            if self._closed:
                return
            if isinstance(event, Broken):
                self._error = event.error
            elif isinstance(event, Delta) and event.siblings is not None:
                self._siblings = event.siblings
            changes = self._scope.relative_changes(self._tracker.apply_event(event))
            if self._deliver(changes) or isinstance(event, Broken):
                self._changed.notify_all()
        self._notify_listeners(changes)
        if isinstance(event, Broken):
            _log.error("the watch of %r has ended: %s", self.prefix, event.error)

    def close(self) -> None:
        """Stop receiving changes. Waiting callers get ``Closed``. Idempotent."""
        if self._home.is_foreign:
            return
        if self._is_shut:
            return
        with self._changed.mutex:
            self._closed = True
            self._changed.notify_all()
        if self._backend is not None:
            self._backend.close()
        self._on_close(self)
        self._is_shut = True  # last: after an interrupt, the next close repeats everything

    def _deliver(self, changes: list[Change]) -> bool:
        """Store changes for the readers, and return whether to wake waiting readers. The caller holds the mutex."""
        raise NotImplementedError

    def _notify_listeners(self, changes: list[Change]) -> None:
        """Notify listeners of changes that were stored. The caller does not hold the mutex."""

    async def _wait_and_take(
        self, is_true: Callable[[], bool], take: Callable[[], T], timeout_s: float | None, description: str
    ) -> T:
        """Wait until a condition is true, then return the result of ``take``. Both functions are called with the mutex
        held.

        Args:
            is_true: Returns whether the condition is true.
            take: Returns the result.
            timeout_s: Timeout in seconds. None waits forever.
            description: Description of what the caller waits for, for the error message.
        Raises:
            WaitTimeout: The condition was not true in time.
            Closed: This object or its store was closed.
        """
        if timeout_s is not None and math.isnan(timeout_s):
            raise ValueError(f"timeout_s must be None or a number of seconds, not {timeout_s!r}")
        if self._home.is_foreign:
            raise self._home.error()
        deadline = None if timeout_s is None else self._clock.now() + timeout_s
        while True:
            with self._changed.mutex:
                if is_true():
                    return take()
                if self._error is not None or self._closed:
                    raise self._error or Closed(f"the watch of {self.prefix!r} was closed")
                version = self._changed.version
            left = None if deadline is None else deadline - self._clock.now()
            if left is not None and left <= 0:
                raise WaitTimeout(f"{description} of {self.prefix!r} did not arrive within {timeout_s:.3g} s")
            await self._changed.wait_for_change(version, self._clock, left)


class Watch(WatchReceiver):
    """An iterator of batches of changes below one prefix, including the prefix itself.

    The first batch is the current state, sorted by key, possibly empty. After that, every committed change is reported,
    at most one per key in a batch: intermediate states may be merged. Batches are not atomic across keys. The watch
    resumes by itself after any failure. Iteration ends after ``close()``; it raises if the account has lost its
    permission.

    Attributes:
        is_relevant: Called with new changes; returns whether to wake the reader. Otherwise they are delivered with the
            next batch that matters. Called in a client library's thread: it must be quick, take no locks, and not
            raise. None wakes the reader each time.
    """

    is_relevant: RelevanceFilter | None

    def __init__(self, prefix: str, scope: Scope, clock: Clock, dispatcher: Dispatcher) -> None:
        super().__init__(prefix, scope, clock, keep_values=False)
        self.is_relevant = None
        self._dispatcher = dispatcher
        self._inbox = ChangeBuffer()
        self._drain_task: SerialDrain | None = None
        self._reported = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        try:
            return self.next()
        except Closed:
            raise StopIteration from None

    @property
    def siblings(self) -> tuple[str, ...] | None:
        """The names next to a deleted key, if the watch was asked for them and they were read. Otherwise None.

        The names are unsorted. They were read at one point in time after the deletion.
        """
        self._home.check()
        return self._siblings

    @blocking
    async def next(self, timeout_s: float | None = None) -> Batch:
        """Wait for the next batch of changes and return it.

        Args:
            timeout_s: Seconds to wait. None waits forever.
        Raises:
            WaitTimeout: Nothing changed in that time.
            Closed: The watch or its store was closed.
            ForkedProcess: The watch was opened by the parent of this process.
            PermissionDenied: The account is no longer permitted to read here.
        """
        return await self._wait_and_take(self._inbox.is_filled, self._inbox.take, timeout_s, "a change")

    def subscribe(self, fn: Callable[[Batch], None], on_error: Callable[[LatchworkError], None] | None = None) -> None:
        """Call ``fn`` with each batch of changes, in order, in a callback thread of the store, instead of iterating.

        If ``fn`` raises, the error is logged and the batch is not repeated.

        Args:
            fn: The subscriber.
            on_error: Called once if the watch ends permanently with an error.
        Raises:
            ValueError: The watch already has a subscriber.
            TypeError: An argument is a coroutine function, or cannot be called.
        """
        self._home.check()
        check_listener(fn)
        if on_error is not None:
            check_listener(on_error, "on_error")
        with self._changed.mutex:
            if self._drain_task is not None:
                raise ValueError(f"the watch of {self.prefix!r} already has a subscriber; open another watch")
            self._drain_task = self._dispatcher.create_serial_drain(
                lambda: self._drain(fn, on_error), f"the watch of {self.prefix!r}"
            )
        self._drain_task.signal()

    def close(self) -> None:
        """Stop the watch. Waiting callers get ``Closed``. Idempotent."""
        super().close()
        if self._drain_task is not None and not self._home.is_foreign:
            self._drain_task.close()

    def _deliver(self, changes: list[Change]) -> bool:
        return self._inbox.add(changes, ready=self._tracker.ready, is_relevant=self.is_relevant)

    def _notify_listeners(self, changes: list[Change]) -> None:  # noqa: ARG002 - the inbox knows
        if self._drain_task is not None:
            self._drain_task.signal()

    def _drain(self, fn: Callable[[Batch], None], on_error: Callable[[LatchworkError], None] | None) -> None:
        with self._changed.mutex:
            batch = self._inbox.take() if self._inbox.filled else None
            error = self._error if batch is None and not self._reported else None
            self._reported = self._reported or error is not None
        if batch is not None:
            try:
                fn(batch)
            finally:
                if self._drain_task is not None:
                    self._drain_task.signal()  # there may be more changes, or the end
        elif error is not None and on_error is not None:
            on_error(error)


@dataclass(slots=True)
class WatchedState:
    """The last reported state of every key under one watch. Only one thread may use it at a time.

    Attributes:
        known: The entries of the existing keys.
        keep_values: Whether entries keep their values. Otherwise only data for comparisons is stored.
        ready: Whether the first snapshot has arrived.
        as_of: Local clock time at which the state was last known to be up to date.
    """

    keep_values: bool
    known: dict[str, Entry] = field(default_factory=dict)
    ready: bool = False
    as_of: float = float("-inf")

    def apply_event(self, event: WatchEvent) -> list[Change]:
        """Apply a watch event to the known state. Return the resulting changes, at most one per key."""
        if isinstance(event, Broken):
            return []
        if event.as_of is not None:
            self.as_of = max(self.as_of, event.as_of)
        if isinstance(event, Current):
            return []
        if isinstance(event, Snapshot):
            self.ready = True
            return self._apply([*_missing(self.known, event.entries), *(Change(e.key, e) for e in event.entries)])
        return self._apply(event.changes)

    def _apply(self, changes: Iterable[Change]) -> list[Change]:
        new: list[Change] = []
        for change in changes:
            key, entry = change.key, change.entry
            before = self.known.get(key)
            if entry is None:
                if before is None:
                    continue
                del self.known[key]
            else:
                if before is not None and (before.version == entry.version or entry.token < before.token):
                    continue
                if not self.keep_values:
                    entry = Entry(key, b"", entry.version, entry.token, entry.created, entry.owner)
                self.known[key] = entry
            new.append(change)
        return new


def _missing(known: dict[str, Entry], entries: Iterable[Entry]) -> list[Change]:
    present = {entry.key for entry in entries}
    return [Change(key, None) for key in known if key not in present]
