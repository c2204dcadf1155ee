"""A simulation: real threads that take turns, in virtual time, in an order that a seed decides.

    with Simulation(seed=7) as sim:
        store = latchwork.connect("memory://trial")
        ...                                    # threads, locks, waits and timeouts as ever
        sim.sleep(3600)                        # an hour of leases, renewals and timeouts, in milliseconds

Inside the ``with`` one thread runs at a time. Another gets its turn when the first waits, and at points where the
schedule says so; virtual time stands still while anybody can run, and jumps to the next deadline when nobody can. The
same seed, or the same decisions, give the same run. Only what blocks by locks can be simulated: conditions, events,
queues, futures, thread pools and sleeps are, sockets and files are not (``memory://`` stores need neither).
"""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from latchwork.backends.embedded.database import Database
from latchwork.testing._sim_locks import SimLock, installed, join_for_good, real_start
from latchwork.testing._sim_tasks import (
    Busy,
    Deadlock,
    SimulationError,
    Task,
    ThreadFailed,
    ThreadsLeft,
    TooLong,
    Turn,
    Unwind,
    frame_of,
    hide,
    stack_of,
    thread_failed,
    where,
)

__all__ = ["Deadlock", "Simulation", "SimulationError", "ThreadFailed", "ThreadsLeft", "TooLong", "Turn"]

_START_S = 1000.0
_STUCK_AFTER_S = 30.0
_LEAST_WAIT_S = 1e-9
_GRACE_S = 60.0
hide(__file__)
#: One transaction of the embedded store is one step: no thread is stopped inside it.
_ONE_STEP = ((Database, "read"), (Database, "write"))


