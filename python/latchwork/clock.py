"""The one clock: deadlines, waits and nothing else.

Liveness is judged by one's own clock that runs through suspend; no wall clocks are compared between machines.
Code that waits takes a ``Clock``, so that tests can put a virtual one in its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

#: What Python can wait at most is 292 years from its own clock's zero; half of that leaves room for any such zero.
_LONGEST_WAIT_S = threading.TIMEOUT_MAX / 2

#: The main thread waits in slices of so many seconds. A signal that arrives right before a wait, or in another thread,
#: does not end it: its handler runs at the end of the slice.
SIGNALS_S = 0.5

_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Time and waiting. Safe to share between threads."""

    def now(self) -> float:
        """Seconds on a clock that never goes back and runs through suspend; its zero means nothing."""
        ...

    def wait(self, event: threading.Event, timeout_s: float | None = None) -> bool:
        """Wait until the event is set or the time is over; True if it is set."""
        ...

    def wait_condition(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait on a held condition once, like ``Condition.wait``; False if the time ran out. The caller re-checks."""
        ...


class SystemClock:
    """The machine's clock. Safe to share between threads.

    A wait that is longer than the system can count, infinity included, is for ever, as far as anybody can tell. While
    the main thread waits, handlers of signals run within half a second.
    """

    def now(self) -> float:
        """Seconds since boot, suspend included."""
        return time.clock_gettime(_BOOTTIME)

    def wait(self, event: threading.Event, timeout_s: float | None = None) -> bool:
        """Wait until the event is set or the time is over; True if it is set."""
        return _in_slices(event.wait, timeout_s)

    def wait_condition(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait on a held condition once; False if the time ran out."""
        return _in_slices(condition.wait, timeout_s)


def _in_slices(wait: Callable[[float | None], bool], timeout_s: float | None) -> bool:
    if timeout_s is not None and timeout_s <= SIGNALS_S:
        return wait(max(0.0, timeout_s))
    if threading.get_ident() != threading.main_thread().ident:
        return wait(None if timeout_s is None else min(timeout_s, _LONGEST_WAIT_S))
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = SIGNALS_S if until is None else min(until - time.monotonic(), SIGNALS_S)
        if wait(max(0.0, left_s)):
            return True
        if until is not None and time.monotonic() >= until:
            return False


SYSTEM_CLOCK: Clock = SystemClock()
