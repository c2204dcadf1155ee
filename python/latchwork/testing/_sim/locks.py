"""Simulated locks, and the real locks that they replace.

A simulated thread that takes a lock asks the scheduler, so the real thread only ever waits for its own turn.
Conditions, events, semaphores, queues, futures and pools are built of locks. Threads outside the simulation keep real
locks and time.
"""

from __future__ import annotations

import _thread
import threading
import time
from typing import Any, Protocol

_FOREIGN_PAUSE_S = 0.001

real_lock = _thread.allocate_lock
real_rlock = threading.RLock
real_sleep = time.sleep
real_monotonic = time.monotonic
real_start = threading.Thread.start
real_join = threading.Thread.join


class Scheduler(Protocol):
    """The methods of the simulation's scheduler that a lock calls."""

    def current_task(self) -> Any: ...
    def switch_if_chosen(self, task: Any) -> None: ...
    def block(self, task: Any, lock: SimLock, timeout: float) -> bool: ...


class SimLock:
    """A simulated lock. Threads outside the simulation may use it too, but it is slow for them."""

    __slots__ = ("__weakref__", "_sim", "holder", "is_locked")

    def __init__(self, sim: Scheduler, *, is_locked: bool = False) -> None:
        self._sim = sim
        self.is_locked = is_locked
        self.holder: Any = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock like ``threading.Lock.acquire``, in virtual time."""
        task = self._sim.current_task()
        if task is None:
            return self._acquire_outside(blocking, timeout)
        self._sim.switch_if_chosen(task)
        if self.is_locked and not (blocking and self._sim.block(task, self, timeout)):
            return False
        self.is_locked = True
        self.holder = task
        task.held += 1
        return True

    def release(self) -> None:
        """Release the lock like ``threading.Lock.release``. Any thread may call this."""
        if not self.is_locked:
            raise RuntimeError("release unlocked lock")
        holder, self.holder, self.is_locked = self.holder, None, False
        if holder is not None:
            holder.held -= 1

    def locked(self) -> bool:
        """Return whether a thread holds the lock."""
        return self.is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _acquire_outside(self, blocking: bool, timeout: float) -> bool:
        deadline = None if timeout < 0 else real_monotonic() + timeout
        while self.is_locked:
            if not blocking or (deadline is not None and real_monotonic() >= deadline):
                return False
            real_sleep(_FOREIGN_PAUSE_S)
        self.is_locked = True
        return True


def join_for_good(thread: threading.Thread) -> None:
    """Wait until the real thread of a finished simulated thread has ended."""
    real_join(thread, 10.0)
