"""The future of a task: all of ``concurrent.futures.Future``, an id, a cancellation that reaches the store.

States: submitted -> queued -> running -> (retrying -> running)* -> done | failed | cancelled | dead. A future hears of
the last ones alone: nobody sends a message when a task begins to run. ``state`` asks the store. Nothing here does I/O.
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

from latchwork.clock import Clock
from latchwork.executor.errors import SomeFailed, TaskCancelled
from latchwork.executor.keys import task_id_of
from latchwork.interrupts import mutex
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.steps import Pause, Signal, driven, steps_of
from latchwork.user_code import call_user, name_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from latchwork.executor.items import TaskItem
    from latchwork.executor.stored import Phase, TaskState

_log = logging.getLogger(__name__)

T = TypeVar("T")
#: A callback that takes longer than so many seconds is named in a warning, and holds up no other from then on.
LONG_S = 1.0


class Stage(Enum):
    """How far a task is on its way into the store."""

    WAITING = "waiting"  # here alone
    DOUBTFUL = "doubtful"  # in a transaction whose answer is not here
    STORED = "stored"
    OVER = "over"  # nothing of it is asked of the store any more


class TaskControl(Protocol):
    """The tasks of one submitter, as its futures need them; both methods are driven."""

    #: Calls the done-callbacks of the futures.
    callbacks: Callbacks

    def why_nothing_runs(self) -> str:
        """Say, for the end of a message, that there is no worker; empty if there is one, or that is not known."""
        ...

    def cancel(self, ticket: TaskTicket, *, interrupt: bool) -> bool:
        """Take a task back; False when it runs or is over."""
        ...

    def state(self, ticket: TaskTicket) -> TaskState:
        """What the store says of a task."""
        ...


class TaskTicket:
    """One task of a submitter: what has to be remembered until its result is here. Its submitter owns the mutex.

    Attributes:
        number: counts the tasks of the submitter.
        sid: of the submitter, once it is stored.
        stage: how far it is.
        item: what is stored, until it is; afterwards only when it may have to be stored again.
        lanes: where its copies are.
        shelf: where they are there.
        hint: the annotation of its result.
        what: its function, for messages.
        future: told of the end.
    """

    __slots__ = ("future", "hint", "item", "lanes", "number", "shelf", "sid", "stage", "what")

    def __init__(self, number: int, item: TaskItem, hint: Any, what: str, tasks: TaskControl) -> None:
        self.number = number
        self.sid = ""
        self.stage = Stage.WAITING
        self.item: TaskItem | None = item
        self.lanes: tuple[str, ...] = ()
        self.shelf = ""
        self.hint = hint
        self.what = what
        self.future: TaskFuture[Any] = TaskFuture(self, tasks)

    @property
    def id(self) -> str:
        """The id of the task; empty before it was first sent."""
        return task_id_of(self.sid, self.number) if self.sid else ""

    @property
    def phase(self) -> Phase | None:
        """The phase of the task, as far as it is known here; None when the store has to be asked."""
        if self.future.cancelled():
            return "cancelled"
        if self.future.done():
            return "done" if self.future.exception() is None else "failed"
        return None if self.stage is Stage.STORED else "submitted"


class CallbackFuture(Future[T], Generic[T]):
    """A future whose done-callbacks hold up no other future.

    Args:
        callbacks: calls them.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        super().__init__()
        self._callbacks = callbacks

    @property
    def tickets(self) -> list[TaskTicket]:
        """The tasks that it waits for."""
        return []

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Have ``fn(self)`` called when this has ended.

        It is called in a thread that the executor has for callbacks: one after the other, in the order in which
        futures end. It may block: waiting for this future, and other futures, does not depend on it. What it raises is
        logged. When this has ended already, it is called now, in this thread.
        """
        super().add_done_callback(fn if self.done() else partial(self._callbacks.call, fn))

    def end_in_child(self, error: BaseException) -> None:
        """End it in a child of a fork, where nothing else does. Its callbacks are the parent's: none is called.

        Its lock may have been held by a thread that is not here, so it is made again.
        """
        if self.__dict__["_state"] not in {"CANCELLED_AND_NOTIFIED", "FINISHED"}:
            self.__dict__.pop("_made", None)
            Future.__init__(self)
            self.set_exception(error)

    def call_at_once(self, fn: Callable[[Future[T]], object]) -> None:
        """Have ``fn(self)`` called in the thread that ends this; now if it has ended. ``fn`` is ours, and quick."""
        super().add_done_callback(fn)


class TaskFuture(CallbackFuture[T]):
    """What ``Executor.submit`` returns. Safe to share between threads.

    ``running()`` is always False: nobody tells the submitter when a task begins; ask ``state()``.
    """

    def __init__(self, ticket: TaskTicket, tasks: TaskControl) -> None:
        super().__init__(tasks.callbacks)  # without its condition, see below
        self._ticket = ticket
        self._tasks = tasks

    @property
    def tickets(self) -> list[TaskTicket]:
        """The task."""
        return [self._ticket]

    @property
    def _condition(self) -> threading.Condition:
        """Made when somebody waits or it ends: it is most of what a future takes, and many wait in line for long."""
        made: threading.Condition | None = self.__dict__.get("_made")
        if made is None:
            made = self.__dict__.setdefault("_made", threading.Condition())
        return made

    @_condition.setter
    def _condition(self, _made: threading.Condition) -> None:
        """What the base class makes at once."""

    @property
    def id(self) -> str:
        """The id of the task, by which people and other processes know it; empty until it is first sent."""
        return self._ticket.id

    def result(self, timeout: float | None = None) -> T:
        """Return the result; see ``concurrent.futures.Future``. ``TimeoutError`` says when there is no worker."""
        try:
            return super().result(timeout)
        except TimeoutError:
            self._raise_late(timeout)
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception, likewise."""
        try:
            return super().exception(timeout)
        except TimeoutError:
            self._raise_late(timeout)
            raise

    def _raise_late(self, timeout: float | None) -> None:
        if not self.done():
            late = f"task {self.id} did not end within {timeout or 0:g} s{self._tasks.why_nothing_runs()}"
            raise TimeoutError(late) from None

    @driven
    async def cancel(self, *, interrupt: bool = False) -> bool:
        """Take the task back, everywhere.

        Args:
            interrupt: also when it runs: it is told to stop, and what it returns is dropped. Nobody waits for it.
        Returns:
            True: it has not run, or its run counts for nothing; ``result`` raises ``CancelledError``. False: it runs,
            or it is over.
        Raises:
            Unavailable, OutcomeUnknown: the store could not be reached; ask again.
        """
        if self.done():
            return self.cancelled()
        if not await steps_of(self._tasks.cancel)(self._ticket, interrupt=interrupt):
            return self.cancelled()
        return self.end_cancelled()

    @driven
    async def state(self) -> TaskState:
        """What the store says of the task now: queued, running and where, or how it ended.

        Raises:
            Unavailable: the store could not be reached.
        """
        return await steps_of(self._tasks.state)(self._ticket)

    # What the submitter says

    def end_cancelled(self) -> bool:
        """It was cancelled; False when it ended before."""
        done = super().cancel()
        teller = object()
        if done and self.__dict__.setdefault("_teller", teller) is teller:  # once: twice is an error of the library's
            self.set_running_or_notify_cancel()
        return done

    def end_with(self, value: Any) -> None:
        """It returned."""
        with suppress(InvalidStateError):  # it was cancelled
            self.set_result(value)

    def end_raising(self, error: BaseException) -> None:
        """It raised; a cancellation by another client cancels it here."""
        if isinstance(error, TaskCancelled):
            self.end_cancelled()
            return
        with suppress(InvalidStateError):
            self.set_exception(error)


