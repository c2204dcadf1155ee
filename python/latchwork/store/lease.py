"""Leases of sessions and lock owners: their duration by the local clock, and the times of their renewals.

``Lease`` decides without I/O, threads or a clock. ``Renewer`` sends the renewals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future

from latchwork._base.interrupts import mutex
from latchwork.backends.futures import call_at_once, failed
from latchwork.clock import Clock

#: Maximum number of renewals in flight; a hanging one must not block the next.
MAX_IN_FLIGHT = 4
#: Factor of the usual interval after which a lease that other traffic renews sends its own renewal.
WITHOUT_OTHERS = 1.125


class Lease:
    """Decides when to renew a lease, and whether it has ended. A confirmation after its end is ignored. Pure.

    A renewal extends the lease from its send time. With a gap, it only counts once another confirmed renewal, or a
    touch, was sent at least that much later. A touch counts once a confirmed renewal was sent that much later
    (docs/design/locks.md).

    Args:
        opened_at: Local clock time at which the request that created it was sent.
        ttl_s: Duration without a renewal, in seconds.
        confirm_gap_s: The gap in seconds.
        renew_s: Seconds from the send of a confirmed renewal to the next; None for a third of the TTL.
        retry_s: Seconds from the send of a failed renewal to the next; None for an eighth of the TTL.
        unanswered_s: Seconds from the send of an unanswered renewal to the next; None for an eighth of the TTL.
        touch_after_s: Seconds from the send of a confirmed renewal to each touch before the next renewal.
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
        """Local clock time at which it ends without further confirmations, or at which it ended."""
        return min(self._ended_at, self._counted + self._ttl_s)

    def remaining_s(self, now: float) -> float:
        """Return the seconds left; 0 after its end."""
        return max(0.0, min(self._ended_at, self._counted + self._ttl_s) - now)

    def is_over(self, now: float) -> bool:
        """Return whether it has expired or was ended. Permanent."""
        return now >= min(self._ended_at, self._counted + self._ttl_s)

    def silent_s(self, now: float) -> float:
        """Return the seconds since the send of the last confirmed renewal."""
        return now - self._confirmed_at

    def next_send(self, within_s: float = math.inf) -> float:
        """Return when to send the next renewal; a time at or after the expiry means never.

        Args:
            within_s: Send as often as for a lease of this duration, if that is more often.
        """
        pause_s = self._retry_s if self._has_failed else self._unanswered_s
        if self._sent_at <= self._confirmed_at:
            pause_s = self._renew_s * (WITHOUT_OTHERS if self._renewed_by_others else 1.0)
        return self._sent_at + pause_s * min(1.0, within_s / self._ttl_s)

    def next_touch(self) -> float:
        """Return when to send the next touch; infinity if only a renewal helps."""
        if self._sent_at > self._confirmed_at:
            return math.inf
        times = (self._sent_at + after_s for after_s in self._touch_after_s)
        return min((at for at in times if at > self._touched_at), default=math.inf)

    def touching(self, now: float) -> None:
        """Note that a touch is sent now; skip touches that were due before."""
        self._touched_at = now

    def touched(self, sent_at: float, now: float) -> None:
        """Note that the server answered a touch now that was sent at ``sent_at``."""
        if not self.is_over(now):
            self._carried_at = max(self._carried_at, sent_at)
            self._waiting.append((sent_at, False))
            self._count()

    def sent(self, now: float) -> None:
        """Note that a renewal is sent now. Extends nothing."""
        self._sent_at = max(self._sent_at, now)
        self._has_failed = self._renewed_by_others = False

    def sent_by_others(self, sent_at: float) -> None:
        """Note a renewal by other traffic, which is expected to continue: delay our next renewal a little."""
        self.sent(sent_at)
        self._renewed_by_others = True

    def failed(self) -> None:
        """Note that a renewal failed."""
        self._has_failed = True

    def confirmed(self, sent_at: float, now: float) -> bool:
        """Note that the server confirmed a renewal now; False if the lease had already ended, which is permanent."""
        if self.is_over(now):
            return False
        self._confirmed_at = max(self._confirmed_at, sent_at)
        self._waiting.append((sent_at, True))
        self._count()
        return True

    def end(self, now: float) -> None:
        """End it now."""
        self._ended_at = min(now, self.expires_at)

    def _count(self) -> None:
        renewed, seen = self._confirmed_at, max(self._confirmed_at, self._carried_at)
        counted = [sent for sent, renews in self._waiting if sent + self._gap_s <= (seen if renews else renewed)]
        self._counted = max([self._counted, *counted])
        self._waiting = [each for each in self._waiting if each[0] > self._counted]


