"""Step coroutines: one implementation of each operation, for threads and for event loops.

A step is an operation to wait for, such as a call to the server or a pause. A step coroutine is an ``async def``
function that awaits only steps and other step coroutines. ``run`` executes it in a thread, which blocks in each step.
``latchwork.store.driving.loop`` executes it in an asyncio task, which starts each step and awaits its future.

    @blocking                                  # callers in threads call a plain function: entry = lock.read()
    async def read(self) -> Entry | None:
        return await ask(self._store.get, self._key)

    await coroutine_of(lock.read)()            # another step coroutine awaits it

An interrupt or a cancellation is raised in the coroutine at its ``await``. Its ``finally`` blocks may await steps, too.
A step coroutine holds no mutex at an ``await``, because that would block an event loop.
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
#: The coroutine object of an ``async def`` function that awaits only steps and other step coroutines.
StepCoroutine = Coroutine[Any, Any, T]


class Step(ABC, Generic[T]):
    """An operation that a step coroutine awaits once, such as a call to the server or a pause.

    Attributes:
        timeout_s: Seconds after which an event loop calls ``get_timeout_result``. None means never. ``block`` has its
            own timeout.
    """

    __slots__ = ("timeout_s",)

    #: True for a step that a cancellation does not end: its result is still awaited, perhaps in the background.
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
        """Return how many more seconds to wait after the timeout has passed. 0 means that the operation has timed out.

        The result is greater if the time limit has moved meanwhile.
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
        """Release the result of an operation that completed although its caller was canceled and never receives it.

        Args:
            future: The completed future.
        """

    def unknown_outcome_note(self) -> str | None:
        """Return a note for a cancellation if it is unknown whether the operation was applied; None otherwise."""
        return None

    def get_timeout_result(self) -> T:
        """Return the result of the operation after its timeout, such as False for a condition, or raise an error.

        Not called if the operation has no timeout.
        """
        raise AssertionError


def run(steps: StepCoroutine[T]) -> T:
    """Run a step coroutine in this thread, block until it has ended, and return its result.

    An interrupt of this thread is raised in the coroutine, which then releases its resources.

    Raises:
        OutcomeUnknown: An earlier step ended with this error, and a later one reports that it was not applied. That is
            true of the later step only, so it is replaced. See ``keep_outcome_unknown``.
        BaseException: Any other error of the coroutine.
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


def blocking(function: Callable[P, StepCoroutine[T]]) -> Callable[P, T]:
    """Decorator that makes a blocking function of an ``async def`` function that awaits only steps.

    ``coroutine_of`` returns the original function, and ``latchwork.aio`` offers its asyncio form. Like
    ``interrupts.not_reentrant``, it refuses a call by a signal handler during another call.
    """
    return _make_blocking(function, is_shielded=False)


def shielded(function: Callable[P, StepCoroutine[T]]) -> Callable[P, T]:
    """Decorator like ``blocking``, for a function whose asyncio form always runs to its end, such as a release.

    A canceled task waits for it for a limited time. Then the function continues in the background.
    """
    return _make_blocking(function, is_shielded=True)


def _make_blocking(function: Callable[P, StepCoroutine[T]], *, is_shielded: bool) -> Callable[P, T]:
    @wraps(function)
    def make_coroutine(*args: P.args, **options: P.kwargs) -> StepCoroutine[T]:
        try:
            return function(*args, **options)
        except TypeError as error:  # about the arguments: nothing has run yet
            raise _suggest_timeout_option(function, options, error) from None

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        before = here.is_inside  # as ``not_reentrant``
        if before:
            interrupts.raise_reentrant_call()
        here.is_inside = True
        try:
            return run(make_coroutine(*args, **options))
        finally:
            here.is_inside = before

    call.__dict__.update(is_shielded=is_shielded, make_coroutine=make_coroutine)  # for event loops
    return call


def is_blocking(function: object) -> bool:
    """Return whether a function or method was decorated with ``blocking`` or ``shielded``."""
    return hasattr(function, "make_coroutine")


def _suggest_timeout_option(function: Callable[..., object], options: Iterable[str], error: TypeError) -> TypeError:
    """Return a ``TypeError`` that suggests the right name for an unknown option, such as ``timeout_s`` for ``timeout``.

    Args:
        function: The called function.
        options: The names of the given options.
        error: The original error.
    """
    known = signature(function).parameters
    for name in options:
        if name not in known and f"{name}_s" in known:
            return TypeError(f"{function.__qualname__}() has no argument {name!r}; it is {name}_s, in seconds")
    return error


def coroutine_of(function: Callable[P, T]) -> Callable[P, StepCoroutine[T]]:
    """Return the ``async def`` function behind a function that is decorated with ``blocking`` or ``shielded``.

    Step coroutines await it, because they must not block: ``await coroutine_of(lock.acquire)(timeout_s=5.0)``.
    """
    original: Callable[..., StepCoroutine[T]] = function.__wrapped__  # type: ignore[attr-defined]
    owner = getattr(function, "__self__", None)  # of a method
    return original if owner is None else partial(original, owner)


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
        """Return the seconds until a call times out.

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
    """The step that calls a method of a store, with the store's timeout: ``await ask(store.get, key)``."""

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
        """Return how many more seconds to wait, because the lock or lease that limits the call was renewed. 0 if the
        call has timed out.
        """
        return self.target.remaining_timeout_s(self._at)

    def unknown_outcome_note(self) -> str | None:
        """Return a note that a canceled write may have been applied. Return None for a read."""
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
        answered: Called with the completed future after a cancellation, before the cancellation is raised in the
            coroutine. Not called otherwise.
    """

    __slots__ = ("_answered",)

    is_tracked = True

    def __init__(
        self, answered: Callable[[Future[T]], object], call: Callable[P, T], *args: P.args, **options: P.kwargs
    ) -> None:
        super().__init__(call, *args, **options)
        self._answered = answered

    def on_late_result(self, future: Future[T]) -> None:
        """Pass the completed future of the write to ``answered``, because its caller was canceled."""
        self._answered(future)


async def call_user_function(fn: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a user's function and return its result. If the result is a ``Step``, await it first."""
    result = call_allowing_reentry(fn, *args, **options)
    return cast("T", await result) if isinstance(result, Step) else result


async def call_library(function: Callable[[], T]) -> T:
    """Call a function of this library and return its result, without blocking: a ``blocking`` function is awaited."""
    return await coroutine_of(function)() if is_blocking(function) else function()


class ConditionWait(Step[bool]):
    """The step that waits until a condition is true. Its result is False if the timeout passes first.

    Args:
        timeout_s: Timeout in seconds. None waits forever.
        block: Blocks the calling thread until the condition is true or the timeout has passed.
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
        """Block this thread until the condition is true. Return False if the timeout has passed."""
        return self._wait()

    def as_future(self) -> Future[bool]:
        """Return a future that completes with True when the awaited condition is true."""
        return create_listener_future(self._listen)

    def get_timeout_result(self) -> bool:
        """Return whether the condition is true, checked once more after the timeout."""
        return self._condition()


class Pause(ConditionWait):
    """The step that waits until a signal is set. Its result is False if the timeout passes first."""

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
