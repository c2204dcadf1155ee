"""What every primitive has in common: checked names, who this process is, listeners called in order, patience.

Nothing here talks to a server.
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

from latchwork.callers import identity
from latchwork.clock import Clock
from latchwork.errors import InvalidKey, LatchworkError
from latchwork.store.dispatch import Dispatcher, in_callback
from latchwork.store.driving.notifier import Notifier
from latchwork.store.keys import validate_name
from latchwork.store.observers import call_each
from latchwork.store.steps import called_as_steps, driven, ending, undone_if_interrupted

if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger(__name__)

#: A message shows so many characters of a name that cannot be used.
_SHOWN = 130

#: When somebody does not do what is theirs to do, the one of each further rank does it so many seconds later, ...
STAND_IN_S = 0.15
#: ... up to this rank.
MOST_RANKS = 10

C = TypeVar("C", bound="Closes")
S = TypeVar("S", bound="Starts")


def check_name(name: str, kind: str) -> str:
    """The name itself; ``InvalidKey`` if it cannot be a key. The message says which primitive's name it is."""
    try:
        return validate_name(name)
    except InvalidKey as error:
        raise InvalidKey(f"{kind} name {repr(name)[:_SHOWN]} cannot be used: {error}") from None


def check_node_id(node_id: str, kind: str) -> str:
    """The id itself; ``InvalidKey`` if it is no text, or empty. It is no key: any characters will do, ``/`` too."""
    given: object = node_id
    if not isinstance(given, str) or not given:
        raise InvalidKey(f"{kind} node id {node_id!r} cannot be used: it must be text, and not empty")
    return node_id


def check_text(text: str, what: str) -> str:
    """The text itself, which may be empty; ``TypeError`` if it is no text, and could not be stored."""
    given: object = text
    if not isinstance(given, str):
        raise TypeError(f"{what} must be text, not {text!r}")
    return text


def check_bytes(value: bytes, what: str) -> bytes:
    """The value itself; ``TypeError`` if it is no ``bytes``."""
    given: object = value
    if not isinstance(given, bytes):
        raise TypeError(f"{what} must be bytes, not {type(given).__name__}; encode it first")
    return value


def check_least(value: float, what: str, least: float) -> float:
    """The number itself; ``ValueError`` if it is below the least."""
    if not value >= least:
        raise ValueError(f"{what} must be at least {least:g}, not {value!r}")
    return float(value)


def check_whole(value: int, what: str) -> int:
    """The number itself; ``TypeError`` if it is no whole one: a float could be another number when it is read."""
    if isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number, not {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, not {value!r}") from None


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process this is, for people who look at what is stored."""

    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


def refuse_in_callback(what: str, timeout_s: float | None) -> None:
    """Refuse a wait inside a callback: what would end the wait may itself wait for this callback. A try is allowed."""
    if timeout_s != 0 and in_callback():
        raise LatchworkError(
            f"{what} must not be waited for in a callback, others wait for that to end; use a thread, or timeout_s=0"
        )


def delay_s(rank: int) -> float:
    """Seconds to leave something to those of a lower rank; who is first in rank has rank 0."""
    return STAND_IN_S * min(rank, MOST_RANKS)


def tell(calls: Iterable[Callable[[], None]], what: str) -> None:
    """Call each listener of ``what``, in this thread; one that raises is logged and stops no other."""
    call_each(calls, _log, "a listener of %s raised; the others are called all the same", what)


class Closes(ABC):
    """What a ``with`` closes at its end."""

    def __enter__(self) -> Self:
        return self

    @ending
    async def __exit__(self, *_: object) -> None:
        await called_as_steps(self.close)

    @abstractmethod
    def close(self) -> object:
        """From any thread; twice is fine."""


class Starts(Closes):
    """What a ``with`` starts, and closes at its end."""

    @driven
    async def __enter__(self) -> Self:
        with undone_if_interrupted(self.end_soon):
            await called_as_steps(self.start)
        return self

    @abstractmethod
    def start(self) -> None:
        """Begin in the background; twice is fine."""

    def end_soon(self) -> None:
        """After an interrupt: what ``close`` does, as far as that needs no wait; the rest in the background."""


class Patience:
    """How long a call may still wait. One thread only.

    True and False are refused as a time: other libraries take them for "block or not".
    """

    def __init__(self, clock: Clock, timeout_s: float | None) -> None:
        if isinstance(timeout_s, bool):
            raise TypeError(f"timeout_s is in seconds, not {timeout_s!r}; None waits for ever, 0 tries once")
        if timeout_s is not None and not timeout_s >= 0:
            raise ValueError(f"timeout_s must be None or at least 0 seconds, not {timeout_s!r}")
        self._clock = clock
        self._until = None if timeout_s is None else clock.now() + timeout_s

    def left_s(self, at_most: float | None = None) -> float | None:
        """Seconds left, never negative and no more than ``at_most``; None for ever."""
        left = None if self._until is None else max(0.0, self._until - self._clock.now())
        if at_most is None:
            return left
        return at_most if left is None else min(left, at_most)

    @property
    def is_over(self) -> bool:
        """True once the time has run out."""
        return self._until is not None and self._clock.now() >= self._until


class Announcer:
    """Calls listeners in a pool of callback threads: in the order of the posts, one at a time, none lost.

    Safe to share between threads; calls nobody with its mutex held.
    """

    def __init__(self, dispatcher: Dispatcher, label: str) -> None:
        self._label = label
        self._changed = Notifier()
        self._posts: deque[Callable[[], None]] = deque()
        self._runner: object = None
        self._is_closed = False
        self._lane = dispatcher.lane(self._drain, label)

    def post(self, *calls: Callable[[], None]) -> None:
        """Call these in order, after everything that was posted before."""
        self.queue(*calls)
        self.deliver()

    def queue(self, *calls: Callable[[], None]) -> None:
        """Post without starting a thread, which waits for that: for callers that hold a mutex. Then ``deliver``."""
        with self._changed.mutex:
            if not self._is_closed:
                self._posts.extend(calls)

    def deliver(self) -> None:
        """Have what was queued called. Idempotent."""
        if self._posts:
            self._lane.signal()

    def close(self) -> None:
        """Call nothing more but what is being called: what was posted is dropped, and nobody waits for it."""
        with self._changed.mutex:
            self._is_closed = True
            self._posts.clear()
            self._changed.ring()

    @property
    def is_mine(self) -> bool:
        """True in a call that this announcer is making."""
        return self._runner == identity()

    async def settle(self, clock: Clock, timeout_s: float) -> bool:
        """Wait until everything posted was called; False when the time is over, or in a call that was posted."""
        if self.is_mine:
            return False
        patience = Patience(clock, timeout_s)
        while True:
            with self._changed.mutex:
                if not self._posts and self._runner is None:
                    return True
                rings = self._changed.rings
            if patience.is_over:
                return False
            self.deliver()
            await self._changed.rung(rings, clock, patience.left_s())

    def _drain(self) -> None:
        while True:
            with self._changed.mutex:
                self._runner = identity() if self._posts else None
                if self._runner is None:
                    self._changed.ring()
                    return
                call = self._posts.popleft()
            try:
                tell([call], self._label)
            except BaseException:  # an interrupt, in a call; the calls behind it are made all the same
                self._lane.signal()
                raise
