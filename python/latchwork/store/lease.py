"""Leases of sessions and lock owners: their duration by the local clock, and the times of their renewals.

``Lease`` decides without I/O, threads or a clock. ``Renewer`` sends the renewals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future

from latchwork._base.interrupts import mutex
from latchwork.backends.base import Touchable
from latchwork.backends.futures import call_at_once, failed
from latchwork.clock import Clock

#: Maximum number of renewals in flight; a hanging one must not block the next.
MAX_IN_FLIGHT = 4
#: Factor of the usual interval after which a lease that other traffic renews sends its own renewal.
WITHOUT_OTHERS = 1.125


class Lease:
    """The state of a lease: when to renew it, and whether it has ended. A confirmation after its end is ignored.

    A renewal extends the lease from the time at which it was sent. With a gap, it counts only once another confirmed
    renewal, or a touch, was sent at least that much later. A touch is a cheap request that shows that the server
    answers. It counts once a confirmed renewal was sent that much later. docs/design/locks.md explains why. The class
    does no I/O and reads no clock.

    Args:
        opened_at: Local clock time at which the request that created the lease was sent.
        ttl_s: Duration without a renewal, in seconds.
        confirm_gap_s: The gap in seconds.
        renew_s: Seconds from a confirmed renewal to the next renewal. None is a third of the TTL.
        retry_s: Seconds from a failed renewal to the next. None is an eighth of the TTL.
        unanswered_s: Seconds from an unanswered renewal to the next. None is an eighth of the TTL.
        touch_after_s: Seconds from a confirmed renewal to each touch before the next renewal.
    """

    def __init__(
        self,
        opened_at: float,
        ttl_s: float,
        *,
        confirm_gap_s: float = 0.0,
        renew_s: float | None = None,
        retry_s: float | None = None,
        unanswered_s: float | None = None,
        touch_after_s: tuple[float, ...] = (),
    ) -> None:
        self._ttl_s = ttl_s
        self._gap_s = confirm_gap_s
        self._renew_s = ttl_s / 3 if renew_s is None else renew_s
        self._retry_s = ttl_s / 8 if retry_s is None else retry_s
        self._unanswered_s = ttl_s / 8 if unanswered_s is None else unanswered_s
        self._counted = self._sent_at = self._confirmed_at = opened_at
        self._touched_at = self._carried_at = -math.inf
        self._touch_after_s = touch_after_s
        self._waiting: list[tuple[float, bool]] = []  # send times, and whether of a renewal
        self._has_failed = self._renewed_by_others = False
        self._ended_at = math.inf

    @property
    def expires_at(self) -> float:
        """The local clock time at which the lease expires without another renewal, or at which it ended."""
        return min(self._ended_at, self._counted + self._ttl_s)

    def remaining_s(self, now: float) -> float:
        """Return the seconds until the lease expires. 0 after its end."""
        return max(0.0, min(self._ended_at, self._counted + self._ttl_s) - now)

    def has_ended(self, now: float) -> bool:
        """Return whether the lease has expired or was ended. A lease that has ended is never active again."""
        return now >= min(self._ended_at, self._counted + self._ttl_s)

    def since_renewal_s(self, now: float) -> float:
        """Return the number of seconds since the last confirmed renewal was sent."""
        return now - self._confirmed_at

    def next_renewal_at(self, within_s: float = math.inf) -> float:
        """Return the local clock time at which to send the next renewal. A time after the expiry means never.

        Args:
            within_s: Renew at least as often as for a lease of this many seconds.
        """
        pause_s = self._retry_s if self._has_failed else self._unanswered_s
        if self._sent_at <= self._confirmed_at:
            pause_s = self._renew_s * (WITHOUT_OTHERS if self._renewed_by_others else 1.0)
        return self._sent_at + pause_s * min(1.0, within_s / self._ttl_s)

    def next_touch_at(self) -> float:
        """Return the local clock time at which to send the next touch, a cheap request that shows that the server
        answers.

        The result is infinity if a renewal must be sent first.
        """
        if self._sent_at > self._confirmed_at:
            return math.inf
        times = (self._sent_at + after_s for after_s in self._touch_after_s)
        return min((at for at in times if at > self._touched_at), default=math.inf)

    def record_touch_sent(self, now: float) -> None:
        """Record that a touch is sent now. Touches that were due earlier are skipped."""
        self._touched_at = now

    def record_touch_answer(self, sent_at: float, now: float) -> None:
        """Record that the server has answered a touch that was sent at ``sent_at``."""
        if not self.has_ended(now):
            self._carried_at = max(self._carried_at, sent_at)
            self._waiting.append((sent_at, False))
            self._count()

    def record_renewal_sent(self, now: float) -> None:
        """Record that a renewal is sent now. It extends the lease only when it is confirmed."""
        self._sent_at = max(self._sent_at, now)
        self._has_failed = self._renewed_by_others = False

    def record_renewal_by_others(self, sent_at: float) -> None:
        """Record that another request, such as a transaction, has renewed the lease at ``sent_at``.

        More such requests are expected, so the next renewal is sent a little later than usual.
        """
        self.record_renewal_sent(sent_at)
        self._renewed_by_others = True

    def record_failed_renewal(self) -> None:
        """Record that a renewal has failed."""
        self._has_failed = True

    def record_confirmation(self, sent_at: float, now: float, resumed_at: float = -math.inf) -> bool:
        """Record that the server has confirmed a renewal that was sent at ``sent_at``.

        Args:
            sent_at: Local clock time.
            now: Local clock time.
            resumed_at: Local clock time at which the request was sent that resumed the lease last. The lease counts
                from it, without a gap, if the renewal was sent later.
        Returns:
            False if the lease had already ended. The confirmation is then ignored.
        """
        if self.has_ended(now):
            return False
        if resumed_at <= sent_at:
            self._counted = max(self._counted, resumed_at)
        self._confirmed_at = max(self._confirmed_at, sent_at)
        self._waiting.append((sent_at, True))
        self._count()
        return True

    def end(self, now: float) -> None:
        """End the lease now."""
        self._ended_at = min(now, self.expires_at)

    def _count(self) -> None:
        renewed, seen = self._confirmed_at, max(self._confirmed_at, self._carried_at)
        counted = [sent for sent, renews in self._waiting if sent + self._gap_s <= (seen if renews else renewed)]
        self._counted = max([self._counted, *counted])
        self._waiting = [each for each in self._waiting if each[0] > self._counted]


class Renewer:
    """Sends the renewals of one lease. Its owner calls ``step`` repeatedly in a thread. Thread-safe.

    Args:
        lease: The lease, which no one else changes.
        clock: The local clock.
        send: Sends a renewal. Returns a future of the local clock time at which it was sent. Must not block.
        answered: Called after each renewal with its error or None, and whether renewals work again after a failure.
            Runs in a thread of a client library.
        touchable: Sends touches, and knows when the lease was resumed. None if the lease does not use touches.

    Attributes:
        is_failing: Whether a renewal has failed, or too many are unanswered, since the last confirmed one.
    """

    def __init__(
        self,
        lease: Lease,
        clock: Clock,
        send: Callable[[], Future[float]],
        answered: Callable[[BaseException | None, bool], None],
        touchable: Touchable | None = None,
    ) -> None:
        self._lease = lease
        self._clock = clock
        self._send = send
        self._answered = answered
        self._touchable = touchable
        self._in_a_hurry = False
        self._lock = mutex()
        self._in_flight = 0
        self.is_failing = False

    @property
    def has_ended(self) -> bool:
        """Whether the lease has ended. Listeners may not have been notified yet."""
        return self.remaining_s() <= 0.0

    def remaining_s(self) -> float:
        """Return the seconds until the lease expires. 0 after its end."""
        left_s = self._lease.remaining_s(self._clock.now())
        if left_s > 0.0:
            return left_s
        with self._lock:  # a timely confirmation may not be recorded in the lease yet
            return self._lease.remaining_s(self._clock.now())

    def since_renewal_s(self) -> float:
        """Return the number of seconds since the last confirmed renewal was sent."""
        with self._lock:
            return self._lease.since_renewal_s(self._clock.now())

    @property
    def expires_at(self) -> float:
        """The local clock time at which the lease expires without another renewal, or at which it ended."""
        with self._lock:
            return self._lease.expires_at

    def end(self) -> None:
        """End the lease now. Idempotent."""
        with self._lock:
            self._lease.end(self._clock.now())

    def hurry(self) -> None:
        """Make the next call of ``step`` send a renewal, even if none is due."""
        with self._lock:
            self._in_a_hurry = True

    def record_other_renewal(self, sent_at: float) -> None:
        """Record that another request of this process, such as a transaction, has renewed the lease.

        Args:
            sent_at: Local clock time at which the request was sent. The server has confirmed it.
        """
        with self._lock:
            self._lease.record_renewal_by_others(sent_at)
            if self._lease.record_confirmation(sent_at, self._clock.now()):
                self.is_failing = False

    def renew_if_due(self, within_s: float = math.inf) -> tuple[float, int] | None:
        """Send a renewal if one is due, and return when to call this method again.

        Args:
            within_s: Renew at least as often as for a lease of this many seconds.
        Returns:
            The local clock time by which to call it again, and the number of unanswered renewals if one was due. None
                if the lease has ended.
        """
        with self._lock:
            now = self._clock.now()
            if self._lease.has_ended(now):
                return None
            unanswered = 0
            is_due = self._in_a_hurry or now >= self._lease.next_renewal_at(within_s)
            touchable = self._touchable if not is_due and now >= self._lease.next_touch_at() else None
            if touchable is not None:
                self._lease.record_touch_sent(now)
            if is_due:
                self._in_a_hurry = False
                self._lease.record_renewal_sent(now)
                unanswered = self._in_flight
                is_due = unanswered < MAX_IN_FLIGHT
                self._in_flight += is_due
                self.is_failing = self.is_failing or not is_due
        if is_due:
            try:
                future = self._send()
            except Exception as error:  # renewing must continue after any error
                future = failed(error)
            call_at_once(future, self._ended)
        if touchable is not None:
            call_at_once(touchable.touch(), self._touched)
        with self._lock:
            due = min(self._lease.next_renewal_at(within_s), self._lease.expires_at)
            return (due if self._touchable is None else min(due, self._lease.next_touch_at())), unanswered

    def _touched(self, future: Future[float]) -> None:
        if future.exception() is None:
            with self._lock:
                self._lease.record_touch_answer(future.result(), self._clock.now())

    def _ended(self, future: Future[float]) -> None:
        error = future.exception()
        with self._lock:
            self._in_flight -= 1
            resumed_at = -math.inf if self._touchable is None else self._touchable.resumed_at
            is_confirmed = error is None and self._lease.record_confirmation(
                future.result(), self._clock.now(), resumed_at
            )
            recovered = is_confirmed and self.is_failing
            self.is_failing = not is_confirmed
            if not is_confirmed:
                self._lease.record_failed_renewal()
        self._answered(error, recovered)
