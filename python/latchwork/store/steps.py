"""Steps: whatever a protocol waits for, so that a protocol is written once for threads and for event loops.

A protocol is an ``async def`` function that awaits steps and other protocols, and nothing else. A driver runs it:
``run`` waits for each step in the calling thread; an event loop begins each step and goes on when its future ends.
Whatever interrupts a wait is raised in the protocol at its ``await``; the ``finally`` blocks there may wait in turn.

What must not be left behind is noted before it is made, with ``OnInterrupt``: a driver that an interrupt ends, or a
cancellation, has it undone, wherever the interrupt came.

A protocol holds no mutex at an ``await``: an event loop would block on it. Nothing here touches the network.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future
from functools import partial, wraps
from inspect import CORO_CLOSED, getcoroutinestate, signature
from typing import Any, Generic, ParamSpec, TypeVar, cast

from latchwork.backends.futures import Outcome, completed, resolve
from latchwork.clock import Clock
from latchwork.errors import ReentrantCall
from latchwork.interrupts import Attempt, Driven, Event, condition, mutex, once_left, start_thread

P = ParamSpec("P")
T = TypeVar("T")

#: Has a quick call made once something is so, and returns what takes it back.
Listen = Callable[[Callable[[], object]], Callable[[], object]]
#: A protocol that was called and not driven yet.
Steps = Coroutine[Any, Any, T]


class Step(ABC, Generic[T]):
    """One thing to wait for. Awaited once, in a protocol.

    Attributes:
        timeout_s: seconds after which an event loop takes ``late`` for the result; None for never. ``block`` keeps the
            time by itself.
    """

    __slots__ = ("timeout_s",)

    def __init__(self, timeout_s: float | None = None) -> None:
        self.timeout_s = timeout_s

    def __await__(self) -> Generator[Step[T], T, T]:
        return (yield self)

    @abstractmethod
    def block(self) -> T:
        """Wait in this thread."""

    def block_in(self, _attempt: Attempt) -> T:
        """Wait in this thread, as a part of a call that can be undone."""
        return self.block()

    @abstractmethod
    def begin(self) -> Future[T]:
        """Wait without blocking this thread: a future that ends in any thread. Cancelling it ends the wait."""

    def late(self) -> T:
        """The result, or the error, of a wait whose time is over. Not called for a step without a time."""
        raise AssertionError


def run(steps: Steps[T], attempt: Attempt | None = None) -> T:
    """Drive a protocol in this thread, and return what it returns.

    Whatever interrupts this thread between two steps is raised in the protocol too, which gives back what it has taken.
    What it notes with ``OnInterrupt`` goes to the attempt. A call in a signal handler that is refused half-way is
    undone like one that is interrupted, once its thread has left what it is inside of.
    """
    try:
        return _go_on(steps, None, attempt)
    except ReentrantCall:
        if attempt is not None:
            once_left(attempt.undo)
        raise
    except BaseException as raised:
        if getcoroutinestate(steps) == CORO_CLOSED:
            raise
        return _go_on(steps, raised, attempt)


def _go_on(steps: Steps[T], error: BaseException | None, attempt: Attempt | None) -> T:
    answer: Any = None
    try:
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
                answer = error = None
                answer = step.block() if attempt is None else step.block_in(attempt)
            except BaseException as raised:
                if getcoroutinestate(steps) != CORO_CLOSED:
                    error = raised
                elif isinstance(raised, StopIteration):
                    return cast("T", raised.value)
                else:
                    raise
    finally:
        error = None  # its traceback holds this frame


def driven(protocol: Callable[P, Steps[T]]) -> Callable[P, T]:
    """A protocol as an ordinary function, driven in the thread that calls it; see ``steps_of``."""
    return _driven(protocol, ends=False)


def ending(protocol: Callable[P, Steps[T]]) -> Callable[P, T]:
    """Like ``driven``, for a protocol that ends something: no interrupt makes it end nothing.

    Until its first ``OnInterrupt`` it has no effect that hinders it from being begun again.
    """
    return _driven(protocol, ends=True)


def _driven(protocol: Callable[P, Steps[T]], *, ends: bool) -> Callable[P, T]:
    @wraps(protocol)
    def begun(*args: P.args, **options: P.kwargs) -> Steps[T]:
        try:
            return protocol(*args, **options)
        except TypeError as error:  # of the arguments: nothing of it has run
            raise _better_named(protocol, options, error) from None

    return cast("Callable[P, T]", wraps(protocol)(Driven(begun, run, ends)))


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


class OnInterrupt(Step[int]):
    """Has something undone if an interrupt, or a cancellation, ends the call: ``await OnInterrupt(undo)``.

    Args:
        undo: quick, and does no harm where nothing is to be undone. It is called in the thread that made the call,
            once the whole protocol has ended by the interrupt, and never otherwise.

    The answer is how many undos were noted before; see ``Settled``.
    """

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], object]) -> None:
        super().__init__()
        self._undo = undo

    def block(self) -> int:
        """Nobody undoes anything: a protocol in the background."""
        return 0

    def block_in(self, attempt: Attempt) -> int:
        """Note it."""
        return attempt.add(self._undo)

    def begin(self) -> Future[int]:
        """For a driver that undoes nothing."""
        return completed(0)


class Settled(Step[None]):
    """All but the first so many undos are needed no more: ``await Settled(count)``, in what goes on for long."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def block(self) -> None:
        """Nothing was noted."""

    def block_in(self, attempt: Attempt) -> None:
        """Forget the others."""
        attempt.settle(self._count)

    def begin(self) -> Future[None]:
        """For a driver that undoes nothing."""
        return completed(None)


