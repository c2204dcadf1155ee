"""What a worker sees of its group: who is a member, alive or lost, which epoch it is, and that it is still in it.

One mirror and one thread that looks serve all workers of a run on one store.
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
from latchwork.worker_group.errors import EpochEnded, GroupFailed, GroupTerminated, WorkerRemoved
from latchwork.worker_group.keys import RunKeys
from latchwork.worker_group.membership import WorkerMembership, read_epoch_state
from latchwork.worker_group.records import FAILED, GroupRecord, WorkerInfo, read_epoch, read_incarnation
from latchwork.worker_group.transactions import GroupSnapshot, record_or_none

_log = logging.getLogger(__name__)

#: Seconds after which somebody whose lease we have never seen is believed to have none.
_NEVER_SEEN_S = 0.5

#: A loss that was told is looked for again after so long; what the mirrors do not show yet, too.
_RECHECK_S, _STALE_RETRY_S = 0.2, 0.5
#: For many workers it looks at most so often: each look is at all of them, and while they join each join is a change.
_SMALL_GROUP, _BATCH_S = 4, 0.01
_registries: WeakKeyDictionary[Store, WatcherRegistry] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class MissingWorker:
    """One that is at work and has no lease.

    Attributes:
        member: its record.
        had_lease: whether we have seen that it had a lease, and that it went. Otherwise our mirror of the leases may be
            count_behind that of the members, which come on their own: both are written in one transaction.
    """

    member: Entry
    had_lease: bool


class Roster:
    """Who is a member and who lives, folded change by change. Pure. Not safe to share: its owner holds a mutex."""

    def __init__(self, keys: RunKeys) -> None:
        self._keys = keys
        self._leases: dict[str, Entry] = {}
        self._members: dict[str, tuple[str, Entry]] = {}
        self._by_lease: dict[str, str] = {}
        self._expired: dict[str, str] = {}

    def set_member(self, key: str, entry: Entry | None) -> None:
        """A member's record is this now; one that is no member's is none."""
        lease, _ = self._members.pop(key, ("", None))
        if self._by_lease.get(lease) == key:
            del self._by_lease[lease]
        info = None if entry is None else WorkerInfo.or_none(entry)
        if entry is not None and info is not None and info.is_active:
            lease = self._keys.lease(info.rank)
            self._members[key] = (lease, entry)
            self._by_lease[lease] = key

    def set_lease(self, key: str, entry: Entry | None) -> None:
        """A lease is this now."""
        if entry is None:
            lease = self._leases.pop(key, None)
            if lease is not None:
                self._expired[key] = read_incarnation(lease)
        else:
            self._leases[key] = entry

    def lease(self, key: str) -> Entry | None:
        """A lease."""
        return self._leases.get(key)

    def count_before(self, keys: set[str]) -> int:
        """How many live that come before the first of these."""
        first = min(keys & self._leases.keys(), default=None)
        return sum(key < first for key in self._leases) if first is not None else len(self._leases)

    def lost(self) -> list[MissingWorker]:
        """Those that are at work and have no lease, by id."""
        missing = sorted(self._by_lease.keys() - self._leases.keys())
        members = [(lease, self._members[self._by_lease[lease]][1]) for lease in missing]
        return [MissingWorker(each, self._expired.get(lease) == read_incarnation(each)) for lease, each in members]


class GroupMirror:
    """A run as it was last reported, kept current by mirrors. Safe to share between threads.

    Args:
        store: the store.
        keys: of the run.
        notifier: is rung with each change.
    """

    def __init__(self, store: Store, keys: RunKeys, notifier: Notifier) -> None:
        self._keys = keys
        self._notifier = notifier
        self._roster = Roster(keys)
        self._awaited: set[str] = set()
        with ExitStack() as opened:

            def follow(prefix: str, see: Callable[[str, Entry | None], None]) -> Mirror:
                mirror = opened.enter_context(store.mirror(prefix, wait=False))
                self._awaited.add(prefix)
                mirror.on_change(lambda batch: self._take_in(prefix, batch, see))
                return mirror

            self._record_mirror, self._epoch = follow(keys.record, _nothing), follow(keys.epoch, _nothing)
            self._members = follow(keys.members, self._roster.set_member)
            self._live = follow(keys.leases, self._roster.set_lease)
            self._opened = opened.pop_all()

    def _take_in(self, prefix: str, batch: Batch, see: Callable[[str, Entry | None], None]) -> None:
        with self._notifier.mutex:
            for change in batch:
                see(change.key, change.entry)
            self._awaited.discard(prefix)
            self._notifier.ring()

    @property
    def is_ready(self) -> bool:
        """Whether the first state has been reported. While the store is away it is not; nobody waits for it alone."""
        return not self._awaited

    def close(self) -> None:
        """Stop."""
        self._opened.close()

    @property
    def record(self) -> GroupRecord | None:
        """The record, while it is that of our run."""
        return record_or_none(self._record_mirror.get(self._keys.record), self._keys.run)

    @property
    def epoch(self) -> Entry | None:
        """The epoch."""
        return self._epoch.get(self._keys.epoch)

    def lease(self, key: str) -> Entry | None:
        """A lease."""
        return self._live.get(key)

    def count_before(self, keys: set[str]) -> int:
        """How many live that come before the first of these leases."""
        with self._notifier.mutex:
            return self._roster.count_before(keys)

    def lost(self) -> list[MissingWorker]:
        """The workers that have no lease, and should; by id."""
        with self._notifier.mutex:
            return self._roster.lost()


def _nothing(_key: str, _entry: Entry | None) -> None:
    pass


class LossDetector:
    """Which detector are ours to tell, and when. Pure. One thread only."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def due(self, lost: list[MissingWorker], rank: int, now: float) -> tuple[list[Entry], float | None]:
        """The detector that are due, and seconds until the next one is; None when there is none."""
        found = {f"{each.member.key} {each.member.version}": each for each in lost}
        self._since = {name: self._since.get(name, now) for name in found}
        at = {
            name: since + delay_s(rank) + (0.0 if found[name].had_lease else _NEVER_SEEN_S)
            for name, since in self._since.items()
        }
        later = [moment - now for moment in at.values() if moment > now]
        return [found[name].member for name, moment in at.items() if moment <= now], min(later, default=None)


