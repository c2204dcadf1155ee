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
    """Return the name. ``InvalidKey`` if it cannot be a key; the message names the primitive."""
    try:
        return validate_name(name)
    except InvalidKey as error:
        raise InvalidKey(f"{kind} name {repr(name)[:_SHOWN]} cannot be used: {error}") from None


def check_node_id(node_id: str, kind: str) -> str:
    """Return the ID. ``InvalidKey`` if it is not a non-empty text. Any characters are allowed, including ``/``."""
    given: object = node_id
    if not isinstance(given, str) or not given:
        raise InvalidKey(f"{kind} node id {node_id!r} cannot be used: it must be text, and not empty")
    return node_id


def check_text(text: str, what: str) -> str:
    """Return the text, which may be empty. ``TypeError`` if it is not a text that can be stored."""
    given: object = text
    if not isinstance(given, str):
        raise TypeError(f"{what} must be text, not {text!r}")
    return text


def check_bytes(value: bytes, what: str) -> bytes:
    """Return the value. ``TypeError`` if it is not ``bytes``."""
    given: object = value
    if not isinstance(given, bytes):
        raise TypeError(f"{what} must be bytes, not {type(given).__name__}; encode it first")
    return value


def check_minimum(value: float, what: str, least: float) -> float:
    """Return the number. ``ValueError`` if it is less than the minimum."""
    if not value >= least:
        raise ValueError(f"{what} must be at least {least:g}, not {value!r}")
    return float(value)


def check_integer(value: int, what: str) -> int:
    """Return the number. ``TypeError`` if it is not an integer, because a float may change when it is read."""
    if isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number, not {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, not {value!r}") from None


@dataclass(frozen=True, slots=True)
class Identity:
    """This process, for people who read what is stored."""

    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


def refuse_in_callback(what: str, timeout_s: float | None) -> None:
    """Refuse a wait inside a callback, because what ends the wait may wait for this callback. A single try is
    allowed.
    """
    if timeout_s != 0 and is_in_callback():
        raise LatchworkError(
            f"{what} must not be waited for in a callback, others wait for that to end; use a thread, or timeout_s=0"
        )


def delay_s(rank: int) -> float:
    """Return the seconds that a rank leaves to lower ranks; 0 for rank 0."""
    return STAND_IN_S * min(rank, MOST_RANKS)


def call_listeners(calls: Iterable[Callable[[], None]], what: str) -> None:
    """Call the listeners of ``what`` in this thread. An exception is logged and stops no other listener."""
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
        """End the object. Thread-safe and idempotent."""


class Startable(Closable):
    """An object that ``with`` starts, and closes at its end."""

    @driven
    async def __enter__(self) -> Self:
        with undone_if_interrupted(self.end_soon):
            await call_library(self.start)
        return self

    @abstractmethod
    def start(self) -> None:
        """Start in the background. Idempotent."""

    def end_soon(self) -> None:
        """Do after an interrupt what ``close`` does, without waiting; the rest happens in the background."""


class Deadline:
    """The remaining time of a call. For one thread.

    Booleans are refused as a time, because other libraries use them for "block or not".
    """

    def __init__(self, clock: Clock, timeout_s: float | None) -> None:
        if isinstance(timeout_s, bool):
            raise TypeError(f"timeout_s is in seconds, not {timeout_s!r}; None waits for ever, 0 tries once")
        if timeout_s is not None and not timeout_s >= 0:
            raise ValueError(f"timeout_s must be None or at least 0 seconds, not {timeout_s!r}")
        self._clock = clock
        self._until = None if timeout_s is None else clock.now() + timeout_s

    def left_s(self, at_most: float | None = None) -> float | None:
        """Return the remaining seconds, not negative and at most ``at_most``; None for forever."""
        left = None if self._until is None else max(0.0, self._until - self._clock.now())
        if at_most is None:
            return left
        return at_most if left is None else min(left, at_most)

    @property
    def has_passed(self) -> bool:
        """Return whether the time has passed."""
        return self._until is not None and self._clock.now() >= self._until


class ListenerQueue:
    """Calls listeners in a pool of callback threads, in the order of the posts, one at a time, none lost.

    Thread-safe; it calls nothing with its mutex held.
    """

    def __init__(self, dispatcher: Dispatcher, label: str) -> None:
        self._label = label
        self._changed = Notifier()
        self._posts: deque[Callable[[], None]] = deque()
        self._runner: object = None
        self._is_closed = False
        self._serial_drain = dispatcher.serial_drain(self._drain, label)

    def post(self, *calls: Callable[[], None]) -> None:
        """Call these in order, after everything that was posted before."""
        self.queue(*calls)
        self.deliver()

    def queue(self, *calls: Callable[[], None]) -> None:
        """Post without starting a thread, for callers that hold a mutex. Call ``deliver`` afterwards."""
        with self._changed.mutex:
            if not self._is_closed:
                self._posts.extend(calls)

    def deliver(self) -> None:
        """Call what was queued. Idempotent."""
        if self._posts:
            self._serial_drain.signal()

    def close(self) -> None:
        """Drop everything that was posted and is not being called, without waiting."""
        with self._changed.mutex:
            self._is_closed = True
            self._posts.clear()
            self._changed.notify_all()

    @property
    def is_running_here(self) -> bool:
        """Return whether this code runs in a call of this announcer."""
        return self._runner == identity()

    async def settle(self, clock: Clock, timeout_s: float) -> bool:
        """Wait until everything that was posted was called. Return False after the timeout, or inside such a call."""
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
