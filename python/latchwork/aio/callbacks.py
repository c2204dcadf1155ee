"""Adapters for user functions that run in an event loop: work, listeners and predicates.

Work is an ``async def`` function. It runs as a task, which is canceled when the work has to stop. A listener is called,
or awaited, in the loop's thread. Listeners of one object are called one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

from latchwork._base.event import Signal
from latchwork._base.execution_context import Caller, acting_for, current_task_caller
from latchwork._base.user_code import await_user, is_interrupt, wrap_failure
from latchwork.aio.wrapper import wrap_async
from latchwork.backends.futures import LightFuture, reject, resolve
from latchwork.primitives import GuardedWork
from latchwork.store.driving.background_loop import spawn
from latchwork.store.driving.loop import LoopMailbox, inherit_caller
from latchwork.store.steps import Step

_log = logging.getLogger(__name__)

#: Seconds after which a thread that waits for a listener checks that the loop is still running.
_LOOP_CHECK_S = 0.5


def wrap_work(fn: Callable[..., Any], what: str) -> Callable[..., Step[Any]]:
    """Wrap a user's ``async def`` function for a method that runs it, such as ``LeaderLatch.run``.

    The wrapper runs it as a task of the current event loop. The task is canceled when its ``GuardedWork`` must stop,
    for example because the leadership is lost.

    Args:
        fn: The user's function.
        what: Description of the argument for error messages.
    """
    if not callable(fn):
        raise TypeError(f"{what} was given {fn!r} to run; pass an async def function")
    if not (inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)):
        raise TypeError(
            f"{what} was given {fn!r}, which is no async def function; give one, or use the synchronous class"
        )

    def call(*args: Any) -> Step[Any]:
        return TaskStep(fn, args)

    with contextlib.suppress(ValueError, TypeError):
        call.__signature__ = inspect.signature(fn)  # type: ignore[attr-defined] # for the validation of arguments
    return call


class TaskStep(Step[Any]):
    """A step that runs a coroutine as a task of the current event loop. Canceling the step cancels the task."""

    __slots__ = ("_args", "_fn", "_is_stopped", "_task")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__()
        self._fn = fn
        self._args = args
        self._task: asyncio.Task[Any] | None = None
        self._is_stopped = False

    def block(self) -> Any:
        """Raise an error: the task needs an event loop, so no thread without one awaits this step."""
        raise AssertionError

    def as_future(self) -> Future[Any]:
        """Start the task, and return a future of its result."""
        mailbox = LoopMailbox.for_running_loop()
        self._task = task = mailbox.loop.create_task(self._fn(*map(wrap_async, self._args)))
        caller = current_task_caller()
        if caller is not None:
            inherit_caller(task, caller)
        future: Future[Any] = LightFuture()
        task.add_done_callback(lambda _: self._ended(future))
        for work in self._args:
            if isinstance(work, GuardedWork):
                remove = work.stopped.call_when_set(lambda: mailbox.post(self._stop, None))
                task.add_done_callback(lambda _, remove=remove: remove())  # type: ignore[misc]
        return future

    def cancel(self, future: Future[Any]) -> bool:
        """Cancel the task. The future completes when the task has ended.

        Args:
            future: The future that ``as_future`` has returned.
        """
        if self._task is not None:
            self._task.cancel()
        return future.done()

    def _stop(self, _: None) -> None:
        if self._task is not None and not self._task.done():
            self._is_stopped = True
            self._task.cancel()

    def _ended(self, future: Future[Any]) -> None:
        task = self._task
        assert task is not None
        if not task.cancelled():
            error = task.exception()
            if error is None:
                resolve(future, task.result())
            elif isinstance(error, GeneratorExit):  # inside our coroutines it would prevent further awaits
                reject(future, wrap_failure(self._fn, error))
            else:
                reject(future, error)
        elif self._is_stopped:
            resolve(future, None)  # it was stopped by us
        else:
            reject(future, asyncio.CancelledError())


def wrap_predicate(fn: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Wrap a user's plain function, so that it receives asyncio objects: an ``aio.Mirror`` instead of a ``Mirror``.

    Args:
        fn: The user's function.
        what: Description of the argument for error messages.
    """
    if inspect.iscoroutinefunction(fn):
        raise TypeError(f"{what} needs a plain function, not {fn!r}")

    def call(*args: Any) -> Any:
        return fn(*map(wrap_async, args))

    return call


def wrap_listener(fn: Callable[..., Any], what: str) -> Callable[..., None]:
    """Wrap a user's listener in a function that other threads can call.

    The listener runs in this event loop, and the calling thread waits for its end.

    Args:
        fn: The user's function.
        what: Description of the argument for error messages.
    """
    if not callable(fn):
        raise TypeError(f"a listener of {what} must be a function, not {fn!r}")
    mailbox = LoopMailbox.for_running_loop()

    def call(*args: Any) -> None:
        _ListenerCall(fn, args, mailbox).wait()

    return call


class _ListenerCall:
    """One call of a listener in its event loop."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], mailbox: LoopMailbox) -> None:
        self._fn = fn
        self._args = args
        self._mailbox = mailbox
        self._caller = Caller(spawn, acts_for=threading.get_ident())
        self._ended = Signal()
        self._error: BaseException | None = None

    def wait(self) -> None:
        loop = self._mailbox.loop
        if not self._mailbox.post(self._call, None):
            _log.info("a listener was not called because its event loop has ended")
            return
        while not self._ended.wait(_LOOP_CHECK_S):
            if not loop.is_running():
                return
        if self._error is not None:
            raise self._error

    def _call(self, _: None) -> None:
        try:
            with acting_for(self._caller):
                result = self._fn(*map(wrap_async, self._args))
        except BaseException as error:
            self._error = error
            self._ended.set()
            if is_interrupt(error):  # of the loop, which runs in the main thread
                raise
            return
        if not inspect.iscoroutine(result):
            self._ended.set()
            return
        task = self._mailbox.loop.create_task(await_user(self._fn, result))
        inherit_caller(task, self._caller)
        task.add_done_callback(partial(self._end, result))

    def _end(self, body: Coroutine[Any, Any, Any], task: asyncio.Task[Any]) -> None:
        body.close()  # a task that was canceled before its start never entered it
        self._error = None if task.cancelled() else task.exception()
        self._ended.set()
