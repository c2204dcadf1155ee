"""Observation of a group: its members, lost workers and current epoch, and whether a worker is still a member.

All workers of a run on one store share one mirror (a local copy that follows the store) and one background thread.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from latchwork._base.event import Signal
from latchwork._base.execution_context import current_task_caller
from latchwork._base.interrupts import mutex
from latchwork.errors import Closed, Conflict, LatchworkError, SessionLost
from latchwork.primitives.waiting import get_rank_delay_s
from latchwork.store.backoff import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.mirror import Mirror
from latchwork.store.steps import Pause, ask, coroutine_of
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Entry
from latchwork.worker_group import transactions
from latchwork.worker_group.errors import EpochEnded, GroupFailed, GroupTerminated, WorkerRemoved
from latchwork.worker_group.keys import RunKeys
from latchwork.worker_group.membership import WorkerMembership, read_epoch_state
from latchwork.worker_group.records import FAILED, GroupRecord, WorkerInfo, decode_epoch, decode_incarnation
from latchwork.worker_group.sweeper import GroupSweeper
from latchwork.worker_group.transactions import GroupSnapshot, decode_record_or_none

_log = logging.getLogger(__name__)

#: Seconds after which a lease that was never seen counts as missing.
_NEVER_SEEN_S = 0.5

#: Seconds until the next check after reporting a loss, and while the mirror is behind.
_RECHECK_S, _STALE_RETRY_S = 0.2, 0.5
#: Above this many workers, changes are batched for so many seconds, because each check visits every worker.
_SMALL_GROUP, _BATCH_S = 4, 0.01
#: Seconds between sweeps by the first running worker of a group.
_SWEEP_S = 600.0
_registries: WeakKeyDictionary[Store, WatcherRegistry] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class MissingWorker:
    """An active worker without a lease, so that it is probably not running.

    Attributes:
        member: Its stored record.
        had_lease: Whether its lease was seen and then disappeared. If not, the mirror of the leases may only be behind
            the mirror of the members, although both are written in one transaction.
    """

    member: Entry
    had_lease: bool


class Roster:
    """The members and leases of a run, updated with each change. Pure. Not thread-safe: the owner holds a mutex."""

    def __init__(self, keys: RunKeys) -> None:
        self._keys = keys
        self._leases: dict[str, Entry] = {}
        self._members: dict[str, tuple[str, Entry]] = {}
        self._by_lease: dict[str, str] = {}
        self._expired: dict[str, str] = {}

    def set_member(self, key: str, entry: Entry | None) -> None:
        """Store a member's record. If it was deleted, is unreadable or is no longer active, remove the member.

        Args:
            key: Key of the record.
            entry: Its entry; None if it was deleted.
        """
        lease, _ = self._members.pop(key, ("", None))
        if self._by_lease.get(lease) == key:
            del self._by_lease[lease]
        info = None if entry is None else WorkerInfo.decode_or_none(entry)
        if entry is not None and info is not None and info.is_active:
            lease = self._keys.lease_key(info.rank)
            self._members[key] = (lease, entry)
            self._by_lease[lease] = key

    def set_lease(self, key: str, entry: Entry | None) -> None:
        """Store a lease, which shows that a worker is running. If it has ended, remove it.

        Args:
            key: Key of the lease.
            entry: Its entry; None if it has ended.
        """
        if entry is None:
            lease = self._leases.pop(key, None)
            if lease is not None:
                self._expired[key] = decode_incarnation(lease)
        else:
            self._leases[key] = entry

    def get_lease(self, key: str) -> Entry | None:
        """Return the lease with this key; None if its worker is not running."""
        return self._leases.get(key)

    def count_lower_ranks(self, keys: set[str]) -> int:
        """Count the running workers whose ranks are lower than those of the given workers.

        Args:
            keys: Lease keys of the given workers. Those that are not running are ignored; if none is running, all
                others are counted.
        """
        first = min(keys & self._leases.keys(), default=None)
        return sum(key < first for key in self._leases) if first is not None else len(self._leases)

    def list_missing_workers(self) -> list[MissingWorker]:
        """Return the workers that should be running but have no lease, sorted by rank."""
        missing = sorted(self._by_lease.keys() - self._leases.keys())
        members = [(lease, self._members[self._by_lease[lease]][1]) for lease in missing]
        return [
            MissingWorker(member, self._expired.get(lease) == decode_incarnation(member)) for lease, member in members
        ]


class GroupMirror:
    """A local copy of the state of a run, which follows the store. Thread-safe.

    Args:
        store: Store to follow.
        keys: Keys of the run.
        notifier: Notified after each change.
    """

    def __init__(self, store: Store, keys: RunKeys, notifier: Notifier) -> None:
        self._keys = keys
        self._notifier = notifier
        self._roster = Roster(keys)
        self._awaited: set[str] = set()
        with ExitStack() as opened:

            def follow(prefix: str, handle_change: Callable[[str, Entry | None], None]) -> Mirror:
                mirror = opened.enter_context(store.mirror(prefix, wait=False))
                self._awaited.add(prefix)
                mirror.on_change(lambda batch: self._record_changes(prefix, batch, handle_change))
                return mirror

            self._record_mirror, self._epoch = follow(keys.record, _ignore_change), follow(keys.epoch, _ignore_change)
            self._members = follow(keys.members, self._roster.set_member)
            self._leases = follow(keys.leases, self._roster.set_lease)
            self._mirrors = opened.pop_all()

    def _record_changes(self, prefix: str, batch: Batch, handle_change: Callable[[str, Entry | None], None]) -> None:
        with self._notifier.mutex:
            for change in batch:
                handle_change(change.key, change.entry)
            self._awaited.discard(prefix)
            self._notifier.notify_all()

    @property
    def is_ready(self) -> bool:
        """Whether the initial state has arrived. False while the store is unavailable."""
        return not self._awaited

    def close(self) -> None:
        """Stop watching the run."""
        self._mirrors.close()

    @property
    def record_entry(self) -> Entry | None:
        """The entry of the group's record. None if the group no longer exists."""
        return self._record_mirror.get(self._keys.record)

    @property
    def record(self) -> GroupRecord | None:
        """The group's record. None if the group is in another run or no longer exists."""
        return decode_record_or_none(self.record_entry, self._keys.run)

    @property
    def epoch(self) -> Entry | None:
        """The entry of the current epoch. None if the run no longer exists."""
        return self._epoch.get(self._keys.epoch)

    def get_lease(self, key: str) -> Entry | None:
        """Return the lease with this key; None if its worker is not running."""
        return self._leases.get(key)

    def count_lower_ranks(self, keys: set[str]) -> int:
        """Count the running workers whose ranks are lower than those of the given workers. See
        ``Roster.count_lower_ranks``.

        Args:
            keys: Lease keys of the given workers.
        """
        with self._notifier.mutex:
            return self._roster.count_lower_ranks(keys)

    def list_missing_workers(self) -> list[MissingWorker]:
        """Return the workers that should be running but have no lease, sorted by rank."""
        with self._notifier.mutex:
            return self._roster.list_missing_workers()


