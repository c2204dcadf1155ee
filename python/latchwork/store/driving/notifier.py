"""A mutex and its notifier, for protocols that wait for a change of the guarded state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.clock import Clock
from latchwork.store.steps import Step, when


class Notifier:
    """A mutex, and waiters that are woken when the guarded state changes. Thread-safe.

    ``with notifier.mutex:`` holds the mutex; ``notifier.ring()`` is called inside. To wait for a condition, read
    ``notifier.rings`` and check the condition inside. Then await ``notifier.rung(rings, ...)`` outside, and check
    again.

    Attributes:
        rings: Number of rings so far.

    Args:
        of: An existing mutex; several notifiers of one mutex each wake only their waiters.
    """

    def __init__(self, of: threading.Lock | None = None) -> None:
        self.mutex = mutex() if of is None else of
        self._calls: dict[object, Callable[[], object]] = {}
        self.rings = 0

    def ring(self) -> None:
        """Wake all waiters. The mutex must be held. Registered calls are made here, and only wake event loops."""
        self.rings += 1
        for call in tuple(self._calls.values()):
            call()  # idempotent: after an interrupt, the next ring makes it again
        self._calls.clear()

    def rung(self, rings: int, clock: Clock, timeout_s: float | None) -> Step[bool]:
        """Return a step that waits until it was rung more than this many times; False on timeout."""
        return _Rung(self, rings, clock, timeout_s)

    def call_when_rung(self, rings: int, call: Callable[[], object]) -> Callable[[], object]:
        """Register a quick, idempotent call for the next ring, or make it now if that has happened.

        Return a function that removes it.
        """
        number = object()
        with self.mutex:
            waits = self.rings == rings
            if waits:
                self._calls[number] = call
        if not waits:
            call()
        return partial(self._calls.pop, number, None)


class _Rung(Step[bool]):
    """Waits until a notifier was rung more than this many times, or a timeout; True if it was rung."""

    __slots__ = ("_clock", "_notifier", "_rings")

    def __init__(self, notifier: Notifier, rings: int, clock: Clock, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._notifier = notifier
        self._rings = rings
        self._clock = clock

    def block(self) -> bool:
        """Wait in this thread."""
        rung = Signal()
        remove = self._notifier.call_when_rung(self._rings, rung.set)
        try:
            return self._clock.wait(rung, self.timeout_s)
        finally:
            remove()

    def begin(self) -> Future[bool]:
        """Wait without blocking."""
        return when(partial(self._notifier.call_when_rung, self._rings))

    def late(self) -> bool:
        """Return whether it was rung."""
        return self._notifier.rings != self._rings
