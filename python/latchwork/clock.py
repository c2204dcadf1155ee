"""The one clock: deadlines, waits and nothing else.

Liveness is judged by one's own clock that runs through suspend; no wall clocks are compared between machines.
Code that waits takes a ``Clock``, so that tests can put a virtual one in its place.
"""

from __future__ import annotations

import threading
import time
from functools import partial
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
        """Wait on a held condition, like ``Condition.wait``, and perhaps for less; False if the time has passed.

        The caller checks again whatever it waits for.
        """
        ...


class SystemClock:
    """The machine's clock. Safe to share between threads.

    A wait that is longer than the system can count, infinity included, is for ever, as far as anybody can tell. While
    the main thread waits, handlers of signals run within half a second.
    """

    #: Seconds since boot, suspend included. It is asked often: a call of the system and nothing around it.
    now = staticmethod(partial(time.clock_gettime, _BOOTTIME))

    def wait(self, event: threading.Event, timeout_s: float | None = None) -> bool:
        """Wait until the event is set or the time has passed; True if it is set."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        left_s = timeout_s
        while not event.wait(_slice_s(left_s)):
            if until is not None and (left_s := until - time.monotonic()) <= 0.0:
                return False
        return True

    def wait_condition(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait on a held condition, in the main thread for one slice at most; False if the time has passed.

        The caller checks after each slice: a notification that arrives at the end of one is given to nobody.
        """
        if timeout_s is None and threading.get_ident() != threading.main_thread().ident:
            return condition.wait()
        slice_s = _slice_s(timeout_s)
        is_last = timeout_s is not None and slice_s is not None and timeout_s <= slice_s
        return condition.wait(slice_s) or not is_last


def _slice_s(timeout_s: float | None) -> float | None:
    """Return how much of a wait may be one call of the system; None for all of an endless one."""
    is_main = threading.get_ident() == threading.main_thread().ident
    if timeout_s is None:
        return SIGNALS_S if is_main else None
    return max(0.0, min(timeout_s, SIGNALS_S if is_main else _LONGEST_WAIT_S))


SYSTEM_CLOCK: Clock = SystemClock()
