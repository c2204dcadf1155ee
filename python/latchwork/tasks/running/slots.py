"""Slots run up to a fixed number of calls at a time, in threads or child processes. Each call ends in an outcome.

If a call in a thread must end, it is asked to stop. If its function ignores that, an outcome is reported in its place,
but its slot stays occupied. A call in a process is killed. Nothing here touches the network.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

from latchwork._base.interrupts import condition, mutex
from latchwork._base.user_code import call_user
from latchwork._base.validation import is_number
from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.errors import Closed, LatchworkError
from latchwork.store.forks import ForkGuard
from latchwork.tasks.errors import TaskStopped, TaskTimeout, UnknownFunction
from latchwork.tasks.functions import Functions, RegisteredFunction, RunIn
from latchwork.tasks.payloads.codec import Payloads
from latchwork.tasks.payloads.outcome import Outcome
from latchwork.tasks.running.calls import RunAsync, StoredCall, run_call
from latchwork.tasks.running.context import TaskContext
from latchwork.tasks.running.process import TaskProcess
from latchwork.tasks.running.task_loop import TaskLoop

if TYPE_CHECKING:
    from latchwork.tasks.children import DeadlineExtender

_log = logging.getLogger(__name__)

#: Seconds between a stop and the kill of a process, or the outcome of a thread that has not ended.
STOP_GRACE_S = 5.0
#: Weights of a longer and of a shorter call in the moving average of durations.
_RISES, _FALLS = 0.5, 0.1


@dataclass(eq=False, slots=True)
class _SlotRun:
    """A call in a slot."""

    call: StoredCall | Callable[[], StoredCall]
    context: TaskContext
    ended: Callable[[Outcome], object]
    is_ended: bool = False
    once: list[bool] = field(default_factory=lambda: [True])
    stopped_at: float | None = None
    is_late: bool = False
    is_begun: bool = False

    def set_outcome(self, outcome: Outcome) -> None:
        """Report the outcome of the call. Only the first outcome counts."""
        try:
            self.is_ended = self.once.pop()
        except IndexError:
            return
        try:
            call_user(self.ended, outcome)
        except Exception:
            _log.exception("the completion of task %s failed", self.context.task_id)


def _set_result(future: Future[Outcome], outcome: Outcome) -> None:
    with suppress(InvalidStateError):  # it has a result already
        future.set_result(outcome)


def _new_thread(target: Callable[[], None], name: str) -> threading.Thread:
    return threading.Thread(target=target, name=name, daemon=True)


class Slots:
    """Runs up to ``count`` calls at a time. Thread-safe.

    Args:
        count: Number of slots.
        functions: The registered functions.
        payloads: Encodes and decodes arguments and results.
        run_in: ``thread`` or ``process``, for functions that do not specify it.
        deadline_extender: Limits how long processes may run, by a session of the node. None lets them run until this
            process ends.
        stop_grace_s: Seconds between a request to stop and the kill of a process, or the outcome of a thread that has
            not ended.
        run_loop: Runs coroutines of ``async def`` functions in threads. By default they share one loop in a separate
            thread, which ends with the slots. In processes, each has its own loop.
        label: Name of the node, for names of threads and processes.
        clock: The machine's clock, except in a simulation.
    """

    def __init__(
        self,
        count: int,
        functions: Functions,
        payloads: Payloads,
        *,
        run_in: RunIn = "thread",
        deadline_extender: DeadlineExtender | None = None,
        stop_grace_s: float = STOP_GRACE_S,
        run_loop: RunAsync | None = None,
        label: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if type(count) is not int or count < 1:
            raise ValueError(f"slots must be a whole number from 1, not {count!r}")
        if run_in not in ("thread", "process"):
            raise ValueError(f"run_in must be 'thread' or 'process', not {run_in!r}")
        if not is_number(stop_grace_s, 0.0):
            raise ValueError(f"stop_grace_s must be a number of seconds from 0, not {stop_grace_s!r}")
        self.count = count
        self._functions, self._payloads, self._run_in, self._deadlines = functions, payloads, run_in, deadline_extender
        self._grace_s, self._label, self._clock = stop_grace_s, label, clock
        self._loop = TaskLoop(label)
        self._run_loop: RunAsync = run_loop or self._loop.run
        self._home = ForkGuard("these slots")
        self._mutex = mutex()
        self._changed = condition(self._mutex)  # the watcher has to check the calls
        self._work_arrived = condition(self._mutex)  # an idle slot gets work
        self._idle = 0
        self._is_waking = False
        self._watches_at = math.inf
        self._typical_s = 1.0
        self._here = threading.local()
        self._waiting: deque[_SlotRun] = deque()
        self._runs: dict[_SlotRun, None] = {}
        self._threads: list[threading.Thread] = []
        self._watcher: threading.Thread | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def free_slots(self) -> int:
        """The number of calls that could begin now. A call that ignores a request to stop still occupies its slot."""
        with self._mutex:
            return 0 if self._closed else self.count - len(self._runs)

    @property
    def typical_duration_s(self) -> float:
        """The typical duration of calls in seconds, initially 1. It rises fast after long calls, and falls slowly."""
        return self._typical_s

    @property
    def stuck(self) -> list[str]:
        """The sorted IDs of tasks that still run although they were asked to stop, and whose outcome was already
        reported.
        """
        with self._mutex:
            return sorted(run.context.task_id for run in self._runs if run.is_ended)

    def start(self, call: StoredCall | Callable[[], StoredCall], context: TaskContext) -> Future[Outcome]:
        """Run a call in a free slot, until the context's ``deadline`` or a request to stop.

        Args:
            call: The call, or a function that returns it and is called in the slot's thread. If the function raises,
                the exception is the outcome.
            context: The context of the run.
        Returns:
            A future of the outcome. Its callbacks run in the slot's thread, when the slot is free again.
        Raises:
            LatchworkError: No slot is free.
            Closed: These slots were closed.
        """
        outcome: Future[Outcome] = Future()
        outcome.set_running_or_notify_cancel()  # it cannot be canceled by the future, only stopped by the context
        self.start_with_callback(call, context, partial(_set_result, outcome))
        return outcome

    def start_with_callback(
        self, call: StoredCall | Callable[[], StoredCall], context: TaskContext, ended: Callable[[Outcome], object]
    ) -> None:
        """Run a call like ``start``, but pass the outcome to a callback. This costs less than a future.

        Args:
            call: As for ``start``.
            context: As for ``start``.
            ended: Called with the outcome in the slot's thread, when the slot is free again.
        """
        run = _SlotRun(call, context, ended)
        try:
            context.wake = self._wake
            self._enqueue(run)
        except BaseException:
            self._cancel_run(run)
            raise

    def _cancel_run(self, run: _SlotRun) -> None:
        """Remove a call from the queue, or stop it if it has begun. Used if the caller was interrupted and will not get
        the outcome.
        """
        with self._mutex:
            if run in self._waiting:
                self._waiting.remove(run)
            if not run.is_begun:
                self._runs.pop(run, None)
        if run.is_begun:
            run.context.stop()

    def _enqueue(self, run: _SlotRun) -> None:
        with self._mutex:
            if self._closed:
                raise Closed("these slots were closed; create others")
            if len(self._runs) >= self.count:
                raise LatchworkError(f"all {self.count} slots are in use; check `free` first")
            self._runs[run] = None
            self._waiting.append(run)
            if self._idle < len(self._waiting):
                self._start_thread()
            if self._watcher is None or not self._watcher.is_alive():
                self._watcher = _new_thread(self._watch, f"latchwork-slots-{self._label}")
                self._watcher.start()
            if getattr(self._here, "returns", False):
                self._here.returns = False  # this slot takes it after the current callback
            else:
                self._wake_one()
            if run.context.deadline is not None and run.context.deadline < self._watches_at:
                self._changed.notify_all()

    def _start_thread(self) -> None:
        """Start another thread, if fewer than ``count`` threads are running. The caller must hold the mutex."""
        if len(self._threads) >= self.count:  # an interrupt may have come before the start of one
            self._threads = [each for each in self._threads if each.is_alive()]
        if len(self._threads) < self.count:
            self._threads.append(_new_thread(self._run_thread, f"latchwork-slot-{self._label}-{len(self._threads)}"))
            self._threads[-1].start()

    def _wake_one(self) -> None:
        """Wake one idle thread if a call is waiting. That thread wakes the next one, so that few threads run many short
        calls.
        """
        if self._waiting and self._idle and not self._is_waking:
            self._is_waking = True
            self._work_arrived.notify()

    def close(self, timeout_s: float = 30.0) -> list[str]:
        """Stop all calls, and wait for their end. Idempotent.

        Args:
            timeout_s: Seconds to wait.
        Returns:
            The IDs of the tasks that still run.
        """
        if self._home.is_foreign:
            return []
        with self._mutex:
            self._closed = True
            runs = list(self._runs)
            self._changed.notify_all()
            self._work_arrived.notify_all()
        for run in runs:
            run.context.stop()
        until = self._clock.now() + timeout_s
        for thread in [*self._threads, *([self._watcher] if self._watcher is not None else [])]:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, until - self._clock.now()))
        self._loop.close(max(0.5, until - self._clock.now()))
        with self._mutex:
            return sorted(run.context.task_id for run in self._runs)

    def _wake(self) -> None:
        with self._mutex:
            self._changed.notify_all()

    # A slot

    def _run_thread(self) -> None:
        process = TaskProcess(self._payloads, self._deadlines, stop_grace_s=self._grace_s, label=self._label)
        try:
            while (run := self._take_next()) is not None:
                self._run_one(run, process)
        finally:
            process.close()

    def _take_next(self) -> _SlotRun | None:
        with self._mutex:
            while not self._waiting:
                if self._closed:
                    return None
                self._idle += 1
                try:
                    self._work_arrived.wait()
                finally:
                    self._idle -= 1
                    self._is_waking = False
            run = self._waiting.popleft()
            run.is_begun = True
            self._wake_one()
            return run

    def _run_one(self, run: _SlotRun, process: TaskProcess) -> None:
        outcome: Outcome | None = None
        began = self._clock.now()
        try:
            if run.context.should_stop:
                outcome = Outcome.from_exception(TaskStopped(f"task {run.context.task_id} was stopped before it began"))
            else:
                outcome = self._compute_outcome(run, process)
        except BaseException as error:
            outcome = Outcome.from_exception(error)
        finally:
            took_s = self._clock.now() - began
            with self._mutex:
                self._runs.pop(run, None)
                self._typical_s += (took_s - self._typical_s) * (_RISES if took_s > self._typical_s else _FALLS)
                if self._closed:
                    self._changed.notify_all()
            run.context.wake = None
            if outcome is not None:
                self._here.returns = True
                run.set_outcome(outcome)
                self._here.returns = False

    def _compute_outcome(self, run: _SlotRun, process: TaskProcess) -> Outcome:
        call = run.call if isinstance(run.call, StoredCall) else run.call()
        registered = self._find_registered(call)
        where = registered.run_in if registered is not None and registered.run_in is not None else self._run_in
        if where == "process":
            return process.run(call, registered, run.context)
        return run_call(call, self._functions, self._payloads, run.context, self._run_loop)

    def _find_registered(self, call: StoredCall) -> RegisteredFunction | None:
        try:
            return self._functions.get(call.function) if call.function else None
        except UnknownFunction:  # perform reports it
            return None

    # The watcher

    def _watch(self) -> None:
        """Stop calls at their deadlines, and report outcomes for calls that ignore a request to stop."""
        while True:
            with self._mutex:
                if self._closed and not self._runs:
                    return
                runs = list(self._runs)
            seen, now = set(runs), self._clock.now()
            moments = [moment for run in runs if (moment := self._check_run(run, now)) is not None]
            with self._mutex:
                deadlines = (r.context.deadline for r in self._runs if r not in seen)
                moments += [moment for moment in deadlines if moment is not None]
                is_told = any(run.stopped_at is None and run.context.should_stop for run in self._runs)
                if not is_told and (self._runs or not self._closed):
                    self._watches_at = min(moments, default=math.inf)
                    self._clock.wait_condition(self._changed, self._watches_at - now if moments else None)
                    self._watches_at = math.inf

    def _check_run(self, run: _SlotRun, now: float) -> float | None:
        """Stop a call whose deadline has passed. Report an outcome for a stopped call that does not end.

        Args:
            run: The call.
            now: Current time.
        Returns:
            The next time to check the call; None for never.
        """
        context = run.context
        if run.is_ended or run.is_late:
            return None
        if context.deadline is not None and now >= context.deadline and not context.should_stop:
            context.stop()
        if not context.should_stop:
            return context.deadline
        if run.stopped_at is None:
            run.stopped_at = now
        due = run.stopped_at + self._grace_s
        if now < due:
            return due
        run.is_late = True
        timed_out = context.deadline is not None and run.stopped_at >= context.deadline
        text = f"task {context.task_id} did not end within {self._grace_s:g} s after it was stopped"
        outcome = Outcome.from_exception(TaskTimeout(text) if timed_out else TaskStopped(text))
        threading.Thread(target=run.set_outcome, args=(outcome,), name="latchwork-slots-late", daemon=True).start()
        _log.warning("%s; its slot stays occupied until it does", text)
        return None