def _ignore_change(_key: str, _entry: Entry | None) -> None:
    pass


class LossDetector:
    """Decides when this process reports a lost worker, so that not all processes report it at once. No I/O. Not
    thread-safe.
    """

    def __init__(self) -> None:
        self._missing_since: dict[str, float] = {}

    def take_due_losses(self, lost: list[MissingWorker], rank: int, now: float) -> tuple[list[Entry], float | None]:
        """Return the lost workers that this process should report now.

        Args:
            lost: Active workers without a lease.
            rank: Number of running workers with a lower rank, which report before this process.
            now: Current time in seconds.
        Returns:
            The records of these workers; and the seconds until the next report is due, or None if there is none.
        """
        by_version = {f"{worker.member.key} {worker.member.version}": worker for worker in lost}
        self._missing_since = {name: self._missing_since.get(name, now) for name in by_version}
        due_times = {
            name: since + get_rank_delay_s(rank) + (0.0 if by_version[name].had_lease else _NEVER_SEEN_S)
            for name, since in self._missing_since.items()
        }
        waits_s = [due_at - now for due_at in due_times.values() if due_at > now]
        due = [by_version[name].member for name, due_at in due_times.items() if due_at <= now]
        return due, min(waits_s, default=None)


async def report_loss(store: Store, keys: RunKeys, member: Entry) -> None:
    """Record in the store that a worker is lost. Do nothing if it has a lease again, or if another client has reported
    it.

    Args:
        store: Store of the group.
        keys: Keys of the run.
        member: Record of the worker as it was read.
    """
    entry = await ask(store.get, keys.record)
    record = decode_record_or_none(entry, keys.run)
    epoch_state = await read_epoch_state(store, keys)
    if entry is None or record is None or record.is_final or epoch_state is None:
        return
    with suppress(Conflict):
        txn = transactions.build_mark_lost_txn(GroupSnapshot(keys, entry, time.time()), member, epoch_state)
        await ask(store.commit, txn.checks, txn.ops)
        _log.warning("a worker of group %r was lost: %s", keys.group.group, member.key)