class AllFuture(CallbackFuture[dict[str, T]], Generic[T]):
    """The future of a task that runs on all members: a dictionary of their results. Safe to share between threads.

    Attributes:
        parts: the futures of the single runs, by member.
    """

    def __init__(self, parts: Mapping[str, TaskFuture[T]], what: str, callbacks: Callbacks) -> None:
        super().__init__(callbacks)
        self.parts = dict(parts)
        self._what = what
        self._left = len(self.parts)
        self._lock = mutex()
        if not self.parts:
            self.set_result({})
        for part in self.parts.values():
            part.call_at_once(self._ended)

    @property
    def tickets(self) -> list[TaskTicket]:
        """The tasks of all members."""
        return [ticket for part in self.parts.values() for ticket in part.tickets]

    def cancel(self, *, interrupt: bool = False) -> bool:
        """Cancel all runs; False if one of them has begun, or is over. See ``TaskFuture.cancel``."""
        cancelled = [part.cancel(interrupt=interrupt) for part in self.parts.values()]
        return all(cancelled) and self.cancelled()

    def _ended(self, _part: Future[T]) -> None:
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            with suppress(InvalidStateError):
                self._end()

    def _end(self) -> None:
        errors = {member: _error(part) for member, part in self.parts.items()}
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


def _error(future: Future[Any]) -> BaseException | None:
    return CancelledError() if future.cancelled() else future.exception()


