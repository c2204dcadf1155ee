"""Futures of tasks: ``concurrent.futures.Future`` with a task ID, and a cancellation that reaches the store.

States: submitted -> queued -> running -> (retrying -> running)* -> done | failed | cancelled | dead. A future is
notified only of the final states, because no message is sent when a task begins to run. ``state`` reads the store.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.user_code import call_user, name_of
from latchwork.clock import Clock
from latchwork.executor.errors import SomeFailed, TaskCancelled
from latchwork.executor.keys import make_task_id
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.steps import Pause, blocking, coroutine_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from latchwork.executor.items import TaskItem
    from latchwork.executor.stored import Phase, TaskState

_log = logging.getLogger(__name__)

T = TypeVar("T")
#: Seconds after which a callback is logged as slow and no longer delays the others.
LONG_S = 1.0


class Stage(Enum):
    """The stages of a task on its way into the store."""

    WAITING = "waiting"  # not sent yet
    IN_DOUBT = "in doubt"  # sent, and not confirmed yet
    STORED = "stored"
    ENDED = "ended"


class TaskControl(Protocol):
    """The operations of a submitter that its futures need. They can be driven by a thread or an event loop."""

    #: Calls the futures' done-callbacks.
    callbacks: CallbackRunner

    def missing_worker_hint(self) -> str:
        """Return text for the end of a message: that no worker is online. Empty if one is, or if that is unknown."""
        ...

    def cancel(self, ticket: TaskTicket, *, interrupt: bool) -> bool:
        """Cancel a task. Return whether it was canceled.

        Args:
            ticket: The submitter's data about the task.
            interrupt: Also cancel a running task.
        """
        ...

    def state(self, ticket: TaskTicket) -> TaskState:
        """Return the current state of a submitted task."""
        ...


class TaskTicket:
    """A submitter's data about one of its tasks, kept until the result arrives. Guarded by the submitter's mutex.

    Attributes:
        number: Number of the task within its submitter.
        submitter_id: The submitter's ID, once the task is sent.
        stage: Whether the task is stored.
        item: The task item until it is stored; kept afterwards only if it may have to be resubmitted.
        partitions: Partitions of its copies.
        sort_key: Sort key of its copies.
        hint: Annotation of its result.
        what: Description of its function, for messages.
        future: Its future.
    """

    __slots__ = ("future", "hint", "item", "number", "partitions", "sort_key", "stage", "submitter_id", "what")

    def __init__(self, number: int, item: TaskItem, hint: Any, what: str, tasks: TaskControl) -> None:
        self.number = number
        self.submitter_id = ""
        self.stage = Stage.WAITING
        self.item: TaskItem | None = item
        self.partitions: tuple[str, ...] = ()
        self.sort_key = ""
        self.hint = hint
        self.what = what
        self.future: TaskFuture[Any] = TaskFuture(self, tasks)

    @property
    def id(self) -> str:
        """The task ID; empty until the task is first sent."""
        return make_task_id(self.submitter_id, self.number) if self.submitter_id else ""

    @property
    def phase(self) -> Phase | None:
        """The last phase of the task that this process has learned. None if only the store knows the phase."""
        if self.future.cancelled():
            return "cancelled"
        if self.future.done():
            return "done" if self.future.exception() is None else "failed"
        return None if self.stage is Stage.STORED else "submitted"


class CallbackFuture(Future[T], Generic[T]):
    """A future whose done-callbacks run in a separate thread, so that a slow callback does not delay other futures.

    Args:
        callbacks: Calls the done-callbacks.
    """

    def __init__(self, callbacks: CallbackRunner) -> None:
        super().__init__()
        self._callbacks = callbacks

    @property
    def tickets(self) -> list[TaskTicket]:
        """The tickets (the submitter's data about a task) of the tasks that the future waits for. Default: none."""
        return []

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Register ``fn(self)`` to be called when this future has ended.

        The executor's callback thread calls callbacks one at a time, in the order in which futures end. A callback may
        block without delaying waits on this or other futures. Its exceptions are logged. If the future has already
        ended, ``fn`` is called immediately in this thread.
        """
        super().add_done_callback(fn if self.done() else partial(self._callbacks.call, fn))

    def fail_in_child(self, error: BaseException) -> None:
        """Fail the future in a forked child process, without calling its callbacks.

        Its lock may have been held by a thread that does not exist in the child, so it is replaced.
        """
        if self.__dict__["_state"] not in {"CANCELLED_AND_NOTIFIED", "FINISHED"}:
            self.__dict__.pop("_made", None)
            Future.__init__(self)
            self.set_exception(error)

    def add_internal_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Register a callback of the library itself. It runs in the thread that ends this future, and must be quick.

        If the future has already ended, call it now.

        Args:
            fn: Called with this future.
        """
        super().add_done_callback(fn)


class TaskFuture(CallbackFuture[T]):
    """The future that ``Executor.submit`` returns. Thread-safe.

    ``running()`` is always False, because the submitter is not notified when a task begins. Use ``state()``.
    """

    def __init__(self, ticket: TaskTicket, tasks: TaskControl) -> None:
        super().__init__(tasks.callbacks)  # without its condition, see below
        self._ticket = ticket
        self._tasks = tasks

    @property
    def tickets(self) -> list[TaskTicket]:
        """A list with the ticket of the task: the submitter's data about it."""
        return [self._ticket]

    @property
    def _condition(self) -> threading.Condition:
        """The condition of the future. It is created when a thread waits or the future ends, to save memory for queued
        tasks.
        """
        made: threading.Condition | None = self.__dict__.get("_made")
        if made is None:
            made = self.__dict__.setdefault("_made", threading.Condition())
        return made

    @_condition.setter
    def _condition(self, _made: threading.Condition) -> None:
        """Ignore the condition that the base class makes."""

    @property
    def id(self) -> str:
        """The task ID; empty until the task is first sent."""
        return self._ticket.id

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result and return it, as ``concurrent.futures.Future.result`` does.

        Args:
            timeout: Seconds to wait; None waits forever.
        Raises:
            TimeoutError: The task has not ended. The message says so if no worker is online.
            CancelledError: The task was canceled.
            Exception: The exception that the task raised.
        """
        try:
            return super().result(timeout)
        except TimeoutError:
            self._raise_late(timeout)
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the task and return its exception, or None if it has a result.

        Args:
            timeout: Seconds to wait; None waits forever.
        Raises:
            TimeoutError: The task has not ended. The message says so if no worker is online.
            CancelledError: The task was canceled.
        """
        try:
            return super().exception(timeout)
        except TimeoutError:
            self._raise_late(timeout)
            raise

    def _raise_late(self, timeout: float | None) -> None:
        if not self.done():
            late = f"task {self.id} did not end within {timeout or 0:g} s{self._tasks.missing_worker_hint()}"
            raise TimeoutError(late) from None

    @blocking
    async def cancel(self, *, interrupt: bool = False) -> bool:
        """Cancel the task and remove its copies from the queue.

        Args:
            interrupt: Also cancel a running task: signal it to stop, and drop its result. Does not wait for it.
        Returns:
            Whether the task was canceled; ``result`` then raises ``CancelledError``. False if it has ended, or is
            running and ``interrupt`` is not set.
        Raises:
            Unavailable, OutcomeUnknown: The store could not be reached. Retry.
        """
        if self.done():
            return self.cancelled()
        if not await coroutine_of(self._tasks.cancel)(self._ticket, interrupt=interrupt):
            return self.cancelled()
        return self.complete_cancelled()

    @blocking
    async def state(self) -> TaskState:
        """Read the task's current state from the store: whether it is queued or running and where, or how it ended.

        Raises:
            Unavailable: The store could not be reached.
        """
        return await coroutine_of(self._tasks.state)(self._ticket)

    # Called by the submitter

    def complete_cancelled(self) -> bool:
        """Mark the future as canceled. Return False if it had already ended."""
        done = super().cancel()
        marker = object()
        if done and self.__dict__.setdefault("_teller", marker) is marker:  # only once: the base class fails otherwise
            self.set_running_or_notify_cancel()
        return done

    def complete_with_result(self, value: Any) -> None:
        """Set the result of the future, unless the future has ended."""
        with suppress(InvalidStateError):  # it was canceled
            self.set_result(value)

    def complete_with_exception(self, error: BaseException) -> None:
        """Set the exception of the future, unless the future has ended.

        If the exception says that another client canceled the task, cancel the future.

        Args:
            error: The exception.
        """
        if isinstance(error, TaskCancelled):
            self.complete_cancelled()
            return
        with suppress(InvalidStateError):
            self.set_exception(error)


class AllFuture(CallbackFuture[dict[str, T]], Generic[T]):
    """The future of a task that runs on all members: a dictionary of results by member. Thread-safe.

    Attributes:
        parts: Futures of the single runs, by member.
    """

    def __init__(self, parts: Mapping[str, TaskFuture[T]], what: str, callbacks: CallbackRunner) -> None:
        super().__init__(callbacks)
        self.parts = dict(parts)
        self._what = what
        self._left = len(self.parts)
        self._lock = mutex()
        if not self.parts:
            self.set_result({})
        for part in self.parts.values():
            part.add_internal_callback(self._on_part_ended)

    @property
    def tickets(self) -> list[TaskTicket]:
        """The tickets of the tasks of all members: the submitter's data about each."""
        return [ticket for part in self.parts.values() for ticket in part.tickets]

    def cancel(self, *, interrupt: bool = False) -> bool:
        """Cancel the runs on all members.

        Args:
            interrupt: Also cancel running tasks: signal them to stop, and drop their results.
        Returns:
            Whether all were canceled. False if one of them has ended, or is running and ``interrupt`` is not set.
        """
        cancelled = [part.cancel(interrupt=interrupt) for part in self.parts.values()]
        return all(cancelled) and self.cancelled()

    def _on_part_ended(self, _part: Future[T]) -> None:
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            with suppress(InvalidStateError):
                self._complete()

    def _complete(self) -> None:
        errors = {member: _get_error(part) for member, part in self.parts.items()}
        failed = {member: error for member, error in errors.items() if error is not None}
        results = {member: part.result() for member, part in self.parts.items() if member not in failed}
        if all(part.cancelled() for part in self.parts.values()):
            super().cancel()
            self.set_running_or_notify_cancel()
        elif failed:
            first = next(iter(failed))
            text = f"{self._what} failed on {len(failed)} of {len(self.parts)} members; on {first}: {failed[first]!r}"
            self.set_exception(SomeFailed(text, results, failed))
        else:
            self.set_result(results)


def _get_error(future: Future[Any]) -> BaseException | None:
    return CancelledError() if future.cancelled() else future.exception()


class _CallbackCall(NamedTuple):
    """A done-callback and the future that it is called with."""

    fn: Callable[[Any], object]
    future: Future[Any]

    @property
    def name(self) -> str:
        return f"done-callback {name_of(self.fn)} of task {getattr(self.future, 'id', '')}".rstrip()


class CallbackRunner:
    """Calls the done-callbacks of one executor, one at a time, in the order in which futures end. Thread-safe.

    One thread calls them, and a second thread watches it. If a callback takes longer than ``LONG_S`` seconds, the
    watcher starts a new thread for the next callbacks, and the old thread ends with its callback. Both threads end when
    the queue is empty.

    Args:
        clock: The store's clock.
        name: The executor's name, used in thread names.
    """

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._changed = Notifier()
        self._queue: deque[_CallbackCall] = deque()
        self._runner: object | None = None
        self._call: _CallbackCall | None = None
        self._began = 0.0
        self._is_watched = False
        self._running: dict[object, int] = {}

    def call(self, fn: Callable[[Any], object], future: Future[Any]) -> None:
        """Schedule a callback. It is called after all earlier ones.

        Args:
            fn: The callback.
            future: Argument of the callback.
        """
        with self._changed.mutex:
            self._queue.append(_CallbackCall(fn, future))
            self._changed.notify_all()
            if self._runner is None:
                self._start_runner()
            if not self._is_watched:
                self._is_watched = True
                Background(self._watch, f"latchwork-callbacks-watch-{self._name}")

    async def wait_idle(self) -> None:
        """Wait until all callbacks have returned. If it is called inside a callback, it returns immediately."""
        while True:
            with self._changed.mutex:
                is_inside = threading.get_ident() in self._running.values()
                if is_inside or not (self._queue or self._running):
                    return
                version = self._changed.version
            await self._changed.wait_for_change(version, self._clock, None)

    def _start_runner(self) -> None:
        """Start a thread that calls the scheduled callbacks. The caller must hold the mutex."""
        self._runner = runner = object()
        self._call = None
        Background(partial(self._run, runner), f"latchwork-callbacks-{self._name}")

    async def _run(self, runner: object) -> None:
        while (call := await self._next(runner)) is not None:
            try:
                call_user(call.fn, call.future)
            except Exception:
                _log.exception("%s raised", call.name)
            del call
            with self._changed.mutex:
                self._running.pop(runner, None)
                self._changed.notify_all()

    async def _next(self, runner: object) -> _CallbackCall | None:
        """Wait for the next callback and return it.

        Returns:
            None if another thread has taken over, or if there was no callback for ``LONG_S`` seconds.
        """
        is_last_look = False
        while True:
            with self._changed.mutex:
                if self._runner is not runner:
                    return None
                self._call = self._queue.popleft() if self._queue else None
                if self._call is not None:
                    self._began = self._clock.now()
                    self._running[runner] = threading.get_ident()
                    return self._call
                if is_last_look:
                    self._runner = None
                    return None
                version = self._changed.version
            is_last_look = not await self._changed.wait_for_change(version, self._clock, LONG_S)

    async def _watch(self) -> None:
        while True:
            with self._changed.mutex:
                if self._runner is None:
                    self._is_watched = False
                    return
                call = self._call
                left_s = LONG_S if call is None else self._began + LONG_S - self._clock.now()
                is_long = left_s <= 0.0
                if is_long:
                    self._start_runner()
            if is_long and call is not None:
                _log.warning(
                    "%s takes longer than %g s; the next callbacks are called in another thread", call.name, LONG_S
                )
            del call
            await Pause(self._clock, Signal(), max(left_s, 0.0) or LONG_S)
