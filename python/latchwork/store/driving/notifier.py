"""A mutex with notification, for coroutines that wait until the state that it guards has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.clock import Clock
from latchwork.store.steps import Step, create_listener_future


class Notifier:
    """A mutex, and waiters that are woken when the guarded state changes. Thread-safe.

    Hold ``notifier.mutex`` to change the state and to call ``notify_all``. To wait for a condition, read
    ``notifier.version`` and check the condition with the mutex held. Then, without the mutex, await
    ``notifier.wait_for_change(version, ...)``, and check again.

    Attributes:
        version: The number of calls of ``notify_all`` so far.

    Args:
        of: An existing mutex. Several notifiers can share one, and each wakes only its own waiters.
    """

    def __init__(self, of: threading.Lock | None = None) -> None:
        self.mutex = mutex() if of is None else of
        self._calls: dict[object, Callable[[], object]] = {}
        self.version = 0

    def notify_all(self) -> None:
        """Wake all waiters. The caller must hold the mutex.

        Functions that were registered for event loops are called in this thread. Each only wakes its loop.
        """
        self.version += 1
        for call in tuple(self._calls.values()):
            call()  # idempotent: after an interrupt, the next change makes it again
        self._calls.clear()

    def wait_for_change(self, version: int, clock: Clock, timeout_s: float | None) -> Step[bool]:
        """Return a step that waits for the first ``notify_all`` after ``version`` was read.

        Its result is True, or False after ``timeout_s`` seconds. It is True at once if ``notify_all`` was called
        between the read and this call.
        """
        return _VersionChange(self, version, clock, timeout_s)

    def call_on_change(self, version: int, call: Callable[[], object]) -> Callable[[], object]:
        """Call a function once, at the first ``notify_all`` after ``version`` was read. Call it now if that has
        happened.

        Args:
            version: The notifier's version, as read by the caller.
            call: The function, which must be fast and idempotent.
        Returns:
            A function that removes the registration.
        """
        number = object()
        with self.mutex:
            waits = self.version == version
            if waits:
                self._calls[number] = call
        if not waits:
            call()
        return partial(self._calls.pop, number, None)


class _VersionChange(Step[bool]):
    """Waits until a notifier's version has changed. The result is False if the timeout passes first."""

    __slots__ = ("_clock", "_notifier", "_version")

    def __init__(self, notifier: Notifier, version: int, clock: Clock, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._notifier = notifier
        self._version = version
        self._clock = clock

    def block(self) -> bool:
        """Block this thread until the version has changed or the timeout has passed."""
        changed = Signal()
        remove = self._notifier.call_on_change(self._version, changed.set)
        try:
            return self._clock.wait(changed, self.timeout_s)
        finally:
            remove()

    def as_future(self) -> Future[bool]:
        """Return a future that completes when the version has changed. Does not block."""
        return create_listener_future(partial(self._notifier.call_on_change, self._version))

    def get_timeout_result(self) -> bool:
        """Return whether the version has changed, checked once more after the timeout."""
        return self._notifier.version != self._version
