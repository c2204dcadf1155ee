"""The background event loop of this process, which runs background work for all event loops of the application.

Its thread exists only while there is work. So an event loop that is busy, closing or closed does not delay deadlines,
such as those of sessions and locks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from latchwork._base.execution_context import Caller
from latchwork._base.interrupts import mutex
from latchwork.store.driving.loop import CoroutineRunner, LeftToBackground, get_or_create_caller
from latchwork.store.steps import StepCoroutine

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for which the idle thread waits for more work before it ends.
_LINGER_S = 0.5


class _LoopThread:
    """The background thread and its event loop, which are started on first use. Thread-safe."""

    def __init__(self) -> None:
        self._lock = mutex()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, create_coroutine: Callable[[], Coroutine[Any, Any, object]], name: str) -> None:
        """Run a coroutine as a task of the background event loop, and return at once. Start the thread if necessary.

        Args:
            create_coroutine: Called without arguments to create the coroutine.
            name: The name of the task.
        """
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                args = (self._loop,)
                threading.Thread(target=self._run, args=args, name="latchwork-loop", daemon=True).start()
            self._count += 1
            self._loop.call_soon_threadsafe(self._start, create_coroutine, name)

    def _start(self, create_coroutine: Callable[[], Coroutine[Any, Any, object]], name: str) -> None:
        task = asyncio.get_running_loop().create_task(create_coroutine(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed in the background", task.get_name(), exc_info=error)
        with self._lock:
            self._count -= 1
            if not self._count:
                asyncio.get_running_loop().call_later(_LINGER_S, self._stop_if_idle)

    def _stop_if_idle(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            if not self._count and self._loop is loop:
                self._loop = None
                loop.stop()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            with self._lock:
                if self._loop is loop:  # an error ended it: the next coroutine starts another thread
                    self._loop, self._count = None, 0
            loop.close()


_loop_thread = _LoopThread()


def _forget_loop_thread() -> None:
    global _loop_thread  # noqa: PLW0603 - the thread is the parent's
    _loop_thread = _LoopThread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loop_thread)


def spawn(create_coroutine: Callable[[], StepCoroutine[object]], name: str) -> Caller:
    """Start a step coroutine as a task of the background event loop, and return at once.

    Args:
        create_coroutine: Called without arguments to create the coroutine.
        name: The name of the task.
    Returns:
        The ``Caller`` that identifies the task, as the owner of locks for example.
    """
    caller = Caller(spawn)

    async def run_coroutine() -> None:
        await CoroutineRunner(create_coroutine(), caller).run()

    _loop_thread.run(run_coroutine, name)
    return caller


async def run_in_task(create_coroutine: Callable[[], StepCoroutine[T]], *, is_shielded: bool = False) -> T:
    """Run a step coroutine in the current asyncio task, and return its result.

    When the task is canceled, the cancellation is raised in the coroutine, which cleans up. The task waits for that at
    most one second. The rest of the cleanup continues in the background.

    Args:
        create_coroutine: Called without arguments to create the coroutine.
        is_shielded: Never raise a cancellation in the coroutine, which runs to its end.
    Raises:
        CancelledError: The task was canceled.
        BaseException: The error of the coroutine.
    """
    caller = get_or_create_caller(spawn)  # before the coroutine is created, because it raises without asyncio
    runner = CoroutineRunner(create_coroutine(), caller, is_shielded=is_shielded)
    try:
        result = await runner.run()
    except Exception as error:
        if isinstance(error, LeftToBackground):
            _loop_thread.run(runner.finish_in_background, "a cancelled call")
            raise runner.get_cancellation_error(error) from None
        if not is_shielded or runner.cancellation is None:
            raise
        _log.exception("a canceled call has ended with an error")
        raise runner.cancellation from None
    except BaseException as error:
        if not runner.has_ended:  # the task was abandoned, and may not wait
            runner.throw(error)
            _loop_thread.run(runner.finish_in_background, "an abandoned call")
        raise runner.add_outcome_note(error) from None
    if runner.cancellation is not None and is_shielded:
        raise runner.cancellation
    return result
