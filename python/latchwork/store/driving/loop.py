"""Drives protocols in an event loop: asyncio's, uvloop's, and any loop that runs on one of them.

A task awaits ``drive(protocol, ...)``: the protocol runs in that task until a step has to wait, which yields to the
loop. Waits that end in another thread at the same time wake the loop only once.

A cancellation is raised in the protocol at its await, like an interrupt in a thread. The protocol's cleanup is then
awaited for a limited time, and not through a second cancellation. The rest continues in the background.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

from latchwork._base.execution_context import Caller, acting
from latchwork.backends.futures import call_at_once
from latchwork.errors import OutcomeUnknown, after_unknown
from latchwork.store.steps import Ask, Step, Steps

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that a cancelled call waits for its cleanup, which then continues in the background.
CLEAN_UP_S = 1.0
#: Maximum number of posted calls per loop iteration: each takes some microseconds.
_BATCH = 200
#: Seconds after which a protocol whose steps all end immediately yields to the loop.
_TURN_S = 0.002

#: Maximum number of one loop's calls in flight on one connection.
MAX_IN_FLIGHT = 1000

#: Seconds between checks for calls that timed out.
_LOOK_S = 1.0

_here = threading.local()
_callers: WeakKeyDictionary[asyncio.Task[Any], Caller] = WeakKeyDictionary()


class LoopMailbox:
    """Calls for one loop, posted from any thread, with one wake-up for many. Thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._is_due = False
        self._waiters: dict[asyncio.Future[None], float] = {}
        self._looks = False
        self._rooms: WeakKeyDictionary[object, InFlightLimit] = WeakKeyDictionary()

    def room(self, connection: object) -> InFlightLimit:
        """Return the in-flight limit of this loop for a connection, served in order.

        Without it, calls would queue on the connection, and the last could exceed its call timeout.
        """
        room = self._rooms.get(connection)
        if room is None:
            room = self._rooms[connection] = InFlightLimit(self.loop, MAX_IN_FLIGHT)
        return room

    @classmethod
    def here(cls) -> LoopMailbox:
        """Return the mailbox of the loop that runs in this thread."""
        loop = running_loop()
        known: LoopMailbox | None = getattr(_here, "arrivals", None)
        if known is None or known.loop is not loop:
            known = _here.arrivals = cls(loop)
        return known

    def post(self, call: Callable[[Any], object], value: Any) -> bool:
        """Make ``call(value)`` in the loop's thread, after earlier posts; False if the loop has ended."""
        self._calls.append((call, value))
        if not self._is_due:  # a thread that sees it set has added its call before the calls are made
            self._is_due = True
            try:
                self.loop.call_soon_threadsafe(self._make)
            except RuntimeError:
                return False
        return True

    def waiter(self, future: Future[Any], within_s: float) -> asyncio.Future[None]:
        """Return a waiter that ends with a future, or after the given seconds, up to one second late.

        ``forget`` it then.

        All waiters share one timer: the awaited operation keeps its timeout, and this is a fallback.
        """
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiters[waiter] = self.loop.time() + within_s
        if not self._looks:
            self._looks = True
            self.loop.call_later(_LOOK_S, self._look)
        call_at_once(future, partial(self._ended, waiter))
        return waiter

    def forget(self, waiter: asyncio.Future[None]) -> None:
        """Remove a waiter."""
        del self._waiters[waiter]

    def _ended(self, waiter: asyncio.Future[None], _: Future[Any]) -> None:
        self.post(_wake, waiter)

    def _look(self) -> None:
        now = self.loop.time()
        for waiter in [waiter for waiter, until in self._waiters.items() if until <= now]:
            _wake(waiter)
        self._looks = bool(self._waiters)
        if self._looks:
            self.loop.call_later(_LOOK_S, self._look)

    def _make(self) -> None:
        self._is_due = False
        for _ in range(min(len(self._calls), _BATCH)):
            call, value = self._calls.popleft()
            call(value)
        if self._calls and not self._is_due:
            self._is_due = True
            self.loop.call_soon(self._make)


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the loop that runs in this thread.

    Raises:
        RuntimeError: There is none.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "latchwork.aio needs a running event loop of asyncio, and none runs in this thread: call it in a coroutine "
            "that asyncio.run() drives; with anyio take its asyncio backend, with trio the sync SDK in a thread"
        ) from None


