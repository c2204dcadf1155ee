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

    def run(self, protocol: Callable[[], Coroutine[Any, Any, object]], name: str) -> None:
        """Run a coroutine as a task of the background event loop, and return at once. Start the thread if necessary.

        Args:
            protocol: Called without arguments to create the coroutine.
            name: The name of the task.
        """
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                args = (self._loop,)
                threading.Thread(target=self._run, args=args, name="latchwork-loop", daemon=True).start()
            self._count += 1
            self._loop.call_soon_threadsafe(self._start, protocol, name)

    def _start(self, protocol: Callable[[], Coroutine[Any, Any, object]], name: str) -> None:
        task = asyncio.get_running_loop().create_task(protocol(), name=name)
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
                if self._loop is loop:  # an error ended it: the next protocol starts another thread
                    self._loop, self._count = None, 0
            loop.close()


_loop_thread = _LoopThread()


def _forget_loop_thread() -> None:
    global _loop_thread  # noqa: PLW0603 - the thread is the parent's
    _loop_thread = _LoopThread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loop_thread)


def spawn(protocol: Callable[[], StepCoroutine[object]], name: str) -> Caller:
    """Start a coroutine in the background event loop.

    Args:
        protocol: Called without arguments to create the coroutine.
        name: The name of the task.
    Returns:
        The ``Caller`` that identifies the task, as the owner of locks for example.
    """
    caller = Caller(spawn)

    async def run_protocol() -> None:
        await CoroutineRunner(protocol(), caller).run()

    _loop_thread.run(run_protocol, name)
    return caller


async def run_in_task(protocol: Callable[[], StepCoroutine[T]], *, is_shielded: bool = False) -> T:
    """Run a protocol, which is a coroutine that awaits only ``Step`` objects, in the current asyncio task. Return its
    result.

    When the task is canceled, the protocol receives the cancellation and cleans up. The task waits for that at most one
    second. The rest of the cleanup continues in the background.

    Args:
        protocol: Called without arguments to create the coroutine.
        is_shielded: The protocol does not receive a cancellation and runs to its end.
    """
    caller = get_or_create_caller(spawn)  # before the coroutine is created, because it raises without asyncio
    protocol_run = CoroutineRunner(protocol(), caller, is_shielded=is_shielded)
    try:
        result = await protocol_run.run()
    except Exception as error:
        if isinstance(error, LeftToBackground):
            _loop_thread.run(protocol_run.resume, "a cancelled call")
            raise protocol_run.get_cancellation_error(error) from None
        if not is_shielded or protocol_run.cancellation is None:
            raise
        _log.exception("a canceled call has ended with an error")
        raise protocol_run.cancellation from None
    except BaseException as error:
        if not protocol_run.has_ended:  # the task was abandoned, and may not wait
            protocol_run.abandon(error)
            _loop_thread.run(protocol_run.resume, "an abandoned call")
        raise protocol_run.with_note(error) from None
    if protocol_run.cancellation is not None and is_shielded:
        raise protocol_run.cancellation
    return result
