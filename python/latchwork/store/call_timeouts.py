"""Waits for a backend's answers, at most for the call timeout and for the ownership the caller works under.

Performs no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from latchwork._base.execution_context import in_loop, warn_in_loop
from latchwork.clock import Clock
from latchwork.errors import LatchworkError, OutcomeUnknown, OwnershipLost, Unavailable

T = TypeVar("T")

#: Backends end their futures in time. This many seconds later, the store stops waiting for a late one.
_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class OwnershipLimit:
    """Limits how long calls made under an ownership may wait. Performs no I/O.

    Attributes:
        remaining_s: Returns the seconds that the ownership certainly lasts, by the local clock. Renewals increase it.
        error: The error that calls raise after the ownership has ended.
    """

    remaining_s: Callable[[], float]
    error: type[OwnershipLost]

    def check(self) -> float:
        """Return how many seconds the ownership still lasts.

        Raises:
            OwnershipLost: The ownership has ended.
        """
        left_s = self.remaining_s()
        if left_s <= 0:
            raise self.error("the ownership of this store's work has ended: no request was made; stop the work")
        return left_s


class CallTimeouts:
    """Waits for the futures of one store. Thread-safe.

    The URL is for messages, and contains no password. With a limit, the calls are made under an ownership.
    """

    def __init__(self, url: str, clock: Clock, call_timeout_s: float, limit: OwnershipLimit | None = None) -> None:
        self._url = url
        self._clock = clock
        self._call_timeout_s = call_timeout_s
        self._limit = limit

    @property
    def call_timeout_s(self) -> float:
        """The timeout in seconds of a call that starts now: the store's call timeout, or less if an ownership ends
        earlier.
        """
        return self._call_timeout_s if self._limit is None else min(self._call_timeout_s, self._limit.check())

    def call_wait_s(self, since: float | None = None) -> float:
        """Return for how many more seconds an event loop should wait for the answer to a call.

        Args:
            since: Local clock time at which the call was made; None for now.
        """
        left_s = self._call_timeout_s + _GRACE_S - (0.0 if since is None else self._clock.now() - since)
        return left_s if self._limit is None else min(left_s, self._limit.remaining_s())

    def with_limit(self, limit: OwnershipLimit) -> CallTimeouts:
        """Return a copy that also ends each wait when an ownership ends, such as that of a lock."""
        return CallTimeouts(self._url, self._clock, self._call_timeout_s, limit)

    def wait_for_read(self, future: Future[T], what: str) -> T:
        """Wait for a read and return its result."""
        return self._wait(future, what, writes=False)

    def wait_for_write(self, future: Future[T], what: str) -> T:
        """Wait for a write and return its result."""
        return self._wait(future, what, writes=True)

    def _wait(self, future: Future[T], what: str, *, writes: bool) -> T:
        if in_loop():
            warn_in_loop(f"Store.{what.partition(' ')[0]}")
        try:
            if self._limit is not None:
                return self._result(future, self._limit)
            return future.result(self._call_timeout_s + _GRACE_S)
        except TimeoutError as error:
            if future.done():  # ended meanwhile, perhaps with a TimeoutError itself
                return future.result()
            raise self.timeout_error(what, writes=writes) from error

    def _result(self, future: Future[T], limit: OwnershipLimit) -> T:
        until = self._clock.now() + self._call_timeout_s + _GRACE_S
        while True:
            left_s = min(until - self._clock.now(), limit.remaining_s())
            try:
                return future.result(max(0.0, left_s))
            except TimeoutError:
                if left_s <= 0 or future.done():  # otherwise it was renewed meanwhile
                    raise

    def timeout_error(self, what: str, *, writes: bool) -> LatchworkError:
        """Return the error to raise for a call that was not answered in time."""
        over = self._limit if self._limit is not None and self._limit.remaining_s() <= 0 else None
        when = f"within {self._call_timeout_s:.3g} s"
        if over is not None:
            when = "while the ownership lasted"
        message = f"{what}: no answer from {self._url} {when}"
        if writes:
            return OutcomeUnknown(f"{message}; it may have been applied")
        return Unavailable(f"{message}; try again") if over is None else over.error(f"{message}; stop the work")