def caller_here(spawn: Callable[..., Caller]) -> Caller:
    """Return the current task's caller, made on first use. ``spawn`` starts its background work."""
    task = asyncio.current_task(running_loop())
    if task is None:
        return Caller(spawn)
    caller = _callers.get(task)
    if caller is None:
        caller = _callers[task] = Caller(spawn)
    return caller


def be_caller(task: asyncio.Task[Any], caller: Caller) -> None:
    """Make another task act for the same caller, which waits for it."""
    _callers[task] = caller


class Drive(Generic[T]):
    """One protocol in progress: begun in one loop, and perhaps ended in another."""

    __slots__ = (
        "_answer",
        "_caller",
        "_cancelled",
        "_cleaning_until",
        "_ends",
        "_error",
        "_future",
        "_note",
        "_step",
        "_steps",
        "_unknown",
    )

    def __init__(self, steps: Steps[T], caller: Caller, *, ends: bool = False) -> None:
        self._steps = steps
        self._caller = caller
        self._ends = ends  # a cancellation is never raised in it
        self._answer: Any = None
        self._error: BaseException | None = None
        self._unknown: OutcomeUnknown | None = None
        self._step: Step[Any] | None = None
        self._future: Future[Any] | None = None
        self._cleaning_until: float | None = None
        self._cancelled: BaseException | None = None
        self._note: str | None = None  # about the unknown outcome of the cancelled step

    async def go(self) -> T:
        """Drive it to its end in the running loop."""
        arrivals = LoopMailbox.here()
        turn_ends = time.perf_counter() + _TURN_S
        try:
            while True:
                if self._step is None:
                    ended, value = self._send()
                    if ended:
                        self._unknown = None
                        return cast("T", value)
                step = self._step
                assert step is not None
                room = arrivals.room(step.asked.connection) if isinstance(step, Ask) and self._future is None else None
                if room is not None and not room.take() and not await self._interruptible(room.turn()):
                    continue
                try:
                    future = self._future or self._begin(step)
                    if not future.done():
                        await self._until(arrivals, future, step)
                        turn_ends = time.perf_counter() + _TURN_S
                    elif time.perf_counter() > turn_ends:
                        await self._interruptible(asyncio.sleep(0))
                        turn_ends = time.perf_counter() + _TURN_S
                finally:
                    if room is not None:
                        room.leave()
                self._take(future, step)
        except Leave:
            raise  # the next driver raises the error in the protocol, if not yet done
        except BaseException as error:
            unknown, self._error, self._unknown = self._unknown, None, None  # their tracebacks hold this frame
            try:
                raise after_unknown(error, unknown)
            finally:
                unknown = None

    async def go_on(self) -> None:
        """Drive it to its end in another loop."""
        self._cleaning_until = None
        try:
            await self.go()
        except asyncio.CancelledError:
            pass  # the cancellation that ended it
        except Exception:
            _log.exception("the cleanup of a cancelled call failed in the background")

    def abandon(self, error: BaseException) -> None:
        """Raise this error in the protocol when it is next driven.

        A protocol that ends something is left to complete.
        """
        if self._ends:
            return
        self._error = error
        if self._step is not None and self._step.is_tracked and self._future is not None:
            return  # the next driver waits for it
        if self._future is not None and self._step is not None and not self._future.cancel():
            self._step.dropped(self._future)
        self._future = self._step = None

    def cancelled(self, left: BaseException) -> BaseException:
        """Return the cancellation to raise when the protocol was left to the background."""
        again = left.__cause__
        return again if isinstance(again, asyncio.CancelledError) else self._cancelled or asyncio.CancelledError()

    def with_note(self, error: BaseException) -> BaseException:
        """Add the note about the unknown outcome of the cancelled step, and return the error."""
        return with_note(error, self._note)

    @property
    def cancellation(self) -> BaseException | None:
        """The cancellation that arrived. It was raised in the protocol, unless that ends something."""
        return self._cancelled

    @property
    def is_over(self) -> bool:
        """True once it needs no more driving."""
        return getcoroutinestate(self._steps) == CORO_CLOSED

    def _send(self) -> tuple[bool, Any]:
        """Run up to the next step; return whether it has ended, and its result."""
        answer, error = self._answer, self._error
        self._answer = self._error = None
        with acting(self._caller):
            try:
                self._step = self._steps.send(answer) if error is None else self._steps.throw(error)
            except StopIteration as stop:
                return True, stop.value
        return False, None

    def _begin(self, step: Step[Any]) -> Future[Any]:
        with acting(self._caller):
            try:
                self._future = step.begin()
            except BaseException as raised:
                failed: Future[Any] = Future()
                failed.set_exception(raised)
                self._future = failed
        return self._future

    def _take(self, future: Future[Any], step: Step[Any]) -> None:
        self._future = self._step = None
        if self._error is not None:
            if future.done() and not future.cancelled():
                step.dropped(future)
            return
        try:
            if future.done():
                self._answer = future.result()
            else:
                future.cancel()
                self._answer = step.late()
        except BaseException as raised:
            self._error = raised
            if isinstance(raised, OutcomeUnknown):
                self._unknown = raised

    async def _until(self, arrivals: LoopMailbox, future: Future[Any], step: Step[Any]) -> None:
        """Wait until the future has ended or the step has timed out."""
        timeout_s = step.timeout_s
        while True:
            waiter: asyncio.Future[None] = arrivals.loop.create_future()
            call_at_once(future, lambda _, waiter=waiter: arrivals.post(_wake, waiter))  # type: ignore[misc]
            timer = None if timeout_s is None else arrivals.loop.call_later(timeout_s, _wake, waiter)
            try:
                if not await self._interruptible(waiter):
                    if self._ends:
                        continue
                    return
            finally:
                if timer is not None:
                    timer.cancel()
            if future.done() or (timeout_s := step.extension_s()) <= 0.0:
                return

    async def _interruptible(self, waiter: Any) -> bool:
        """Wait; False on a cancellation, which is then raised in the protocol unless that ends something.

        After a cancellation, waits are limited to ``CLEAN_UP_S``.

        Raises:
            Leave: Continue in the background.
        """
        until = self._cleaning_until
        try:
            if until is None:
                await waiter
            else:
                await asyncio.wait_for(waiter, max(0.0, until - time.monotonic()))
        except (TimeoutError, asyncio.CancelledError) as error:
            if until is not None:
                raise Leave from error
            future, step = self._future, self._step
            self._cleaning_until = time.monotonic() + CLEAN_UP_S
            self._cancelled = error
            if self._ends:
                return False
            self._error = error
            if future is None:
                self._step = None  # it has not begun
            elif step is not None and not future.done():
                if step.is_tracked:
                    await self._until(LoopMailbox.here(), future, step)
                    return False
                self._note = step.unknown()
                if not step.interrupt(future):
                    await _end(future, step)
            return False
        return True


