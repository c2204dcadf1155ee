"""The operations for which a protocol waits, called steps. They let one coroutine run in a thread and in an event loop.

A protocol is an ``async def`` function that awaits only steps and other protocols. In a thread, ``run`` waits for each
step. An event loop starts each step and continues when its future is done. An interrupt of a wait is raised in the
protocol at its ``await``. The ``finally`` blocks there may wait, too.

A protocol holds no mutex at an ``await``, because that would block an event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial, wraps
from inspect import CORO_CLOSED, getcoroutinelocals, getcoroutinestate, signature
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from latchwork._base import interrupts
from latchwork._base.event import Signal
from latchwork._base.execution_context import in_loop, warn_in_loop
from latchwork._base.interrupts import call_allowing_reentry, here
from latchwork.backends.futures import LightFuture, resolve
from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.errors import LatchworkError, OutcomeUnknown, keep_outcome_unknown

P = ParamSpec("P")
T = TypeVar("T")

#: Registers a quick call to make when a condition holds, and returns a function that removes it.
Listen = Callable[[Callable[[], object]], Callable[[], object]]
#: Names of the store's writing calls.
WRITES = frozenset({"put", "create", "create_ordered_key", "delete", "delete_tree", "commit", "transact"})
#: A protocol that was called and not driven yet.
StepCoroutine = Coroutine[Any, Any, T]


class Step(ABC, Generic[T]):
    """An operation that a protocol awaits once, such as a call to the server or a pause.

    Attributes:
        timeout_s: Seconds after which an event loop calls ``get_timeout_result``. None means never. ``block`` has its
            own timeout.
    """

    __slots__ = ("timeout_s",)

    #: True for a step that a cancellation does not end: its result is still awaited, perhaps by another driver.
    is_tracked = False

    def __init__(self, timeout_s: float | None = None) -> None:
        self.timeout_s = timeout_s

    def __await__(self) -> Generator[Step[T], T, T]:
        return (yield self)

    @abstractmethod
    def block(self) -> T:
        """Perform the operation and block this thread until it has ended. Return its result."""

    @abstractmethod
    def as_future(self) -> Future[T]:
        """Start the operation without blocking, and return a future of its result.

        The future may complete in any thread. Canceling it stops the operation.
        """

    def timeout_extension_s(self) -> float:
        """Return the seconds by which to extend the wait after its timeout has passed. 0 means that it has timed
        out.
        """
        return 0.0

    def cancel(self, future: Future[T]) -> bool:
        """Stop the operation of this future.

        Returns:
            False if the operation cannot be stopped, so that the caller must wait for its end.
        """
        future.cancel()
        return True

    def on_late_result(self, future: Future[T]) -> None:
        """Release the result of an operation that completed after its cancellation, so that the protocol never received
        it.
        """

    def unknown_outcome_note(self) -> str | None:
        """Return a note for the user about what is unknown after a cancellation, or None."""
        return None

    def get_timeout_result(self) -> T:
        """Return the result of an operation that has timed out, or raise its error.

        Not called if the operation has no timeout.
        """
        raise AssertionError


def run(steps: StepCoroutine[T]) -> T:
    """Run a protocol in this thread until it has ended, and return its result.

    An interrupt of this thread between two steps is also raised in the protocol, which then releases its resources.

    Once a step has ended with ``OutcomeUnknown``, a later error that says that nothing was applied would be wrong. It
    is replaced by ``OutcomeUnknown`` (see ``keep_outcome_unknown``). Event loops do the same.
    """
    if in_loop():
        warn_in_loop(_name_of(steps))
    try:
        return _drive(steps, None)
    except BaseException as raised:
        if getcoroutinestate(steps) == CORO_CLOSED:
            raise
        return _drive(steps, raised)


def _name_of(steps: StepCoroutine[object]) -> str:
    owner = getcoroutinelocals(steps).get("self")
    name = getattr(steps, "__name__", "a call")
    return f"{type(owner).__name__}.{name}" if owner is not None else name


def _drive(steps: StepCoroutine[T], error: BaseException | None) -> T:
    answer: Any = None
    unknown: OutcomeUnknown | None = None
    try:
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
                answer = error = None
                answer = step.block()
            except BaseException as raised:
                if getcoroutinestate(steps) != CORO_CLOSED:
                    error = raised
                    unknown = raised if isinstance(raised, OutcomeUnknown) else unknown
                elif isinstance(raised, StopIteration):
                    return cast("T", raised.value)
                else:
                    raise keep_outcome_unknown(raised, unknown)  # noqa: B904 - it has its cause
    finally:
        error = unknown = None  # their tracebacks hold this frame


def blocking(protocol: Callable[P, StepCoroutine[T]]) -> Callable[P, T]:
    """Decorator of an ``async def`` protocol: it becomes an ordinary function, which blocks until the protocol has
    ended.

    A signal handler that calls it during another call gets an error. See ``interrupts.not_reentrant``.
    """
    return _make_blocking(protocol, is_shielded=False)


def shielded(protocol: Callable[P, StepCoroutine[T]]) -> Callable[P, T]:
    """Decorator like ``blocking``, for a protocol that the cancellation of an asyncio task does not interrupt.

    The task waits for it for a limited time. Then it continues in the background.
    """
    return _make_blocking(protocol, is_shielded=True)


def _make_blocking(protocol: Callable[P, StepCoroutine[T]], *, is_shielded: bool) -> Callable[P, T]:
    @wraps(protocol)
    def make_coroutine(*args: P.args, **options: P.kwargs) -> StepCoroutine[T]:
        try:
            return protocol(*args, **options)
        except TypeError as error:  # about the arguments: nothing has run yet
            raise _suggest_timeout_option(protocol, options, error) from None

    @wraps(protocol)
    def call(*args: P.args, **options: P.kwargs) -> T:
        before = here.is_inside  # as ``not_reentrant``
        if before:
            interrupts.raise_reentrant_call()
        here.is_inside = True
        try:
            return run(make_coroutine(*args, **options))
        finally:
            here.is_inside = before

    call.__dict__.update(is_shielded=is_shielded, make_coroutine=make_coroutine)  # for other drivers
    return call


def is_blocking(function: object) -> bool:
    """Return whether a function or method was decorated with ``blocking`` or ``shielded``."""
    return hasattr(function, "make_coroutine")


def _suggest_timeout_option(protocol: Callable[..., object], options: Iterable[str], error: TypeError) -> TypeError:
    """Return a ``TypeError`` that suggests the right name for an unknown option, such as ``timeout_s`` for ``timeout``.

    Args:
        protocol: The called function.
        options: The names of the given options.
        error: The original error.
    """
    known = signature(protocol).parameters
    for name in options:
        if name not in known and f"{name}_s" in known:
            return TypeError(f"{protocol.__qualname__}() has no argument {name!r}; it is {name}_s, in seconds")
    return error


def coroutine_of(function: Callable[P, T]) -> Callable[P, StepCoroutine[T]]:
    """Return the coroutine function behind a function that is decorated with ``blocking``, to await it in another
    protocol.
    """
    protocol: Callable[..., StepCoroutine[T]] = function.__wrapped__  # type: ignore[attr-defined]
    owner = getattr(function, "__self__", None)  # of a method
    return protocol if owner is None else partial(protocol, owner)


@contextmanager
def undone_if_interrupted(undo: Callable[[], object]) -> Iterator[None]:
    """Call ``undo`` if an interrupt or a cancellation ends the ``with`` block. Ordinary errors do not call it.

    ``undo`` must return quickly.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException:
        undo()
        raise


