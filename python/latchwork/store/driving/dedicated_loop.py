"""An event loop in a separate thread, for users' ``async def`` functions that threads of the library wait for."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, cast

from latchwork._base.interrupts import mutex
from latchwork.backends.futures import LightFuture, reject, resolve
from latchwork.errors import Closed

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Registers a call to make when the function must stop; returns a function that removes it.
OnStop = Callable[[Callable[[], None]], Callable[[], object]]


class DedicatedLoop:
    """A thread with an event loop. It is started by the first call and stopped by ``close``. Thread-safe.

    All functions run in one loop, so that they can share objects that are bound to it, such as connections, pools and
    locks.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = mutex()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._calls: set[_LoopCall] = set()
        self._is_closed = False

    def run(self, fn: Callable[[], Coroutine[Any, Any, T]], on_stop: OnStop, caller: object = None) -> T | None:
        """Run ``await fn()`` as a task of the loop, and block this thread until the task has ended.

        The task has the context variables of this thread. A request to stop cancels the task, which may ignore that.

        Args:
            fn: Called in the loop's thread.
            on_stop: Registers a function that is called when the task must stop, or at once if it must stop already.
            caller: Identifies the caller for ``is_inside``.
        Returns:
            The function's result. None if a request to stop ended it.
        Raises:
            Closed: The loop was closed.
            BaseException: The error that the function raised.
        """
        call = _LoopCall(fn, caller)
        with self._lock:
            if self._is_closed:
                raise Closed(f"{self._name} was closed and runs nothing any more")
            loop = self._begun()
            self._calls.add(call)
            loop.call_soon_threadsafe(call.begin, self._ended, context=copy_context())
        take_back = on_stop(partial(call.stop_soon, loop))
        try:
            return cast("T | None", call.outcome.result())
        finally:
            take_back()

    def is_inside(self, caller: object) -> bool:
        """Return whether the current task was started by a call of ``run`` with this ``caller``."""
        if threading.current_thread() is not self._thread:
            return False
        task = asyncio.current_task(self._loop)
        with self._lock:
            return task is not None and any(call.caller is caller and call.task is task for call in self._calls)

    def close(self, timeout_s: float) -> bool:
        """Refuse further functions, and stop the loop when no function is running. Idempotent.

        Returns:
            False if functions are still running after ``timeout_s`` seconds.
        """
        with self._lock:
            self._is_closed = True
            self._end_if_idle()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return thread is None
        thread.join(max(0.0, timeout_s))
        return not thread.is_alive()

    def _begun(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._main, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        return self._loop

    def _ended(self, call: _LoopCall) -> None:
        with self._lock:
            self._calls.discard(call)
            self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._is_closed and not self._calls and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while not self._run_loop(loop):
                pass
            _cancel_tasks_and_shut_down(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Run the event loop until it is stopped.

        Returns:
            False if a background task of the user ended it by raising ``SystemExit`` or ``KeyboardInterrupt``.
        """
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            _log.exception("%s: a task raised SystemExit or KeyboardInterrupt; the event loop continues", self._name)
            return False
        return True


class _LoopCall:
    """A call in progress. All its methods except ``stop_soon`` run in the loop's thread."""

    def __init__(self, fn: Callable[[], Coroutine[Any, Any, Any]], caller: object) -> None:
        self._fn = fn
        self._is_stopped = False
        self._exit: BaseException | None = None
        self.caller = caller
        self.task: asyncio.Task[Any] | None = None
        self.outcome: LightFuture[Any] = LightFuture()

    def begin(self, ended: Callable[[_LoopCall], None]) -> None:
        if self._is_stopped:
            resolve(self.outcome, None)
            ended(self)
            return
        self.task = asyncio.get_running_loop().create_task(self._go())
        self.task.add_done_callback(partial(self._end, ended))

    async def _go(self) -> Any:
        try:
            return await self._fn()
        except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop and its other tasks
            self._exit = error

    def stop_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop and the task have ended
            loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._is_stopped = True
        if self.task is not None:
            self.task.cancel()

    def _end(self, ended: Callable[[_LoopCall], None], task: asyncio.Task[Any]) -> None:
        ended(self)
        error: BaseException | None
        if task.cancelled():
            error = None if self._is_stopped else asyncio.CancelledError()  # stopped as requested
        else:
            error = self._exit or task.exception()
        if error is None:
            resolve(self.outcome, None if task.cancelled() else task.result())
        else:
            reject(self.outcome, error)


def _cancel_tasks_and_shut_down(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the remaining tasks and shut the loop down, in the same way as ``asyncio.run``."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
