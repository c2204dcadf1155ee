"""Runs step coroutines (see ``latchwork.store.steps``) in an event loop.

Works with the loops of asyncio and uvloop, and with any loop that runs on one of them.

A task awaits ``run_in_task(create_coroutine)``: the coroutine runs in that task until a step has to wait, which yields
to the loop. Waits that end in another thread at the same time wake the loop only once.

A cancellation is raised in the coroutine at its await, like an interrupt in a thread. The task then waits for the
coroutine's cleanup for a limited time, which a second cancellation ends. The rest continues in the background.
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

from latchwork._base.execution_context import Caller, acting_for
from latchwork.backends.futures import call_at_once
from latchwork.errors import OutcomeUnknown, keep_outcome_unknown
from latchwork.store.steps import Step, StepCoroutine, StoreCall

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that a cancelled call waits for its cleanup, which then continues in the background.
CLEAN_UP_S = 1.0
#: Maximum number of posted calls per loop iteration: each takes some microseconds.
_BATCH = 200
#: Seconds after which a coroutine whose steps all end immediately yields to the loop.
_TURN_S = 0.002

#: Maximum number of one loop's calls in flight on one connection.
MAX_IN_FLIGHT = 1000

#: Seconds between checks for calls that timed out.
_CHECK_S = 1.0

_here = threading.local()
_callers: WeakKeyDictionary[asyncio.Task[Any], Caller] = WeakKeyDictionary()


class LoopMailbox:
    """Queues calls from any thread for one event loop, and wakes the loop once for several calls. Thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._is_due = False
        self._waiters: dict[asyncio.Future[None], float] = {}
        self._is_checking = False
        self._limits: WeakKeyDictionary[object, InFlightLimit] = WeakKeyDictionary()

    def in_flight_limit(self, connection: object) -> InFlightLimit:
        """Return the limit on the calls that tasks of this loop may have in flight on a connection.

        Waiting tasks are served in order. Without a limit, calls would queue on the connection, and the last one could
        exceed its call timeout.

        Args:
            connection: Identifies the connection.
        """
        limit = self._limits.get(connection)
        if limit is None:
            limit = self._limits[connection] = InFlightLimit(self.loop, MAX_IN_FLIGHT)
        return limit

    @classmethod
    def for_running_loop(cls) -> LoopMailbox:
        """Return the mailbox of the event loop that runs in the current thread."""
        loop = running_loop()
        known: LoopMailbox | None = getattr(_here, "mailbox", None)
        if known is None or known.loop is not loop:
            known = _here.mailbox = cls(loop)
        return known

    def post(self, call: Callable[[Any], object], value: Any) -> bool:
        """Schedule ``call(value)`` in the loop's thread, after all calls that were posted earlier.

        Returns:
            False if the loop is closed.
        """
        self._calls.append((call, value))
        if not self._is_due:  # a thread that sees it set has added its call before the calls are made
            self._is_due = True
            try:
                self.loop.call_soon_threadsafe(self._make_posted_calls)
            except RuntimeError:
                return False
        return True

    def future_with_timeout(self, future: Future[Any], within_s: float) -> asyncio.Future[None]:
        """Return an asyncio future that completes when another thread completes ``future``, or after a timeout.

        Pass the returned future to ``cancel_timeout`` afterwards.

        Args:
            future: The awaited future.
            within_s: Timeout in seconds, which may be up to one second late because all futures share one timer. It
                is a fallback only: the operation has its own timeout.
        """
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiters[waiter] = self.loop.time() + within_s
        if not self._is_checking:
            self._is_checking = True
            self.loop.call_later(_CHECK_S, self._check_timeouts)
        call_at_once(future, partial(self._wake_soon, waiter))
        return waiter

    def cancel_timeout(self, waiter: asyncio.Future[None]) -> None:
        """Cancel the timeout of a future that ``future_with_timeout`` returned."""
        del self._waiters[waiter]

    def _wake_soon(self, waiter: asyncio.Future[None], _: Future[Any]) -> None:
        self.post(_wake, waiter)

    def _check_timeouts(self) -> None:
        now = self.loop.time()
        for waiter in [waiter for waiter, until in self._waiters.items() if until <= now]:
            _wake(waiter)
        self._is_checking = bool(self._waiters)
        if self._is_checking:
            self.loop.call_later(_CHECK_S, self._check_timeouts)

    def _make_posted_calls(self) -> None:
        self._is_due = False
        for _ in range(min(len(self._calls), _BATCH)):
            call, value = self._calls.popleft()
            call(value)
        if self._calls and not self._is_due:
            self._is_due = True
            self.loop.call_soon(self._make_posted_calls)


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that runs in the current thread.

    Raises:
        RuntimeError: No event loop runs in this thread.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "latchwork.aio needs a running event loop of asyncio, and none runs in this thread: call it in a coroutine "
            "that asyncio.run() drives; with anyio take its asyncio backend, with trio the sync SDK in a thread"
        ) from None


