"""Steps: whatever a protocol waits for, so that a protocol is written once for threads and for event loops.

A protocol is an ``async def`` function that awaits steps and other protocols, and nothing else. A driver runs it:
``run`` waits for each step in the calling thread; an event loop begins each step and goes on when its future ends.
Whatever interrupts a wait is raised in the protocol at its ``await``; the ``finally`` blocks there may wait in turn.

A protocol holds no mutex at an ``await``: an event loop would block on it. Nothing here touches the network.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial, wraps
from inspect import CORO_CLOSED, getcoroutinelocals, getcoroutinestate, signature
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from latchwork import interrupts
from latchwork.backends.futures import Outcome, resolve
from latchwork.callers import in_loop, warn_in_loop
from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.errors import LatchworkError, OutcomeUnknown, after_unknown
from latchwork.interrupts import call_outside, here

P = ParamSpec("P")
T = TypeVar("T")

#: Has a quick call made once something is so, and returns what takes it back.
Listen = Callable[[Callable[[], object]], Callable[[], object]]
#: Calls of a store that write.
WRITES = frozenset({"put", "create", "create_ordered", "delete", "delete_tree", "commit", "transact"})
#: A protocol that was called and not driven yet.
Steps = Coroutine[Any, Any, T]


class Step(ABC, Generic[T]):
    """One thing to wait for. Awaited once, in a protocol.

    Attributes:
        timeout_s: seconds after which an event loop takes ``late`` for the result; None for never. ``block`` keeps the
            time by itself.
    """

    __slots__ = ("timeout_s",)

    #: True for a step that a cancellation does not end: the driver waits for its result, or has it awaited.
    is_tracked = False

    def __init__(self, timeout_s: float | None = None) -> None:
        self.timeout_s = timeout_s

    def __await__(self) -> Generator[Step[T], T, T]:
        return (yield self)

    @abstractmethod
    def block(self) -> T:
        """Wait in this thread."""

    @abstractmethod
    def begin(self) -> Future[T]:
        """Wait without blocking this thread: a future that ends in any thread. Cancelling it ends the wait."""

    def more_s(self) -> float:
        """Seconds to wait on when the time is over; 0 for the end of it."""
        return 0.0

    def interrupt(self, future: Future[T]) -> bool:
        """End the wait that was begun with this future; False if its end has to be awaited."""
        future.cancel()
        return True

    def dropped(self, future: Future[T]) -> None:
        """The wait has ended, but a cancellation came before anybody was told: give back what its result is."""

    def unknown(self) -> str | None:
        """What nobody knows if the wait is cancelled, and how to find out; None if that is nothing."""
        return None

    def late(self) -> T:
        """The result, or the error, of a wait whose time is over. Not called for a step without a time."""
        raise AssertionError


def run(steps: Steps[T]) -> T:
    """Drive a protocol in this thread, and return what it returns.

    Whatever interrupts this thread between two steps is raised in the protocol too, which gives back what it has taken.

    Once a step has ended with ``OutcomeUnknown``, the protocol fails with no error that says "not applied"; see
    ``after_unknown``. Event loops keep the same rule.
    """
    if in_loop():
        warn_in_loop(_name_of(steps))
    try:
        return _go_on(steps, None)
    except BaseException as raised:
        if getcoroutinestate(steps) == CORO_CLOSED:
            raise
        return _go_on(steps, raised)


def _name_of(steps: Steps[object]) -> str:
    owner = getcoroutinelocals(steps).get("self")
    name = getattr(steps, "__name__", "a call")
    return f"{type(owner).__name__}.{name}" if owner is not None else name


def _go_on(steps: Steps[T], error: BaseException | None) -> T:
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
                    raise after_unknown(raised, unknown)  # noqa: B904 - it has its cause
    finally:
        error = unknown = None  # their tracebacks hold this frame


def driven(protocol: Callable[P, Steps[T]]) -> Callable[P, T]:
    """Return a protocol as an ordinary function, driven in the thread that calls it; see ``steps_of``.

    A signal handler that calls it in the middle of another call is refused; see ``interrupts.entrance``.
    """
    return _driven(protocol, ends=False)


def ending(protocol: Callable[P, Steps[T]]) -> Callable[P, T]:
    """Like ``driven``, for a protocol that ends something: an event loop's cancellation is not raised in it.

    The loop waits for it, but not for long; then it goes on in the background.
    """
    return _driven(protocol, ends=True)


def _driven(protocol: Callable[P, Steps[T]], *, ends: bool) -> Callable[P, T]:
    @wraps(protocol)
    def begun(*args: P.args, **options: P.kwargs) -> Steps[T]:
        try:
            return protocol(*args, **options)
        except TypeError as error:  # of the arguments: nothing of it has run
            raise _better_named(protocol, options, error) from None

    @wraps(protocol)
    def call(*args: P.args, **options: P.kwargs) -> T:
        before = here.is_inside  # as ``entrance``
        if before:
            interrupts.refuse_inside()
        here.is_inside = True
        try:
            return run(begun(*args, **options))
        finally:
            here.is_inside = before

    call.__dict__.update(ends=ends, begun=begun)  # for other drivers
    return call


def is_driven(function: object) -> bool:
    """Return whether ``driven`` made a function, or the function of a method."""
    return hasattr(function, "begun")


def _better_named(protocol: Callable[..., object], options: Iterable[str], error: TypeError) -> TypeError:
    """The error about arguments; for a name that other libraries use, with the one that is meant here."""
    known = signature(protocol).parameters
    for name in options:
        if name not in known and f"{name}_s" in known:
            return TypeError(f"{protocol.__qualname__}() has no argument {name!r}; it is {name}_s, in seconds")
    return error


def steps_of(function: Callable[P, T]) -> Callable[P, Steps[T]]:
    """The protocol behind a function that ``driven`` made: for another driver."""
    protocol: Callable[..., Steps[T]] = function.__wrapped__  # type: ignore[attr-defined]
    owner = getattr(function, "__self__", None)  # of a method
    return protocol if owner is None else partial(protocol, owner)


@contextmanager
def undone_if_interrupted(undo: Callable[[], object]) -> Iterator[None]:
    """Call ``undo``, which must be quick, if an interrupt or a cancellation ends the block; not for an error."""
    try:
        yield
    except Exception:
        raise
    except BaseException:
        undo()
        raise


class Asked(Protocol):
    """What can be asked: a store."""

    @property
    def connection(self) -> object:
        """What it shares with its namespaces: an event loop has only so many calls in flight on one."""

    def begin(self, method: str, *args: Any, **options: Any) -> Future[Any]:
        """Make a call without waiting for its answer."""

    def answer_s(self, since: float | None = None) -> float:
        """Seconds to wait for an answer, of one asked for at that local time."""

    def late(self, method: str, args: tuple[Any, ...]) -> LatchworkError:
        """The error of a call that was not answered in time."""


class Ask(Step[T]):
    """A call that is answered by the server: ``await ask(store.get, key)``. The store keeps its time."""

    __slots__ = ("_args", "_at", "_call", "_options")

    def __init__(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> None:
        self.timeout_s = None
        self._call: Callable[..., T] = call
        self._args = args
        self._options = options

    def block(self) -> T:
        """Make the call in this thread, as ``interrupts.call_outside`` does."""
        before, here.is_inside = here.is_inside, False
        try:
            return self._call(*self._args, **self._options)
        finally:
            here.is_inside = before

    @property
    def asked(self) -> Asked:
        """The store."""
        return cast("Asked", self._call.__self__)  # type: ignore[attr-defined]

    def begin(self) -> Future[T]:
        """Make the call as one of many in flight."""
        self.timeout_s = self.asked.answer_s()
        self._at = SYSTEM_CLOCK.now()
        future: Future[T] = self.asked.begin(self._call.__name__, *self._args, **self._options)
        return future

    def more_s(self) -> float:
        """Of a call under an ownership that was renewed meanwhile."""
        return self.asked.answer_s(self._at)

    def unknown(self) -> str | None:
        """Of a call that writes."""
        return unknown(self._call.__name__, self._args)

    def late(self) -> T:
        """No answer in time."""
        raise self.asked.late(self._call.__name__, self._args)


class Begun(Step[T]):
    """A call that was begun before, as one of many in flight: ``await Begun(future)``. The store keeps its time."""

    __slots__ = ("_future",)

    def __init__(self, future: Future[T]) -> None:
        super().__init__()
        self._future = future

    def block(self) -> T:
        """Wait in this thread."""
        return self._future.result()

    def begin(self) -> Future[T]:
        """Wait without blocking."""
        return self._future


def unknown(name: str, args: tuple[Any, ...]) -> str | None:
    """What nobody knows of a call of a store that was cancelled, for people; None if that is nothing."""
    if name not in WRITES:
        return None
    what = f"{name} {args[0]!r}" if args and isinstance(args[0], str) else name
    return f"{what} was on its way when it was cancelled: it may have been applied, or be yet; read again to know"


ask = Ask


class Tracked(Ask[T]):
    """A write that is awaited even if the call is cancelled: ``await Tracked(answered, store.create, key, ...)``.

    Otherwise nobody would know whether it was applied, and whether there is something to remove. In a thread an
    interrupt ends it like any other call: then it stays unknown.

    Args:
        answered: called with the future that has ended, after a cancellation only, before the protocol is told of it.
    """

    __slots__ = ("_answered",)

    is_tracked = True

    def __init__(
        self, answered: Callable[[Future[T]], object], call: Callable[P, T], *args: P.args, **options: P.kwargs
    ) -> None:
        super().__init__(call, *args, **options)
        self._answered = answered

    def dropped(self, future: Future[T]) -> None:
        """Report the answer."""
        self._answered(future)


async def called(fn: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a function of the user's. One that an event loop has to wait for returns a step."""
    result = call_outside(fn, *args, **options)
    return cast("T", await result) if isinstance(result, Step) else result


