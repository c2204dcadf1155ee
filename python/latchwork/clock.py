"""The clock for deadlines and waits.

Liveness is judged by the local clock, which runs through suspend. Wall clocks of machines are never compared. Code that
waits takes a ``Clock``, so that tests can replace it.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Protocol

from latchwork._base.event import Signal

__all__ = ["SIGNALS_S", "SYSTEM_CLOCK", "Clock", "Signal", "SystemClock"]

#: What Python can wait at most is 292 years from its own clock's zero; half of that leaves room for any such zero.
_LONGEST_WAIT_S = threading.TIMEOUT_MAX / 2

#: The main thread waits in slices of so many seconds. A signal that arrives right before a wait, or in another thread,
#: does not end it: its handler runs at the end of the slice.
SIGNALS_S = 0.5

_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Time and waiting. Thread-safe."""

    def now(self) -> float:
        """Return a time in seconds since an arbitrary start.

        The clock never goes back, and continues while the machine sleeps.
        """
        ...

    def wait(self, signal: Signal, timeout_s: float | None = None) -> bool:
        """Wait until the signal is set. Return False after the timeout."""
        ...

    def wait_condition(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait for a condition variable that the caller holds, perhaps for less than the timeout.

        Return False after it.

        The caller must check its condition again.
        """
        ...


class SystemClock:
    """The clock of the machine. Thread-safe.

    A wait that is longer than the system can count lasts forever. Signal handlers run within half a second while the
    main thread waits.
    """

    #: Seconds since boot, suspend included. It is asked often: a call of the system and nothing around it.
    now = staticmethod(partial(time.clock_gettime, _BOOTTIME))

    def wait(self, signal: Signal, timeout_s: float | None = None) -> bool:
        """Wait until the signal is set. Return False after the timeout."""
        if threading.get_ident() != threading.main_thread().ident and (timeout_s or 0.0) < _LONGEST_WAIT_S:
            return signal.wait(timeout_s)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        left_s = timeout_s
        while not signal.wait(_slice_s(left_s)):
            if until is not None and (left_s := until - time.monotonic()) <= 0.0:
                return False
        return True

    def wait_condition(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait for a condition variable that the caller holds. Return False after the timeout.

        In the main thread the wait is divided into slices, so that signal handlers run. The caller must check its
        condition after each slice, because a notification at the end of a slice may be lost.
        """
        if threading.get_ident() != threading.main_thread().ident and (timeout_s or 0.0) < _LONGEST_WAIT_S:
            return condition.wait(timeout_s)
        slice_s = _slice_s(timeout_s)
        is_last = timeout_s is not None and slice_s is not None and timeout_s <= slice_s
        return condition.wait(slice_s) or not is_last


def _slice_s(timeout_s: float | None) -> float | None:
    """Return the maximum duration of one system call that waits, in seconds. None means no limit."""
    is_main = threading.get_ident() == threading.main_thread().ident
    if timeout_s is None:
        return SIGNALS_S if is_main else None
    return max(0.0, min(timeout_s, SIGNALS_S if is_main else _LONGEST_WAIT_S))


SYSTEM_CLOCK: Clock = SystemClock()
