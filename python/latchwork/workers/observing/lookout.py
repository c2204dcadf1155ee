"""One thread that looks after a run, for all its workers on a store. Nobody outside the workers imports this."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol
from weakref import WeakKeyDictionary

from latchwork.callers import current
from latchwork.errors import Closed, LatchworkError
from latchwork.interrupts import mutex
from latchwork.store.backoff import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.driving.bell import Bell
from latchwork.store.steps import Pause, Signal
from latchwork.store.store import Store
from latchwork.types import Entry
from latchwork.workers.keys import RunKeys
from latchwork.workers.observing.losses import Losses, tell_loss
from latchwork.workers.observing.picture import Picture
from latchwork.workers.records import Head

_log = logging.getLogger(__name__)

#: A loss that was told is looked for again after so long; what the mirrors do not show yet, too.
_AGAIN_S, _BEHIND_S = 0.2, 0.5
#: For many workers it looks at most so often: each look is at all of them, and while they join each join is a change.
_FEW, _BREATH_S = 4, 0.01


class Looks(Protocol):
    """One worker, as the lookout knows it.

    Attributes:
        lease: the key of its lease.
        is_over: whether it is in the job no more, and has been told.
    """

    lease: str
    is_over: bool

    def glance(self, epoch: Entry | None, head: Head | None, lease: Entry | None) -> bool:
        """Act on what is seen, without I/O; False if the store has to be asked what it means."""

    async def shrink(self, head: Head) -> None:
        """Act on a job that was scaled down."""

    async def ask(self) -> bool:
        """Ask the store, and act on it; False if the picture is behind, and has to be looked at again."""


class Lookout:
    """Follows a run for all workers of it on one store, in one thread; see ``lookout_of``."""

    def __init__(self, store: Store, keys: RunKeys, shelf: Shelf | None = None) -> None:
        self._store = store
        self._keys = keys
        self._shelf = shelf
        self._bell = Bell()
        self._closed = Signal()
        self._losses = Losses()
        self._own = mutex()
        self._workers: dict[object, Looks] = {}
        self.picture = Picture(store, keys, self._bell)
        self._background = Background(self._run, f"latchwork-workers-{keys.job.job}")

    def add(self, worker: Looks) -> None:
        """Look for one more."""
        self._workers[worker] = worker
        self.wake()

    def wake(self) -> None:
        """Look again."""
        with self._bell.mutex:
            self._bell.ring()

    async def remove(self, worker: Looks) -> None:
        """Look no more for one; the last one ends all. Twice is fine."""
        if not self._drop([worker]):
            return
        self.wake()
        if not self._background.is_mine:
            await self._background

    def _drop(self, workers: Iterable[Looks]) -> bool:
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
        await self.picture.ready()
        workers = list(self._workers.values())
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


_shelves: WeakKeyDictionary[Store, Shelf] = WeakKeyDictionary()


def lookout_of(store: Store, keys: RunKeys, worker: Looks) -> Lookout:
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