class Simulation:
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
        self.random = random.Random(seed or 0)
        #: What was decided against the default, by point: give it to another simulation to repeat this one.
        self.decisions: dict[int, int] = {}
        self.trace: list[Turn] = []
        self.points = 0
        self._chooser = random.Random(seed) if seed is not None and decisions is None else None
        self._rate = preempt_rate
        self._wanted = dict(decisions or {})
        self._interrupts: dict[int, Callable[[], None]] = {}
        self._observers: list[Callable[[], None]] = []
        self._observing = False
        self._max_turns = max_turns
        self._max_time_s = max_time_s
        self._allow_leftovers = allow_leftovers
        self._now = _START_S
        self._tasks: list[Task] = []  # whoever ran last comes last
        self._by_ident: dict[int, Task] = {}
        self._root = Task("main", "")
        self._current = self._root
        self._failure: BaseException | None = None
        self._ending = False
        self._stack = ExitStack()

    # Life

    def __enter__(self) -> Simulation:
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

    # Time

    def now(self) -> float:
        """Virtual seconds; the zero means nothing."""
        return self._now

    @property
    def elapsed_s(self) -> float:
        """Virtual seconds since the start."""
        return self._now - _START_S

    def sleep(self, seconds: float) -> None:
        """Let everybody else run for so long in virtual time. What ``time.sleep`` does inside a simulation."""
        never = SimLock(self)
        never.is_locked = True
        never.acquire(timeout=max(0.0, seconds))

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
        """Call ``fn``, which must not wait, at this point of the run, whoever runs then: to freeze or kill a node."""
        self._interrupts[point] = fn

    def observe(self, fn: Callable[[], None]) -> None:
        """Call ``fn`` at each change of turns; what it raises fails the run.

        It must not wait. It is not called when a lock that it wants is held by somebody, so it sees no half-done state.
        """
        self._observers.append(fn)

    @contextmanager
    def one_step(self) -> Iterator[None]:
        """Nobody else gets a turn inside, unless the thread really has to wait."""
        task = self.me()
        if task is None:
            yield
            return
        task.pinned += 1
        try:
            yield
        finally:
            task.pinned -= 1

    # For the stand-ins

    def me(self) -> Task | None:
        """The simulated thread that calls; None for any other."""
        task = self._by_ident.get(threading.get_ident())
        return None if task is None or task.is_outside else task

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Real locks and real time for the calling thread."""
        task = self._require()
        task.is_outside = True
        try:
            yield
        finally:
            task.is_outside = False

    def add(self, thread: threading.Thread) -> Task:
        """A new thread, which waits for its first turn."""
        task = Task(thread.name, self._require().node, thread=thread)
        task.gate.acquire()
        task.done = SimLock(self)
        task.done.is_locked = True
        task.wakes_at = self._current.wakes_at
        self._tasks.insert(0, task)
        return task

    def carry(self, task: Task, run: Callable[[], None]) -> None:
        """The whole life of a simulated thread, on its own real thread."""
        ident = threading.get_ident()
        self._by_ident[ident] = task
        task.gate.acquire()
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

    def point(self, task: Task) -> None:
        """The schedule may give the turn to another here."""
        if self._observing:
            return
        if task.unwinds:
            return
        self.points += 1
        if task.held or task.pinned:
            return
        interrupt = self._interrupts.pop(self.points, None)
        if interrupt is not None:
            interrupt()
        choice = self._preempts()
        if choice is not None:
            self._yield(task, choice)

    def block(self, task: Task, lock: SimLock, timeout: float) -> bool:
        """Wait until a lock is free; False when the time is over."""
        if self._observing:
            raise Busy
        if task.unwinds:
            raise Unwind
        task.lock = lock
        # However short a wait, time goes on: a sliver left of a lease must not be waited for again and again.
        task.deadline = None if timeout < 0 else self._now + (max(timeout, _LEAST_WAIT_S) if timeout else 0.0)
        try:
            self._give_turn(task)
            return not lock.is_locked
        finally:
            task.lock = None
            task.deadline = None

    def join(self, thread: threading.Thread, timeout: float | None) -> bool:
        """Wait for the end of a simulated thread; False if it is none of this simulation."""
        task = self._task_of(thread)
        if task is None or task.done is None:
            return False
        if task.done.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            task.done.release()
        return True

    def is_alive(self, thread: threading.Thread) -> bool | None:
        """Whether a simulated thread still runs; None if it is none of this simulation."""
        task = self._task_of(thread)
        return None if task is None else not task.is_done

    # Taking turns

    def _preempts(self) -> int | None:
        choice = self._wanted.get(self.points)
        if choice is None and self._chooser is not None and self._chooser.random() < self._rate:
            choice = self._chooser.randrange(1 << 16)
        return choice

    def _chosen(self, ready: int) -> int:
        """Which of those that can run goes next when somebody has to."""
        self.points += 1
        choice = self._wanted.get(self.points)
        if choice is None and self._chooser is not None and ready > 1:
            choice = self._chooser.randrange(ready)
        if choice is None or choice % ready == 0:
            return 0
        self.decisions[self.points] = choice
        return choice % ready

    def _yield(self, task: Task, choice: int) -> None:
        ready = [other for other in self._tasks if other is not task and other.can_run(self._now)]
        if ready:
            self.decisions[self.points] = choice
            self._switch(task, ready[choice % len(ready)])

    def _leave_if_stopped(self) -> None:
        task = self.me()
        if task is not None and not task.can_run(self._now) and not (task.held or task.pinned):
            self._give_turn(task)

    def _give_turn(self, task: Task) -> None:
        self._switch(task, self._next())

    def _hand_over(self, task: Task) -> None:
        """A thread has ended: somebody else goes on."""
        self._tasks.remove(task)
        target = self._root if self._ending else self._next()
        self._note(task, target, "ended")
        self._current = target
        target.gate.release()

    def _next(self) -> Task:
        while True:
            if self._failure is not None or len(self.trace) > self._max_turns:
                return self._fail(TooLong(f"{self._max_turns} turns were not enough; {self._picture()}"))
            ready = [task for task in self._tasks if task.can_run(self._now)]
            if ready:
                return ready[self._chosen(len(ready))]
            times = [at for at in (task.next_at() for task in self._tasks) if at is not None]
            if not times:
                return self._fail(Deadlock(f"nobody can go on; {self._picture()}"))
            self._now = max(self._now, min(times))
            if self.elapsed_s > self._max_time_s:
                return self._fail(TooLong(f"{self._max_time_s:g} virtual seconds were not enough; {self._picture()}"))

    def _fail(self, error: BaseException) -> Task:
        """End the run with the first error; the first thread goes on and raises it."""
        if self._failure is None:
            self._failure = error
        self._root.wakes_at = 0.0
        return self._root

    def _switch(self, task: Task, target: Task) -> None:
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
        if task.unwinds:
            raise Unwind
        if task is self._root and self._failure is not None and not self._ending:
            raise self._failure

    def _await_turn(self, task: Task) -> None:
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

    def _note(self, task: Task, target: Task, how: str | None) -> None:
        left = f"{task.label} ({how or where(sys._getframe(2))})"  # noqa: SLF001
        self.trace.append(Turn(self.points, self.elapsed_s, target.label, left))

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

    # The end

    def _drain(self) -> list[str]:
        """Let the others finish; the names of those that do not."""
        until = self._now + _GRACE_S
        idle = SimLock(self)
        idle.is_locked = True
        while self._now < until:
            others = [task for task in self._tasks if task is not self._root and not task.is_killed]
            if not any(task.next_at() is not None for task in others):
                break
            idle.acquire(timeout=0.5)
        return sorted(task.name for task in self._tasks if task is not self._root and not task.is_killed)

    def _unwind(self) -> None:
        self._ending = True
        threads = []
        while others := [
            task for task in self._tasks if task is not self._root
        ]:  # the last words of one may start more
            task = others[0]
            task.unwinds = True
            threads.append(task.thread)
            self._current = task
            task.gate.release()
            self._root.gate.acquire()
        self._by_ident.clear()
        self._stack.close()
        for thread in threads:
            if thread is not None:
                join_for_good(thread)

    # Small things

    def _make_one_step(self, owner: type, name: str) -> None:
        original = getattr(owner, name)

        def stand_in(*args: Any, **options: Any) -> Any:
            with self.one_step():
                return original(*args, **options)

        setattr(owner, name, stand_in)
        self._stack.callback(setattr, owner, name, original)

    def _require(self) -> Task:
        task = self.me()
        if task is None:
            raise SimulationError("this thread does not belong to the running simulation; call it from inside")
        return task

    def _task_of(self, thread: threading.Thread) -> Task | None:
        return next((task for task in self._tasks if task.thread is thread), None)

    def _picture(self) -> str:
        """Where everybody is."""
        lines = [
            f"{task.name}{' (killed)' if task.is_killed else ''}: {where(frame_of(task.thread))}"
            for task in self._tasks
            if not task.is_done
        ]
        return "; ".join(lines)