class GroupWatcher:
    """Watches a run in one thread, for all of its workers that use the same store. Created by `watch_group`."""

    def __init__(self, store: Store, keys: RunKeys, registry: WatcherRegistry | None = None) -> None:
        self._store = store
        self._keys = keys
        self._registry = registry
        self._notifier = Notifier()
        self._closed = Signal()
        self._detector = LossDetector()
        self._sweeper = GroupSweeper(store, namespace=keys.group.namespace, abandon_s=math.inf)
        self._sweep_at = store.clock.now() + random.uniform(0.5, 1.0) * _SWEEP_S
        self._own_mutex = mutex()
        self._workers: dict[object, WorkerWatcher] = {}
        self.mirror = GroupMirror(store, keys, self._notifier)
        self._background = Background(self._run, f"latchwork-workers-{keys.group.group}")

    def add_worker(self, worker: WorkerWatcher) -> None:
        """Also watch the run on behalf of this worker."""
        self._workers[worker] = worker
        self.wake()

    def wake(self) -> None:
        """Wake the thread, so that it checks the state of the run now."""
        with self._notifier.mutex:
            self._notifier.notify_all()

    async def remove_worker(self, worker: WorkerWatcher) -> None:
        """Stop watching on behalf of a worker. When the last worker is removed, the watcher stops. Idempotent."""
        if not self._remove_workers([worker]):
            return
        self.wake()
        if not self._background.is_running_here:
            await self._background

    def _remove_workers(self, workers: Iterable[WorkerWatcher]) -> bool:
        """Stop watching on behalf of these workers.

        Returns:
            True if no worker is left, so that the watcher stops.
        """
        with self._registry.mutex if self._registry is not None else self._own_mutex:
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
                    version = self._notifier.version
                try:
                    pause_s = await self._check()
                    backoff.reset()
                except Closed:
                    return
                except LatchworkError as error:
                    _log.info("cannot check group %r, retrying: %s", self._keys.group.group, error)
                    pause_s = backoff.next_s()
                if self._closed.is_set():
                    return
                if len(self._workers) > _SMALL_GROUP:
                    await Pause(self._store.clock, self._closed, _BATCH_S)
                await self._notifier.wait_for_change(version, self._store.clock, pause_s)
        finally:
            self.mirror.close()

    async def _check(self) -> float | None:
        """Compare the state of the run with the state that the workers know, and notify them of changes.

        Returns:
            The seconds until the next check; None to wait for a change.
        """
        workers = list(self._workers.values())
        for worker in workers:
            worker.check_session()
        if self._remove_workers(worker for worker in workers if worker.has_ended) or not self.mirror.is_ready:
            return None
        epoch, record = self.mirror.epoch, self.mirror.record
        seem_gone = [
            worker
            for worker in workers
            if not worker.apply_state(epoch, record, self.mirror.get_lease(worker.lease_key))
        ]
        is_behind = False
        for worker in seem_gone:
            is_behind |= not await worker.confirm_exit()
        if self._remove_workers(worker for worker in workers if worker.has_ended):
            return None
        if record is None or record.is_final:
            return _STALE_RETRY_S if is_behind else None
        for worker in workers:
            await worker.report_scale_down(record)
        local_lease_keys = {worker.lease_key for worker in workers if worker not in seem_gone}
        pauses_s = [
            await self._report_losses(local_lease_keys),
            await self._sweep(local_lease_keys),
            _STALE_RETRY_S if is_behind else None,
        ]
        return min((pause_s for pause_s in pauses_s if pause_s is not None), default=None)

    async def _sweep(self, local_lease_keys: set[str]) -> float:
        """Remove leftover keys of ended groups if a sweep is due. Only the process with the first worker of the group
        does this.

        Args:
            local_lease_keys: Keys of the leases of the workers that use this store.
        Returns:
            The seconds until the next sweep.
        """
        now = self._store.clock.now()
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_S
            if local_lease_keys and self.mirror.count_lower_ranks(local_lease_keys) == 0:
                await coroutine_of(self._sweeper.sweep)()
        return self._sweep_at - now

    async def _report_losses(self, local_lease_keys: set[str]) -> float | None:
        """Report the lost workers that this process should report now.

        Args:
            local_lease_keys: Keys of the leases of the workers that use this store.
        Returns:
            The seconds until the next report; None if there is none.
        """
        lost = self.mirror.list_missing_workers()
        if not local_lease_keys or not lost:
            return None
        due, pause_s = self._detector.take_due_losses(
            lost, self.mirror.count_lower_ranks(local_lease_keys), self._store.clock.now()
        )
        for member in due:
            await report_loss(self._store, self._keys, member)
        return pause_s if not due else _RECHECK_S


