"""The one clock: deadlines, waits and nothing else.

Liveness is judged by one's own clock that runs through suspend; no wall clocks are compared between machines.
Code that waits takes a ``Clock``, so that tests can put a virtual one in its place.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

#: What Python can wait at most is 292 years from its own clock's zero; half of that leaves room for any such zero.
_LONGEST_WAIT_S = threading.TIMEOUT_MAX / 2

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

    A wait that is longer than the system can count, infinity included, is for ever, as far as anybody can tell.
    """

    def now(self) -> float:
        """Seconds since boot, suspend included."""
        return time.clock_gettime(_BOOTTIME)

    def wait(self, event: threading.Event, timeout_s: float | None = None) -> bool:
        """Wait until the event is set or the time is over; True if it is set."""
        return event.wait(_within_bounds(timeout_s))

    def wait_condition(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait on a held condition once; False if the time ran out."""
        return condition.wait(_within_bounds(timeout_s))


def _within_bounds(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else min(max(0.0, timeout_s), _LONGEST_WAIT_S)


SYSTEM_CLOCK: Clock = SystemClock()
