"""What a worker sees of its job: who lives, which epoch it is, and that itself is still in it; and what it does then.

Every worker looks for those that are at work and have no lease. The one with the lowest id tells the loss at once, each
other one a little later than the one before it, unless somebody has; the head lets one through.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from latchwork.errors import Closed, Conflict, LatchworkError, SessionLost
from latchwork.primitives.waiting import delay_s
from latchwork.store.backoff import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.driving.bell import Bell
from latchwork.store.mirror import Mirror
from latchwork.store.steps import Signal, ask, steps_of
from latchwork.store.store import Store
from latchwork.types import Entry
from latchwork.workers import plans
from latchwork.workers.errors import JobFailed, JobFaulty, JobTerminated, Removed
from latchwork.workers.keys import RunKeys
from latchwork.workers.membership import Seat, standing_of
from latchwork.workers.plans import Scene, head_or_none, lost_members, read_members
from latchwork.workers.records import FAILED, Head, WorkerInfo, read_epoch, read_incarnation

_log = logging.getLogger(__name__)

#: Seconds for which the first state is waited for, again and again.
_FIRST_STATE_S = 30.0


class Losses:
    """Which losses are ours to tell, and when. Pure. One thread only."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def due(self, lost: list[Entry], rank: int, now: float) -> tuple[list[Entry], float | None]:
        """The losses that are due, and seconds until the next one is; None when there is none."""
        keys = {f"{entry.key} {entry.version}": entry for entry in lost}
        self._since = {name: self._since.get(name, now) for name in keys}
        at = {name: since + delay_s(rank) for name, since in self._since.items()}
        later = [moment - now for moment in at.values() if moment > now]
        return [keys[name] for name, moment in at.items() if moment <= now], min(later, default=None)


class Picture:
    """The job as it was last reported, kept current by mirrors. Safe to share between threads."""

    def __init__(self, store: Store, keys: RunKeys, on_change: Callable[[], None]) -> None:
        self._keys = keys
        with ExitStack() as opened:

            def follow(prefix: str) -> Mirror:
                mirror = opened.enter_context(store.mirror(prefix, wait=False))
                mirror.on_change(lambda _batch: on_change())
                return mirror

            self._head, self._epoch = follow(keys.head), follow(keys.epoch)
            self._members, self._live = follow(keys.members), follow(keys.live)
            self._opened = opened.pop_all()

    async def ready(self) -> None:
        """Wait for the first state."""
        for mirror in (self._head, self._epoch, self._members, self._live):
            await steps_of(mirror.ready)(_FIRST_STATE_S)

    def close(self) -> None:
        """Stop."""
        self._opened.close()

    @property
    def head(self) -> Head | None:
        """The head, while it is that of our run."""
        return head_or_none(self._head.get(self._keys.head), self._keys.run)

    @property
    def epoch(self) -> Entry | None:
        """The epoch."""
        return self._epoch.get(self._keys.epoch)

    @property
    def members(self) -> list[WorkerInfo]:
        """The workers, by id."""
        return read_members(self._members.snapshot().values())

    @property
    def live(self) -> list[str]:
        """The keys of the leases, by id."""
        return list(self._live)

    def lease(self, key: str) -> Entry | None:
        """A lease."""
        return self._live.get(key)

    def lost(self) -> list[Entry]:
        """The workers that have no lease, and should."""
        return lost_members(self._members.snapshot().values(), self._live, self._keys)


class Watching:
    """Follows the job of one worker in a thread of its own, until it is closed.

    Args:
        store: the store.
        seat: who we are.
        on_epoch: called with each epoch that begins after we joined.
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
        on_failed: Callable[[LatchworkError], None],
        on_end: Callable[[LatchworkError], None],
        on_events: Callable[[int], None],
    ) -> None:
        self._store = store
        self._seat = seat
        self._keys = seat.keys
        self._on_epoch = on_epoch
        self._on_failed = on_failed
        self._on_end = on_end
        self._on_events = on_events
        self._bell = Bell()
        self._closed = Signal()
        self._losses = Losses()
        self._epoch = -1
        self._has_failed = False
        self._events = -1
        self.picture = Picture(store, seat.keys, self._wake)
        self._forget = seat.session.on_end(self._wake)
        self._background = Background(self._run, f"latchwork-worker-{seat.info.id}")

    async def close(self) -> None:
        """Stop. Twice is fine."""
        self._closed.set()
        self._wake()
        self._forget()
        if not self._background.is_mine:
            await self._background

    def _wake(self) -> None:
        with self._bell.mutex:
            self._bell.ring()

    async def _run(self) -> None:
        backoff = Backoff()
        try:
            while not self._closed.is_set():
                with self._bell.mutex:
                    rings = self._bell.rings
                try:
                    pause_s = await self._look()
                    backoff.reset()
                except Closed:
                    return
                except LatchworkError as error:
                    _log.info("the job of worker %d is looked at again: %s", self._seat.info.id, error)
                    pause_s = backoff.next_s()
                await self._bell.rung(rings, self._store.clock, pause_s)
        finally:
            self.picture.close()

    async def _look(self) -> float | None:
        """Act on what there is; seconds until it has to be looked at again, None when only a change can need it."""
        await self.picture.ready()
        if self._seat.session.remaining_s() <= 0.0:
            self._end(SessionLost(f"the session of worker {self._seat.info.id} has ended; join again"))
            return None
        epoch, head = self.picture.epoch, self.picture.head
        lease = self.picture.lease(self._seat.live.key)
        if head is None or epoch is None or lease is None or lease.version != self._seat.live.version:
            error = await why_out(self._store, self._seat)
            if error is None:
                return 0.5  # one of the mirrors is behind: another change, or another look
            self._end(error)
            return None
        if read_epoch(epoch) > self._epoch:
            self._epoch = read_epoch(epoch)
            self._on_epoch(epoch)
        if head.events > self._events:
            self._events = head.events
            self._on_events(head.events)
        if head.state == FAILED and not self._has_failed:
            self._has_failed = True
            self._on_failed(failed(self._seat, head))
        if head.is_final:
            return None
        return await self._tell_losses()

    def _end(self, error: LatchworkError) -> None:
        self._closed.set()
        self._on_end(error)

    async def _tell_losses(self) -> float | None:
        lost = self.picture.lost()
        live = self.picture.live
        rank = live.index(self._seat.live.key) if self._seat.live.key in live else len(live)
        due, pause_s = self._losses.due(lost, rank, self._store.clock.now())
        for member in due:
            await tell_loss(self._store, self._keys, member)
        return pause_s if not due else 0.2


async def tell_loss(store: Store, keys: RunKeys, member: Entry) -> None:
    """Write that a worker is lost, unless that is not so, or somebody else has."""
    entry = await ask(store.get, keys.head)
    head = head_or_none(entry, keys.run)
    standing = await standing_of(store, keys)
    if entry is None or head is None or head.is_final or standing is None:
        return
    with suppress(Conflict):
        plan = plans.lost(Scene(keys, entry, time.time()), member, standing)
        await ask(store.commit, plan.checks, plan.ops)
        _log.warning("a worker of job %r is lost: %s", keys.job.job, member.key)


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
