"""What a worker sees of its job: who is a member, alive or lost, which epoch it is, and that it is still in it.

One picture and one thread that looks serve all workers of a run on one store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from latchwork.callers import current
from latchwork.errors import Closed, Conflict, LatchworkError, SessionLost
from latchwork.interrupts import mutex
from latchwork.primitives.waiting import delay_s
from latchwork.store.backoff import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.mirror import Mirror
from latchwork.store.steps import Pause, Signal, ask
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Entry
from latchwork.worker_group import transactions
from latchwork.worker_group.errors import JobFailed, JobFaulty, JobTerminated, Removed
from latchwork.worker_group.keys import RunKeys
from latchwork.worker_group.membership import Seat, standing_of
from latchwork.worker_group.records import FAILED, GroupHead, WorkerInfo, read_epoch, read_incarnation
from latchwork.worker_group.transactions import Scene, head_or_none

_log = logging.getLogger(__name__)

#: Seconds after which somebody whose lease we have never seen is believed to have none.
_NEVER_SEEN_S = 0.5

#: A loss that was told is looked for again after so long; what the mirrors do not show yet, too.
_AGAIN_S, _BEHIND_S = 0.2, 0.5
#: For many workers it looks at most so often: each look is at all of them, and while they join each join is a change.
_FEW, _BREATH_S = 4, 0.01
_shelves: WeakKeyDictionary[Store, Shelf] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Missing:
    """One that is at work and has no lease.

    Attributes:
        member: its record.
        had_one: whether we have seen that it had a lease, and that it went. Otherwise our picture of the leases may be
            behind that of the members, which come on their own: both are written in one transaction.
    """

    member: Entry
    had_one: bool


class Roll:
    """Who is a member and who lives, folded change by change. Pure. Not safe to share: its owner holds a mutex."""

    def __init__(self, keys: RunKeys) -> None:
        self._keys = keys
        self._leases: dict[str, Entry] = {}
        self._members: dict[str, tuple[str, Entry]] = {}
        self._by_lease: dict[str, str] = {}
        self._went: dict[str, str] = {}

    def see_member(self, key: str, entry: Entry | None) -> None:
        """A member's record is this now; one that is no member's is none."""
        lease, _ = self._members.pop(key, ("", None))
        if self._by_lease.get(lease) == key:
            del self._by_lease[lease]
        info = None if entry is None else WorkerInfo.or_none(entry)
        if entry is not None and info is not None and info.is_at_work:
            lease = self._keys.live_of(info.id)
            self._members[key] = (lease, entry)
            self._by_lease[lease] = key

    def see_lease(self, key: str, entry: Entry | None) -> None:
        """A lease is this now."""
        if entry is None:
            lease = self._leases.pop(key, None)
            if lease is not None:
                self._went[key] = read_incarnation(lease)
        else:
            self._leases[key] = entry

    def lease(self, key: str) -> Entry | None:
        """A lease."""
        return self._leases.get(key)

    def rank(self, keys: set[str]) -> int:
        """How many live that come before the first of these."""
        first = min(keys & self._leases.keys(), default=None)
        return sum(key < first for key in self._leases) if first is not None else len(self._leases)

    def lost(self) -> list[Missing]:
        """Those that are at work and have no lease, by id."""
        missing = sorted(self._by_lease.keys() - self._leases.keys())
        members = [(lease, self._members[self._by_lease[lease]][1]) for lease in missing]
        return [Missing(each, self._went.get(lease) == read_incarnation(each)) for lease, each in members]


class Picture:
    """A run as it was last reported, kept current by mirrors. Safe to share between threads.

    Args:
        store: the store.
        keys: of the run.
        bell: is rung with each change.
    """

    def __init__(self, store: Store, keys: RunKeys, bell: Notifier) -> None:
        self._keys = keys
        self._bell = bell
        self._roll = Roll(keys)
        self._awaited: set[str] = set()
        with ExitStack() as opened:

            def follow(prefix: str, see: Callable[[str, Entry | None], None]) -> Mirror:
                mirror = opened.enter_context(store.mirror(prefix, wait=False))
                self._awaited.add(prefix)
                mirror.on_change(lambda batch: self._take_in(prefix, batch, see))
                return mirror

            self._head, self._epoch = follow(keys.head, _nothing), follow(keys.epoch, _nothing)
            self._members = follow(keys.members, self._roll.see_member)
            self._live = follow(keys.live, self._roll.see_lease)
            self._opened = opened.pop_all()

    def _take_in(self, prefix: str, batch: Batch, see: Callable[[str, Entry | None], None]) -> None:
        with self._bell.mutex:
            for change in batch:
                see(change.key, change.entry)
            self._awaited.discard(prefix)
            self._bell.ring()

    @property
    def is_ready(self) -> bool:
        """Whether the first state has been reported. While the store is away it is not; nobody waits for it alone."""
        return not self._awaited

    def close(self) -> None:
        """Stop."""
        self._opened.close()

    @property
    def head(self) -> GroupHead | None:
        """The head, while it is that of our run."""
        return head_or_none(self._head.get(self._keys.head), self._keys.run)

    @property
    def epoch(self) -> Entry | None:
        """The epoch."""
        return self._epoch.get(self._keys.epoch)

    def lease(self, key: str) -> Entry | None:
        """A lease."""
        return self._live.get(key)

    def rank(self, keys: set[str]) -> int:
        """How many live that come before the first of these leases."""
        with self._bell.mutex:
            return self._roll.rank(keys)

    def lost(self) -> list[Missing]:
        """The workers that have no lease, and should; by id."""
        with self._bell.mutex:
            return self._roll.lost()


def _nothing(_key: str, _entry: Entry | None) -> None:
    pass


class Losses:
    """Which losses are ours to tell, and when. Pure. One thread only."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def due(self, lost: list[Missing], rank: int, now: float) -> tuple[list[Entry], float | None]:
        """The losses that are due, and seconds until the next one is; None when there is none."""
        found = {f"{each.member.key} {each.member.version}": each for each in lost}
        self._since = {name: self._since.get(name, now) for name in found}
        at = {
            name: since + delay_s(rank) + (0.0 if found[name].had_one else _NEVER_SEEN_S)
            for name, since in self._since.items()
        }
        later = [moment - now for moment in at.values() if moment > now]
        return [found[name].member for name, moment in at.items() if moment <= now], min(later, default=None)


