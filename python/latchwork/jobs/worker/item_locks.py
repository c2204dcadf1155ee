"""The locks of a node's work items: taken many at a time, job by job in turn, and waited for without a thread each.

Keys:   locks/<job>/<item>, owners/<uuid>; see the persistent locks

No job waits until another has all of its own. One call at a time, for some hundred locks; between two calls the caller
may end the round and look at everything again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from latchwork.errors import LatchworkError, LockLost
from latchwork.interrupts import mutex
from latchwork.jobs.cron import HeldItem
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.requests import AUDIT, force_released
from latchwork.primitives import HeldLock, LockKeeper
from latchwork.store import Mirror, Session, Store
from latchwork.types import Fence

log = logging.getLogger(__name__)
#: One call asks for, or gives back, at most so many locks.
LOCK_BATCH = 450


class RunLocks:
    """The holds that a run was started with, and no later ones. Safe to share between threads.

    A lock that was lost and then taken anew is another hold: between the two somebody else may have worked on the item,
    so the run gets no fence any more. The holds of a live run are never released, they end with their owner only.
    """

    def __init__(self, job: str, holds: Mapping[str, HeldLock]) -> None:
        self._job = job
        self._holds = dict(holds)
        self._owners = tuple({hold.owner.id: hold.owner for hold in self._holds.values()}.values())

    def holds(self, items: Iterable[str]) -> dict[str, HeldItem]:
        """Item to its lock: who owns it, and since when."""
        return {item: HeldItem(self._holds[item].fence.token, self._holds[item].owner.id) for item in items}

    def remaining_s(self) -> float:
        """Seconds all of them are ours for certain; 0 once one is lost."""
        return min((owner.remaining_s() for owner in self._owners), default=0.0)

    def spare_s(self, margin_s: float) -> float:
        """Return the seconds until the run must be told to stop, so long before a lock ends. 0 or less: now."""
        return min((owner.spare_s(margin_s) for owner in self._owners), default=0.0)

    def fence(self, item: str) -> Fence:
        """Proof that the item is still held as it was when the run started.

        Raises:
            LockLost: it is not, whoever holds it now.
        """
        hold = self._holds.get(item)
        if hold is None or not hold.is_held:
            msg = f"lock of item {item!r} of job {self._job} was lost during this run; stop the work on it"
            raise LockLost(msg)
        return hold.fence


class ItemLocks:
    """The locks of one node. Safe to share between threads, but for what writes: ``settle`` to ``release``, ``close``.

    Args:
        store: the cluster's store.
        node_id: what others see as the holder.
        ttl_s: seconds that locks outlive the last renewal.
        wake: called, and must not block, when something may have become possible or necessary.
        session: gives the node's session, None while there is none; the locks share its renewals.
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
        self._keeper = LockKeeper(store, ttl_s=ttl_s, owner_label=node_id, session=session)
        self._wake = wake
        self._mutex = mutex()
        self._waits: dict[tuple[str, str], Callable[[], None]] = {}
        self._freed: set[tuple[str, str]] = set()
        self._closing = False
        self._audit: Mirror | None = None
        self._pairs: dict[str, tuple[str, str]] = {}  # to decode each name once only
        self._force_released: dict[tuple[str, str], int] = {}

    @property
    def ttl_s(self) -> float:
        """Seconds that locks outlive the last renewal."""
        return self._keeper.ttl_s

    def start(self) -> None:
        """Follow the other owners from now on, so that a takeover needs no new TTL; the earlier the better."""
        self._keeper.on_lost(lambda _names: self._wake())
        self._keeper.start()
        self._audit = audit = self._store.mirror(AUDIT)
        audit.on_change(lambda _batch: self._update_force_released(audit))

    def held(self) -> dict[str, dict[str, HeldLock]]:
        """Job to item to lock: what this node holds for certain, but for what was freed by hand."""
        found: dict[str, dict[str, HeldLock]] = {}
        for name, lock in self._keeper.held().items():
            job, item = self._pairs.get(name) or keys.split_lock_name(name)
            if lock.fence.token > self._force_released.get((job, item), 0):
                found.setdefault(job, {})[item] = lock
        return found

    def release_forced(self, job: str, busy: Collection[str]) -> None:
        """Forget the locks of a job that were freed by hand, but for busy items: their runs have to end first."""
        for (freed_job, item), token in self._force_released.items():
            lock = self._keeper.held().get(keys.lock_name(job, item)) if freed_job == job and item not in busy else None
            if lock is not None and lock.fence.token <= token:
                self.release(job, [item])

    def remaining_s(self) -> float:
        """Seconds the locks are ours for certain if no further renewal succeeds; 0 without any."""
        return self._keeper.remaining_s()

    def renew_within(self, seconds: float | None) -> None:
        """Renew so often that a store out of reach shows within this time; None for as often as the TTL needs."""
        self._keeper.renew_within(seconds)

    def settle(self, job: str, items: Collection[str]) -> list[str]:
        """Say which items of a job are wanted and not held: waits for any other are forgotten.

        Returns:
            Those to ask for now: not waited for, or free by now; sorted. Asks nobody.
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

    def ask(self, job: str, items: Collection[str]) -> bool:
        """Take those of these items that are free, wait by watch for the others; best for a ``LOCK_BATCH`` at a time.

        Returns:
            True when at least one was taken.
        Raises:
            LatchworkError: the server could not be used; these are not waited for, ``settle`` names them again.
        """
        names = {keys.lock_name(job, item): item for item in items}
        self._pairs.update({name: (job, item) for name, item in names.items()})
        taken = self._keeper.try_acquire_many(names)  # when it raises nothing is waited for: what looks free is no news
        for name, item in names.items():
            if name not in taken:
                self._wait(job, item, name)
        if len(taken) < len(names):
            log.debug("job %s: %d locks are held by others and waited for", job, len(names) - len(taken))
        return bool(taken)

    def release(self, job: str, items: Collection[str]) -> None:
        """Give these items back; others can have them at once. A lock that ran out meanwhile is no error."""
        names = [keys.lock_name(job, item) for item in items]
        try:
            self._keeper.release(names)
        except LockLost as error:
            log.info("job %s: %s", job, error)
        for name in names:
            self._pairs.pop(name, None)

    def sweep(self) -> tuple[int, int]:
        """Remove what dead owners left; best by one node now and then."""
        return self._keeper.sweep()

    def close(self, *, release: bool) -> None:
        """End: with ``release`` others can have the locks at once, else when they have run out."""
        with self._mutex:
            self._closing = True
        if self._audit is not None:
            self._audit.close()
        self._keeper.close(release=release)

    def _update_force_released(self, audit: Mirror) -> None:
        self._force_released = force_released(audit.snapshot().values())
        self._wake()

    def _wait(self, job: str, item: str, name: str) -> None:
        key = (job, item)
        with self._mutex:
            self._waits[key] = lambda: None  # until it is set up
        try:
            cancel = self._keeper.when_free(name, lambda _name: self._free(key))
        except LatchworkError:
            with self._mutex:
                self._waits.pop(key, None)
            raise
        with self._mutex:
            if key in self._waits:
                self._waits[key] = cancel

    def _free(self, key: tuple[str, str]) -> None:
        with self._mutex:
            if self._closing:
                return
            self._freed.add(key)
        self._wake()


class LockWork:
    """The calls to make for the locks of one job; waits for any other of its items are forgotten at once.

    Args:
        locks: the node's.
        job: the job's id.
        release: items to give back, which comes first: others wait for them.
        acquire: all items whose locks are missing; those that are waited for already are not asked for.
    """

    def __init__(self, locks: ItemLocks, job: str, release: Collection[str], acquire: Collection[str]) -> None:
        self.job = job
        self._locks = locks
        self._release = deque(_slices(sorted(release)))
        self._ask = deque(_slices(locks.settle(job, acquire)))

    @property
    def asks(self) -> bool:
        """True while locks are left to ask for."""
        return bool(self._ask)

    @property
    def left(self) -> int:
        """The number of calls that are left."""
        return len(self._release) + len(self._ask)

    def call(self) -> bool:
        """Do one call's worth; True when locks were taken.

        Raises:
            LatchworkError: the server could not be used.
        """
        if self._release:
            self._locks.release(self.job, self._release.popleft())
            return False
        return self._locks.ask(self.job, self._ask.popleft())


class LockRotation:
    """Decides which job's locks come next. One thread only.

    Every second call is for the job with the least left to do, which may start soonest; the others go round, so that
    none waits for ever behind small ones.
    """

    def __init__(self) -> None:
        self._last = ""
        self._round = False

    def take(self, works: Iterable[LockWork], go_on: Callable[[LockWork], bool]) -> bool:
        """Do what is left, call by call; the next time it goes on with the job whose turn would be next.

        Args:
            works: what is to be done, one for each job.
            go_on: asked after each call with what it was for; there is one call at least.
        Returns:
            True when locks were taken.
        Raises:
            LatchworkError: the server could not be used; what is left is left, and this job's turn is over.
        """
        queue = deque(
            sorted((work for work in works if work.left), key=lambda work: (work.job <= self._last, work.job))
        )
        taken = False
        while queue:
            work = self._choose(queue)
            taken |= work.call()
            if work.left:
                queue.append(work)
            if not go_on(work):
                break
        return taken

    def _choose(self, queue: deque[LockWork]) -> LockWork:
        self._round = not self._round
        if self._round:
            self._last = queue[0].job
            return queue.popleft()
        least = min(queue, key=lambda work: work.left)
        queue.remove(least)
        return least


def _slices(items: Sequence[str]) -> list[Sequence[str]]:
    return [items[at : at + LOCK_BATCH] for at in range(0, len(items), LOCK_BATCH)]