class Renewer:
    """Renews one lease; its owner calls ``step`` in a thread. Thread-safe.

    Args:
        lease: The lease, not shared with other users.
        clock: The local clock.
        send: Sends a renewal and returns a future of the local send time. Must not block.
        answered: Called for each ended renewal with its error or None, and whether renewing has recovered, in a client
            library's thread.
        touch: Sends a touch, like ``send``; None if the lease does not use touches.

    Attributes:
        is_failing: True after a renewal failed or too many were in flight, until one is confirmed.
    """

    def __init__(
        self,
        lease: Lease,
        clock: Clock,
        send: Callable[[], Future[float]],
        answered: Callable[[BaseException | None, bool], None],
        touch: Callable[[], Future[float]] | None = None,
    ) -> None:
        self._lease = lease
        self._clock = clock
        self._send = send
        self._answered = answered
        self._touch = touch
        self._in_a_hurry = False
        self._lock = mutex()
        self._in_flight = 0
        self.is_failing = False

    @property
    def is_over(self) -> bool:
        """True once the lease has ended, even if no listener was notified yet."""
        return self.remaining_s() <= 0.0

    def remaining_s(self) -> float:
        """Return the seconds left; 0 after its end."""
        left_s = self._lease.remaining_s(self._clock.now())
        if left_s > 0.0:
            return left_s
        with self._lock:  # a timely confirmation may not be recorded in the lease yet
            return self._lease.remaining_s(self._clock.now())

    def silent_s(self) -> float:
        """Return the seconds since the send of the last confirmed renewal."""
        with self._lock:
            return self._lease.silent_s(self._clock.now())

    @property
    def expires_at(self) -> float:
        """Local clock time at which it ends unless renewed, or at which it ended."""
        with self._lock:
            return self._lease.expires_at

    def end(self) -> None:
        """End the lease now. Idempotent."""
        with self._lock:
            self._lease.end(self._clock.now())

    def hurry(self) -> None:
        """Send a renewal with the next step, even if none is due."""
        with self._lock:
            self._in_a_hurry = True

    def renewed_otherwise(self, sent_at: float) -> None:
        """Note that another confirmed request, sent at this time, renewed the lease."""
        with self._lock:
            self._lease.sent_by_others(sent_at)
            if self._lease.confirmed(sent_at, self._clock.now()):
                self.is_failing = False

    def step(self, within_s: float = math.inf) -> tuple[float, int] | None:
        """Send a renewal if one is due; see ``Lease.next_send`` for ``within_s``.

        Returns:
            The latest time of the next step, and the number of renewals in flight if another was due. None if the lease
                has ended.
        """
        with self._lock:
            now = self._clock.now()
            if self._lease.is_over(now):
                return None
            unanswered = 0
            is_due = self._in_a_hurry or now >= self._lease.next_send(within_s)
            touch = self._touch if not is_due and now >= self._lease.next_touch() else None
            if touch is not None:
                self._lease.touching(now)
            if is_due:
                self._in_a_hurry = False
                self._lease.sent(now)
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
        if touch is not None:
            call_at_once(touch(), self._touched)
        with self._lock:
            due = min(self._lease.next_send(within_s), self._lease.expires_at)
            return (due if self._touch is None else min(due, self._lease.next_touch())), unanswered

    def _touched(self, future: Future[float]) -> None:
        if future.exception() is None:
            with self._lock:
                self._lease.touched(future.result(), self._clock.now())

    def _ended(self, future: Future[float]) -> None:
        error = future.exception()
        with self._lock:
            self._in_flight -= 1
            is_confirmed = error is None and self._lease.confirmed(future.result(), self._clock.now())
            recovered = is_confirmed and self.is_failing
            self.is_failing = not is_confirmed
            if not is_confirmed:
                self._lease.failed()
        self._answered(error, recovered)
