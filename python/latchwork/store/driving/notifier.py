"""A mutex with a bell, by which a protocol waits for a change of what the mutex guards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from latchwork.clock import Clock
from latchwork.interrupts import condition, mutex
from latchwork.store.steps import Step, Until


class Notifier:
    """A mutex, and a bell that is rung when what it guards has changed. Safe to share between threads.

    ``with bell.mutex:`` holds the mutex; ``bell.ring()`` is called inside. To wait for a condition: read ``bell.rings``
    and look at the condition inside, then await ``bell.rung(rings, ...)`` outside, and look again.

    Args:
        of: a mutex that there is: several bells of one mutex wake each those whom it concerns.
    """

    def __init__(self, of: threading.Lock | None = None) -> None:
        self.mutex = mutex() if of is None else of
        self._condition = condition(self.mutex)
        self._calls: dict[object, Callable[[], object]] = {}
        self.rings = 0

    def ring(self) -> None:
        """Wake whoever waits. The caller holds the mutex: calls that wait are made here, and only wake event loops."""
        self.rings += 1
        self._condition.notify_all()
        while self._calls:
            self._calls.popitem()[1]()

    def rung(self, rings: int, clock: Clock, timeout_s: float | None) -> Step[bool]:
        """The step of waiting until it has been rung more than so many times; False when the time is over."""
        listen = partial(self._call_when_rung, rings)
        return Until(timeout_s, partial(self._wait, rings, clock, timeout_s), listen, lambda: self.rings != rings)

    def _wait(self, rings: int, clock: Clock, timeout_s: float | None) -> bool:
        until = None if timeout_s is None else clock.now() + timeout_s
        with self.mutex:
            while self.rings == rings:
                left_s = None if until is None else until - clock.now()
                if left_s is not None and left_s <= 0.0:
                    return False
                clock.wait_condition(self._condition, left_s)
        return True

    def _call_when_rung(self, rings: int, call: Callable[[], object]) -> Callable[[], object]:
        number = object()
        with self.mutex:
            waits = self.rings == rings
            if waits:
                self._calls[number] = call
        if not waits:
            call()
        return partial(self._calls.pop, number, None)
