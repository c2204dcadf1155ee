"""Waiting for what a backend answers: never longer than the call timeout, nor than the ownership a caller works under.

Nothing here touches the network.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from latchwork.callers import in_loop, warn_in_loop
from latchwork.clock import Clock
from latchwork.errors import LatchworkError, OutcomeUnknown, OwnershipLost, Unavailable

T = TypeVar("T")

#: Backends end their futures in time; this much later the store stops believing it.
_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Limit:
    """How long calls may wait that are made under an ownership. Does no I/O.

    Attributes:
        remaining_s: seconds the ownership surely lasts, by our own clock; may grow, when it is renewed.
        error: what calls raise once it is over.
    """

    remaining_s: Callable[[], float]
    error: type[OwnershipLost]

    def check(self) -> float:
        """Seconds that are left.

        Raises:
            OwnershipLost: none are.
        """
        left_s = self.remaining_s()
        if left_s <= 0:
            raise self.error("the ownership that this store is used under is over: nothing was asked; stop the work")
        return left_s


class Answers:
    """Waits for the futures of one store, whose backend ends its calls within a timeout. Safe to share between threads.

    The URL is for messages, and has no password. With a limit the calls are made under an ownership.
    """

    def __init__(self, url: str, clock: Clock, call_timeout_s: float, limit: Limit | None = None) -> None:
        self._url = url
        self._clock = clock
        self._call_timeout_s = call_timeout_s
        self._limit = limit

    @property
    def call_timeout_s(self) -> float:
        """How long an answer may take at this moment."""
        return self._call_timeout_s if self._limit is None else min(self._call_timeout_s, self._limit.check())

    def left_s(self, since: float | None = None) -> float:
        """Seconds to wait for an answer in an event loop, of one asked for at that local time."""
        left_s = self._call_timeout_s + _GRACE_S - (0.0 if since is None else self._clock.now() - since)
        return left_s if self._limit is None else min(left_s, self._limit.remaining_s())

    def under(self, limit: Limit) -> Answers:
        """The same for calls that are made under an ownership."""
        return Answers(self._url, self._clock, self._call_timeout_s, limit)

    def read(self, future: Future[T], what: str) -> T:
        """Wait for a call that changes nothing."""
        return self._wait(future, what, writes=False)

    def write(self, future: Future[T], what: str) -> T:
        """Wait for a call that writes."""
        return self._wait(future, what, writes=True)

    def _wait(self, future: Future[T], what: str, *, writes: bool) -> T:
        if in_loop():
            warn_in_loop(f"Store.{what.partition(' ')[0]}")
        try:
            if self._limit is not None:
                return self._result(future, self._limit)
            return future.result(self._call_timeout_s + _GRACE_S)
        except TimeoutError as error:
            if future.done():  # by now, or with such an error of its own
                return future.result()
            raise self.late(what, writes=writes) from error

    def _result(self, future: Future[T], limit: Limit) -> T:
        until = self._clock.now() + self._call_timeout_s + _GRACE_S
        while True:
            left_s = min(until - self._clock.now(), limit.remaining_s())
            try:
                return future.result(max(0.0, left_s))
            except TimeoutError:
                if left_s <= 0 or future.done():  # else it was renewed meanwhile, and there is time again
                    raise

    def late(self, what: str, *, writes: bool) -> LatchworkError:
        """The error of a call that was not answered in time."""
        over = self._limit if self._limit is not None and self._limit.remaining_s() <= 0 else None
        when = f"within {self._call_timeout_s:.3g} s"
        if over is not None:
            when = "while the ownership lasted that it was asked under"
        told = f"{what}: no answer from {self._url} {when}"
        if writes:
            return OutcomeUnknown(f"{told}; it may have been applied")
        return Unavailable(f"{told}; try again") if over is None else over.error(f"{told}; stop the work")
