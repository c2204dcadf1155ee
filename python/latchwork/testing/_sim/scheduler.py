"""The scheduler of a simulation: it decides which thread runs, what the others wait for, and how time advances."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from latchwork.testing._sim.locks import SimLock, join_for_good
from latchwork.testing._sim.order import Order
from latchwork.testing._sim.tasks import (
    Busy,
    Deadlock,
    SimulatedTask,
    SimulationError,
    TooLong,
    Turn,
    Unwind,
    describe_frame,
    frame_of,
    hide,
    stack_of,
    thread_failed,
)

hide(__file__)

_START_S = 1000.0
_STUCK_AFTER_S = 30.0
_LEAST_WAIT_S = 1e-9


class SimScheduler:
    """The scheduler of a simulation. Only one of its threads runs at a time. The thread that starts it is its first
    thread.
    """

    def __init__(self, seed: int | None, order: Order, *, max_turns: int, max_time_s: float) -> None:
        self.random = random.Random(seed or 0)
        self.trace: list[Turn] = []
        self._order = order
        self._observers: list[Callable[[], None]] = []
        self._observing = False
        self._max_turns = max_turns
        self._max_time_s = max_time_s
        self._now = _START_S
        self._tasks: list[SimulatedTask] = []  # the one that ran last comes last
        self._by_ident: dict[int, SimulatedTask] = {}
        self._root = SimulatedTask("main", "")
        self._current = self._root
        self._failure: BaseException | None = None
        self._ending = False

    @property
    def switch_points(self) -> int:
        """The number of switch points so far, at which the scheduler could have switched to another thread."""
        return self._order.switch_points

    @property
    def decisions(self) -> dict[int, int]:
        """The scheduling choices that differ from the default, by number of the switch point.

        Pass them to another simulation to repeat this run.
        """
        return self._order.decisions

    def now(self) -> float:
        """Return the virtual time in seconds, from an arbitrary zero."""
        return self._now

    @property
    def elapsed_s(self) -> float:
        """The virtual time in seconds since the start."""
        return self._now - _START_S

    def sleep(self, seconds: float) -> None:
        """Let other threads run for some virtual time. Inside a simulation, ``time.sleep`` calls this.

        Args:
            seconds: The virtual time in seconds.
        """
        SimLock(self, is_locked=True).acquire(timeout=max(0.0, seconds))

    # For the stand-ins

    def current_task(self) -> SimulatedTask | None:
        """Return the simulated thread that calls this. None for any other thread."""
        task = self._by_ident.get(threading.get_ident())
        return None if task is None or task.is_outside else task

    @contextmanager
    def use_real_locks(self) -> Iterator[None]:
        """Return a context manager that gives the calling thread real locks and real time during its ``with`` block."""
        task = self._require()
        task.is_outside = True
        try:
            yield
        finally:
            task.is_outside = False

    def add(self, thread: threading.Thread) -> SimulatedTask:
        """Register a new thread. It waits until the scheduler chooses it."""
        task = SimulatedTask(thread.name, self._require().node, thread=thread)
        task.gate.acquire()
        task.done = SimLock(self, is_locked=True)
        task.wakes_at = self._current.wakes_at
        self._tasks.insert(0, task)
        return task

    def run_task(self, task: SimulatedTask, run: Callable[[], None]) -> None:
        """Run a simulated thread in its real thread, from the time at which it is first chosen until its end.

        Args:
            task: The simulated thread.
            run: Function of the thread.
        """
        ident = threading.get_ident()
        self._by_ident[ident] = task
        task.gate.acquire()
        _join_previous(task)
        try:
            if not task.unwinds:
                run()
        except Unwind:
            pass
        except BaseException as error:
            self._fail(thread_failed(task, error))
        task.is_done = True
        if task.done is not None:
            task.done.is_locked = False
        self._by_ident.pop(ident, None)
        self._hand_over(task)

    def switch_if_chosen(self, task: SimulatedTask) -> None:
        """Begin the next switch point: call the function that is scheduled for it, and switch threads if so chosen.

        Args:
            task: The simulated thread that calls this.
        """
        if self._observing or task.unwinds:
            return
        self._order.switch_points += 1
        if task.held or task.pinned:
            return
        interrupt = self._order.pop_scheduled()
        if interrupt is not None:
            interrupt()
        choice = self._order.choose_preemption()
        if choice is not None:
            ready = [other for other in self._tasks if other is not task and other.can_run(self._now)]
            if ready:
                self._switch(task, ready[self._order.record_choice(choice, len(ready))])

    def block(self, task: SimulatedTask, lock: SimLock, timeout: float) -> bool:
        """Wait until a lock is free. Return False after the timeout.

        Args:
            task: The simulated thread that calls this.
            lock: The lock.
            timeout: Seconds of virtual time to wait; negative waits forever.
        """
        if self._observing:
            raise Busy
        if task.unwinds:
            raise Unwind
        task.lock = lock
        # Every wait advances the time, or a tiny rest of a lease would be waited for forever.
        task.deadline = None if timeout < 0 else self._now + (max(timeout, _LEAST_WAIT_S) if timeout else 0.0)
        try:
            self._switch(task, self._next())
            return not lock.is_locked
        finally:
            task.lock = None
            task.deadline = None

    def join(self, thread: threading.Thread, timeout: float | None) -> bool:
        """Wait until a simulated thread has ended. Return False for a thread that does not belong to this
        simulation.
        """
        task = self._task_of(thread)
        if task is None or task.done is None:
            return False
        if task.done.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            task.done.release()
        return True

    def is_alive(self, thread: threading.Thread) -> bool | None:
        """Return whether a simulated thread is running. None for a thread that does not belong to this simulation."""
        task = self._task_of(thread)
        return None if task is None else not task.is_done

    # Taking turns

    def _leave_if_stopped(self) -> None:
        task = self.current_task()
        if task is not None and not task.can_run(self._now) and not (task.held or task.pinned):
            self._switch(task, self._next())

    def _hand_over(self, task: SimulatedTask) -> None:
        """Let another thread run, because this thread has ended."""
        if task not in self._tasks:
            return  # it was given up
        self._tasks.remove(task)
        target = self._root if self._ending else self._next()
        self._note(task, target, "ended")
        self._current = target
        target.follows = task.thread
        target.gate.release()

    def _next(self) -> SimulatedTask:
        while True:
            if self._failure is not None or len(self.trace) > self._max_turns:
                return self._fail(TooLong(f"{self._max_turns} turns were not enough; {self._describe_threads()}"))
            ready = [task for task in self._tasks if task.can_run(self._now)]
            if ready:
                return ready[self._order.choose_next(len(ready))]
            times = [at for at in (task.next_at() for task in self._tasks) if at is not None]
            if not times:
                return self._fail(Deadlock(f"no thread can continue; {self._describe_threads()}"))
            self._now = max(self._now, min(times))
            if self.elapsed_s > self._max_time_s:
                return self._fail(
                    TooLong(f"{self._max_time_s:g} virtual seconds were not enough; {self._describe_threads()}")
                )

    def _fail(self, error: BaseException) -> SimulatedTask:
        """Record the first error of the simulation, and return the main thread, which is to run next and raises it."""
        if self._failure is None:
            self._failure = error
        self._root.wakes_at = 0.0
        return self._root

    def _switch(self, task: SimulatedTask, target: SimulatedTask) -> None:
        self._note(task, target, None)
        self._look()
        if self._failure is not None and not self._ending:
            target = self._root
        if target is not task:
            self._tasks.remove(task)
            self._tasks.append(task)
            self._current = target
            target.gate.release()
            self._await_turn(task)
            _join_previous(task)
        if task.unwinds:
            raise Unwind
        if task is self._root and self._failure is not None and not self._ending:
            raise self._failure

    def _await_turn(self, task: SimulatedTask) -> None:
        if task is not self._root:
            task.gate.acquire()
            return
        turns = -1
        while not task.gate.acquire(timeout=_STUCK_AFTER_S):
            if turns == len(self.trace):
                stuck = stack_of(self._current.thread)
                raise SimulationError(
                    f"thread {self._current.name} does something no simulation can wait for:\n{stuck}"
                )
            turns = len(self.trace)

    def _note(self, task: SimulatedTask, target: SimulatedTask, how: str | None) -> None:
        left = f"{task.label} ({how or describe_frame(sys._getframe(2))})"  # noqa: SLF001
        self.trace.append(Turn(self.switch_points, self.elapsed_s, target.label, left))

    def _look(self) -> None:
        if self._ending or not self._observers:
            return
        self._observing = True
        try:
            for observer in self._observers:
                try:
                    observer()
                except Busy:
                    continue
        except BaseException as error:
            self._fail(error)
        finally:
            self._observing = False

    def _require(self) -> SimulatedTask:
        task = self.current_task()
        if task is None:
            raise SimulationError("this thread does not belong to the running simulation; call it from inside")
        return task

    def _task_of(self, thread: threading.Thread) -> SimulatedTask | None:
        return next((task for task in self._tasks if task.thread is thread), None)

    def _describe_threads(self) -> str:
        """Return a text with the position of each thread, for error messages."""
        lines = [
            f"{task.name}{' (killed)' if task.is_killed else ''}: {describe_frame(frame_of(task.thread))}"
            for task in self._tasks
            if not task.is_done
        ]
        return "; ".join(lines)


def _join_previous(task: SimulatedTask) -> None:
    """Wait until the previous thread has really ended, so that its last steps happen at the same time in every run."""
    ended, task.follows = task.follows, None
    if ended is not None:
        join_for_good(ended)
