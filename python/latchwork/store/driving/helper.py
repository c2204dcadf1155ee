"""One thread per process drives the background work of all its event loops.

It exists while there is something to drive. A loop that is busy, closing or closed therefore does not delay the
deadlines of sessions, latches and keepers.
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
from latchwork.store.driving.loop import Drive, Leave, caller_here
from latchwork.store.steps import Steps

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for which the idle thread waits for more work before it ends.
_LINGER_S = 0.5


class _Helper:
    """The thread and its loop, started when there is something to drive. Thread-safe."""

    def __init__(self) -> None:
        self._lock = mutex()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, protocol: Callable[[], Coroutine[Any, Any, object]], name: str) -> None:
        """Run this in the thread."""
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


_helper = _Helper()


def _forget_helper() -> None:
    global _helper  # noqa: PLW0603 - the thread is the parent's
    _helper = _Helper()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_helper)


def spawn(protocol: Callable[[], Steps[object]], name: str) -> Caller:
    """Drive a protocol in the background, and return its caller."""
    caller = Caller(spawn)

    async def go() -> None:
        await Drive(protocol(), caller).go()

    _helper.run(go, name)
    return caller


async def drive(begin: Callable[[], Steps[T]], *, ends: bool = False) -> T:
    """Drive a protocol in the task that awaits this.

    A cancellation leaves nothing behind: it is raised in the protocol. Its cleanup is awaited for at most a second; the
    rest continues in the background.

    Args:
        begin: Calls the protocol.
        ends: The protocol ends something: a cancellation is not raised in it, and it runs to completion.
    """
    on = Drive(begin(), caller_here(spawn), ends=ends)
    try:
        result = await on.go()
    except Exception as error:
        if isinstance(error, Leave):
            _helper.run(on.go_on, "a cancelled call")
            raise on.cancelled(error) from None
        if not ends or on.cancellation is None:
            raise
        _log.exception("a cancelled call has ended with an error")
        raise on.cancellation from None
    except BaseException as error:
        if not on.is_over:  # the task was abandoned, and may not wait
            on.abandon(error)
            _helper.run(on.go_on, "an abandoned call")
        raise on.with_note(error) from None
    if on.cancellation is not None and ends:
        raise on.cancellation
    return result