def get_or_create_caller(spawn: Callable[..., Caller]) -> Caller:
    """Return the ``Caller`` that identifies the current asyncio task, as the owner of locks for example.

    It is created at the first call in the task.

    Args:
        spawn: Starts background work for the task.
    """
    task = asyncio.current_task(running_loop())
    if task is None:
        return Caller(spawn)
    caller = _callers.get(task)
    if caller is None:
        caller = _callers[task] = Caller(spawn)
    return caller


def inherit_caller(task: asyncio.Task[Any], caller: Caller) -> None:
    """Give a task the identity of the task that waits for it, so that it may use and release the same locks.

    Args:
        task: The task, which runs on behalf of the other one.
        caller: Identifies the waiting task.
    """
    _callers[task] = caller


class CoroutineRunner(Generic[T]):
    """Runs one step coroutine. It starts in an asyncio task, and the background event loop may complete it."""

    __slots__ = (
        "_answer",
        "_caller",
        "_cancelled",
        "_cleaning_until",
        "_error",
        "_future",
        "_is_shielded",
        "_note",
        "_step",
        "_steps",
        "_unknown",
    )

    def __init__(self, steps: StepCoroutine[T], caller: Caller, *, is_shielded: bool = False) -> None:
        self._steps = steps
        self._caller = caller
        self._is_shielded = is_shielded  # a cancellation is never raised in it
        self._answer: Any = None
        self._error: BaseException | None = None
        self._unknown: OutcomeUnknown | None = None
        self._step: Step[Any] | None = None
        self._future: Future[Any] | None = None
        self._cleaning_until: float | None = None
        self._cancelled: BaseException | None = None
        self._note: str | None = None  # about the unknown outcome of the cancelled step

    async def run(self) -> T:
        """Run the coroutine in the running event loop until it has ended, and return its result.

        Raises:
            LeftToBackground: The task was canceled, and the time for cleanup has passed. ``finish_in_background`` must
                complete the coroutine.
        """
        mailbox = LoopMailbox.for_running_loop()
        turn_ends = time.perf_counter() + _TURN_S
        try:
            while True:
                if self._step is None:
                    ended, value = self._advance()
                    if ended:
                        self._unknown = None
                        return cast("T", value)
                step = self._step
                assert step is not None
                limit = (
                    mailbox.in_flight_limit(step.target.connection)
                    if isinstance(step, StoreCall) and self._future is None
                    else None
                )
                if limit is not None and not limit.try_acquire() and not await self._wait_or_cancel(limit.acquire()):
                    continue
                try:
                    future = self._future or self._start(step)
                    if not future.done():
                        await self._wait_for(mailbox, future, step)
                        turn_ends = time.perf_counter() + _TURN_S
                    elif time.perf_counter() > turn_ends:
                        await self._wait_or_cancel(asyncio.sleep(0))
                        turn_ends = time.perf_counter() + _TURN_S
                finally:
                    if limit is not None:
                        limit.release()
                self._take_result(future, step)
        except LeftToBackground:
            raise  # the background loop raises the error in the coroutine, if not yet done
        except BaseException as error:
            unknown, self._error, self._unknown = self._unknown, None, None  # their tracebacks hold this frame
            try:
                raise keep_outcome_unknown(error, unknown)
            finally:
                unknown = None

    async def finish_in_background(self) -> None:
        """Run the rest of a canceled coroutine in the running loop, the background event loop. Log its errors."""
        self._cleaning_until = None
        try:
            await self.run()
        except asyncio.CancelledError:
            pass  # the cancellation that ended it
        except Exception:
            _log.exception("the cleanup of a canceled call failed in the background")

    def throw(self, error: BaseException) -> None:
        """Raise an error in the coroutine when it continues, and stop its current step. A shielded one is unaffected.

        Args:
            error: The error that ended the task.
        """
        if self._is_shielded:
            return
        self._error = error
        if self._step is not None and self._step.is_tracked and self._future is not None:
            return  # the background loop waits for it
        if self._future is not None and self._step is not None and not self._future.cancel():
            self._step.on_late_result(self._future)
        self._future = self._step = None

    def get_cancellation_error(self, reason: LeftToBackground) -> BaseException:
        """Return the ``CancelledError`` to raise in the task while the background loop completes the coroutine.

        It is the latest one that the task received.

        Args:
            reason: The error with which ``run`` ended.
        """
        again = reason.__cause__
        return again if isinstance(again, asyncio.CancelledError) else self._cancelled or asyncio.CancelledError()

    def add_outcome_note(self, error: BaseException) -> BaseException:
        """Add a note to the error if it is unknown whether the canceled call was applied. Return the error."""
        return with_note(error, self._note)

    @property
    def cancellation(self) -> BaseException | None:
        """The cancellation error that the task has received, or None."""
        return self._cancelled

    @property
    def has_ended(self) -> bool:
        """Whether the coroutine has returned or raised."""
        return getcoroutinestate(self._steps) == CORO_CLOSED

    def _advance(self) -> tuple[bool, Any]:
        """Run the coroutine until its next step or its end. Return whether it has ended, and its result if it has."""
        answer, error = self._answer, self._error
        self._answer = self._error = None
        with acting_for(self._caller):
            try:
                self._step = self._steps.send(answer) if error is None else self._steps.throw(error)
            except StopIteration as stop:
                return True, stop.value
        return False, None

    def _start(self, step: Step[Any]) -> Future[Any]:
        with acting_for(self._caller):
            try:
                self._future = step.as_future()
            except BaseException as raised:
                failed: Future[Any] = Future()
                failed.set_exception(raised)
                self._future = failed
        return self._future

    def _take_result(self, future: Future[Any], step: Step[Any]) -> None:
        self._future = self._step = None
        if self._error is not None:
            if future.done() and not future.cancelled():
                step.on_late_result(future)
            return
        try:
            if future.done():
                self._answer = future.result()
            else:
                future.cancel()
                self._answer = step.get_timeout_result()
        except BaseException as raised:
            self._error = raised
            if isinstance(raised, OutcomeUnknown):
                self._unknown = raised

    async def _wait_for(self, mailbox: LoopMailbox, future: Future[Any], step: Step[Any]) -> None:
        """Wait in the event loop until the future of a step is done, the step has timed out, or the task is canceled.

        Args:
            mailbox: The mailbox of the running loop.
            future: The future of the step.
            step: The step, which has the timeout.
        """
        timeout_s = step.timeout_s
        while True:
            waiter: asyncio.Future[None] = mailbox.loop.create_future()
            call_at_once(future, lambda _, waiter=waiter: mailbox.post(_wake, waiter))  # type: ignore[misc]
            timer = None if timeout_s is None else mailbox.loop.call_later(timeout_s, _wake, waiter)
            try:
                if not await self._wait_or_cancel(waiter):
                    if self._is_shielded:
                        continue
                    return
            finally:
                if timer is not None:
                    timer.cancel()
            if future.done() or (timeout_s := step.timeout_extension_s()) <= 0.0:
                return

    async def _wait_or_cancel(self, waiter: Any) -> bool:
        """Wait for an asyncio future. Return False if the task was canceled meanwhile.

        The caller then raises the cancellation in the coroutine, unless the coroutine is shielded. From the first
        cancellation on, the coroutine has ``CLEAN_UP_S`` seconds to clean up.

        Raises:
            LeftToBackground: The time for cleanup has passed, or the task was canceled again. The background event loop
                must complete the coroutine.
        """
        until = self._cleaning_until
        try:
            if until is None:
                await waiter
            else:
                await asyncio.wait_for(waiter, max(0.0, until - time.monotonic()))
        except (TimeoutError, asyncio.CancelledError) as error:
            if until is not None:
                raise LeftToBackground from error
            future, step = self._future, self._step
            self._cleaning_until = time.monotonic() + CLEAN_UP_S
            self._cancelled = error
            if self._is_shielded:
                return False
            self._error = error
            if future is None:
                self._step = None  # it has not begun
            elif step is not None and not future.done():
                if step.is_tracked:
                    await self._wait_for(LoopMailbox.for_running_loop(), future, step)
                    return False
                self._note = step.unknown_outcome_note()
                if not step.cancel(future):
                    await _wait_for_cancelled(future, step)
            return False
        return True


