"""The locks of a node's work items. They are acquired in batches, job by job in turn, and awaited without a thread
each.

Keys:   locks/<job>/<item>, owners/<uuid>; see the leased locks

No job waits until another has all of its locks. Each batch has some hundred locks. Between two batches the caller may
stop and check everything again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from latchwork._base.interrupts import mutex
from latchwork.errors import LatchworkError, LockLost
from latchwork.jobs.cron_progress import HeldItem
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.requests import AUDIT, find_force_released_tokens
from latchwork.primitives import HeldLock, LockKeeper
from latchwork.store import Mirror, Session, Store
from latchwork.types import Fence

log = logging.getLogger(__name__)
#: Maximum number of locks that one call acquires or releases.
LOCK_BATCH = 450


class RunLocks:
    """The locks with which one run was started. Thread-safe.

    If a lock was lost and acquired again, another node may have worked on the item in between. The run then no longer
    gets a fence for that item. The locks of an active run are never released; they end only with their owner.
    """

    def __init__(self, job: str, holds: Mapping[str, HeldLock]) -> None:
        self._job = job
        self._holds = dict(holds)
        self._owners = tuple({hold.owner.id: hold.owner for hold in self._holds.values()}.values())

    def get_item_locks(self, items: Iterable[str]) -> dict[str, HeldItem]:
        """Return the fencing token and the owner of the lock of each of these items."""
        return {item: HeldItem(self._holds[item].fence.token, self._holds[item].owner.id) for item in items}

    def remaining_s(self) -> float:
        """Return the seconds for which all locks are certainly held; 0 once one is lost."""
        return min((owner.remaining_s() for owner in self._owners), default=0.0)

    def time_to_stop_s(self, margin_s: float) -> float:
        """Return the seconds until the run must be asked to stop; 0 or less if it must stop now.

        Args:
            margin_s: Seconds that the run needs to stop before its locks expire.
        """
        return min((owner.work_remaining_s(margin_s) for owner in self._owners), default=0.0)

    def fence(self, item: str) -> Fence:
        """Return the fence which proves that an item has been locked without interruption since the run started.

        Raises:
            LockLost: The lock was lost since then. It may have been acquired again.
        """
        hold = self._holds.get(item)
        if hold is None or not hold.is_held:
            msg = f"lock of item {item!r} of job {self._job} was lost during this run; stop the work on it"
            raise LockLost(msg)
        return hold.fence


class ItemLocks:
    """Acquires, awaits and releases the locks of one node's work items.

    Thread-safe, except that ``set_wanted_items``, ``try_acquire``, ``release`` and ``close`` need one caller at a time.

    Args:
        store: The cluster's store.
        node_id: ID of the node, which other nodes see as the holder.
        ttl_s: Seconds that locks outlive the last renewal.
        wake: Called when locks were lost, may have become free, or were released by force. It must not block.
        session: Returns the node's session, or None. When the session ends, other nodes treat this node as dead.
    """

    def __init__(
        self,
        store: Store,
        node_id: str,
        ttl_s: float,
        wake: Callable[[], None],
        session: Callable[[], Session | None] | None = None,
    ) -> None:
        self._store = store
        self._keeper = LockKeeper(
            store, ttl_s=ttl_s, owner_label=node_id, session=session, sweep_period_s=None
        )  # the manager sweeps
        self._wake = wake
        self._mutex = mutex()
        self._waits: dict[tuple[str, str], Callable[[], None]] = {}
        self._freed: set[tuple[str, str]] = set()
        self._closing = False
        self._audit: Mirror | None = None
        self._pairs: dict[str, tuple[str, str]] = {}  # cache of decoded names
        self._force_released: dict[tuple[str, str], int] = {}

    @property
    def ttl_s(self) -> float:
        """The seconds for which locks outlive their last renewal."""
        return self._keeper.ttl_s

    def start(self) -> None:
        """Start to watch the owners of other locks, so that locks of a dead owner are taken over as soon as they
        expire.
        """
        self._keeper.on_lost(lambda _names: self._wake())
        self._keeper.start()
        # Its first state may arrive later: a forced release concerns locks that are held, and there are none yet.
        self._audit = audit = self._store.mirror(AUDIT, wait=False)
        audit.on_change(lambda _batch: self._update_force_released(audit))

    def get_held_locks(self) -> dict[str, dict[str, HeldLock]]:
        """Return the locks that this node certainly holds, by job and item, without locks that were released by
        force.
        """
        found: dict[str, dict[str, HeldLock]] = {}
        for name, lock in self._keeper.held().items():
            job, item = self._pairs.get(name) or keys.split_lock_name(name)
            if lock.fence.token > self._force_released.get((job, item), 0):
                found.setdefault(job, {})[item] = lock
        return found

    def release_forced_locks(self, job: str, busy_items: Collection[str]) -> None:
        """Release the locks of a job that an operator has released by force in the store.

        Args:
            job: ID of the job.
            busy_items: Items of active runs, whose locks are kept until the runs have ended.
        """
        for (freed_job, item), token in self._force_released.items():
            lock = (
                self._keeper.held().get(keys.lock_name(job, item))
                if freed_job == job and item not in busy_items
                else None
            )
            if lock is not None and lock.fence.token <= token:
                self.release(job, [item])

    def remaining_s(self) -> float:
        """Return the seconds until the first lock may expire if it is not renewed again; 0 without locks."""
        return self._keeper.remaining_s()

    def set_renewal_ttl(self, seconds: float | None) -> None:
        """Renew the locks as often as locks with this TTL, to notice sooner that the store is unreachable.

        The TTL of the locks does not change.

        Args:
            seconds: The shorter TTL; None renews as often as the TTL of the locks requires.
        """
        self._keeper.set_renewal_ttl(seconds)

    def set_wanted_items(self, job: str, items: Collection[str]) -> list[str]:
        """Set which items of a job this node still has to lock, and stop waiting for locks of other items. No I/O.

        Args:
            job: ID of the job.
            items: Items whose locks this node needs and does not hold.
        Returns:
            The sorted items whose locks to try now: new ones, and those whose locks have become free.
        """
        wanted = {(job, item) for item in items}
        with self._mutex:
            dropped = [key for key in self._waits if key[0] == job and key not in wanted]
            cancels = [self._waits.pop(key) for key in dropped]
            self._freed.difference_update(dropped)
            ask = sorted(key for key in wanted if key not in self._waits or key in self._freed)
            cancels += [self._waits.pop(key) for key in ask if key in self._waits]
            self._freed.difference_update(ask)
        for cancel in cancels:
            cancel()
        return [item for _, item in ask]

    def try_acquire(self, job: str, items: Collection[str]) -> bool:
        """Acquire the free locks of these items, and wait for the others in the background.

        Args:
            job: ID of the job.
            items: Items to lock, preferably at most ``LOCK_BATCH``.
        Returns:
            True if at least one lock was acquired.
        Raises:
            LatchworkError: The server could not be used. No lock is awaited; ``set_wanted_items`` returns these items
                again.
        """
        names = {keys.lock_name(job, item): item for item in items}
        self._pairs.update({name: (job, item) for name, item in names.items()})
        taken = self._keeper.try_acquire_many(names)  # if it raises, no item is awaited
        for name, item in names.items():
            if name not in taken:
                self._await_lock(job, item, name)
        if len(taken) < len(names):
            log.debug("job %s: %d locks are held by other nodes; waiting for them", job, len(names) - len(taken))
        return bool(taken)

    def release(self, job: str, items: Collection[str]) -> None:
        """Release the locks of these items now. Locks that have expired are ignored."""
        names = [keys.lock_name(job, item) for item in items]
        try:
            self._keeper.release(names)
        except LockLost as error:
            log.info("job %s: %s", job, error)
        for name in names:
            self._pairs.pop(name, None)

    def sweep(self) -> tuple[int, int]:
        """Remove the locks of dead owners. One node should call this from time to time.

        Returns:
            The numbers of removed owners and locks.
        """
        return self._keeper.sweep()

    def close(self, *, release: bool) -> None:
        """Close all locks.

        Args:
            release: Release the locks so that other nodes can acquire them at once. Otherwise they expire.
        """
        with self._mutex:
            self._closing = True
        if self._audit is not None:
            self._audit.close()
        self._keeper.close(release=release)

    def _update_force_released(self, audit: Mirror) -> None:
        self._force_released = find_force_released_tokens(audit.snapshot().values())
        self._wake()

    def _await_lock(self, job: str, item: str, name: str) -> None:
        key = (job, item)
        with self._mutex:
            self._waits[key] = lambda: None  # until it is set up
        try:
            cancel = self._keeper.when_free(name, lambda _name: self._on_lock_free(key))
        except LatchworkError:
            with self._mutex:
                self._waits.pop(key, None)
            raise
        with self._mutex:
            if key in self._waits:
                self._waits[key] = cancel

    def _on_lock_free(self, key: tuple[str, str]) -> None:
        with self._mutex:
            if self._closing:
                return
            self._freed.add(key)
        self._wake()


class LockBatches:
    """The releases and acquisitions of one job's locks that are still to do, in batches.

    The constructor cancels waits for locks of other items of the job.

    Args:
        locks: Locks of the node.
        job: ID of the job.
        release: Items whose locks to release first, because other nodes may wait for them.
        acquire: All items whose locks are missing. Locks that are awaited already are not tried again.
    """

    def __init__(self, locks: ItemLocks, job: str, release: Collection[str], acquire: Collection[str]) -> None:
        self.job = job
        self._locks = locks
        self._release = deque(_split_into_batches(sorted(release)))
        self._ask = deque(_split_into_batches(locks.set_wanted_items(job, acquire)))

    @property
    def has_acquisitions(self) -> bool:
        """True while some locks have not been tried yet."""
        return bool(self._ask)

    @property
    def remaining_batches(self) -> int:
        """The number of batches that have not been processed yet."""
        return len(self._release) + len(self._ask)

    def process_next_batch(self) -> bool:
        """Release or acquire the next batch of locks.

        Returns:
            True if locks were acquired.
        Raises:
            LatchworkError: The server could not be used.
        """
        if self._release:
            self._locks.release(self.job, self._release.popleft())
            return False
        return self._locks.try_acquire(self.job, self._ask.popleft())


class LockScheduler:
    """Decides for which job the next batch of locks is released or acquired. Not thread-safe.

    Every second batch belongs to the job with the fewest remaining batches, which may start soonest. The other batches
    alternate between all jobs, so that a large job is not delayed forever.
    """

    def __init__(self) -> None:
        self._last = ""
        self._round = False

    def process_batches(
        self, batches_by_job: Iterable[LockBatches], may_continue: Callable[[LockBatches], bool]
    ) -> bool:
        """Release and acquire locks until no batches are left or ``may_continue`` returns False.

        The next call begins with the job after the last one.

        Args:
            batches_by_job: The batches of each job.
            may_continue: Called after each batch with the batches of its job. At least one batch is processed.
        Returns:
            True if locks were acquired.
        Raises:
            LatchworkError: The server could not be used.
        """
        queue = deque(
            sorted(
                (work for work in batches_by_job if work.remaining_batches),
                key=lambda work: (work.job <= self._last, work.job),
            )
        )
        taken = False
        while queue:
            work = self._choose(queue)
            taken |= work.process_next_batch()
            if work.remaining_batches:
                queue.append(work)
            if not may_continue(work):
                break
        return taken

    def _choose(self, queue: deque[LockBatches]) -> LockBatches:
        self._round = not self._round
        if self._round:
            self._last = queue[0].job
            return queue.popleft()
        least = min(queue, key=lambda work: work.remaining_batches)
        queue.remove(least)
        return least


def _split_into_batches(items: Sequence[str]) -> list[Sequence[str]]:
    return [items[at : at + LOCK_BATCH] for at in range(0, len(items), LOCK_BATCH)]
