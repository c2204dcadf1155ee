"""Futures without an event loop: write several steps as one generator, drive it by callbacks.

A step is ``result = yield future``; an error of the future is raised at the yield. Nothing here touches the network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")
Steps = Generator["Future[Any]", Any, T]


def completed(value: T) -> Future[T]:
    """A future that has its value."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


def failed(error: BaseException) -> Future[Any]:
    """A future that has its error."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def resolve(future: Future[T], value: T) -> bool:
    """Give the value unless the future ended already; True if it was given."""
    try:
        future.set_result(value)
    except InvalidStateError:
        return False
    return True


def reject(future: Future[Any], error: BaseException) -> bool:
    """Give the error unless the future ended already; True if it was given."""
    try:
        future.set_exception(error)
    except InvalidStateError:
        return False
    return True


def attempt(call: Callable[[], T]) -> Future[T]:
    """Run the call now, in this thread; its value or error as a future."""
    try:
        return completed(call())
    except Exception as error:
        return failed(error)


def then(future: Future[T], fn: Callable[[T], U]) -> Future[U]:
    """The future of ``fn`` applied to the result; errors pass through. ``fn`` runs where the future ends."""
    outcome: Future[U] = Future()

    def ended(source: Future[T]) -> None:
        error = source.exception()
        try:
            if error is None:
                resolve(outcome, fn(source.result()))
        except BaseException as raised:
            error = raised
        if error is not None:
            reject(outcome, error)

    future.add_done_callback(ended)
    return outcome


def drive(steps: Steps[T]) -> Future[T]:
    """Run a generator that yields futures until it returns; the future of what it returns.

    It goes on in whatever thread ends the future it waits for; a chain of futures that have ended already runs in a
    loop, not in recursion.
    """
    outcome: Future[T] = Future()
    _advance(steps, outcome, None)
    return outcome


def _advance(steps: Steps[T], outcome: Future[T], ready: Future[Any] | None) -> None:
    while True:
        try:
            ready = _step(steps, ready)
        except StopIteration as stop:
            resolve(outcome, stop.value)
            return
        except BaseException as error:
            reject(outcome, error)
            return
        if not ready.done():
            ready.add_done_callback(lambda ended: _advance(steps, outcome, ended))
            return


def _step(steps: Steps[Any], ready: Future[Any] | None) -> Future[Any]:
    if ready is None:
        return next(steps)
    error = ready.exception()
    return steps.throw(error) if error is not None else steps.send(ready.result())
