"""What a worker sees of its job: who lives, which epoch it is, and that itself is still in it; and what it does then.

Every process looks for workers that are at work and have no lease. That of the lowest id tells the loss at once, each
other one a little later than the one before it, unless somebody has; the head lets one through.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from latchwork.errors import LatchworkError, SessionLost
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.types import Entry
from latchwork.workers.errors import JobFailed, JobFaulty, JobTerminated, Removed
from latchwork.workers.membership import Seat
from latchwork.workers.observing import lookout_of
from latchwork.workers.plans import head_or_none
from latchwork.workers.records import FAILED, Head, read_epoch, read_incarnation


class Watching:
    """Follows the job for one worker, with the others of its process that are in it, until it is closed.

    Args:
        store: the store.
        seat: who we are.
        on_epoch: called with each epoch that begins after we joined.
        on_shrink: called with the number of workers after it was lowered, and again for barriers that we come to then.
        on_failed: called once, when the job has failed; we are in it until we leave.
        on_end: called once, with why we are not in the job any more.
        on_events: called when the number of events has grown.
    """

    def __init__(
        self,
        store: Store,
        seat: Seat,
        *,
        on_epoch: Callable[[Entry], None],
        on_shrink: Callable[[int], Awaitable[None]],
        on_failed: Callable[[LatchworkError], None],
        on_end: Callable[[LatchworkError], None],
        on_events: Callable[[int], None],
    ) -> None:
        self._store = store
        self._seat = seat
        self._on_epoch = on_epoch
        self._on_shrink = on_shrink
        self._on_failed = on_failed
        self._on_end = on_end
        self._on_events = on_events
        self.is_over = False
        self._epoch = -1
        self._has_failed = False
        self._events = -1
        self._shrinks = 0
        self.lease = seat.live.key
        self._lookout = lookout_of(store, seat.keys, self)
        self._forget = seat.session.on_end(self._lookout.wake)

    async def close(self) -> None:
        """Stop. Twice is fine."""
        self.is_over = True
        self._forget()
        await self._lookout.remove(self)

    @property
    def is_lowest(self) -> bool:
        """Whether no worker of a lower id lives."""
        return self._lookout.picture.rank({self.lease}) == 0

    def look_at_barriers(self) -> None:
        """We come to a barrier: it may have been opened before the job was scaled down."""
        head = self._lookout.picture.head
        if head is not None and head.shrinks:
            self._shrinks = 0
            self._lookout.wake()

    async def shrink(self, head: Head) -> None:
        """Act on a job that was scaled down, once for each time."""
        if self.is_over or head.shrinks == self._shrinks:
            return
        self._shrinks = head.shrinks
        try:
            await self._on_shrink(head.n)
        except LatchworkError:
            self._shrinks = 0
            raise

    def glance(self, epoch: Entry | None, head: Head | None, lease: Entry | None) -> bool:
        """Act on what is seen, without I/O; False if the store has to be asked what it means."""
        if self.is_over:
            return True
        if self._seat.session.remaining_s() <= 0.0:
            self._end(SessionLost(f"the session of worker {self._seat.info.id} has ended; join again"))
            return True
        if head is None or epoch is None or lease is None or lease.version != self._seat.live.version:
            return False
        if read_epoch(epoch) > self._epoch:
            self._epoch = read_epoch(epoch)
            self._on_epoch(epoch)
        if head.events > self._events:
            self._events = head.events
            self._on_events(head.events)
        if head.state == FAILED and not self._has_failed:
            self._has_failed = True
            self._on_failed(failed(self._seat, head))
        return True

    async def ask(self) -> bool:
        """Ask the store whether we are out; False if we are not, and the mirrors are behind."""
        if self.is_over:
            return True
        error = await why_out(self._store, self._seat)
        if error is not None:
            self._end(error)
        return error is not None

    def _end(self, error: LatchworkError) -> None:
        self.is_over = True
        self._on_end(error)


async def why_out(store: Store, seat: Seat) -> LatchworkError | None:
    """Why a worker is not in its job any more; None if it is."""
    number, keys = seat.info.id, seat.keys
    who = f"worker {number} ({seat.info.key}) of job {keys.job.job!r}"
    entry, live, member = await ask(store.get_many, [keys.head, keys.live_of(number), keys.member(seat.info.key)])
    if head_or_none(entry, keys.run) is None:
        ended = head_or_none(await ask(store.get, keys.job.ended), keys.run)
        told = f"{ended.state}: {ended.why}" if ended is not None and ended.why else "the job is no more"
        return JobTerminated(f"{who} has to stop, {told}; what it writes is refused")
    if live is not None and live.version == seat.live.version:
        return None
    if member is None:
        return Removed(f"{who} was removed, the job was scaled down; stop the work")
    if live is not None and read_incarnation(live) != seat.info.incarnation:
        return Removed(f"{who} was replaced by another process of the same key; stop the work")
    return SessionLost(f"{who} has no lease any more; stop the work, and join again")


async def why_refused(store: Store, seat: Seat, epoch: int) -> LatchworkError | None:
    """Why a write of a worker in an epoch was refused; None when it would not be now."""
    out = await why_out(store, seat)
    if out is not None:
        return out
    head, now = await ask(store.get_many, [seat.keys.head, seat.keys.epoch])
    told = head_or_none(head, seat.keys.run)
    if told is not None and told.state == FAILED:
        return failed(seat, told)
    if now is not None and read_epoch(now) > epoch:
        return faulty(seat, read_epoch(now))
    return None


def faulty(seat: Seat, epoch: int) -> JobFaulty:
    """The error of a worker whose epoch is over."""
    return JobFaulty(f"a worker of job {seat.keys.job.job!r} was lost: epoch {epoch} has begun; initialize again")


def failed(seat: Seat, head: Head) -> JobFailed:
    """The error of a worker whose job has failed."""
    return JobFailed(f"job {seat.keys.job.job!r} has failed: {head.why}; stop the work")