async def report_loss(store: Store, keys: RunKeys, member: Entry) -> None:
    """Write that a worker is lost, unless that is not so, or somebody else has."""
    entry = await ask(store.get, keys.record)
    record = record_or_none(entry, keys.run)
    epoch_state = await read_epoch_state(store, keys)
    if entry is None or record is None or record.is_final or epoch_state is None:
        return
    with suppress(Conflict):
        txn = transactions.mark_lost(GroupSnapshot(keys, entry, time.time()), member, epoch_state)
        await ask(store.commit, txn.checks, txn.ops)
        _log.warning("a worker of group %r is lost: %s", keys.group.group, member.key)


class GroupWatcher:
    """Follows a run for all workers of it on one store, in one thread; see ``watch_group``."""

    def __init__(self, store: Store, keys: RunKeys, registry: WatcherRegistry | None = None) -> None:
        self._store = store
        self._keys = keys
        self._registry = registry
        self._notifier = Notifier()
        self._closed = Signal()
        self._detector = LossDetector()
        self._own = mutex()
        self._workers: dict[object, WorkerWatcher] = {}
        self.mirror = GroupMirror(store, keys, self._notifier)
        self._background = Background(self._run, f"latchwork-workers-{keys.group.group}")

    def add(self, worker: WorkerWatcher) -> None:
        """Look for one more."""
        self._workers[worker] = worker
        self.wake()

    def wake(self) -> None:
        """Look again."""
        with self._notifier.mutex:
            self._notifier.ring()

    async def remove(self, worker: WorkerWatcher) -> None:
        """Look no more for one; the last one ends all. Twice is fine."""
        if not self._drop([worker]):
            return
        self.wake()
        if not self._background.is_mine:
            await self._background

    def _drop(self, workers: Iterable[WorkerWatcher]) -> bool:
        """Look no more for these; True once there is nobody left, and nobody will come."""
        with self._registry.mutex if self._registry is not None else self._own:
            for worker in workers:
                self._workers.pop(worker, None)
            if self._workers:
                return False
            if self._registry is not None and self._registry.watchers.get(self._keys.prefix) is self:
                del self._registry.watchers[self._keys.prefix]
        self._closed.set()
        return True

    async def _run(self) -> None:
        backoff = Backoff()
        try:
            while not self._closed.is_set():
                with self._notifier.mutex:
                    rings = self._notifier.rings
                try:
                    pause_s = await self._check()
                    backoff.reset()
                except Closed:
                    return
                except LatchworkError as error:
                    _log.info("the run of group %r is looked at again: %s", self._keys.group.group, error)
                    pause_s = backoff.next_s()
                if self._closed.is_set():
                    return
                if len(self._workers) > _SMALL_GROUP:
                    await Pause(self._store.clock, self._closed, _BATCH_S)
                await self._notifier.rung(rings, self._store.clock, pause_s)
        finally:
            self.mirror.close()

    async def _check(self) -> float | None:
        """Act on what there is; seconds until it has to be looked at again, None when only a change can need it."""
        workers = list(self._workers.values())
        for each in workers:
            each.check_session()
        if self._drop(each for each in workers if each.has_ended) or not self.mirror.is_ready:
            return None
        epoch, record = self.mirror.epoch, self.mirror.record
        doubtful = [each for each in workers if not each.apply_state(epoch, record, self.mirror.lease(each.lease_key))]
        is_behind = False
        for each in doubtful:
            is_behind |= not await each.is_out()
        if self._drop(each for each in workers if each.has_ended):
            return None
        if record is None or record.is_final:
            return _STALE_RETRY_S if is_behind else None
        for each in workers:
            await each.shrink(record)
        pause_s = await self._report_losses({each.lease_key for each in workers if each not in doubtful})
        return min(_STALE_RETRY_S, pause_s or _STALE_RETRY_S) if is_behind else pause_s

    async def _report_losses(self, ours: set[str]) -> float | None:
        lost = self.mirror.lost()
        if not ours or not lost:
            return None
        due, pause_s = self._detector.due(lost, self.mirror.count_before(ours), self._store.clock.now())
        for member in due:
            await report_loss(self._store, self._keys, member)
        return pause_s if not due else _RECHECK_S


