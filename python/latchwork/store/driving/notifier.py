"""A mutex and its notifier, by which a protocol waits for a change of what the mutex guards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from latchwork.clock import Clock
from latchwork.interrupts import condition, mutex
from latchwork.store.steps import Step, when


class Notifier:
    """A mutex, and waiters that are woken when what it guards has changed. Thread-safe.

    ``with notifier.mutex:`` holds the mutex; ``notifier.ring()`` is called inside. To wait for a condition: read
    ``notifier.rings`` and look at the condition inside, then await ``notifier.rung(rings, ...)`` outside, and look
    again.

    Attributes:
        rings: how often it was rung.
        condition: notified by each ring, while there are ``sleepers``.

    Args:
        of: a mutex that there is: several notifiers of one mutex wake each those whom it concerns.
    """

    def __init__(self, of: threading.Lock | None = None) -> None:
        self.mutex = mutex() if of is None else of
        self.condition = condition(self.mutex)
        self.sleepers = 0
        self._calls: dict[object, Callable[[], object]] = {}
        self.rings = 0

    def ring(self) -> None:
        """Wake all waiters. The caller holds the mutex: calls that wait are made here, and only wake event loops."""
        self.rings += 1
        if self.sleepers:
            self.condition.notify_all()
        while self._calls:
            self._calls.popitem()[1]()

    def rung(self, rings: int, clock: Clock, timeout_s: float | None) -> Step[bool]:
        """Return the step of waiting until it has been rung more than so often; False when the time has passed."""
        return _Rung(self, rings, clock, timeout_s)

    def call_when_rung(self, rings: int, call: Callable[[], object]) -> Callable[[], object]:
        """Have a quick call made then, or now if that has happened. Returns what takes it back."""
        number = object()
        with self.mutex:
            waits = self.rings == rings
            if waits:
                self._calls[number] = call
        if not waits:
            call()
        return partial(self._calls.pop, number, None)


class _Rung(Step[bool]):
    """Until a notifier was rung more than so often, or the time has passed; True if it was."""

    __slots__ = ("_clock", "_notifier", "_rings")

    def __init__(self, notifier: Notifier, rings: int, clock: Clock, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._notifier = notifier
        self._rings = rings
        self._clock = clock

    def block(self) -> bool:
        """Wait in this thread."""
        notifier, clock, left_s = self._notifier, self._clock, self.timeout_s
        until = None if left_s is None else clock.now() + left_s
        with notifier.mutex:
            while notifier.rings == self._rings:
                if until is not None:
                    left_s = until - clock.now()
                    if left_s <= 0.0:
                        return False
                notifier.sleepers += 1
                try:
                    clock.wait_condition(notifier.condition, left_s)
                finally:
                    notifier.sleepers -= 1
        return True

    def begin(self) -> Future[bool]:
        """Wait without blocking."""
        return when(partial(self._notifier.call_when_rung, self._rings))

    def late(self) -> bool:
        """Whether it was rung."""
        return self._notifier.rings != self._rings
