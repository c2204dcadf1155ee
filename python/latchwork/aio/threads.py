"""Calls that block, for a loop: each in a thread of its own, which ends with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from latchwork.backends.futures import Outcome, reject, resolve
from latchwork.store.steps import Step

T = TypeVar("T")


class InThread(Step[T]):
    """A call that blocks, made in a thread of its own. A cancellation does not end it: ``undo`` gets its result."""

    __slots__ = ("_call", "_undo")

    def __init__(self, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> None:
        super().__init__()
        self._call = call
        self._undo = undo

    def block(self) -> T:
        """Make the call."""
        return self._call()

    def begin(self) -> Future[T]:
        """Make the call in the thread."""
        future: Future[T] = Outcome()
        _start(self._make, future)
        return future

    def dropped(self, future: Future[T]) -> None:
        """Undo what was done."""
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


def _start(call: Callable[[T], object], given: T) -> None:
    threading.Thread(target=call, args=(given,), name="latchwork-call", daemon=True).start()


async def one(step: Step[T]) -> T:
    """The protocol of one step."""
    return await step