class WatcherRegistry:
    """The watchers of a store, by the folder of the run.

    Attributes:
        mutex: held while one comes or goes.
        watchers: by folder.
    """

    def __init__(self) -> None:
        self.mutex = mutex()
        self.watchers: dict[str, GroupWatcher] = {}


def watch_group(store: Store, keys: RunKeys, worker: WorkerWatcher) -> GroupWatcher:
    """The watcher of a run, with one worker more: the same one for all threads that share a store.

    A task of an event loop has one of its own: what goes on for it in the background ends with its loop.
    """
    if current() is not None:
        one = GroupWatcher(store, keys)
        one.add(worker)
        return one
    registry = _registries.setdefault(store, WatcherRegistry())
    with registry.mutex:
        found = registry.watchers.get(keys.prefix)
        if found is None:
            found = registry.watchers[keys.prefix] = GroupWatcher(store, keys, registry)
        found.add(worker)
    return found


class WorkerWatcher:
    """Follows the group for one worker, with the others of its process that are in it, until it is closed.

    Args:
        store: the store.
        membership: who we are.
        on_epoch: called with each epoch that begins after we joined.
        on_shrink: called with the number of workers after it was lowered, and again for barriers that we come to then.
        on_failed: called once, when the group has failed; we are in it until we leave.
        on_end: called once, with why we are not in the group any more.
        on_events: called when the number of events has grown.
    """

    def __init__(
        self,
        store: Store,
        membership: WorkerMembership,
        *,
        on_epoch: Callable[[Entry], None],
        on_shrink: Callable[[int], Awaitable[None]],
        on_failed: Callable[[LatchworkError], None],
        on_end: Callable[[LatchworkError], None],
        on_events: Callable[[int], None],
    ) -> None:
        self._store = store
        self._membership = membership
        self._on_epoch = on_epoch
        self._on_shrink = on_shrink
        self._on_failed = on_failed
        self._on_end = on_end
        self._on_events = on_events
        self.has_ended = False
        self._epoch = -1
        self._has_failed = False
        self._events = -1
        self._shrinks = 0
        self.lease_key = membership.lease.key
        self._group_watcher = watch_group(store, membership.keys, self)
        self._forget = membership.session.on_end(self._group_watcher.wake)

    async def close(self) -> None:
        """Stop. Twice is fine."""
        self.has_ended = True
        self._forget()
        await self._group_watcher.remove(self)

    @property
    def is_first(self) -> bool:
        """Whether no worker of a lower id lives."""
        return self._group_watcher.mirror.count_before({self.lease_key}) == 0

    def recheck_barriers(self) -> None:
        """We come to a barrier: it may have been opened before the group was scaled down."""
        record = self._group_watcher.mirror.record
        if record is not None and record.shrinks:
            self._shrinks = 0
            self._group_watcher.wake()

    async def shrink(self, record: GroupRecord) -> None:
        """Act on a group that was scaled down, once for each time."""
        if self.has_ended or record.shrinks == self._shrinks:
            return
        self._shrinks = record.shrinks
        try:
            await self._on_shrink(record.workers)
        except LatchworkError:
            self._shrinks = 0
            raise

    def check_session(self) -> None:
        """Be out once the session has ended, whatever the store says, and while it says nothing."""
        if not self.has_ended and self._membership.session.remaining_s() <= 0.0:
            self._end(SessionLost(f"the session of worker {self._membership.info.rank} has ended; join again"))

    def apply_state(self, epoch: Entry | None, record: GroupRecord | None, lease: Entry | None) -> bool:
        """Act on what is seen, without I/O; False if the store has to be asked what it means."""
        if self.has_ended:
            return True
        if record is None or epoch is None or lease is None or lease.version != self._membership.lease.version:
            return False
        if read_epoch(epoch) > self._epoch:
            self._epoch = read_epoch(epoch)
            self._on_epoch(epoch)
        if record.event_count > self._events:
            self._events = record.event_count
            self._on_events(record.event_count)
        if record.state == FAILED and not self._has_failed:
            self._has_failed = True
            self._on_failed(group_failed(self._membership, record))
        return True

    async def is_out(self) -> bool:
        """Ask the store whether we are out; False if we are not, and the mirrors are count_behind."""
        if self.has_ended:
            return True
        error = await explain_exit(self._store, self._membership)
        if error is not None:
            self._end(error)
        return error is not None

    def _end(self, error: LatchworkError) -> None:
        self.has_ended = True
        self._on_end(error)