async def called_as_steps(function: Callable[[], T]) -> T:
    """Call a function of ours that may be a protocol: then its steps are ours."""
    return await steps_of(function)() if is_driven(function) else function()


class Signal(threading.Event):
    """An event that an event loop can wait for too. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[object, Callable[[], object]] = {}

    def set(self) -> None:
        """Set it; wake threads, and make the calls that wait for it."""
        super().set()
        while self._calls:
            try:
                _, call = self._calls.popitem()
            except KeyError:  # another thread sets it too
                return
            call()

    def call_when_set(self, call: Callable[[], object]) -> Callable[[], object]:
        """Make a quick call once it is set, in the thread that sets it; now if it is. Returns what takes it back."""
        number = object()
        self._calls[number] = call
        if self.is_set() and self._calls.pop(number, None) is not None:
            call()
        return partial(self._calls.pop, number, None)


class Until(Step[bool]):
    """Until something is so or the time is over; True if it is so.

    Args:
        timeout_s: seconds; None for ever.
        block: waits in the calling thread for so long.
        listen: has a call made once it is so; returns what takes that back.
        is_so: whether it is so now.
    """

    __slots__ = ("_is_so", "_listen", "_wait")

    def __init__(
        self, timeout_s: float | None, block: Callable[[], bool], listen: Listen, is_so: Callable[[], bool]
    ) -> None:
        self.timeout_s = timeout_s
        self._wait = block
        self._listen = listen
        self._is_so = is_so

    def block(self) -> bool:
        """Wait in this thread."""
        return self._wait()

    def begin(self) -> Future[bool]:
        """Wait without blocking."""
        return when(self._listen)

    def late(self) -> bool:
        """Whether it is so."""
        return self._is_so()


class Pause(Until):
    """Until a signal is set or the time is over; True if it is set."""

    __slots__ = ()

    def __init__(self, clock: Clock, signal: Signal, timeout_s: float | None) -> None:
        super().__init__(timeout_s, partial(clock.wait, signal, timeout_s), signal.call_when_set, signal.is_set)


def when(listen: Listen) -> Future[bool]:
    """A future that ends with True when the call is made that is given to ``listen``; its end takes the call back."""
    future: Outcome[bool] = Outcome()
    take_back = listen(lambda: resolve(future, True))
    future.call_at_once(lambda _ended: take_back())
    return future
