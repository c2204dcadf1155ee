"""A clock that stands still until a test advances it.

    clock = VirtualClock()
    store = latchwork.connect("memory://trial", clock=clock)
    clock.advance(11)          # a session of ten seconds that could not be renewed is lost now

Threads run freely. ``advance`` moves time from deadline to deadline, and waits after each one until the threads that it
woke are idle. Use ``Simulation`` for runs that can be repeated exactly.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from concurrent.futures import thread as pools
from dataclasses import dataclass
from types import FrameType

from latchwork._base import event
from latchwork._base.event import Signal

_START_S = 1000.0
_PREFIX = "latchwork"
_LEAST_WAIT_S = 1e-9
#: Real time between two looks at the threads, and how many looks in a row must find them at rest.
_LOOK_EVERY_S = 0.001
_LOOKS = 4
#: Functions in which a thread that is at rest is found: waits for conditions and threads, and idle pools.
_RESTING = {
    (threading.__file__, "wait"),
    (event.__file__, "wait"),
    (threading.__file__, "join"),
    (threading.__file__, "_wait_for_tstate_lock"),
    (pools.__file__, "_worker"),
}


@dataclass(eq=False)
class _Sleeper:
    """A wait of one thread for the virtual clock. Guarded by the lock of its condition."""

    condition: threading.Condition
    deadline: float | None


class VirtualClock:
    """A ``latchwork.clock.Clock`` for tests. Thread-safe. Stores of one memory database share one clock.

    It does not control real time: sockets, other processes and the scheduler of the machine are unaffected. Use it for
    ``memory://`` stores and for code that waits by a ``Clock``.

    Args:
        settle_s: The longest real time in seconds that ``advance`` waits for threads to become idle, each time it wakes
            some.
    """

    def __init__(self, *, settle_s: float = 0.5) -> None:
        self._settle_s = settle_s
        self._lock = threading.Lock()
        self._now = _START_S
        self._sleepers: list[_Sleeper] = []
        self._known: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # threads that have waited by it

    def __repr__(self) -> str:
        return f"<VirtualClock {self._now:.3f}s, {self.waiting} waiting>"

    def now(self) -> float:
        """Return the virtual time in seconds, from an arbitrary zero."""
        return self._now

    @property
    def waiting(self) -> int:
        """The number of threads that wait for this clock."""
        with self._lock:
            return len(self._sleepers)

    def next_s(self) -> float | None:
        """Return the seconds until the next deadline, or None if no thread waits for one."""
        deadline = self._next_deadline()
        return None if deadline is None else max(0.0, deadline - self._now)

    def advance(self, seconds: float) -> None:
        """Advance the time, one deadline after the other. Before the next deadline, the threads that were woken become
        idle.

        Args:
            seconds: Seconds by which to advance, at least 0.
        Raises:
            ValueError: The time is negative.
        """
        if not seconds >= 0:
            raise ValueError(f"a clock never goes back; advance by 0 s or more, not {seconds!r}")
        until = self._now + seconds
        self.settle()
        while (deadline := self._next_deadline()) is not None and deadline <= until:
            self._move(deadline)
            self.settle()
        self._move(until)
        self.settle()

    def settle(self) -> bool:
        """Wait in real time until latchwork's threads, and all threads that have waited for this clock, are idle.

        Returns:
            Whether they are idle. False if they are not idle within ``settle_s`` seconds.
        """
        deadline = time.monotonic() + self._settle_s
        at_rest = 0
        while at_rest < _LOOKS:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_EVERY_S)
            at_rest = at_rest + 1 if self._is_quiet() else 0
        return True

    def wait(self, signal: Signal, timeout_s: float | None = None) -> bool:
        """Wait until a signal is set. Return False after the timeout.

        Args:
            signal: The signal.
            timeout_s: Seconds of virtual time to wait; None waits forever.
        """
        deadline = self._deadline(timeout_s)
        condition = threading.Condition()

        def wake() -> None:
            with condition:
                condition.notify_all()

        remove = signal.call_when_set(wake)
        try:
            with condition:
                while not signal.is_set():
                    if deadline is not None and self._now >= deadline:
                        return False
                    self._sleep(_Sleeper(condition, deadline))
        finally:
            remove()
        return True

    def wait_condition(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait for a condition variable, possibly for less time than the timeout. The caller must hold it.

        Args:
            condition: The condition variable.
            timeout_s: Seconds of virtual time to wait; None waits forever.
        Returns:
            False after the timeout.
        """
        deadline = self._deadline(timeout_s)
        if deadline is not None and self._now >= deadline:
            return False
        self._sleep(_Sleeper(condition, deadline))
        return deadline is None or self._now < deadline

    def _deadline(self, timeout_s: float | None) -> float | None:
        """Return the deadline of a wait on the virtual clock.

        Each wait advances the time a little. Otherwise the last fraction of a lease would never pass.
        """
        if timeout_s is None or timeout_s <= 0:
            return None if timeout_s is None else self._now
        return self._now + max(timeout_s, _LEAST_WAIT_S)

    def _next_deadline(self) -> float | None:
        with self._lock:
            return min((each.deadline for each in self._sleepers if each.deadline is not None), default=None)

    def _sleep(self, sleeper: _Sleeper) -> None:
        with self._lock:
            self._sleepers.append(sleeper)
            self._known.add(threading.current_thread())
        try:
            sleeper.condition.wait()
        finally:
            with self._lock:
                self._sleepers.remove(sleeper)

    def _move(self, now: float) -> None:
        with self._lock:
            self._now = max(self._now, now)
            due = [each for each in self._sleepers if each.deadline is not None and each.deadline <= self._now]
        for sleeper in due:
            with sleeper.condition:
                sleeper.condition.notify_all()

    def _is_quiet(self) -> bool:
        with self._lock:
            if any(self._is_woken(each) for each in self._sleepers):
                return False
        frames = sys._current_frames()  # noqa: SLF001 - the only way to see what a thread is doing
        with self._lock:
            known = set(self._known)
        others = [each for each in threading.enumerate() if each is not threading.current_thread()]
        followed = [each for each in others if each in known or each.name.startswith(_PREFIX)]
        return all(_rests(frames.get(each.ident or 0)) for each in followed)

    def _is_woken(self, sleeper: _Sleeper) -> bool:
        """Return whether a wait has ended, even if its thread is not running yet. The caller must hold the lock."""
        if sleeper.deadline is not None and sleeper.deadline <= self._now:
            return True
        here = sum(each.condition is sleeper.condition for each in self._sleepers)
        return here > len(sleeper.condition._waiters)  # type: ignore[attr-defined]  # noqa: SLF001 - notify() shortens it


def _rests(frame: FrameType | None) -> bool:
    return frame is None or (frame.f_code.co_filename, frame.f_code.co_name) in _RESTING
