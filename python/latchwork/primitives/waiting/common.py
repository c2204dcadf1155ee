"""What all primitives share: validated names, the identity of this process, ordered listeners, timeouts. No I/O."""

from __future__ import annotations

import logging
import operator
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeVar

from latchwork._base.execution_context import identity
from latchwork.clock import Clock
from latchwork.errors import InvalidKey, LatchworkError
from latchwork.store.dispatch import Dispatcher, is_in_callback
from latchwork.store.driving.notifier import Notifier
from latchwork.store.keys import validate_name
from latchwork.store.observers import call_each
from latchwork.store.steps import call_library, driven, shielded, undone_if_interrupted

if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger(__name__)

#: Maximum number of characters of an invalid name in a message.
_SHOWN = 130

#: If the client in charge does not act, the client of each further rank acts this many seconds later, ...
STAND_IN_S = 0.15
#: ... up to this rank.
MOST_RANKS = 10

C = TypeVar("C", bound="Closable")
S = TypeVar("S", bound="Startable")


def check_name(name: str, kind: str) -> str:
    """Return the name unchanged if it is valid.

    The ``InvalidKey`` that is raised otherwise names the kind of primitive.
    """
    try:
        return validate_name(name)
    except InvalidKey as error:
        raise InvalidKey(f"{kind} name {repr(name)[:_SHOWN]} cannot be used: {error}") from None


def check_node_id(node_id: str, kind: str) -> str:
    """Return the ID unchanged if it is a non-empty text, or raise ``InvalidKey``.

    All characters are allowed, even ``/``.
    """
    given: object = node_id
    if not isinstance(given, str) or not given:
        raise InvalidKey(f"{kind} node id {node_id!r} cannot be used: it must be text, and not empty")
    return node_id


def check_text(text: str, what: str) -> str:
    """Return the text unchanged if it can be stored, or raise ``TypeError``. It may be empty."""
    given: object = text
    if not isinstance(given, str):
        raise TypeError(f"{what} must be text, not {text!r}")
    return text


def check_bytes(value: bytes, what: str) -> bytes:
    """Return the value unchanged if it is ``bytes``, or raise ``TypeError``."""
    given: object = value
    if not isinstance(given, bytes):
        raise TypeError(f"{what} must be bytes, not {type(given).__name__}; encode it first")
    return value


def check_minimum(value: float, what: str, least: float) -> float:
    """Return the number unchanged if it is at least ``least``, or raise ``ValueError``."""
    if not value >= least:
        raise ValueError(f"{what} must be at least {least:g}, not {value!r}")
    return float(value)


