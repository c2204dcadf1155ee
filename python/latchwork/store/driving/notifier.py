"""A mutex and its notifier, for protocols that wait for a change of the guarded state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.clock import Clock
from latchwork.store.steps import Step, future_when


class Notifier:
    """A mutex, and waiters that are woken when the guarded state changes. Thread-safe.

    Hold ``notifier.mutex`` to change the guarded state and to call ``notify_all``. To wait for a condition, read
    ``notifier.version`` and check the condition with the mutex held. Then, without the mutex, await
    ``notifier.changed_since(version, ...)``, and check again.

    Attributes:
        version: Number of calls of ``notify_all`` so far.

    Args:
        of: An existing mutex; several notifiers of one mutex each wake only their waiters.
    """

    def __init__(self, of: threading.Lock | None = None) -> None:
        self.mutex = mutex() if of is None else of
        self._calls: dict[object, Callable[[], object]] = {}
        self.version = 0

    def notify_all(self) -> None:
        """Wake all waiters. The mutex must be held. Registered calls are made here, and only wake event loops."""
        self.version += 1
        for call in tuple(self._calls.values()):
            call()  # idempotent: after an interrupt, the next change makes it again
        self._calls.clear()

    def changed_since(self, version: int, clock: Clock, timeout_s: float | None) -> Step[bool]:
        """Return a step that waits until ``version`` is outdated: True, or False on timeout."""
        return _Change(self, version, clock, timeout_s)

    def call_on_change(self, version: int, call: Callable[[], object]) -> Callable[[], object]:
        """Register a quick, idempotent call for the next change after ``version``, or make it now if it has happened.

        Return a function that removes it.
        """
        number = object()
        with self.mutex:
            waits = self.version == version
            if waits:
                self._calls[number] = call
        if not waits:
            call()
        return partial(self._calls.pop, number, None)


class _Change(Step[bool]):
    """Waits until the version of a notifier is outdated, or a timeout; True if it is outdated."""

    __slots__ = ("_clock", "_notifier", "_version")

    def __init__(self, notifier: Notifier, version: int, clock: Clock, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._notifier = notifier
        self._version = version
        self._clock = clock

    def block(self) -> bool:
        """Wait in this thread."""
        changed = Signal()
        remove = self._notifier.call_on_change(self._version, changed.set)
        try:
            return self._clock.wait(changed, self.timeout_s)
        finally:
            remove()

    def as_future(self) -> Future[bool]:
        """Wait without blocking."""
        return future_when(partial(self._notifier.call_on_change, self._version))

    def on_timeout(self) -> bool:
        """Return whether the version is outdated."""
        return self._notifier.version != self._version
