"""A simulation: real threads that take turns, in virtual time, in an order that a seed decides.

    with Simulation(seed=7) as sim:
        store = latchwork.connect("memory://trial")
        ...                                    # threads, locks, waits and timeouts as ever
        sim.sleep(3600)                        # an hour of leases, renewals and timeouts, in milliseconds

Inside the ``with`` one thread runs at a time. Another gets its turn when the first waits, and at points where the
schedule says so; virtual time stands still while anybody can run, and jumps to the next deadline when nobody can. The
same seed, or the same decisions, give the same run. Only what blocks by locks can be simulated: conditions, events,
queues, futures, thread pools and sleeps are, and event loops that are made inside (``asyncio.run``); sockets and files
are not (``memory://`` stores need neither).
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
from latchwork.testing._sim.stand_ins import installed
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
from latchwork.testing._sim.turns import Turns

__all__ = ["Deadlock", "Simulation", "SimulationError", "ThreadFailed", "ThreadsLeft", "TooLong", "Turn"]

_GRACE_S = 60.0
_UNWIND_TIMEOUT_S = 10.0
hide(__file__)
#: One transaction of the embedded store is one step: no thread is stopped inside it.
_ONE_STEP = ((Database, "read"), (Database, "write"))


class Simulation(Turns):
    """A run of threads in virtual time; a context manager. The thread that enters it is the first of the simulation.

    Args:
        seed: decides who runs when, and what random numbers and uuids are; None lets each thread run until it waits,
            in the order of asking.
        preempt_rate: with a seed, how likely a thread is stopped at a point where it could go on, 0 to 1.
        decisions: who runs when, instead of by the seed: at which point which of the others gets the turn. With the
            seed and the ``decisions`` of an earlier run it is the same run; with fewer decisions, a simpler one.
        max_turns: ``TooLong`` after so many changes of turns.
        max_time_s: ``TooLong`` after so many virtual seconds.
        allow_leftovers: do not mind threads that run on at the end; they are ended in any case.
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
            gc.disable()  # a collection would run finalizers at a moment of its own choice
            self._stack.callback(gc.enable)
        for owner, name in _ONE_STEP:
            self._make_one_step(owner, name)
        self._stack.callback(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = partial(_tell_unraisable, sys.unraisablehook)
        self._stack.enter_context(installed(self))
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
        """Threads started inside belong to this node, and so do the threads that they start."""
        task = self._require()
        before, task.node = task.node, name
        try:
            yield
        finally:
            task.node = before

    def freeze(self, node: str, seconds: float) -> None:
        """Stop every thread of a node for so long, wherever it is, as a paused process or a stalled machine would."""
        for task in self._tasks:
            if task.node == node:
                task.wakes_at = max(task.wakes_at, self._now + seconds)
        self._leave_if_stopped()

    def kill(self, node: str) -> None:
        """Stop every thread of a node for ever, wherever it is, as ``kill -9`` would."""
        for task in self._tasks:
            if task.node == node:
                task.is_killed = True
        self._leave_if_stopped()

    def spawn(self, fn: Callable[[], object], *, name: str, node: str | None = None) -> threading.Thread:
        """Start a thread, of a node if one is given. An exception that leaves ``fn`` fails the simulation."""
        thread = threading.Thread(target=fn, name=name, daemon=True)
        with self.node(self._require().node if node is None else node):
            thread.start()
        return thread

    # Intervening

    def at(self, point: int, fn: Callable[[], None]) -> None:
        """Call ``fn``, which must not wait, at this point of the run or soon after: to freeze or kill a node."""
        self._order.at(point, fn)

    def observe(self, fn: Callable[[], None]) -> None:
        """Call ``fn`` at each change of turns; what it raises fails the run.

        It must not wait. It is not called when a lock that it wants is held by somebody, so it sees no half-done state.
        """
        self._observers.append(fn)

    # The end

    def _drain(self) -> list[str]:
        """Let the others finish; the names of those that do not."""
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

    def _make_one_step(self, owner: type, name: str) -> None:
        """Have no other thread get a turn inside this method, unless its thread really has to wait."""
        original = getattr(owner, name)

        def stand_in(*args: Any, **options: Any) -> Any:
            task = self.me()
            if task is None:
                return original(*args, **options)
            task.pinned += 1
            try:
                return original(*args, **options)
            finally:
                task.pinned -= 1

        setattr(owner, name, stand_in)
        self._stack.callback(setattr, owner, name, original)


def _tell_unraisable(tell: Callable[[Any], object], raised: Any) -> None:
    """What a thread that is ended by the simulation does in vain to undo its call is nobody's error."""
    if not issubclass(raised.exc_type, Unwind):
        tell(raised)