def check_integer(value: int, what: str) -> int:
    """Return the number unchanged if it is an integer, or raise ``TypeError``.

    Floats are refused, because they may change when they are stored and read again.
    """
    if isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number, not {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, not {value!r}") from None


@dataclass(frozen=True, slots=True)
class Identity:
    """The host and process ID of this process, stored in records for people who read them."""

    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


def refuse_in_callback(what: str, timeout_s: float | None) -> None:
    """Raise an error if the caller would wait inside a callback, which could wait for itself.

    A single try is allowed.
    """
    if timeout_s != 0 and is_in_callback():
        raise LatchworkError(
            f"{what} must not be waited for in a callback, others wait for that to end; use a thread, or timeout_s=0"
        )


def delay_s(rank: int) -> float:
    """Return how many seconds a client of this rank waits, so that clients of lower ranks act first. 0 for rank 0."""
    return STAND_IN_S * min(rank, MOST_RANKS)


def call_listeners(calls: Iterable[Callable[[], None]], what: str) -> None:
    """Call listeners in this thread. An error in one is logged and does not stop the others.

    Args:
        calls: The calls to make.
        what: The object that has the listeners, for the log message.
    """
    call_each(calls, _log, "a listener of %s raised; the others are called all the same", what)


class Closable(ABC):
    """An object that ``with`` closes at its end."""

    def __enter__(self) -> Self:
        return self

    @shielded
    async def __exit__(self, *_: object) -> None:
        await call_library(self.close)

    @abstractmethod
    def close(self) -> object:
        """Close the object. Thread-safe and idempotent."""


class Startable(Closable):
    """An object that ``with`` starts, and closes at its end."""

    @driven
    async def __enter__(self) -> Self:
        with undone_if_interrupted(self.close_in_background):
            await call_library(self.start)
        return self

    @abstractmethod
    def start(self) -> None:
        """Start the background work of the object. Idempotent."""

    def close_in_background(self) -> None:
        """Close the object in the background, without waiting. Used after an interrupt."""


class Deadline:
    """The end of a call's timeout. For one thread.

    A Boolean timeout is refused, because other libraries use it for "block or not".
    """

    def __init__(self, clock: Clock, timeout_s: float | None) -> None:
        if isinstance(timeout_s, bool):
            raise TypeError(f"timeout_s is in seconds, not {timeout_s!r}; None waits for ever, 0 tries once")
        if timeout_s is not None and not timeout_s >= 0:
            raise ValueError(f"timeout_s must be None or at least 0 seconds, not {timeout_s!r}")
        self._clock = clock
        self._until = None if timeout_s is None else clock.now() + timeout_s

    def left_s(self, at_most: float | None = None) -> float | None:
        """Return the seconds until the deadline, at least 0 and at most ``at_most``. None means no deadline."""
        left = None if self._until is None else max(0.0, self._until - self._clock.now())
        if at_most is None:
            return left
        return at_most if left is None else min(left, at_most)

    @property
    def has_passed(self) -> bool:
        """Whether the deadline has passed."""
        return self._until is not None and self._clock.now() >= self._until


class ListenerQueue:
    """Calls listeners in a pool of callback threads, one at a time, in order and without losing any. Thread-safe.

    Calls nothing while its mutex is held.
    """

    def __init__(self, dispatcher: Dispatcher, label: str) -> None:
        self._label = label
        self._changed = Notifier()
        self._posts: deque[Callable[[], None]] = deque()
        self._runner: object = None
        self._is_closed = False
        self._serial_drain = dispatcher.serial_drain(self._drain, label)

    def post(self, *calls: Callable[[], None]) -> None:
        """Make these calls in a callback thread, in order, after all calls that were posted before."""
        self.queue(*calls)
        self.deliver()

    def queue(self, *calls: Callable[[], None]) -> None:
        """Queue calls without starting a thread, for callers that hold a mutex. Call ``deliver`` afterwards."""
        with self._changed.mutex:
            if not self._is_closed:
                self._posts.extend(calls)

    def deliver(self) -> None:
        """Start a thread for the calls that ``queue`` has added. Idempotent."""
        if self._posts:
            self._serial_drain.signal()

    def close(self) -> None:
        """Discard all calls that have not started, without waiting."""
        with self._changed.mutex:
            self._is_closed = True
            self._posts.clear()
            self._changed.notify_all()

    @property
    def is_running_here(self) -> bool:
        """Whether the caller is itself a listener that this queue is calling."""
        return self._runner == identity()

    async def settle(self, clock: Clock, timeout_s: float) -> bool:
        """Wait until all posted calls have been made.

        Return False after the timeout, or if called inside such a call.
        """
        if self.is_running_here:
            return False
        deadline = Deadline(clock, timeout_s)
        while True:
            with self._changed.mutex:
                if not self._posts and self._runner is None:
                    return True
                version = self._changed.version
            if deadline.has_passed:
                return False
            self.deliver()
            await self._changed.changed_since(version, clock, deadline.left_s())

    def _drain(self) -> None:
        while True:
            with self._changed.mutex:
                self._runner = identity() if self._posts else None
                if self._runner is None:
                    self._changed.notify_all()
                    return
                call = self._posts.popleft()
            try:
                call_listeners([call], self._label)
            except BaseException:  # an interrupt, in a call; the calls behind it are made all the same
                self._serial_drain.signal()
                raise