class _Call(NamedTuple):
    """One callback and its future."""

    fn: Callable[[Any], object]
    future: Future[Any]

    @property
    def name(self) -> str:
        return f"done-callback {name_of(self.fn)} of task {getattr(self.future, 'id', '')}".rstrip()


class Callbacks:
    """The done-callbacks of one executor: called one at a time, in the order of their futures' ends. Thread-safe.

    One thread calls them, and a second one watches it. The watcher gives the turn to a new thread when a callback takes
    longer than ``LONG_S``; the old thread ends with its callback. Both threads end when there is nothing to call.

    Args:
        clock: the store's.
        name: of the executor, for the names of threads.
    """

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._changed = Notifier()
        self._queue: deque[_Call] = deque()
        self._turn: object | None = None
        self._call: _Call | None = None
        self._began = 0.0
        self._is_watched = False
        self._running: dict[object, int] = {}

    def call(self, fn: Callable[[Any], object], future: Future[Any]) -> None:
        """Call ``fn(future)`` soon, after all that was given before."""
        with self._changed.mutex:
            self._queue.append(_Call(fn, future))
            self._changed.ring()
            if self._turn is None:
                self._give_turn()
            if not self._is_watched:
                self._is_watched = True
                Background(self._watch, f"latchwork-callbacks-watch-{self._name}")

    async def settle(self) -> None:
        """Wait until all have returned; in one of them, return at once."""
        while True:
            with self._changed.mutex:
                is_inside = threading.get_ident() in self._running.values()
                if is_inside or not (self._queue or self._running):
                    return
                rings = self._changed.rings
            await self._changed.rung(rings, self._clock, None)

    def _give_turn(self) -> None:
        """Start a thread that calls what is in the queue. The mutex is held."""
        self._turn = turn = object()
        self._call = None
        Background(partial(self._run, turn), f"latchwork-callbacks-{self._name}")

    async def _run(self, turn: object) -> None:
        while (call := await self._next(turn)) is not None:
            try:
                call_user(call.fn, call.future)
            except Exception:
                _log.exception("%s raised", call.name)
            del call
            with self._changed.mutex:
                self._running.pop(turn, None)
                self._changed.ring()

    async def _next(self, turn: object) -> _Call | None:
        """Return the next callback; None when another thread has the turn, or none has come for a while."""
        is_last_look = False
        while True:
            with self._changed.mutex:
                if self._turn is not turn:
                    return None
                self._call = self._queue.popleft() if self._queue else None
                if self._call is not None:
                    self._began = self._clock.now()
                    self._running[turn] = threading.get_ident()
                    return self._call
                if is_last_look:
                    self._turn = None
                    return None
                rings = self._changed.rings
            is_last_look = not await self._changed.rung(rings, self._clock, LONG_S)

    async def _watch(self) -> None:
        while True:
            with self._changed.mutex:
                if self._turn is None:
                    self._is_watched = False
                    return
                call = self._call
                left_s = LONG_S if call is None else self._began + LONG_S - self._clock.now()
                is_long = left_s <= 0.0
                if is_long:
                    self._give_turn()
            if is_long and call is not None:
                _log.warning(
                    "%s takes longer than %g s; the callbacks behind it are called in another thread", call.name, LONG_S
                )
            del call
            await Pause(self._clock, Signal(), max(left_s, 0.0) or LONG_S)