async def _wait_for_cancelled(future: Future[Any], step: Step[Any]) -> None:
    """Wait until a canceled step has ended. Ignore further cancellations meanwhile."""
    mailbox = LoopMailbox.for_running_loop()
    while not future.done():
        waiter = mailbox.loop.create_future()
        call_at_once(future, lambda _, waiter=waiter: mailbox.post(_wake, waiter))  # type: ignore[misc]
        try:
            await waiter
        except asyncio.CancelledError:
            step.cancel(future)


def with_note(error: BaseException, note: str | None) -> BaseException:
    """Add a note to an error, unless the note is None. Return the error."""
    if note is not None:
        error.add_note(note)
    return error


class LeftToBackground(Exception):
    """Raised when the background event loop must complete a step coroutine."""


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class InFlightLimit:
    """A limit on the calls in flight for the tasks of one event loop. Taking a free slot needs no task switch.

    A released slot goes to the task that has waited longest. Call ``try_acquire``, and if no slot is free, await
    ``acquire``. Call ``release`` once for each slot.
    """

    __slots__ = ("_free", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: int) -> None:
        self._loop = loop
        self._free = slots
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_acquire(self) -> bool:
        """Take a slot without waiting. Return False if no slot is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def acquire(self) -> None:
        """Wait for a slot and take it. If the wait is canceled, no slot is taken."""
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except BaseException:
            if not waiter.done():  # the task was abandoned, not cancelled
                self._waiting.remove(waiter)
            elif not waiter.cancelled():  # the slot was granted before the cancellation
                self.release()
            raise

    def release(self) -> None:
        """Release a slot, which goes to the task that has waited longest, if any."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done() and not self._loop.is_closed():
                waiter.set_result(None)
                return
        self._free += 1