class Ask(Step[T]):
    """A call that is answered by the server: ``await ask(store.get, key)``. The backend keeps its time."""

    __slots__ = ("_args", "_call", "_options")

    def __init__(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> None:
        super().__init__()
        self._call: Callable[..., T] = call
        self._args = args
        self._options = options

    def block(self) -> T:
        """Make the call in this thread."""
        return self._call(*self._args, **self._options)

    def begin(self) -> Future[T]:
        """Make the call as one of many in flight."""
        begin: Callable[..., Future[T]] = self._call.__self__.begin  # type: ignore[attr-defined]
        return begin(self._call.__name__, *self._args, **self._options)


ask = Ask


async def called(fn: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a function of the user's. One that an event loop has to wait for returns a step."""
    result = fn(*args, **options)
    return cast("T", await result) if isinstance(result, Step) else result


async def called_as_steps(function: Callable[[], T]) -> T:
    """Call a function of ours that may be a protocol: then its steps are ours."""
    return await steps_of(function)() if isinstance(getattr(function, "__func__", None), Driven) else function()


class Signal(Event):
    """An event that an event loop can wait for too. Safe to share between threads."""

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
        super().__init__(timeout_s)
        self._wait = block
        self._listen = listen
        self._is_so = is_so

    def block(self) -> bool:
        """Wait in this thread."""
        return self._wait()

    def begin(self) -> Future[bool]:
        """Wait without blocking."""
        return _when(self._listen)

    def late(self) -> bool:
        """Whether it is so."""
        return self._is_so()


class Pause(Until):
    """Until a signal is set or the time is over; True if it is set."""

    __slots__ = ()

    def __init__(self, clock: Clock, signal: Signal, timeout_s: float | None) -> None:
        super().__init__(timeout_s, partial(clock.wait, signal, timeout_s), signal.call_when_set, signal.is_set)


class Bell:
    """A mutex, and a bell that is rung when what it guards has changed. Safe to share between threads.

    ``with bell.mutex:`` holds the mutex; ``bell.ring()`` is called inside. To wait for a condition: read ``bell.rings``
    and look at the condition inside, then await ``bell.rung(rings, ...)`` outside, and look again.
    """

    def __init__(self) -> None:
        self.mutex = mutex()
        self._condition = condition(self.mutex)
        self._calls: dict[object, Callable[[], object]] = {}
        self.rings = 0

    def ring(self) -> None:
        """Wake whoever waits. The caller holds the mutex: calls that wait are made here, and only wake event loops."""
        self.rings += 1
        self._condition.notify_all()
        while self._calls:
            self._calls.popitem()[1]()

    def rung(self, rings: int, clock: Clock, timeout_s: float | None) -> Step[bool]:
        """The step of waiting until it has been rung more than so many times; False when the time is over."""
        listen = partial(self._call_when_rung, rings)
        return Until(timeout_s, partial(self._wait, rings, clock, timeout_s), listen, lambda: self.rings != rings)

    def _wait(self, rings: int, clock: Clock, timeout_s: float | None) -> bool:
        until = None if timeout_s is None else clock.now() + timeout_s
        with self.mutex:
            while self.rings == rings:
                left_s = None if until is None else until - clock.now()
                if left_s is not None and left_s <= 0.0:
                    return False
                clock.wait_condition(self._condition, left_s)
        return True

    def _call_when_rung(self, rings: int, call: Callable[[], object]) -> Callable[[], object]:
        number = object()
        with self.mutex:
            waits = self.rings == rings
            if waits:
                self._calls[number] = call
        if not waits:
            call()
        return partial(self._calls.pop, number, None)


def _when(listen: Listen) -> Future[bool]:
    """A future that ends with True when the call is made that is given to ``listen``; its end takes the call back."""
    future: Outcome[bool] = Outcome()
    take_back = listen(lambda: resolve(future, True))
    future.call_at_once(lambda _ended: take_back())
    return future


class Background(Until):
    """A protocol that is called and driven in a thread of its own; awaited, it is waited for.

    Attributes:
        thread: the thread, started.
    """

    __slots__ = ("_ended", "thread")

    def __init__(self, protocol: Callable[[], Steps[object]], name: str) -> None:
        self._ended = Signal()
        self.thread = threading.Thread(target=self._run, args=(protocol,), name=name, daemon=True)
        super().__init__(None, self._ended.wait, self._ended.call_when_set, self._ended.is_set)
        start_thread(self.thread)

    @property
    def is_mine(self) -> bool:
        """True in its own thread, which must not wait for itself."""
        return self.thread is threading.current_thread()

    def block(self) -> bool:
        """Wait in this thread until the other has really ended."""
        self.thread.join()
        return True

    def _run(self, protocol: Callable[[], Steps[object]]) -> None:
        try:
            run(protocol())
        finally:
            self._ended.set()