async def explain_exit(store: Store, membership: WorkerMembership) -> LatchworkError | None:
    """Why a worker is not in its group any more; None if it is."""
    number, keys = membership.info.rank, membership.keys
    who = f"worker {number} ({membership.info.key}) of group {keys.group.group!r}"
    entry, live, member = await ask(store.get_many, [keys.record, keys.lease(number), keys.member(membership.info.key)])
    if record_or_none(entry, keys.run) is None:
        ended = record_or_none(await ask(store.get, keys.group.ended), keys.run)
        told = f"{ended.state}: {ended.why}" if ended is not None and ended.why else "the group is no more"
        return GroupTerminated(f"{who} has to stop, {told}; what it writes is refused")
    if live is not None and live.version == membership.lease.version:
        return None
    if member is None:
        return WorkerRemoved(f"{who} was removed, the group was scaled down; stop the work")
    if live is not None and read_incarnation(live) != membership.info.incarnation:
        return WorkerRemoved(f"{who} was replaced by another process of the same key; stop the work")
    return SessionLost(f"{who} has no lease any more; stop the work, and join again")


async def explain_refusal(store: Store, membership: WorkerMembership, epoch: int) -> LatchworkError | None:
    """Why a write of a worker in an epoch was refused; None when it would not be now."""
    out = await explain_exit(store, membership)
    if out is not None:
        return out
    record, now = await ask(store.get_many, [membership.keys.record, membership.keys.epoch])
    told = record_or_none(record, membership.keys.run)
    if told is not None and told.state == FAILED:
        return group_failed(membership, told)
    if now is not None and read_epoch(now) > epoch:
        return epoch_ended(membership, read_epoch(now))
    return None


def epoch_ended(membership: WorkerMembership, epoch: int) -> EpochEnded:
    """The error of a worker whose epoch is over."""
    return EpochEnded(
        f"a worker of group {membership.keys.group.group!r} was lost: epoch {epoch} has begun; initialize again"
    )


def group_failed(membership: WorkerMembership, record: GroupRecord) -> GroupFailed:
    """The error of a worker whose group has failed."""
    return GroupFailed(f"group {membership.keys.group.group!r} has failed: {record.why}; stop the work")
