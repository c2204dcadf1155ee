"""A simulation: real threads that run one at a time, in virtual time, in an order that a seed decides.

    with Simulation(seed=7) as sim:
        store = latchwork.connect("memory://trial")
        ...                                    # threads, locks, waits and timeouts as usual
        sim.sleep(3600)                        # an hour of leases, renewals and timeouts, in milliseconds

One thread runs at a time inside the ``with`` block. Another one runs when the first one waits, and at points that the
schedule chooses. Virtual time stands still while any thread can run, and jumps to the next deadline otherwise. The same
seed, or the same decisions, repeat a run. Locks and everything built of them are simulated: conditions, events, queues,
futures, pools, sleeps, and event loops that are created inside. Sockets and files are not; ``memory://`` stores need
neither.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

from latchwork.backends.embedded.connection import Database
from latchwork.testing._sim.locks import SimLock, join_for_good, real_start
from latchwork.testing._sim.order import Order
from latchwork.testing._sim.scheduler import SimScheduler
from latchwork.testing._sim.stand_ins import install_stand_ins
from latchwork.testing._sim.tasks import (
    Deadlock,
    SimulationError,
    ThreadFailed,
    ThreadsLeft,
    TooLong,
    Turn,
    Unwind,
    hide,
)

__all__ = ["Deadlock", "Simulation", "SimulationError", "ThreadFailed", "ThreadsLeft", "TooLong", "Turn"]

_GRACE_S = 60.0
_UNWIND_TIMEOUT_S = 10.0
hide(__file__)
#: One transaction of the embedded store is one step: no thread is stopped inside it.
_ATOMIC_METHODS = ((Database, "read"), (Database, "write"))


class Simulation(SimScheduler):
    """A run of threads in virtual time, as a context manager. The thread that enters it is its first thread.

    Args:
        seed: Decides which thread runs when, and seeds random numbers and UUIDs. None: each thread runs until it waits,
            in the order of asking.
        preempt_rate: With a seed, the probability that a thread is preempted at a switch point, 0 to 1.
        decisions: The thread to switch to, by number of the switch point, instead of the seed's choice. The seed and
            the ``decisions`` of an earlier run repeat it; fewer decisions give a simpler run.
        max_turns: ``TooLong`` is raised after this many thread switches.
        max_time_s: ``TooLong`` is raised after this many virtual seconds.
        allow_leftovers: Accept threads that are still running at the end. They are ended in any case.
    """

    def __init__(
        self,
        seed: int | None = None,
        *,
        preempt_rate: float = 0.1,
        decisions: Mapping[int, int] | None = None,
        max_turns: int = 1_000_000,
        max_time_s: float = 10_000_000.0,
        allow_leftovers: bool = False,
    ) -> None:
        self.seed = seed
        super().__init__(seed, Order(seed, preempt_rate, decisions), max_turns=max_turns, max_time_s=max_time_s)
        self._allow_leftovers = allow_leftovers
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if threading.Thread.start is not real_start:
            raise SimulationError("a simulation is running already in this process; end it before the next one begins")
        self._root.thread = threading.current_thread()
        self._by_ident[threading.get_ident()] = self._root
        self._tasks.append(self._root)
        self._root.gate.acquire()
        state = random.getstate()
        self._stack.callback(random.setstate, state)
        random.seed(self.seed or 0)
        if gc.isenabled():
            gc.disable()  # a collection would run finalizers at an arbitrary time
            self._stack.callback(gc.enable)
        for owner, name in _ATOMIC_METHODS:
            self._make_atomic(owner, name)
        self._stack.callback(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = partial(_report_unraisable, sys.unraisablehook)
        self._stack.enter_context(install_stand_ins(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        left: list[str] = []
        try:
            if error is None:
                left = self._drain()
        finally:
            self._unwind()
        if error is None and self._failure is not None:
            raise self._failure
        if left and not self._allow_leftovers:
            raise ThreadsLeft(f"these threads were left running: {', '.join(left)}; close what started them")

    # Nodes

    @contextmanager
    def node(self, name: str) -> Iterator[None]:
        """Return a context manager that assigns threads to a simulated machine.

        Args:
            name: Name of the machine. It gets the threads that are started during the ``with`` block, and those that
                they start.
        """
        task = self._require()
        before, task.node = task.node, name
        try:
            yield
        finally:
            task.node = before

    def freeze(self, node: str, seconds: float) -> None:
        """Pause all threads of a simulated machine, as if it had stalled.

        Args:
            node: Name of the machine.
            seconds: Seconds of virtual time.
        """
        for task in self._tasks:
            if task.node == node:
                task.wakes_at = max(task.wakes_at, self._now + seconds)
        self._leave_if_stopped()

    def kill(self, node: str) -> None:
        """Stop all threads of a simulated machine permanently, as ``kill -9`` would."""
        for task in self._tasks:
            if task.node == node:
                task.is_killed = True
        self._leave_if_stopped()

    def spawn(self, fn: Callable[[], object], *, name: str, node: str | None = None) -> threading.Thread:
        """Start a thread in the simulation. An exception that leaves its function fails the simulation.

        Args:
            fn: Function of the thread.
            name: Name of the thread.
            node: Name of its simulated machine; None for that of the caller.
        """
        thread = threading.Thread(target=fn, name=name, daemon=True)
        with self.node(self._require().node if node is None else node):
            thread.start()
        return thread

    # Intervening

    def schedule_at(self, switch_point: int, fn: Callable[[], None]) -> None:
        """Call a function at a switch point, for example to freeze or kill a simulated machine.

        Args:
            switch_point: Number of the switch point, from 1. The function is called there, or at the first one after it
                at which the running thread holds no lock.
            fn: The function. It must not wait.
        """
        self._order.schedule_at(switch_point, fn)

    def observe(self, fn: Callable[[], None]) -> None:
        """Call a function at each switch between threads. If it raises an exception, the simulation ends.

        The function must not wait. It is skipped when it needs a lock that a thread holds, so it never sees a
        half-finished state.
        """
        self._observers.append(fn)

    # The end

    def _drain(self) -> list[str]:
        """Let the other threads finish. Return the names of the threads that do not."""
        until = self._now + _GRACE_S
        idle = SimLock(self, is_locked=True)
        while self._now < until:
            others = [task for task in self._tasks if task is not self._root and not task.is_killed]
            if not any(task.next_at() is not None for task in others):
                break
            idle.acquire(timeout=0.5)
        return sorted(task.name for task in self._tasks if task is not self._root and not task.is_killed)

    def _unwind(self) -> None:
        self._ending = True
        threads = []
        while others := [task for task in self._tasks if task is not self._root]:  # one that ends may start more
            task = others[0]
            task.unwinds = True
            self._current = task
            task.gate.release()
            if self._root.gate.acquire(timeout=_UNWIND_TIMEOUT_S):
                threads.append(task.thread)
            else:  # it does something real, and is given up
                self._tasks.remove(task)
        self._by_ident.clear()
        self._stack.close()
        for thread in threads:
            if thread is not None:
                join_for_good(thread)

    def _make_atomic(self, owner: type, name: str) -> None:
        """Make a method atomic: prevent switches to other threads inside it, unless its thread must wait.

        Args:
            owner: Class of the method.
            name: Name of the method.
        """
        original = getattr(owner, name)

        def stand_in(*args: Any, **options: Any) -> Any:
            task = self.current_task()
            if task is None:
                return original(*args, **options)
            task.pinned += 1
            try:
                return original(*args, **options)
            finally:
                task.pinned -= 1

        setattr(owner, name, stand_in)
        self._stack.callback(setattr, owner, name, original)


def _report_unraisable(hook: Callable[[Any], object], unraisable: Any) -> None:
    """Pass an exception to the original ``sys.unraisablehook``, unless the end of the simulation has caused it.

    Args:
        hook: The original hook.
        unraisable: The argument of the hook.
    """
    if not issubclass(unraisable.exc_type, Unwind):
        hook(unraisable)
