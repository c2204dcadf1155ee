"""Blocking calls in threads that an event loop awaits, and long loops that let other tasks run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from latchwork.backends.futures import LightFuture, reject, resolve
from latchwork.store.steps import Step

T = TypeVar("T")

#: Seconds after which a loop of ours lets other tasks run.
TURN_S = 0.002


class ThreadStep(Step[T]):
    """A step that makes a blocking call in a separate thread, while the event loop waits for it.

    A cancellation does not stop the call. Then ``undo`` is called with its result.
    """

    __slots__ = ("_call", "_undo")

    def __init__(self, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> None:
        super().__init__()
        self._call = call
        self._undo = undo

    def block(self) -> T:
        """Make the blocking call in the current thread, which has no event loop, and return its result."""
        return self._call()

    def as_future(self) -> Future[T]:
        """Make the blocking call in a new thread, and return a future of its result."""
        future: Future[T] = LightFuture()
        _start(self._make, future)
        return future

    def on_late_result(self, future: Future[T]) -> None:
        """Undo the call if it has succeeded, because the task that awaited it was canceled.

        Args:
            future: The future that ``as_future`` has returned.
        """
        if self._undo is not None and not future.cancelled() and future.exception() is None:
            _start(self._undo, future.result())

    def _make(self, future: Future[T]) -> None:
        try:
            result = self._call()
        except BaseException as error:
            reject(future, error)
        else:
            if not resolve(future, result) and self._undo is not None:
                self._undo(result)


class LoopTurn:
    """Lets other tasks run during a long loop: ``await turn.yield_if_due()`` after each step."""

    def __init__(self) -> None:
        self._ends = time.perf_counter() + TURN_S

    async def yield_if_due(self) -> None:
        """Let other tasks run, if this loop has run for a certain time without a break."""
        if time.perf_counter() > self._ends:
            await asyncio.sleep(0)
            self._ends = time.perf_counter() + TURN_S


async def await_step(step: Step[T]) -> T:
    """Await one step, and return its result. For callers that need a coroutine and not a step."""
    return await step


def _start(call: Callable[[T], object], argument: T) -> None:
    threading.Thread(target=call, args=(argument,), name="latchwork-call", daemon=True).start()
