"""How many permits may be given now: pure, by our own clock, no I/O.

Permits are numbered in the order in which they are given. Every node remembers how many had been given when, by its own
clock, it came to know of it; so a permit is at least as old as that. One more may be given when the permit as many
before it as the limit is known to be older than the interval.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Positive, Seconds, encode
from latchwork.types import Entry


class Permits(Struct, frozen=True):
    """What is stored of a rate limiter.

    Attributes:
        limit: permits per interval.
        interval_s: seconds.
        slack_s: a permit that reaches its taker later than this is not used.
        given: permits given since the beginning.
    """

    limit: Positive
    interval_s: Seconds
    slack_s: Seconds
    given: Count = 0

    @classmethod
    def of(cls, entry: Entry) -> Permits:
        """What is stored.

        Raises:
            BadRecord: it is no rate limiter.
        """
        return _PERMITS.decode_entry(entry)

    def to_bytes(self) -> bytes:
        """What to store."""
        return encode(self)

    def is_like(self, other: Permits) -> bool:
        """True when both have the same limit, interval and slack."""
        return replace(self, given=0) == replace(other, given=0)

    def with_more(self, count: int) -> Permits:
        """After so many more were given."""
        return replace(self, given=self.given + count)


_PERMITS: Decoder[Permits] = Decoder(Permits, "permits of a rate limiter", "use another name")


class Window:
    """What one node knows of the age of permits. Not safe by itself: its owner holds a lock."""

    def __init__(self) -> None:
        self._permits: Permits | None = None
        self._life = 0
        self._old = 0  # so many are known to be older than the interval
        self._young: deque[tuple[float, int]] = deque()  # when we knew of how many, the oldest first

    def learn(self, permits: Permits, life: int, now: float) -> None:
        """Be told, now, how many had been given; news that are older than what we know change nothing.

        Of those that had been given before we first knew of any, the last ones may have been given just now. In another
        life, when the limiter was deleted and made anew, all that it ever gives may come right after those of the old.

        Args:
            permits: as stored.
            life: the token of its creation.
            now: not before the answer came.
        """
        before = self._permits
        if before is not None and (life, permits.given) <= (self._life, before.given):
            return
        if before is None:
            self._old = max(0, permits.given - permits.limit)
        elif life != self._life:
            self._old = -permits.limit
            self._young.clear()
        self._young.append((now, permits.given))
        self._permits, self._life = permits, life
        self._age(now)

    def wait_s(self, count: int, now: float) -> float:
        """Seconds until so many permits may be given, if nobody else takes any; 0 when they may."""
        self._age(now)
        assert self._permits is not None
        permits = self._permits
        needed = permits.given + count - permits.limit  # so many must be old
        if needed <= self._old:
            return 0.0
        for seen_at, given in self._young:
            if given >= needed:
                return max(0.0, seen_at + _lifetime_s(permits) - now)
        return _lifetime_s(permits)

    def _age(self, now: float) -> None:
        assert self._permits is not None
        while self._young and self._young[0][0] + _lifetime_s(self._permits) <= now:
            self._old = max(self._old, self._young.popleft()[1])


def _lifetime_s(permits: Permits) -> float:
    """How long a permit counts after we came to know of it. Clocks may differ in speed by a thousandth."""
    return (permits.interval_s + permits.slack_s) * 1.001
