"""Helpers of all primitives: argument checks, timeouts, ordered listener calls, and base classes with ``close``. No
I/O.
"""

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
    """Check the name of a primitive, and return it.

    Args:
        name: The name, one or more key segments.
        kind: Kind of the primitive, for messages: ``lock``.
    Raises:
        InvalidKey: The name is not a valid key.
    """
    try:
        return validate_name(name)
    except InvalidKey as error:
        raise InvalidKey(f"{kind} name {repr(name)[:_SHOWN]} cannot be used: {error}") from None


def check_node_id(node_id: str, kind: str) -> str:
    """Check the ID of a node, and return it. All characters are allowed, even ``/``.

    Args:
        node_id: The ID.
        kind: Kind of the primitive, for messages: ``latch``.
    Raises:
        InvalidKey: The ID is empty or not a string.
    """
    given: object = node_id
    if not isinstance(given, str) or not given:
        raise InvalidKey(f"{kind} node id {node_id!r} cannot be used: it must be text, and not empty")
    return node_id


def check_text(text: str, what: str) -> str:
    """Check that a value is a string, which may be empty, and return it.

    Args:
        text: The value.
        what: Name of the value, for messages.
    Raises:
        TypeError: It is not a string.
    """
    given: object = text
    if not isinstance(given, str):
        raise TypeError(f"{what} must be text, not {text!r}")
    return text


def check_bytes(value: bytes, what: str) -> bytes:
    """Check that a value is ``bytes``, and return it.

    Args:
        value: The value.
        what: Name of the value, for messages.
    Raises:
        TypeError: It is not ``bytes``.
    """
    given: object = value
    if not isinstance(given, bytes):
        raise TypeError(f"{what} must be bytes, not {type(given).__name__}; encode it first")
    return value


def check_minimum(value: float, what: str, least: float) -> float:
    """Check that a number is not below a minimum, and return it as a float.

    Args:
        value: The number.
        what: Name of the number, for messages.
        least: The minimum.
    Raises:
        ValueError: The number is too small, or not a number.
    """
    if not value >= least:
        raise ValueError(f"{what} must be at least {least:g}, not {value!r}")
    return float(value)


def check_integer(value: int, what: str) -> int:
    """Check that a value is an integer, and return it. Floats are refused, because storing may change them.

    Args:
        value: The value.
        what: Name of the value, for messages.
    Raises:
        TypeError: It is not an integer.
    """
    if isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number, not {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, not {value!r}") from None


@dataclass(frozen=True, slots=True)
class Identity:
    """The host name and the process ID of this process, which are stored in records for display."""

    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


def raise_if_in_callback(what: str, timeout_s: float | None) -> None:
    """Raise an error if the caller is about to wait inside a callback, because the callback could wait for itself.

    Args:
        what: Name of what the caller waits for, for messages.
        timeout_s: Timeout of the wait. 0, which means a single try, is allowed.
    Raises:
        LatchworkError: The caller is inside a callback.
    """
    if timeout_s != 0 and is_in_callback():
        raise LatchworkError(
            f"{what} must not be waited for in a callback, because others wait for the callback "
            "to end; use a thread, or timeout_s=0"
        )


def delay_s(rank: int) -> float:
    """Return how many seconds a client of this rank waits before it acts, so that clients of lower ranks act first."""
    return STAND_IN_S * min(rank, MOST_RANKS)


def call_listeners(calls: Iterable[Callable[[], None]], what: str) -> None:
    """Call listeners in this thread. An error in one is logged and does not stop the others.

    Args:
        calls: The listeners, as functions without arguments.
        what: The object that has the listeners, for the log message.
    """
    call_each(calls, _log, "a listener of %s raised; the others are called all the same", what)


class Closable(ABC):
    """A base class of objects that a ``with`` block closes at its end."""

    def __enter__(self) -> Self:
        return self

    @shielded
    async def __exit__(self, *_: object) -> None:
        await call_library(self.close)

    @abstractmethod
    def close(self) -> object:
        """Close the object. Thread-safe and idempotent."""


class Startable(Closable):
    """A base class of objects that a ``with`` block starts, and closes at its end."""

    @driven
    async def __enter__(self) -> Self:
        with undone_if_interrupted(self.close_in_background):
            await call_library(self.start)
        return self

    @abstractmethod
    def start(self) -> None:
        """Start the background work of the object. Idempotent."""

    def close_in_background(self) -> None:
        """Close the object in the background, without waiting. Called if ``start`` is interrupted."""


class Deadline:
    """The time at which the timeout of a call ends. Single-threaded.

    Args:
        clock: The clock.
        timeout_s: Seconds from now. None for no deadline. A Boolean is refused, because other libraries use it for
            "block or not".
    """

    def __init__(self, clock: Clock, timeout_s: float | None) -> None:
        if isinstance(timeout_s, bool):
            raise TypeError(f"timeout_s is in seconds, not {timeout_s!r}; None waits for ever, 0 tries once")
        if timeout_s is not None and not timeout_s >= 0:
            raise ValueError(f"timeout_s must be None or at least 0 seconds, not {timeout_s!r}")
        self._clock = clock
        self._until = None if timeout_s is None else clock.now() + timeout_s

    def left_s(self, at_most: float | None = None) -> float | None:
        """Return the seconds until the deadline, at least 0. None if there is no deadline.

        Args:
            at_most: Return at most this many seconds. None for no limit.
        """
        left = None if self._until is None else max(0.0, self._until - self._clock.now())
        if at_most is None:
            return left
        return at_most if left is None else min(left, at_most)

    @property
    def has_passed(self) -> bool:
        """Whether the deadline has passed."""
        return self._until is not None and self._clock.now() >= self._until


class ListenerQueue:
    """Calls listeners in callback threads, one at a time and in order. Thread-safe. Calls nothing with its mutex held.

    Args:
        dispatcher: The pool of callback threads.
        label: Name of the object that has the listeners, for messages.
    """

    def __init__(self, dispatcher: Dispatcher, label: str) -> None:
        self._label = label
        self._changed = Notifier()
        self._posts: deque[Callable[[], None]] = deque()
        self._runner: object = None
        self._is_closed = False
        self._serial_drain = dispatcher.serial_drain(self._drain, label)

    def post(self, *calls: Callable[[], None]) -> None:
        """Call these functions in a callback thread, in order, after all that were posted before."""
        self.queue(*calls)
        self.start_delivery()

    def queue(self, *calls: Callable[[], None]) -> None:
        """Queue calls without starting a thread, for callers that hold a mutex. Call ``start_delivery`` afterwards."""
        with self._changed.mutex:
            if not self._is_closed:
                self._posts.extend(calls)

    def start_delivery(self) -> None:
        """Start a callback thread that runs the queued calls, if there are any. Idempotent."""
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
        """Whether the caller is itself a listener that this queue is calling now."""
        return self._runner == identity()

    async def wait_delivered(self, clock: Clock, timeout_s: float) -> bool:
        """Wait until all posted calls have been made.

        Returns:
            False after the timeout, or if the caller is itself one of these calls.
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
            self.start_delivery()
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