async def tell_loss(store: Store, keys: RunKeys, member: Entry) -> None:
    """Write that a worker is lost, unless that is not so, or somebody else has."""
    entry = await ask(store.get, keys.head)
    head = head_or_none(entry, keys.run)
    standing = await standing_of(store, keys)
    if entry is None or head is None or head.is_final or standing is None:
        return
    with suppress(Conflict):
        txn = transactions.lost(Scene(keys, entry, time.time()), member, standing)
        await ask(store.commit, txn.checks, txn.ops)
        _log.warning("a worker of job %r is lost: %s", keys.job.job, member.key)


class Lookout:
    """Follows a run for all workers of it on one store, in one thread; see ``lookout_of``."""

    def __init__(self, store: Store, keys: RunKeys, shelf: Shelf | None = None) -> None:
        self._store = store
        self._keys = keys
        self._shelf = shelf
        self._bell = Notifier()
        self._closed = Signal()
        self._losses = Losses()
        self._own = mutex()
        self._workers: dict[object, Watching] = {}
        self.picture = Picture(store, keys, self._bell)
        self._background = Background(self._run, f"latchwork-workers-{keys.job.job}")

    def add(self, worker: Watching) -> None:
        """Look for one more."""
        self._workers[worker] = worker
        self.wake()

    def wake(self) -> None:
        """Look again."""
        with self._bell.mutex:
            self._bell.ring()

    async def remove(self, worker: Watching) -> None:
        """Look no more for one; the last one ends all. Twice is fine."""
        if not self._drop([worker]):
            return
        self.wake()
        if not self._background.is_mine:
            await self._background

    def _drop(self, workers: Iterable[Watching]) -> bool:
        """Look no more for these; True once there is nobody left, and nobody will come."""
        with self._shelf.mutex if self._shelf is not None else self._own:
            for worker in workers:
                self._workers.pop(worker, None)
            if self._workers:
                return False
            if self._shelf is not None and self._shelf.lookouts.get(self._keys.folder) is self:
                del self._shelf.lookouts[self._keys.folder]
        self._closed.set()
        return True

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
                    _log.info("the run of job %r is looked at again: %s", self._keys.job.job, error)
                    pause_s = backoff.next_s()
                if self._closed.is_set():
                    return
                if len(self._workers) > _FEW:
                    await Pause(self._store.clock, self._closed, _BREATH_S)
                await self._bell.rung(rings, self._store.clock, pause_s)
        finally:
            self.picture.close()

    async def _look(self) -> float | None:
        """Act on what there is; seconds until it has to be looked at again, None when only a change can need it."""
        workers = list(self._workers.values())
        for each in workers:
            each.end_with_session()
        if self._drop(each for each in workers if each.is_over) or not self.picture.is_ready:
            return None
        epoch, head = self.picture.epoch, self.picture.head
        doubtful = [each for each in workers if not each.glance(epoch, head, self.picture.lease(each.lease))]
        is_behind = False
        for each in doubtful:
            is_behind |= not await each.ask()
        if self._drop(each for each in workers if each.is_over):
            return None
        if head is None or head.is_final:
            return _BEHIND_S if is_behind else None
        for each in workers:
            await each.shrink(head)
        pause_s = await self._tell_losses({each.lease for each in workers if each not in doubtful})
        return min(_BEHIND_S, pause_s or _BEHIND_S) if is_behind else pause_s

    async def _tell_losses(self, ours: set[str]) -> float | None:
        lost = self.picture.lost()
        if not ours or not lost:
            return None
        due, pause_s = self._losses.due(lost, self.picture.rank(ours), self._store.clock.now())
        for member in due:
            await tell_loss(self._store, self._keys, member)
        return pause_s if not due else _AGAIN_S


