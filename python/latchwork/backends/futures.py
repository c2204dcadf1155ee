"""Futures for threads. An operation with several steps is a generator that yields the futures for which it waits.

``result = yield future`` waits for a future, and raises its error. An interrupt of the thread that runs the generator
is raised in that thread, and the future of the operation fails.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from functools import partial
from typing import Any, TypeVar

from latchwork._base.interrupts import mutex
from latchwork._base.user_code import call_user
from latchwork.errors import OutcomeUnknown

_log = logging.getLogger(__name__)
_INTERRUPTED = "the thread that did a part of this call was interrupted; it may have been applied; read again to know"

T = TypeVar("T")
U = TypeVar("U")
FutureGenerator = Generator["Future[Any]", Any, T]


_Explain = Callable[[BaseException], BaseException]
_Mapping = tuple[Callable[[Any], Any], "_Explain | None"]
_Callback = Callable[["Future[Any]"], object]
#: Has a callback called with the future that has ended: soon, in another thread.
CallbackQueue = Callable[[_Callback, "Future[Any]"], None]


class LightFuture(Future[T]):
    """A future that is cheaper than ``concurrent.futures.Future``: it creates no condition until a thread waits for it.

    It can be used everywhere instead of a ``Future``. The fields of the base class are created when they are accessed,
    for example by ``cancel`` or ``concurrent.futures.wait``. From then on the base class does the work.

    Attributes:
        callback_queue: Runs the callbacks that are added from now on. It is set when the future is returned to a user,
            whose code must not run in a thread of a client library. With None, the thread that completes the future
            runs them.
    """

    __slots__ = ("_callbacks", "_error", "_has_ended", "_is_plain", "_mapping", "_mutex", "_value", "callback_queue")

    def __init__(self) -> None:
        self._mutex = mutex()
        self._has_ended = False  # before the base class had its fields
        self._is_plain = False  # the base class has its fields, or is about to get them
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: tuple[_Callback, ...] = ()
        self._mapping: _Mapping | None = None
        self.callback_queue: CallbackQueue | None = None

    def _become_plain(self) -> None:
        plain: Future[Any] = Future()
        with self._mutex:
            if vars(plain).keys() <= vars(self).keys():
                return
            if not self._has_ended:
                for callback in self._callbacks:
                    plain.add_done_callback(callback)
            elif self._error is None:
                plain.set_result(self._value)
            else:
                plain.set_exception(self._error)
            self._is_plain = True  # before they are there: who finds the fields must find this too
            vars(self).update(vars(plain))

    def cancel(self) -> bool:
        """Cancel the future, and return whether it was canceled.

        A future that was returned to a user is not canceled, because its call may still be applied.
        """
        return self.callback_queue is None and super().cancel()

    def running(self) -> bool:
        """Return whether the call is in progress and cannot be canceled."""
        return super().running() if self.callback_queue is None else not self.done()

    def done(self) -> bool:
        """Return whether the future is completed or canceled."""
        return self._has_ended or (self._is_plain and super().done())

    def cancelled(self) -> bool:
        """Return whether the future was canceled."""
        return self._is_plain and super().cancelled()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the future, and return its value or raise its error."""
        if not self._has_ended:
            self._wait(timeout)
        if self._has_ended and self._error is None:
            return self._value  # type: ignore[return-value]
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the future, and return its error or None."""
        if not self._has_ended:
            self._wait(timeout)
        return self._error if self._has_ended else super().exception()

    def _wait(self, timeout: float | None) -> None:
        """Wait until the future is done, or until the timeout.

        The base class would hold its condition meanwhile. The thread that completes the future needs that condition
        too, and would wait for a thread that was interrupted or is inside a signal handler.
        """
        gate = threading.Lock()
        gate.acquire()
        self.call_at_once(lambda _: gate.release())
        limit_s = -1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        if not gate.acquire(timeout=limit_s) and not self.done():
            raise TimeoutError

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call ``fn`` through the callback queue when the future is done, or at once if it is already done.

        Without a callback queue, the thread that completes the future calls it.
        """
        callback_queue = self.callback_queue
        self.call_at_once(fn if callback_queue is None else partial(callback_queue, fn))

    def call_at_once(self, fn: Callable[[Future[T]], object]) -> None:
        """Call ``fn`` in the thread that completes the future, or now if it is done. Only for fast internal
        functions.
        """
        with self._mutex:
            if not self._has_ended and not self._is_plain:
                self._callbacks = (*self._callbacks, fn)
                return
        if self._has_ended:
            self._call((fn,))
        else:
            super().add_done_callback(fn)

    def set_result(self, result: T) -> None:
        """Complete the future with a value."""
        self._end(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        """Complete the future with an error."""
        self._end(None, exception)

    def map(self, fn: Callable[[Any], Any], convert_error: _Explain | None) -> bool:
        """Convert the result with ``fn`` and the error with ``convert_error``, without creating another future. See
        ``mapped``.

        Returns:
            Whether that was possible. If False, the caller must create another future.
        """
        with self._mutex:
            if self._is_plain or (self._mapping is not None and not self._has_ended):
                return False
            if not self._has_ended:
                self._mapping = (fn, convert_error)
                return True
        before = self._error
        self._value, self._error = _apply((fn, convert_error), self._value, before)
        _raise_interrupt(self._error, before)
        return True

    def _end(self, result: T | None, exception: BaseException | None) -> None:
        mapping, before = self._mapping, exception
        if mapping is not None:
            result, exception = _apply(mapping, result, exception)
        with self._mutex:
            if self._has_ended:
                msg = "the future has already ended"
                raise InvalidStateError(msg)
            if self._mapping is not mapping:  # it came just now
                result, exception = _apply(self._mapping, result, exception)
            plain = self._is_plain
            if not plain:
                self._value, self._error = result, exception
                self._has_ended = True
        if not plain:
            if self._callbacks:
                self._call(self._callbacks)
        elif exception is None:
            super().set_result(result)  # type: ignore[arg-type]
        else:
            super().set_exception(exception)
        if exception is not None:
            _raise_interrupt(exception, before)

    def _call(self, callbacks: tuple[_Callback, ...]) -> None:
        for callback in callbacks:
            try:
                call_user(callback, self)
            except Exception:
                _log.exception("a callback of a future raised an exception")


class _Field:
    """A field of the base class that is created when it is first accessed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, outcome: LightFuture[Any], _: type) -> Any:
        outcome._become_plain()  # noqa: SLF001 - its own field
        return vars(outcome)[self._name]


for _name in vars(Future()):
    setattr(LightFuture, _name, _Field(_name))


def _apply(mapping: _Mapping | None, result: Any, error: BaseException | None) -> tuple[Any, BaseException | None]:
    """Return the value or error of a future after the conversions in ``mapping``."""
    if mapping is None:
        return result, error
    fn, convert_error = mapping
    try:
        if error is None:
            return fn(result), None
        return None, error if convert_error is None else convert_error(error)
    except BaseException as raised:
        return None, raised


def _raise_interrupt(error: BaseException | None, before: BaseException | None) -> None:
    """Raise an error that interrupts this thread, such as KeyboardInterrupt, unless it is the earlier error
    ``before``.
    """
    if error is not None and error is not before and not isinstance(error, Exception):
        raise error


def completed(value: T) -> Future[T]:
    """Return a future that is already completed with this value."""
    future: Future[T] = LightFuture()
    future.set_result(value)
    return future


def failed(error: BaseException) -> Future[Any]:
    """Return a future that has already failed with this error."""
    future: Future[Any] = LightFuture()
    future.set_exception(error)
    return future


def resolve(future: Future[T], value: T) -> bool:
    """Complete a future with a value. Return False if the future was already done."""
    try:
        future.set_result(value)
    except InvalidStateError:
        return False
    return True


def reject(future: Future[Any], error: BaseException) -> bool:
    """Fail a future with an error. Return False if the future was already done."""
    try:
        future.set_exception(error)
    except InvalidStateError:
        return False
    return True


def attempt(call: Callable[[], T]) -> Future[T]:
    """Call a function in this thread, and return a completed future of its result or error."""
    try:
        return completed(call())
    except Exception as error:
        return failed(error)


def chain(source: Future[Any], target: Future[Any]) -> None:
    """Copy the result or error of ``source`` to ``target`` when ``source`` is done."""

    def ended(done: Future[Any]) -> None:
        error = CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            reject(target, error)
        else:
            resolve(target, done.result())

    source.add_done_callback(ended)


def then(future: Future[T], fn: Callable[[T], U], convert_error: _Explain | None = None) -> Future[U]:
    """Return a new future of ``fn(result)``, where ``result`` is that of ``future``.

    Args:
        future: The source future.
        fn: Converts the result. Called in the thread that completes the source future.
        convert_error: Converts the error. None passes it on unchanged.
    """
    outcome: LightFuture[Any] = LightFuture()
    outcome.map(fn, convert_error)
    chain(future, outcome)
    return outcome


def mapped(future: Future[T], fn: Callable[[T], U], convert_error: _Explain | None = None) -> Future[U]:
    """Convert the result of a future like ``then``, but return the same future where possible.

    So nobody else may use the future. ``fn`` and ``convert_error`` must be fast and take no locks.
    """
    if isinstance(future, LightFuture) and future.map(fn, convert_error):
        return future
    return then(future, fn, convert_error)


def together(futures: Sequence[Future[T]]) -> Future[list[T]]:
    """Return a future of the results of several futures, in order. It fails with the first error."""

    def steps() -> FutureGenerator[list[T]]:
        found: list[T] = []
        for future in futures:
            found.append((yield future))  # noqa: PERF401 - a generator's yield is none of a comprehension
        return found

    return run_generator(steps())


def call_at_once(future: Future[T], fn: Callable[[Future[T]], object]) -> None:
    """Call ``fn`` in the thread that completes a future, even if the future has a callback queue, or now if it is done.

    ``fn`` must be fast.
    """
    if isinstance(future, LightFuture):
        future.call_at_once(fn)
    else:
        future.add_done_callback(fn)


def with_callback_queue(future: Future[T], callback_queue: CallbackQueue) -> Future[T]:
    """Return a future whose callbacks run in a callback queue, so that it can be given to a user. The same future is
    used if possible.
    """
    outcome = future if isinstance(future, LightFuture) else then(future, lambda value: value)
    assert isinstance(outcome, LightFuture)
    outcome.callback_queue = callback_queue
    return outcome


def run_generator(steps: FutureGenerator[T]) -> Future[T]:
    """Run a generator that yields futures, and return a future of its return value.

    The generator continues in the thread that completes the yielded future. Futures that are already done are handled
    in a loop, without recursion.
    """
    outcome: Future[T] = LightFuture()
    _advance(steps, outcome, None)
    return outcome


def _advance(steps: FutureGenerator[T], outcome: Future[T], ready: Future[Any] | None) -> None:
    while True:
        try:
            ready = _step(steps, ready)
        except StopIteration as stop:
            resolve(outcome, stop.value)
            return
        except BaseException as error:
            before = ready.exception() if ready is not None and ready.done() else None
            is_interrupt = error is not before and not isinstance(error, Exception)
            reject(outcome, OutcomeUnknown(_INTERRUPTED) if is_interrupt else error)
            _raise_interrupt(error, before)
            return
        if not ready.done():
            ready.add_done_callback(lambda ended: _advance(steps, outcome, ended))
            return


def _step(steps: FutureGenerator[Any], ready: Future[Any] | None) -> Future[Any]:
    if ready is None:
        return next(steps)
    error = ready.exception()
    return steps.throw(error) if error is not None else steps.send(ready.result())
