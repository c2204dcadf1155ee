"""Leases of sessions and of lock owners: how long they last by our own clock, and when they are renewed.

``Lease`` decides and is pure: no I/O, no threads, no clock of its own. ``Renewer`` sends what it decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future

from latchwork.backends.futures import call_at_once, failed
from latchwork.clock import Clock
from latchwork.interrupts import mutex

#: Renewals that may be under way at once; one that hangs must not keep the next from being sent.
MAX_IN_FLIGHT = 4
#: A lease that others renew is renewed by itself only when they are so late, in parts of the usual interval.
WITHOUT_OTHERS = 1.125


class Lease:
    """When to renew a lease, and whether it is over: a confirmation that comes after its end is too late. Pure.

    A renewal counts from its send. With a gap, it counts only once another confirmed renewal was sent at least so
    much later, or a touch, which counts itself once a confirmed renewal was sent so much later (docs/design/locks.md).

    Args:
        opened_at: local clock time at which the request that created it was sent.
        ttl_s: how long it lasts without a renewal.
        confirm_gap_s: the gap.
        renew_s: seconds from the send of a renewal that was confirmed to the next; None for a third of the TTL.
        retry_s: from the send of one that failed; None for an eighth of the TTL.
        unanswered_s: from the send of one without an answer; None for an eighth of the TTL.
        touch_after_s: seconds from the send of a confirmed renewal to each touch before the next one.
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
        self._waiting: list[tuple[float, bool]] = []  # sends, and whether of renewals
        self._has_failed = self._renewed_by_others = False
        self._ended_at = math.inf

    @property
    def expires_at(self) -> float:
        """Local clock time at which it is over unless a renewal is confirmed before; at which it ended, if it did."""
        return min(self._ended_at, self._counted + self._ttl_s)

    def remaining_s(self, now: float) -> float:
        """Seconds left, 0 when it is over."""
        return max(0.0, min(self._ended_at, self._counted + self._ttl_s) - now)

    def is_over(self, now: float) -> bool:
        """True once it has run out or was ended: for good."""
        return now >= min(self._ended_at, self._counted + self._ttl_s)

    def silent_s(self, now: float) -> float:
        """Seconds since the send of the last confirmed renewal."""
        return now - self._confirmed_at

    def next_send(self, within_s: float = math.inf) -> float:
        """When to send the next renewal; at or after the expiry means never.

        Args:
            within_s: go as often as a lease of so long would, if that is more often.
        """
        pause_s = self._retry_s if self._has_failed else self._unanswered_s
        if self._sent_at <= self._confirmed_at:
            pause_s = self._renew_s * (WITHOUT_OTHERS if self._renewed_by_others else 1.0)
        return self._sent_at + pause_s * min(1.0, within_s / self._ttl_s)

    def next_touch(self) -> float:
        """When to send the next touch; infinity when only a renewal is worth something."""
        if self._sent_at > self._confirmed_at:
            return math.inf
        times = (self._sent_at + after_s for after_s in self._touch_after_s)
        return min((at for at in times if at > self._touched_at), default=math.inf)

    def touching(self, now: float) -> None:
        """A touch is being sent now; those that were due before it are left out."""
        self._touched_at = now

    def touched(self, sent_at: float, now: float) -> None:
        """The server answered now a touch sent then."""
        if not self.is_over(now):
            self._carried_at = max(self._carried_at, sent_at)
            self._waiting.append((sent_at, False))
            self._count()

    def sent(self, now: float) -> None:
        """A renewal is being sent now; extends nothing."""
        self._sent_at = max(self._sent_at, now)
        self._has_failed = self._renewed_by_others = False

    def sent_by_others(self, sent_at: float) -> None:
        """What others sent then was a renewal, too, and they will send the next: ours waits a little longer for it."""
        self.sent(sent_at)
        self._renewed_by_others = True

    def failed(self) -> None:
        """A renewal failed."""
        self._has_failed = True

    def confirmed(self, sent_at: float, now: float) -> bool:
        """The server confirmed now a renewal sent then; False if the lease was over, which it then stays."""
        if self.is_over(now):
            return False
        self._confirmed_at = max(self._confirmed_at, sent_at)
        self._waiting.append((sent_at, True))
        self._count()
        return True

    def end(self, now: float) -> None:
        """It is over now, however much was left."""
        self._ended_at = min(now, self.expires_at)

    def _count(self) -> None:
        renewed, seen = self._confirmed_at, max(self._confirmed_at, self._carried_at)
        counted = [sent for sent, renews in self._waiting if sent + self._gap_s <= (seen if renews else renewed)]
        self._counted = max([self._counted, *counted])
        self._waiting = [each for each in self._waiting if each[0] > self._counted]


class Renewer:
    """Keeps one lease: its owner calls ``step`` in a thread. Safe to share between threads.

    Args:
        lease: used by nobody else.
        clock: the local clock.
        send: sends a renewal: the future of the local time of its send. Must not block.
        answered: called for each renewal that has ended, with its error or None, and whether renewing works again
            since; in the thread of the client library that ends it.
        touch: sends a touch, as ``send`` does a renewal; None where the lease has no use for any.

    Attributes:
        is_failing: True since a renewal failed, or too many were under way, until one is confirmed.
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
        """True once the lease is over, whether or not anybody was told yet."""
        return self.remaining_s() <= 0.0

    def remaining_s(self) -> float:
        """Seconds left, 0 when it is over."""
        left_s = self._lease.remaining_s(self._clock.now())
        if left_s > 0.0:
            return left_s
        with self._lock:  # a confirmation that came before the end may be on its way into the lease
            return self._lease.remaining_s(self._clock.now())

    def silent_s(self) -> float:
        """Seconds since the send of the last confirmed renewal."""
        with self._lock:
            return self._lease.silent_s(self._clock.now())

    @property
    def expires_at(self) -> float:
        """Local clock time at which it is over unless it is renewed; at which it ended, if it did."""
        with self._lock:
            return self._lease.expires_at

    def end(self) -> None:
        """It is over now. Twice is fine."""
        with self._lock:
            self._lease.end(self._clock.now())

    def hurry(self) -> None:
        """Have a renewal sent with the next step, whether or not one is due."""
        with self._lock:
            self._in_a_hurry = True

    def renewed_otherwise(self, sent_at: float) -> None:
        """Something else that was sent then, and is confirmed now, was a renewal, too."""
        with self._lock:
            self._lease.sent_by_others(sent_at)
            if self._lease.confirmed(sent_at, self._clock.now()):
                self.is_failing = False

    def step(self, within_s: float = math.inf) -> tuple[float, int] | None:
        """Send a renewal if one is due; ``within_s`` as for ``Lease.next_send``.

        Returns:
            When to take the next step, at the latest; and how many renewals were under way if another was due. None
            when the lease is over.
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
            except Exception as error:  # renewing must go on, whatever went wrong once
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
