"""Steps: whatever a protocol waits for, so that a protocol is written once for threads and for event loops.

A protocol is an ``async def`` function that awaits steps and other protocols, and nothing else. A driver runs it:
``run`` waits for each step in the calling thread; an event loop begins each step and goes on when its future ends.
Whatever interrupts a wait is raised in the protocol at its ``await``; the ``finally`` blocks there may wait in turn.

A protocol holds no mutex at an ``await``: an event loop would block on it. Nothing here touches the network.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import partial, wraps
from inspect import CORO_CLOSED, getcoroutinestate
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from latchwork.backends.futures import Outcome, resolve, then

if TYPE_CHECKING:
    from latchwork.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")

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

    @abstractmethod
    def begin(self) -> Future[T]:
        """Wait without blocking this thread: a future that ends in any thread. Cancelling it ends the wait."""

    @abstractmethod
    def late(self) -> T:
        """What a wait gives, or raises, whose time is over."""


def run(steps: Steps[T]) -> T:
    """Drive a protocol in this thread, and return what it returns.

    Whatever interrupts this thread between two steps is raised in the protocol too, which gives back what it has taken.
    """
    try:
        return _go_on(steps, None)
    except BaseException as raised:
        if getcoroutinestate(steps) == CORO_CLOSED:
            raise
        return _go_on(steps, raised)


def _go_on(steps: Steps[T], error: BaseException | None) -> T:
    answer: Any = None
    try:
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
                answer = error = None
                answer = step.block()
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

    @wraps(protocol)
    def call(*args: P.args, **options: P.kwargs) -> T:
        return run(protocol(*args, **options))

    return call


def steps_of(function: Callable[P, T]) -> Callable[P, Steps[T]]:
    """The protocol behind a function that ``driven`` made: for another driver."""
    protocol: Callable[..., Steps[T]] = function.__wrapped__  # type: ignore[attr-defined]
    owner = getattr(function, "__self__", None)  # of a method
    return protocol if owner is None else partial(protocol, owner)


class Ask(Step[T]):
    """A call that is answered by the server: ``await ask(store.get, key)``."""

    __slots__ = ("_args", "_call", "_options")

    def __init__(self, call: Callable[..., T], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        super().__init__()
        self._call = call
        self._args = args
        self._options = options

    def block(self) -> T:
        """Make the call in this thread."""
        return self._call(*self._args, **self._options)

    def begin(self) -> Future[T]:
        """Make the call as one of many in flight. The backend keeps its time."""
        begin: Callable[..., Future[T]] = self._call.__self__.begin  # type: ignore[attr-defined]
        return begin(self._call.__name__, *self._args, **self._options)

    def late(self) -> T:
        """Not asked for: an answer has no time limit of its own here."""
        raise AssertionError


def ask(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> Ask[T]:
    """The step of a call of a store: its method, and the arguments."""
    return Ask(call, args, options)


async def called(fn: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a function of the user's. One that an event loop has to wait for returns a step."""
    result = fn(*args, **options)
    return cast("T", await result) if isinstance(result, Step) else result