async def _end(future: Future[Any], step: Step[Any]) -> None:
    """Wait for the end of an interrupted step, regardless of further cancellations."""
    arrivals = LoopMailbox.here()
    while not future.done():
        waiter = arrivals.loop.create_future()
        call_at_once(future, lambda _, waiter=waiter: arrivals.post(_wake, waiter))  # type: ignore[misc]
        try:
            await waiter
        except asyncio.CancelledError:
            step.interrupt(future)


def with_note(error: BaseException, note: str | None) -> BaseException:
    """Add the note, if any, and return the error."""
    if note is not None:
        error.add_note(note)
    return error


class Leave(Exception):
    """Signals that the protocol is left to the background."""


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class InFlightLimit:
    """A fixed number of slots for tasks of one loop. A free slot is taken without a task switch.

    A released slot goes to the longest waiter, first in, first out. Call ``take``, and if no slot is free, await
    ``turn``. Then call ``leave`` once per slot held.
    """

    __slots__ = ("_free", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, places: int) -> None:
        self._loop = loop
        self._free = places
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a slot; False if none is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def turn(self) -> None:
        """Wait for a slot. If cancelled, take none."""
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except BaseException:
            if not waiter.done():  # the task was abandoned, not cancelled
                self._waiting.remove(waiter)
            elif not waiter.cancelled():  # the slot was granted before the cancellation
                self.leave()
            raise

    def leave(self) -> None:
        """Pass a slot to the longest waiter, or free it."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done() and not self._loop.is_closed():
                waiter.set_result(None)
                return
        self._free += 1
