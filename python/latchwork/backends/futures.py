"""Futures without an event loop: write several steps as one generator, drive it by callbacks.

A step is ``result = yield future``; an error of the future is raised at the yield. Nothing here touches the network.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, TypeVar

_log = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")
Steps = Generator["Future[Any]", Any, T]


_Explain = Callable[[BaseException], BaseException]
_Turn = tuple[Callable[[Any], Any], "_Explain | None"]
_Callback = Callable[["Future[Any]"], object]
#: Has a callback called with the future that has ended: soon, in another thread.
Outlet = Callable[[_Callback, "Future[Any]"], None]


class Outcome(Future[T]):
    """A future that costs little until somebody waits for it: a lock, and no condition, lists or dictionary.

    To others it is a ``Future`` like any: what the base class keeps is there under the same names, made when asked for.

    Attributes:
        outlet: what runs the callbacks that are added from now on: of a future that was given to a user, whose code
            must not run in a client library's thread. None runs them in the thread that ends the future.
    """

    __slots__ = (
        "_changed",
        "_done_callbacks",
        "_exception",
        "_lock",
        "_result",
        "_state",
        "_turn",
        "_waiters",
        "outlet",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed: threading.Condition | None = None
        self._state = "PENDING"
        self._result: T | None = None
        self._exception: BaseException | None = None
        self._done_callbacks: Any = ()
        self._turn: _Turn | None = None
        self.outlet: Outlet | None = None

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        """What the base class waits on. Once it is there it stays, so that it can be asked for with the lock held."""
        if self._changed is None:
            with self._lock:
                if self._changed is None:
                    self._waiters: list[Any] = []
                    self._changed = threading.Condition(self._lock)
        return self._changed

    def done(self) -> bool:
        """It has ended or was cancelled."""
        return self._state == "FINISHED" or super().done()

    def result(self, timeout: float | None = None) -> T:
        """Its value, or its error raised; waits for it."""
        if self._state == "FINISHED" and self._exception is None:
            return self._result  # type: ignore[return-value]
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Its error, if it failed; waits for it."""
        return self._exception if self._state == "FINISHED" else super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call when it has ended, at once if it has: by its outlet, or in the thread that ends it."""
        outlet = self.outlet
        self.call_at_once(fn if outlet is None else partial(outlet, fn))

    def call_at_once(self, fn: Callable[[Future[T]], object]) -> None:
        """Call when it has ended, in the thread that ends it; now if it has. For our own code, which is quick."""
        with self._lock:
            if self._state in ("PENDING", "RUNNING"):
                self._done_callbacks = (*self._done_callbacks, fn)
                return
        self._tell((fn,))

    def set_result(self, result: T) -> None:
        """End it with a value."""
        self._end(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        """End it with an error."""
        self._end(None, exception)

    @property
    def is_turned(self) -> bool:
        """``turn`` was called."""
        return self._turn is not None

    def turn(self, fn: Callable[[Any], Any], explain: _Explain | None) -> None:
        """End with what ``fn`` makes of the result; see ``turned``. At most once."""
        with self._lock:
            if self._state in ("PENDING", "RUNNING"):
                self._turn = (fn, explain)
                return
        self._result, self._exception = _apply((fn, explain), self._result, self._exception)

    def _end(self, result: T | None, exception: BaseException | None) -> None:
        turn = self._turn
        if turn is not None:
            result, exception = _apply(turn, result, exception)
        with self._lock:
            if self._turn is not turn:  # it came just now
                result, exception = _apply(self._turn, result, exception)
            if self._state not in ("PENDING", "RUNNING"):
                msg = f"the future has ended already: {self._state}"
                raise InvalidStateError(msg)
            self._result, self._exception = result, exception
            self._state = "FINISHED"
            callbacks = self._done_callbacks
            if self._changed is not None:
                for waiter in self._waiters:
                    (waiter.add_result if exception is None else waiter.add_exception)(self)
                self._changed.notify_all()
        if callbacks:
            self._tell(callbacks)

    def _tell(self, callbacks: tuple[Callable[[Future[T]], object], ...]) -> None:
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                _log.exception("a callback of a future raised")


def _apply(turn: _Turn | None, result: Any, error: BaseException | None) -> tuple[Any, BaseException | None]:
    """The value and the error that a future ends with instead of these."""
    if turn is None:
        return result, error
    fn, explain = turn
    try:
        if error is None:
            return fn(result), None
        return None, error if explain is None else explain(error)
    except BaseException as raised:
        return None, raised


def completed(value: T) -> Future[T]:
    """A future that has its value."""
    future: Future[T] = Outcome()
    future.set_result(value)
    return future


def failed(error: BaseException) -> Future[Any]:
    """A future that has its error."""
    future: Future[Any] = Outcome()
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


def then(future: Future[T], fn: Callable[[T], U], explain: _Explain | None = None) -> Future[U]:
    """The future of ``fn`` applied to the result; ``fn`` runs where the future ends.

    Errors pass through, or are what ``explain`` makes of them.
    """
    outcome: Outcome[Any] = Outcome()
    outcome.turn(fn, explain)

    def ended(source: Future[T]) -> None:
        error = source.exception()
        if error is not None:
            reject(outcome, error)
        else:
            resolve(outcome, source.result())

    future.add_done_callback(ended)
    return outcome


def call_at_once(future: Future[T], fn: Callable[[Future[T]], object]) -> None:
    """Call when it has ended, in the thread that ends it, outlet or not; now if it has. ``fn`` is quick."""
    if isinstance(future, Outcome):
        future.call_at_once(fn)
    else:
        future.add_done_callback(fn)


def handed_out(future: Future[T], outlet: Outlet) -> Future[T]:
    """The future for a user, whose callbacks the outlet runs; the future itself where that is possible."""
    if not isinstance(future, Outcome):
        future = then(future, _same)
        assert isinstance(future, Outcome)
    future.outlet = outlet
    return future


def _same(value: T) -> T:
    return value


def turned(future: Future[T], fn: Callable[[T], U], explain: _Explain | None = None) -> Future[U]:
    """Like ``then``, but the future itself where that is possible: for who has it alone, to hand it on.

    ``fn`` and ``explain`` are quick and take no locks.
    """
    if not isinstance(future, Outcome) or future.is_turned:
        return then(future, fn, explain)
    future.turn(fn, explain)
    return future


def drive(steps: Steps[T]) -> Future[T]:
    """Run a generator that yields futures until it returns; the future of what it returns.

    It goes on in whatever thread ends the future it waits for; a chain of futures that have ended already runs in a
    loop, not in recursion.
    """
    outcome: Future[T] = Outcome()
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
