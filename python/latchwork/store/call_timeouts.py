"""Timeouts of store calls: the call timeout, and the remaining time of a lock or lease that limits the calls."""

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
    """The limit for calls that must not wait longer than the caller owns something, such as a lock.

    Attributes:
        remaining_s: Returns the seconds for which the ownership certainly lasts, by the local clock. Renewals increase
            it.
        error: The error that calls raise after the ownership has ended.
    """

    remaining_s: Callable[[], float]
    error: type[OwnershipLost]

    def check(self) -> float:
        """Return the seconds for which the ownership certainly lasts.

        Raises:
            OwnershipLost: The ownership has ended.
        """
        left_s = self.remaining_s()
        if left_s <= 0:
            raise self.error("the ownership that this work depends on has ended; no request was sent; stop the work")
        return left_s


class CallTimeouts:
    """Waits for the answers to a store's calls and enforces their timeouts. Thread-safe.

    Args:
        url: The URL of the store for messages, without a password.
        clock: The local clock.
        call_timeout_s: The store's call timeout in seconds.
        limit: The limit for calls of the owner of a lock or lease, or None.
    """

    def __init__(self, url: str, clock: Clock, call_timeout_s: float, limit: OwnershipLimit | None = None) -> None:
        self._url = url
        self._clock = clock
        self._call_timeout_s = call_timeout_s
        self._limit = limit

    @property
    def call_timeout_s(self) -> float:
        """The timeout in seconds for a call that starts now: the store's, or less if the lock or lease in use ends
        earlier.
        """
        return self._call_timeout_s if self._limit is None else min(self._call_timeout_s, self._limit.check())

    def remaining_timeout_s(self, since: float | None = None) -> float:
        """Return the number of seconds for which an event loop should still wait for the answer to a call.

        Args:
            since: Local clock time at which the call was made. None means now.
        """
        left_s = self._call_timeout_s + _GRACE_S - (0.0 if since is None else self._clock.now() - since)
        return left_s if self._limit is None else min(left_s, self._limit.remaining_s())

    def with_limit(self, limit: OwnershipLimit) -> CallTimeouts:
        """Return a copy whose waits also end when the ownership of a lock or lease ends."""
        return CallTimeouts(self._url, self._clock, self._call_timeout_s, limit)

    def wait_for_read(self, future: Future[T], description: str) -> T:
        """Wait for a read until its timeout, and return its result.

        Args:
            future: The future of the read.
            description: A description of the call for error messages.
        """
        return self._wait(future, description, writes=False)

    def wait_for_write(self, future: Future[T], description: str) -> T:
        """Wait for a write until its timeout, and return its result.

        Args:
            future: The future of the write.
            description: A description of the call for error messages.
        """
        return self._wait(future, description, writes=True)

    def _wait(self, future: Future[T], description: str, *, writes: bool) -> T:
        if in_loop():
            warn_in_loop(f"Store.{description.partition(' ')[0]}")
        try:
            if self._limit is not None:
                return self._result(future, self._limit)
            return future.result(self._call_timeout_s + _GRACE_S)
        except TimeoutError as error:
            if future.done():  # ended meanwhile, perhaps with a TimeoutError itself
                return future.result()
            raise self.timeout_error(description, writes=writes) from error

    def _result(self, future: Future[T], limit: OwnershipLimit) -> T:
        until = self._clock.now() + self._call_timeout_s + _GRACE_S
        while True:
            left_s = min(until - self._clock.now(), limit.remaining_s())
            try:
                return future.result(max(0.0, left_s))
            except TimeoutError:
                if left_s <= 0 or future.done():  # otherwise it was renewed meanwhile
                    raise

    def timeout_error(self, description: str, *, writes: bool) -> LatchworkError:
        """Return the error for a call that was not answered in time.

        Args:
            description: A description of the call for the message.
            writes: Whether the call may have changed data, so that its outcome is unknown.
        """
        over = self._limit if self._limit is not None and self._limit.remaining_s() <= 0 else None
        when = f"within {self._call_timeout_s:.3g} s"
        if over is not None:
            when = "while the ownership lasted"
        message = f"{description}: no answer from {self._url} {when}"
        if writes:
            return OutcomeUnknown(f"{message}; it may have been applied")
        return Unavailable(f"{message}; try again") if over is None else over.error(f"{message}; stop the work")