class Shelf:
    """The lookouts of a store, by the folder of the run.

    Attributes:
        mutex: held while one comes or goes.
        lookouts: by folder.
    """

    def __init__(self) -> None:
        self.mutex = mutex()
        self.lookouts: dict[str, Lookout] = {}


def lookout_of(store: Store, keys: RunKeys, worker: Watching) -> Lookout:
    """The lookout of a run, with one worker more: the same one for all threads that share a store.

    A task of an event loop has one of its own: what goes on for it in the background ends with its loop.
    """
    if current() is not None:
        one = Lookout(store, keys)
        one.add(worker)
        return one
    shelf = _shelves.setdefault(store, Shelf())
    with shelf.mutex:
        found = shelf.lookouts.get(keys.folder)
        if found is None:
            found = shelf.lookouts[keys.folder] = Lookout(store, keys, shelf)
        found.add(worker)
    return found


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

    async def shrink(self, head: GroupHead) -> None:
        """Act on a job that was scaled down, once for each time."""
        if self.is_over or head.shrinks == self._shrinks:
            return
        self._shrinks = head.shrinks
        try:
            await self._on_shrink(head.n)
        except LatchworkError:
            self._shrinks = 0
            raise

    def end_with_session(self) -> None:
        """Be out once the session has ended, whatever the store says, and while it says nothing."""
        if not self.is_over and self._seat.session.remaining_s() <= 0.0:
            self._end(SessionLost(f"the session of worker {self._seat.info.id} has ended; join again"))

    def glance(self, epoch: Entry | None, head: GroupHead | None, lease: Entry | None) -> bool:
        """Act on what is seen, without I/O; False if the store has to be asked what it means."""
        if self.is_over:
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


def failed(seat: Seat, head: GroupHead) -> JobFailed:
    """The error of a worker whose job has failed."""
    return JobFailed(f"job {seat.keys.job.job!r} has failed: {head.why}; stop the work")
