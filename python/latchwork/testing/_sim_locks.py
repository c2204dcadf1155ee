"""What stands in for locks, threads and clocks inside a simulation. See ``simulation``.

A lock made by a simulated thread blocks by asking the scheduler, so that the real thread never blocks on anything but
its own turn. Conditions, events, semaphores, queues, futures and thread pools are built of locks and need nothing more.
Threads that do not belong to the simulation (a test runner's) keep real locks and real time.
"""

from __future__ import annotations

import _thread
import builtins
import importlib
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latchwork.testing._sim_turns import Turns

_FOREIGN_PAUSE_S = 0.001

real_lock = _thread.allocate_lock
real_rlock = threading.RLock
real_sleep = time.sleep
real_monotonic = time.monotonic
_real_gettime = time.clock_gettime
_real_urandom = os.urandom
_real_import = builtins.__import__
_real_import_module = importlib.import_module
real_start = threading.Thread.start
_real_join = threading.Thread.join
_real_is_alive = threading.Thread.is_alive
_RUNNING_CLOCKS = {getattr(time, name, time.CLOCK_MONOTONIC) for name in ("CLOCK_MONOTONIC", "CLOCK_BOOTTIME")}


class SimLock:
    """A lock of a simulation; used by other threads too it is merely correct, not fast."""

    __slots__ = ("__weakref__", "_sim", "holder", "is_locked")

    def __init__(self, sim: Turns) -> None:
        self._sim = sim
        self.is_locked = False
        self.holder: Any = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As ``threading.Lock.acquire``, in virtual time."""
        task = self._sim.me()
        if task is None:
            return self._acquire_outside(blocking, timeout)
        self._sim.point(task)
        if self.is_locked and not (blocking and self._sim.block(task, self, timeout)):
            return False
        self.is_locked = True
        self.holder = task
        task.held += 1
        return True

    def release(self) -> None:
        """As ``threading.Lock.release``: any thread may."""
        if not self.is_locked:
            raise RuntimeError("release unlocked lock")
        holder, self.holder, self.is_locked = self.holder, None, False
        if holder is not None:
            holder.held -= 1

    def locked(self) -> bool:
        """Whether somebody has it."""
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


class SimRLock:
    """A lock that its owner may take again."""

    def __init__(self, sim: Turns) -> None:
        self._lock = SimLock(sim)
        self._owner: int | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As ``threading.RLock.acquire``."""
        me = threading.get_ident()
        if self._owner != me:
            if not self._lock.acquire(blocking, timeout):
                return False
            self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        """As ``threading.RLock.release``."""
        if self._owner != threading.get_ident():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # What ``threading.Condition`` asks of a reentrant lock.

    def _is_owned(self) -> bool:
        return self._owner == threading.get_ident()

    def _release_save(self) -> tuple[int, int | None]:
        saved = (self._count, self._owner)
        self._count, self._owner = 0, None
        self._lock.release()
        return saved

    def _acquire_restore(self, saved: tuple[int, int | None]) -> None:
        self._lock.acquire()
        self._count, self._owner = saved


@contextmanager
def installed(sim: Turns) -> Iterator[None]:
    """Put the stand-ins in place while the simulation runs."""
    replaced = [(where, name, getattr(where, name)) for where, name, _ in _stand_ins(sim)]
    for where, name, stand_in in _stand_ins(sim):
        setattr(where, name, stand_in)
    try:
        yield
    finally:
        for where, name, original in replaced:
            setattr(where, name, original)


def _stand_ins(sim: Turns) -> list[tuple[Any, str, object]]:
    def lock() -> object:
        return SimLock(sim) if sim.me() is not None else real_lock()

    def rlock() -> object:
        return SimRLock(sim) if sim.me() is not None else real_rlock()

    def monotonic() -> float:
        return sim.now() if sim.me() is not None else real_monotonic()

    def gettime(clock: int) -> float:
        return sim.now() if clock in _RUNNING_CLOCKS and sim.me() is not None else _real_gettime(clock)

    def sleep(seconds: float) -> None:
        (sim.sleep if sim.me() is not None else real_sleep)(seconds)

    def as_one_step(load: Callable[..., object]) -> Callable[..., object]:
        def import_outside(*args: Any, **options: Any) -> object:
            if sim.me() is None:
                return load(*args, **options)
            with sim.outside():  # locks that a module makes for itself outlive the simulation
                return load(*args, **options)

        return import_outside

    def urandom(size: int) -> bytes:
        return sim.random.randbytes(size) if sim.me() is not None else _real_urandom(size)

    return [
        (threading, "Lock", lock),
        (threading, "_allocate_lock", lock),
        (threading, "RLock", rlock),
        (threading, "_time", monotonic),
        (queue, "time", monotonic),
        (queue, "SimpleQueue", queue._PySimpleQueue),  # type: ignore[attr-defined]  # noqa: SLF001
        (time, "monotonic", monotonic),
        (time, "clock_gettime", gettime),
        (time, "sleep", sleep),
        (builtins, "__import__", as_one_step(_real_import)),
        (importlib, "import_module", as_one_step(_real_import_module)),
        (os, "urandom", urandom),
        (random, "_urandom", urandom),
        *_thread_stand_ins(sim),
    ]


def _thread_stand_ins(sim: Turns) -> list[tuple[Any, str, object]]:
    def start(thread: threading.Thread) -> None:
        if sim.me() is None:
            real_start(thread)
            return
        run: Callable[[], None] = thread.run
        task = sim.add(thread)
        thread.run = lambda: sim.carry(task, run)  # type: ignore[method-assign]
        with sim.outside():
            thread._started = threading.Event()  # type: ignore[attr-defined]  # noqa: SLF001 - set before its first turn
            real_start(thread)

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        if sim.me() is None or not sim.join(thread, timeout):
            _real_join(thread, timeout)

    def is_alive(thread: threading.Thread) -> bool:
        alive = sim.is_alive(thread)
        return _real_is_alive(thread) if alive is None else alive

    return [
        (threading.Thread, "start", start),
        (threading.Thread, "join", join),
        (threading.Thread, "is_alive", is_alive),
    ]


def join_for_good(thread: threading.Thread) -> None:
    """Wait for the real end of a simulated thread that has had its last turn."""
    _real_join(thread, 10.0)