class CallTarget(Protocol):
    """The store on which ``StoreCall`` makes a call."""

    @property
    def connection(self) -> object:
        """The connection that the store and its namespaces share.

        An event loop limits the number of its calls in flight.
        """

    def start_call(self, method: str, *args: Any, **options: Any) -> Future[Any]:
        """Start the call with this method name without blocking, and return a future of its result."""

    def remaining_timeout_s(self, since: float | None = None) -> float:
        """Return the number of seconds for which to wait for the answer to a call.

        Args:
            since: Local clock time at which the call was made. None means now.
        """

    def timeout_error(self, method: str, args: tuple[Any, ...]) -> LatchworkError:
        """Return the error for a call that was not answered in time.

        Args:
            method: The name of the method.
            args: Its arguments.
        """


class StoreCall(Step[T]):
    """A call to the server, with a timeout: ``await ask(store.get, key)``."""

    __slots__ = ("_args", "_at", "_call", "_options")

    def __init__(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> None:
        self.timeout_s = None
        self._call: Callable[..., T] = call
        self._args = args
        self._options = options

    def block(self) -> T:
        """Make the call in this thread and return its result."""
        before, here.is_inside = here.is_inside, False
        try:
            return self._call(*self._args, **self._options)
        finally:
            here.is_inside = before

    @property
    def target(self) -> CallTarget:
        """The store on which the call is made."""
        return cast("CallTarget", self._call.__self__)  # type: ignore[attr-defined]

    def as_future(self) -> Future[T]:
        """Start the call without blocking, and return a future of its result."""
        self.timeout_s = self.target.remaining_timeout_s()
        self._at = SYSTEM_CLOCK.now()
        future: Future[T] = self.target.start_call(self._call.__name__, *self._args, **self._options)
        return future

    def timeout_extension_s(self) -> float:
        """Return the seconds by which to extend the wait, because the lock or lease that limits the call was renewed
        meanwhile.
        """
        return self.target.remaining_timeout_s(self._at)

    def unknown_outcome_note(self) -> str | None:
        """Return a note about the unknown outcome of a canceled write, or None for a read."""
        return cancelled_write_note(self._call.__name__, self._args)

    def get_timeout_result(self) -> T:
        """Raise the error for a call that was not answered in time."""
        raise self.target.timeout_error(self._call.__name__, self._args)


class PendingCall(Step[T]):
    """A call that is already in flight, with a timeout: ``await PendingCall(future)``."""

    __slots__ = ("_future",)

    def __init__(self, future: Future[T]) -> None:
        super().__init__()
        self._future = future

    def block(self) -> T:
        """Block until the call is answered, and return its result."""
        return self._future.result()

    def as_future(self) -> Future[T]:
        """Return the future of the call."""
        return self._future


def cancelled_write_note(name: str, args: tuple[Any, ...]) -> str | None:
    """Return a note for the user that a canceled write may or may not have been applied. Return None for a read.

    Args:
        name: The name of the store's method.
        args: Its arguments.
    """
    if name not in WRITES:
        return None
    what = f"{name} {args[0]!r}" if args and isinstance(args[0], str) else name
    return (
        f"{what} was in progress when it was canceled: it may have been applied, or may "
        "still be applied; read again to find out"
    )


ask = StoreCall


class TrackedWrite(StoreCall[T]):
    """A write whose answer is awaited even after a cancellation: ``await TrackedWrite(answered, store.create, key,
    ...)``.

    Otherwise it would be unknown whether it was applied, and whether there is something to remove. In a thread, an
    interrupt ends it like any other call, and its outcome stays unknown.

    Args:
        answered: Called with the completed future, only after a cancellation and before that is raised in the protocol.
    """

    __slots__ = ("_answered",)

    is_tracked = True

    def __init__(
        self, answered: Callable[[Future[T]], object], call: Callable[P, T], *args: P.args, **options: P.kwargs
    ) -> None:
        super().__init__(call, *args, **options)
        self._answered = answered

    def on_late_result(self, future: Future[T]) -> None:
        """Call ``answered`` with the completed call."""
        self._answered(future)


async def call_user_function(fn: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a user's function and return its result. If the result is a ``Step``, await it first."""
    result = call_allowing_reentry(fn, *args, **options)
    return cast("T", await result) if isinstance(result, Step) else result


async def call_library(function: Callable[[], T]) -> T:
    """Call a function of this library and return its result. A function that is decorated with ``blocking`` is
    awaited.
    """
    return await coroutine_of(function)() if is_blocking(function) else function()


class ConditionWait(Step[bool]):
    """Waits until a condition is true. The result is False if the timeout passes first.

    Args:
        timeout_s: Timeout in seconds. None waits forever.
        block: Waits in the calling thread up to the timeout.
        listen: Registers a function that is called when the condition is true. Returns a function that removes it.
        condition: Returns whether the condition is true now.
    """

    __slots__ = ("_condition", "_listen", "_wait")

    def __init__(
        self, timeout_s: float | None, block: Callable[[], bool], listen: Listen, condition: Callable[[], bool]
    ) -> None:
        self.timeout_s = timeout_s
        self._wait = block
        self._listen = listen
        self._condition = condition

    def block(self) -> bool:
        """Block this thread until the condition is true or the timeout has passed."""
        return self._wait()

    def as_future(self) -> Future[bool]:
        """Return a future that completes when the condition is true."""
        return create_listener_future(self._listen)

    def get_timeout_result(self) -> bool:
        """Return whether the condition is true, after the timeout."""
        return self._condition()


class Pause(ConditionWait):
    """Waits until a signal is set. The result is False if the timeout passes first."""

    __slots__ = ()

    def __init__(self, clock: Clock, signal: Signal, timeout_s: float | None) -> None:
        super().__init__(timeout_s, partial(clock.wait, signal, timeout_s), signal.call_when_set, signal.is_set)


def create_listener_future(add_listener: Listen) -> Future[bool]:
    """Return a future that completes with True when the registered function is called.

    Args:
        add_listener: Registers a function, and returns a function that removes it. It is removed when the future is
            done.
    """
    future: LightFuture[bool] = LightFuture()
    remove = add_listener(lambda: resolve(future, True))
    future.call_at_once(lambda _ended: remove())
    return future