class Signal(threading.Event):
    """An event that an event loop can wait for too. Safe to share between threads."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[object, Callable[[], None]] = {}

    def set(self) -> None:
        """Set it; wake threads, and make the calls that wait for it."""
        super().set()
        while self._calls:
            try:
                _, call = self._calls.popitem()
            except KeyError:  # another thread sets it too
                return
            call()

    def call_when_set(self, call: Callable[[], None]) -> Callable[[], None]:
        """Make a quick call once it is set, in the thread that sets it; now if it is. Returns what takes it back."""
        number = object()
        self._calls[number] = call
        if self.is_set() and self._calls.pop(number, None) is not None:
            call()
        return partial(_forget, self._calls, number)


class Pause(Step[bool]):
    """Until a signal is set or the time is over; True if it is set."""

    __slots__ = ("_clock", "_signal")

    def __init__(self, clock: Clock, signal: Signal, timeout_s: float | None) -> None:
        super().__init__(timeout_s)
        self._clock = clock
        self._signal = signal

    def block(self) -> bool:
        """Wait in this thread."""
        return self._clock.wait(self._signal, self.timeout_s)

    def begin(self) -> Future[bool]:
        """Wait without blocking."""
        return _when(self._signal.call_when_set)

    def late(self) -> bool:
        """Whether it is set."""
        return self._signal.is_set()


class Bell:
    """A mutex, and a bell that is rung when what it guards has changed. Safe to share between threads.

    ``with bell:`` holds the mutex; ``bell.ring()`` is called inside. To wait for a condition: read ``bell.rings`` and
    look at the condition inside, then await ``bell.rung(rings, ...)`` outside, and look again.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._calls: dict[object, Callable[[], None]] = {}
        self._due: list[Callable[[], None]] = []
        self.rings = 0

    def __enter__(self) -> None:
        self._condition.acquire()

    def __exit__(self, *_: object) -> None:
        due, self._due = self._due, []
        self._condition.release()
        for call in due:
            call()

    def ring(self) -> None:
        """Wake whoever waits. The caller holds the mutex."""
        self.rings += 1
        self._condition.notify_all()
        self._due += self._calls.values()
        self._calls.clear()

    def rung(self, rings: int, clock: Clock, timeout_s: float | None) -> Rung:
        """The step of waiting until it has been rung more than so many times; False when the time is over."""
        return Rung(self, rings, clock, timeout_s)

    def wait(self, rings: int, clock: Clock, timeout_s: float | None) -> bool:
        """Wait in this thread until it has been rung more than so many times; False when the time is over."""
        until = None if timeout_s is None else clock.now() + timeout_s
        with self._condition:
            while self.rings == rings:
                left_s = None if until is None else until - clock.now()
                if left_s is not None and left_s <= 0.0:
                    return False
                clock.wait_condition(self._condition, left_s)
        return True

    def call_when_rung(self, rings: int, call: Callable[[], None]) -> Callable[[], None]:
        """Make a quick call once it has been rung more than so many times. Returns what takes it back."""
        number = object()
        with self._condition:
            waits = self.rings == rings
            if waits:
                self._calls[number] = call
        if not waits:
            call()
        return partial(_forget, self._calls, number)


class Rung(Step[bool]):
    """Until a bell is rung; see ``Bell.rung``."""

    __slots__ = ("_bell", "_clock", "_rings")

    def __init__(self, bell: Bell, rings: int, clock: Clock, timeout_s: float | None) -> None:
        super().__init__(timeout_s)
        self._bell = bell
        self._rings = rings
        self._clock = clock

    def block(self) -> bool:
        """Wait in this thread."""
        return self._bell.wait(self._rings, self._clock, self.timeout_s)

    def begin(self) -> Future[bool]:
        """Wait without blocking."""
        return _when(partial(self._bell.call_when_rung, self._rings))

    def late(self) -> bool:
        """Whether it has been rung."""
        return self._bell.rings != self._rings


def _forget(calls: dict[object, Callable[[], None]], number: object) -> None:
    calls.pop(number, None)


def _when(listen: Callable[[Callable[[], None]], Callable[[], None]]) -> Future[bool]:
    """A future that ends with True when the call is made that is given to ``listen``; it is taken back at the end."""
    future: Outcome[bool] = Outcome()
    take_back = listen(lambda: _end(future))
    future.call_at_once(lambda _ended: take_back())
    return future


def _end(future: Future[bool]) -> None:
    resolve(future, True)


class Background(Step[None]):
    """A protocol that is driven in a thread of its own; awaited, it is waited for.

    Attributes:
        thread: the thread, started.
    """

    __slots__ = ("_ended", "thread")

    def __init__(self, steps: Steps[object], name: str) -> None:
        super().__init__()
        self._ended = Signal()
        self.thread = threading.Thread(target=self._run, args=(steps,), name=name, daemon=True)
        self.thread.start()

    @property
    def is_mine(self) -> bool:
        """True in its own thread, which must not wait for itself."""
        return self.thread is threading.current_thread()

    def block(self) -> None:
        """Wait in this thread until it has ended."""
        self.thread.join()

    def begin(self) -> Future[None]:
        """Wait without blocking."""
        return then(_when(self._ended.call_when_set), lambda _ended: None)

    def late(self) -> None:
        """Not asked for: it is waited for without a time limit."""
        raise AssertionError

    def _run(self, steps: Steps[object]) -> None:
        try:
            run(steps)
        finally:
            self._ended.set()
