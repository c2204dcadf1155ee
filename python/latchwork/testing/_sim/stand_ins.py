"""Replacements of locks, threads, clocks and random numbers during a simulation.

Simulated threads get the replacements. All other threads, such as those of a test runner, get the real versions.
"""

from __future__ import annotations

import asyncio
import builtins
import importlib
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from latchwork._base import interrupts
from latchwork.clock import SystemClock
from latchwork.testing._sim.locks import (
    SimLock,
    real_join,
    real_lock,
    real_monotonic,
    real_rlock,
    real_sleep,
    real_start,
)
from latchwork.testing._sim.scheduler import SimScheduler
from latchwork.testing._sim.tasks import hide

hide(__file__)

_real_new_event_loop = asyncio.events.new_event_loop
_real_gettime = time.clock_gettime
_real_urandom = os.urandom
_real_start_natively = interrupts._start_without_waiting  # noqa: SLF001 - ours
_real_import = builtins.__import__
_real_import_module = importlib.import_module
_real_is_alive = threading.Thread.is_alive
_RUNNING_CLOCKS = {getattr(time, name, time.CLOCK_MONOTONIC) for name in ("CLOCK_MONOTONIC", "CLOCK_BOOTTIME")}
#: Every wait advances the time, or the rounding error of a lease would be waited for forever. More than the
#: resolution of a loop's clock, within which a timer is due.
_LEAST_DELAY_S = 2e-9


@contextmanager
def install_stand_ins(sim: SimScheduler) -> Iterator[None]:
    """Return a context manager that replaces locks, threads, clocks and random numbers during its ``with`` block."""
    replaced = [(where, name, vars(where)[name]) for where, name, _ in _stand_ins(sim)]
    for where, name, stand_in in _stand_ins(sim):
        setattr(where, name, stand_in)
    try:
        yield
    finally:
        for where, name, original in replaced:
            setattr(where, name, original)


def _stand_ins(sim: SimScheduler) -> list[tuple[Any, str, object]]:
    def inside(ours: Callable[..., object], real: Callable[..., object]) -> Callable[..., object]:
        """Return a function that calls ours in simulated threads, and the real one in others."""

        def stand_in(*args: Any) -> object:
            return (ours if sim.current_task() is not None else real)(*args)

        return stand_in

    def gettime(clock: int) -> float:
        return sim.now() if clock in _RUNNING_CLOCKS and sim.current_task() is not None else _real_gettime(clock)

    def as_one_step(load: Callable[..., object]) -> Callable[..., object]:
        def import_outside(*args: Any, **options: Any) -> object:
            if sim.current_task() is None:
                return load(*args, **options)
            with sim.use_real_locks():  # locks that a module makes for itself outlive the simulation
                return load(*args, **options)

        return import_outside

    lock = inside(partial(SimLock, sim), real_lock)
    monotonic = inside(sim.now, real_monotonic)
    new_event_loop = inside(SimLoop, _real_new_event_loop)
    urandom = inside(sim.random.randbytes, _real_urandom)
    return [
        (threading, "Lock", lock),
        (threading, "_allocate_lock", lock),
        (interrupts, "Mutex", lock),
        (threading, "RLock", inside(threading._PyRLock, real_rlock)),  # type: ignore[attr-defined]  # noqa: SLF001 - made of our locks
        (threading, "_time", monotonic),
        (queue, "time", monotonic),
        (queue, "SimpleQueue", queue._PySimpleQueue),  # type: ignore[attr-defined]  # noqa: SLF001
        (time, "monotonic", monotonic),
        (time, "clock_gettime", gettime),
        (SystemClock, "now", staticmethod(inside(sim.now, SystemClock.now))),
        (time, "sleep", inside(sim.sleep, real_sleep)),
        (builtins, "__import__", as_one_step(_real_import)),
        (importlib, "import_module", as_one_step(_real_import_module)),
        (asyncio, "new_event_loop", new_event_loop),
        (asyncio.events, "new_event_loop", new_event_loop),
        (os, "urandom", urandom),
        (random, "_urandom", urandom),
        *_thread_stand_ins(sim),
    ]


def _thread_stand_ins(sim: SimScheduler) -> list[tuple[Any, str, object]]:
    def start(thread: threading.Thread) -> None:
        if sim.current_task() is None:
            real_start(thread)
            return
        run: Callable[[], None] = thread.run
        task = sim.add(thread)
        thread.run = lambda: sim.run_task(task, run)  # type: ignore[method-assign]
        with sim.use_real_locks():
            thread._started = threading.Event()  # type: ignore[attr-defined]  # noqa: SLF001 - set before its first turn
            real_start(thread)

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        if sim.current_task() is None or not sim.join(thread, timeout):
            real_join(thread, timeout)

    def is_alive(thread: threading.Thread) -> bool:
        alive = sim.is_alive(thread)
        return _real_is_alive(thread) if alive is None else alive

    def start_natively(thread: threading.Thread) -> None:
        (_real_start_natively if sim.current_task() is None else start)(thread)

    return [
        (interrupts, "_start_without_waiting", start_natively),
        (threading.Thread, "start", start),
        (threading.Thread, "join", join),
        (threading.Thread, "is_alive", is_alive),
    ]


hide(__file__)


class SimSelector:
    """The selector of a simulated event loop. Only a call of ``wake`` or a timeout ends a wait."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def select(self, timeout: float | None = None) -> list[Any]:
        """Wait until the event loop is woken, or until the timeout."""
        if timeout is None or timeout > 0.0:
            self._woken.wait(timeout)
        self._woken.clear()
        return []

    def wake(self) -> None:
        """Wake the event loop. May be called in any thread."""
        self._woken.set()


class SimLoop(asyncio.BaseEventLoop):
    """An event loop with tasks, timers and futures, without sockets, processes and signals."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = SimSelector()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Schedule a call at a virtual time. If the time is not in the future, the call is made just after now."""
        return super().call_at(max(when, self.time() + _LEAST_DELAY_S), callback, *args, context=context)

    def _process_events(self, _events: list[Any]) -> None:
        """Do nothing, because a simulated loop has no sockets."""

    def _write_to_self(self) -> None:
        self._selector.wake()
