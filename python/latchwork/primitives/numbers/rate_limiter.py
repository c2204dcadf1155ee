"""At most n permits per interval in the whole cluster, without comparing the clocks of machines.

Keys:  <name>/permits           limit, interval, slack, and how many permits were given since the beginning; as JSON
       <name>/queue/t-<nonce>   one ticket per waiter, dies with its session
Rule:  a client takes a permit only if the permit that precedes it by the limit is older than interval plus slack by
       that client's clock. It writes the number of permits on condition that no other client took any meanwhile. It
       uses them only if the answer comes within the slack.

From this follows what is promised: a permit is used, at the latest, the slack after it was written, and the one that
follows it by the limit is written, at the earliest, the interval and the slack after that
(docs/design/groups-and-queues.md).

Permits are numbered in the order in which they are given. Every node remembers how many had been given when, by its own
clock, it came to know of it; so a permit is at least as old as that.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from weakref import WeakMethod

from msgspec.structs import replace

from latchwork._base.decoding import MAX_DURATION_S, Count, Decoder, Positive, Record, Seconds
from latchwork._base.interrupts import call_after_finalizer, mutex
from latchwork._base.validation import check_store
from latchwork.errors import BadRecord, Conflict, LatchworkError, WaitTimeout
from latchwork.primitives.fair.tickets import QueuePosition, Ticket, TicketQueue, wait_for_turn
from latchwork.primitives.waiting.arguments import check_integer, check_name
from latchwork.primitives.waiting.closable import Closable
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.waiter import Waiter, WaiterRegistry, get_or_create
from latchwork.store.session import Session
from latchwork.store.steps import ask, blocking
from latchwork.store.store import Store
from latchwork.store.watch import Batch, Watch
from latchwork.types import At, Delete, Entry, Op, Put

_log = logging.getLogger(__name__)
_SLACK_PART, _LEAST_SLACK_S = 0.1, 0.05


class Permits(Record, frozen=True):
    """The stored state of a rate limiter.

    Attributes:
        limit: Permits per interval.
        interval_s: The interval in seconds.
        slack_s: The longest time in seconds from the write of a permit to its use. A client that gets the answer later
            wastes the permit.
        given: The number of permits issued since the beginning.
    """

    limit: Positive
    interval_s: Seconds
    slack_s: Seconds
    given: Count = 0

    @classmethod
    def from_entry(cls, entry: Entry) -> Permits:
        """Decode the stored state of a rate limiter.

        Raises:
            BadRecord: The value is another kind of record.
        """
        return _PERMITS.decode_entry(entry)

    def has_same_settings(self, other: Permits) -> bool:
        """Return whether another state has the same limit, interval and slack."""
        return replace(self, given=0) == replace(other, given=0)

    def after_issuing(self, count: int) -> Permits:
        """Return the state after ``count`` more permits were issued."""
        return replace(self, given=self.given + count)


_PERMITS: Decoder[Permits] = Decoder(Permits, "permits of a rate limiter", "use another name")


class PermitAges:
    """The ages of issued permits as far as this process knows them, to decide when the next permits may be taken.

    Not thread-safe: the caller holds a mutex.
    """

    def __init__(self) -> None:
        self._permits: Permits | None = None
        self._incarnation = 0
        self._old = 0  # so many are known to be older than the interval
        self._young: deque[tuple[float, int]] = deque()  # when we knew of how many, the oldest first

    def record(self, permits: Permits, incarnation: int, now: float) -> None:
        """Note how many permits had been issued by a certain time. Calls with older states are ignored.

        Permits that were issued before the first call count as new, because their age is unknown. If the limiter was
        deleted and created again, the permits of the old limiter count as new too.

        Args:
            permits: The stored state.
            incarnation: Token of the creation of the stored state.
            now: Local clock time at which the answer had arrived.
        """
        before = self._permits
        if before is not None and (incarnation, permits.given) <= (self._incarnation, before.given):
            return
        if before is None:
            self._old = max(0, permits.given - permits.limit)
        elif incarnation != self._incarnation:
            self._old = -permits.limit
            self._young.clear()
        self._young.append((now, permits.given))
        self._permits, self._incarnation = permits, incarnation
        self._age(now)

    def get_wait_s(self, count: int, now: float) -> float:
        """Return how many seconds to wait before ``count`` permits may be taken, if no other client takes any. 0 means
        now.
        """
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
    """Return for how many seconds an issued permit counts against the limit, allowing for a clock drift of 0.1 %."""
    return (permits.interval_s + permits.slack_s) * 1.001


class RateLimiter(Closable):
    """A rate limit for the whole cluster: ``RateLimiter(store, "mail", permits=100, interval_s=60).acquire()``.

    In this example, ``acquire`` returns at most 100 times in any minute, in all processes together. The rate is at most
    ``permits / (interval_s + slack_s)``, with one write per acquisition. An object that finds issued permits at its
    first read may have to wait for one interval, because it does not know their age. So keep one object per process.
    Construction does no I/O. Thread-safe.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key of the limiter.
        permits: Permits per interval; the same for all clients.
        interval_s: The interval in seconds; the same for all clients.
        slack_s: Seconds within which the store must answer, the same for all clients. Permits with later answers are
            not used. None uses a tenth of the interval, at least 0.05 s.
        session: The session whose end ends waits of this object; the caller closes it. None uses the store's primary
            session.
        label: The name of the waiting client, shown to others.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        permits: int,
        interval_s: float,
        slack_s: float | None = None,
        session: Session | None = None,
        label: str = "",
    ) -> None:
        check_store(store, "a rate limiter")
        self.name = check_name(name, "rate limiter")
        if not check_integer(permits, "permits") >= 1:
            raise ValueError(f"permits must be at least 1, not {permits!r}")
        if not 0.0 < interval_s <= MAX_DURATION_S:
            raise ValueError(f"interval_s must be more than 0, and at most {MAX_DURATION_S:g} s, not {interval_s!r}")
        slack_s = max(_LEAST_SLACK_S, interval_s * _SLACK_PART) if slack_s is None else slack_s
        if not 0.0 < slack_s <= MAX_DURATION_S:
            raise ValueError(f"slack_s must be more than 0, and at most {MAX_DURATION_S:g} s, not {slack_s!r}")
        self._fresh = Permits(permits, float(interval_s), float(slack_s))
        self._what = f"rate limiter {name!r}"
        self._store = store
        self._key = f"{name}/permits"
        self._waits = WaiterRegistry(store, self._what, session)
        self._queue = TicketQueue(store, f"{name}/queue", self._what, label)
        self._lock = mutex()
        self._window = PermitAges()
        self._watch: Watch | None = None

    def __repr__(self) -> str:
        return f"<RateLimiter {self.name!r} {self._fresh.limit} per {self._fresh.interval_s:g} s>"

    @blocking
    async def acquire(self, count: int = 1, *, timeout_s: float | None = None) -> None:
        """Wait for permits and take them.

        Waiting clients are served in the order of arrival. A client that arrives just when a permit is free may get it
        first.

        Args:
            count: The number of permits.
            timeout_s: Seconds to wait. None waits forever, 0 tries once.
        Raises:
            WaitTimeout: No permits were free in time, or the store answered too slowly and permits were wasted.
            ValueError: ``count`` exceeds the permits per interval.
            SessionLost: Our session ended while waiting.
            Unavailable, OutcomeUnknown: The server could not be reached in time. Permits may be wasted.
            Closed, ForkedProcess: As for every primitive.
            LatchworkError: The limiter has another rate, or the call is inside a callback.
        """
        if not 1 <= check_integer(count, "count") <= self._fresh.limit:
            raise ValueError(f"{self._what} can give 1 to {self._fresh.limit} permits at once, not {count!r}")
        async with self._waits.start(timeout_s) as (waiter, deadline):
            late = 0
            while True:
                wait_s = await waiter.keep_trying(lambda: self._try_take(count, None), deadline)
                if wait_s == 0.0 or (wait_s is not None and await self._wait_and_take(count, waiter, deadline, late)):
                    return
                late += 1

    @blocking
    async def waiters(self) -> list[Ticket]:
        """Return the clients that wait for permits, in the order in which they will get them.

        Returns:
            One ``Ticket`` per client, which describes the client.
        """
        return await self._queue.tickets()

    @blocking
    async def issued(self) -> int:
        """Return how many permits were issued since the beginning, including wasted ones."""
        self._waits.ensure_usable()
        entry = await ask(self._store.get, self._key)
        return 0 if entry is None else Permits.from_entry(entry).given

    def close(self) -> None:
        """Stop watching the permits, and make all waiting calls of this object raise ``Closed``. Thread-safe and
        idempotent.
        """
        if self._waits.close():
            with self._lock:
                watch, self._watch = self._watch, None
            if watch is not None:
                watch.close()

    def __del__(self) -> None:
        watch = getattr(self, "_watch", None)  # none if an argument was refused
        if watch is not None:
            call_after_finalizer(watch.close, "latchwork-close")

    # Inside

    async def _wait_and_take(self, count: int, waiter: Waiter, deadline: Deadline, late: int) -> bool:
        """Wait in the queue until permits are free, and take them.

        Args:
            count: The number of permits.
            waiter: The waiting call.
            deadline: When the wait times out.
            late: How often this call took permits whose answer came too late before, for the error message.
        Returns:
            True if they were taken. False if the answer came after ``slack_s``, so that the permits must not be used.
        """
        position = None if deadline.has_passed else await wait_for_turn(self._queue, waiter, deadline)
        if position is None:
            raise self._timed_out(waiter, late)
        is_gone = False
        try:
            while True:
                wait_s = await waiter.keep_trying(lambda: self._try_take(count, position), deadline)
                is_gone = not wait_s  # our ticket is deleted in the transaction that takes the permits
                if is_gone:
                    return wait_s == 0.0
                if deadline.has_passed or not await waiter.pause(deadline.left_s(wait_s)):
                    raise self._timed_out(waiter, late)
        finally:
            if not is_gone:
                await self._queue.leave(position)

    async def _try_take(self, count: int, position: QueuePosition | None) -> float | None:
        """Take permits if they are free.

        Args:
            count: The number of permits.
            position: Our position in the queue. Its ticket is deleted in the same transaction. None if we do not queue.
        Returns:
            0.0 if they were taken, else the seconds to wait. None if the server answered too late.
        """
        clock = self._store.clock
        if self._watch is None:
            self._start_watch()
        ops: list[Op] = [] if position is None else [Delete(position.ticket.key)]
        while True:
            entry = await self._read()
            permits = self._record_permits(entry)
            with self._lock:
                wait_s = self._window.get_wait_s(count, clock.now())
            if wait_s > 0.0:
                return wait_s
            sent_at = clock.now()
            try:
                put = Put(self._key, permits.after_issuing(count).to_bytes())
                done = await ask(self._store.commit, [At(entry)], [put, *ops])
            except Conflict:
                continue
            self._record_permits(done.entries[0])
            took_s = clock.now() - sent_at
            if took_s <= permits.slack_s:
                return 0.0
            _log.warning(
                "%s: the answer took %.3g s, its slack is %.3g s: %d permits are wasted",
                self._what,
                took_s,
                permits.slack_s,
                count,
            )
            return None

    def _start_watch(self) -> None:
        """Start watching the permits. The earlier this process sees a permit, the earlier it may take the next one."""
        watch = self._store.watch(self._key)
        with self._lock:
            is_wanted = self._watch is None and not self._waits.is_closed
            if is_wanted:
                self._watch = watch
        if is_wanted:
            on_change = WeakMethod(self._on_change)  # the store holds the watch, which must not hold the limiter
            watch.subscribe(lambda batch: _check_if_alive(on_change, batch))
        else:
            watch.close()

    def _on_change(self, batch: Batch) -> None:
        for change in batch:
            if change.entry is not None:
                try:
                    self._record_permits(change.entry)
                except BadRecord as error:  # the next call raises it
                    _log.warning("%s: %s", self._what, error)

    def _record_permits(self, entry: Entry) -> Permits:
        permits = Permits.from_entry(entry)
        with self._lock:
            self._window.record(permits, entry.created, self._store.clock.now())
        return permits

    async def _read(self) -> Entry:
        entry = await get_or_create(self._store, self._key, self._fresh.to_bytes())
        permits = Permits.from_entry(entry)
        if not permits.has_same_settings(self._fresh):
            raise LatchworkError(
                f"{self._what} gives {permits.limit} per {permits.interval_s:g} s, with slack {permits.slack_s:g} s; "
                "create it with these values, or use another name"
            )
        return entry

    def _timed_out(self, waiter: Waiter, late: int) -> WaitTimeout:
        self._waits.raise_if_ended(waiter)
        slow = f"; {late} answers came later than its slack_s, which is too short" if late else ""
        return WaitTimeout(f"{self._what} had no permit for us in time{slow}; wait longer, or ask for fewer")


def _check_if_alive(on_change: Callable[[], Callable[[Batch], None] | None], batch: Batch) -> None:
    fn = on_change()
    if fn is not None:
        fn(batch)