class WatcherRegistry:
    """The group watchers of a store.

    Attributes:
        mutex: Held while a worker is added or removed.
        watchers: Watchers by prefix of the run.
    """

    def __init__(self) -> None:
        self.mutex = mutex()
        self.watchers: dict[str, GroupWatcher] = {}


def watch_group(store: Store, keys: RunKeys, worker: WorkerWatcher) -> GroupWatcher:
    """Add a worker to the watcher of its run, and return the watcher.

    Threads that share a store share one watcher. An asyncio task gets its own, because it ends with its event loop.
    """
    if current_task_caller() is not None:
        watcher = GroupWatcher(store, keys)
        watcher.add_worker(worker)
        return watcher
    registry = _registries.setdefault(store, WatcherRegistry())
    with registry.mutex:
        shared = registry.watchers.get(keys.prefix)
        if shared is None:
            shared = registry.watchers[keys.prefix] = GroupWatcher(store, keys, registry)
        shared.add_worker(worker)
    return shared


class WorkerWatcher:
    """Watches the group on behalf of one worker, through a `GroupWatcher` that several workers share.

    Args:
        store: Store to watch.
        membership: Membership of the worker.
        on_epoch: Called with each epoch that begins after the worker joined.
        on_scale_down: Called with the number of workers when the group was scaled down, and again for later barriers.
        on_failed: Called once when the group has failed. The worker is still a member.
        on_end: Called once with the error that explains why the worker is no longer in the group.
        on_events: Called with the number of events when it has grown.
    """

    def __init__(
        self,
        store: Store,
        membership: WorkerMembership,
        *,
        on_epoch: Callable[[Entry], None],
        on_scale_down: Callable[[int], Awaitable[None]],
        on_failed: Callable[[LatchworkError], None],
        on_end: Callable[[LatchworkError], None],
        on_events: Callable[[int], None],
    ) -> None:
        self._store = store
        self._membership = membership
        self._on_epoch = on_epoch
        self._on_scale_down = on_scale_down
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
        self._remove_end_listener = membership.session.on_end(self._group_watcher.wake)

    async def close(self) -> None:
        """Stop watching the group. Idempotent."""
        self.has_ended = True
        self._remove_end_listener()
        await self._group_watcher.remove_worker(self)

    @property
    def has_lowest_rank(self) -> bool:
        """Whether no running worker has a lower rank."""
        return self._group_watcher.mirror.count_lower_ranks({self.lease_key}) == 0

    @property
    def record_entry(self) -> Entry | None:
        """The last known entry of the group's record. None if it is unknown."""
        return self._group_watcher.mirror.record_entry

    def recheck_barriers(self) -> None:
        """Check again whether a barrier waits for removed workers. Call it before each wait at a barrier.

        A barrier may have been opened before the group was scaled down.
        """
        record = self._group_watcher.mirror.record
        if record is not None and record.shrinks:
            self._shrinks = 0
            self._group_watcher.wake()

    async def report_scale_down(self, record: GroupRecord) -> None:
        """Notify the worker once each time that the group was scaled down.

        Args:
            record: Record of the group.
        """
        if self.has_ended or record.shrinks == self._shrinks:
            return
        self._shrinks = record.shrinks
        try:
            await self._on_scale_down(record.workers)
        except LatchworkError:
            self._shrinks = 0
            raise

    def check_session(self) -> None:
        """End the worker's membership if its session has expired. No I/O."""
        if not self.has_ended and self._membership.session.remaining_s() <= 0.0:
            self._end(SessionLost(f"the session of worker {self._membership.info.rank} has ended; join again"))

    def apply_state(self, epoch: Entry | None, record: GroupRecord | None, lease: Entry | None) -> bool:
        """Notify the worker of changes in the watched state. No I/O.

        Args:
            epoch: Entry of the current epoch, or None.
            record: Record of the group, or None.
            lease: Lease of the worker, or None.
        Returns:
            False if the worker seems to have left the group. Then ``confirm_exit`` must ask the store.
        """
        if self.has_ended:
            return True
        if record is None or epoch is None or lease is None or lease.version != self._membership.lease.version:
            return False
        if decode_epoch(epoch) > self._epoch:
            self._epoch = decode_epoch(epoch)
            self._on_epoch(epoch)
        if record.event_count > self._events:
            self._events = record.event_count
            self._on_events(record.event_count)
        if record.state == FAILED and not self._has_failed:
            self._has_failed = True
            self._on_failed(create_group_failed_error(self._membership, record))
        return True

    async def confirm_exit(self) -> bool:
        """Ask the store whether the worker is no longer in the group.

        Returns:
            False if it is still in the group, so that the watched state was outdated.
        """
        if self.has_ended:
            return True
        error = await explain_exit(self._store, self._membership)
        if error is not None:
            self._end(error)
        return error is not None

    def _end(self, error: LatchworkError) -> None:
        self.has_ended = True
        self._on_end(error)


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The stored state on which a worker's writes depend. None for what does not exist.

    Attributes:
        record: Record of the group.
        lease: Lease of the worker.
        member: Record of the worker.
        epoch: The current epoch.
        opened: The key that each opening of a barrier writes.
    """

    record: Entry | None
    lease: Entry | None
    member: Entry | None
    epoch: Entry | None
    opened: Entry | None


async def read_worker_state(store: Store, membership: WorkerMembership) -> WorkerState:
    """Read the state on which a worker's writes depend, in one request."""
    keys, info = membership.keys, membership.info
    wanted = [keys.record, keys.lease_key(info.rank), keys.member_key(info.key), keys.epoch, keys.opened]
    return WorkerState(*await ask(store.get_many, wanted))


async def explain_exit(
    store: Store, membership: WorkerMembership, state: WorkerState | None = None
) -> LatchworkError | None:
    """Return the error that explains why a worker is no longer in its group; None if it still is.

    Args:
        store: Store of the group.
        membership: Membership of the worker.
        state: Stored state of the worker. None reads it.
    """
    rank, keys = membership.info.rank, membership.keys
    who = f"worker {rank} ({membership.info.key}) of group {keys.group.group!r}"
    found = state or await read_worker_state(store, membership)
    lease = found.lease
    if decode_record_or_none(found.record, keys.run) is None:
        ended = decode_record_or_none(await ask(store.get, keys.group.ended), keys.run)
        reason = f"{ended.state}: {ended.why}" if ended is not None and ended.why else "the group no longer exists"
        return GroupTerminated(f"{who} must stop because {reason}; its writes are refused")
    if lease is not None and lease.version == membership.lease.version:
        return None
    if found.member is None:
        return WorkerRemoved(f"{who} was removed because the group was scaled down; stop the work")
    if lease is not None and decode_incarnation(lease) != membership.info.incarnation:
        return WorkerRemoved(f"{who} was replaced by another process with the same key; stop the work")
    return SessionLost(f"{who} has lost its lease; stop the work and join again")


async def explain_refused_write(
    store: Store, membership: WorkerMembership, epoch: int | None, state: WorkerState | None = None
) -> LatchworkError | None:
    """Return the error that explains why a worker's write was refused; None if the write would succeed now.

    Args:
        store: Store of the group.
        membership: Membership of the worker.
        epoch: Number of the epoch to which the write belongs; None if it belongs to none.
        state: Stored state of the worker. None reads it.
    """
    found = state or await read_worker_state(store, membership)
    exit_error = await explain_exit(store, membership, found)
    if exit_error is not None or epoch is None:
        return exit_error
    current = decode_record_or_none(found.record, membership.keys.run)
    if current is not None and current.state == FAILED:
        return create_group_failed_error(membership, current)
    if found.epoch is not None and decode_epoch(found.epoch) > epoch:
        return create_epoch_ended_error(membership, decode_epoch(found.epoch))
    return None


def create_epoch_ended_error(membership: WorkerMembership, epoch: int) -> EpochEnded:
    """Build the error for a worker whose epoch has ended, because another worker was lost."""
    return EpochEnded(
        f"a worker of group {membership.keys.group.group!r} was lost: epoch {epoch} has begun; call initialize again"
    )


def create_group_failed_error(membership: WorkerMembership, record: GroupRecord) -> GroupFailed:
    """Build the error for a worker whose group has failed."""
    return GroupFailed(f"group {membership.keys.group.group!r} has failed: {record.why}; stop the work")
