"""Acquires locks for a lock keeper. Locks acquired before an error remain held.

docs/design/locks.md has the race analysis.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from latchwork._base.event import Signal
from latchwork.errors import Closed, Conflict, LatchworkError, OutcomeUnknown, Unavailable, WaitTimeout
from latchwork.primitives.leased.core import KeeperCore
from latchwork.primitives.leased.inspect import read_state
from latchwork.primitives.leased.owner import HeldLock, LockOwner
from latchwork.primitives.leased.protocol import InDoubt
from latchwork.primitives.waiting.common import Deadline, check_name, refuse_in_callback
from latchwork.store.backoff import Backoff
from latchwork.store.steps import Pause, Steps, undone_if_interrupted
from latchwork.types import At, Entry

_log = logging.getLogger(__name__)
T = TypeVar("T")


class LockAcquirer:
    """Acquires locks for a keeper. Thread-safe.

    Args:
        core: The keeper's state and background work.
    """

    def __init__(self, core: KeeperCore) -> None:
        self._core = core
        self._state = core.state
        self._table = core.table
        self._clock = core.clock

    async def acquire(self, name: str, timeout_s: float | None, stop: Signal) -> HeldLock:
        """Wait for a lock and acquire it.

        Raises:
            Closed: The signal ``stop`` was set while waiting.
        """
        check_name(name, "lock")
        self._core.fork_guard.check()
        refuse_in_callback(f"lock {name!r}", timeout_s)
        deadline, backoff = Deadline(self._clock, timeout_s), Backoff()
        while True:
            trouble: LatchworkError | None = None
            try:
                held = (await self.take_free([name])).get(name)
            except (Unavailable, OutcomeUnknown) as error:
                held, trouble = None, error
            if held is not None:
                return held
            if deadline.has_passed:
                raise trouble or WaitTimeout(await self._still_held(name, timeout_s))
            pause_s = backoff.next_s()
            if trouble is None and await self._core.waits.wait_free(name, deadline, stop):
                backoff.reset()
            elif not stop.is_set():
                await self._pause(deadline.left_s(pause_s))
            if stop.is_set():
                raise Closed(f"lock {name!r} was closed while it was waited for; make another one")

    async def take_free(self, names: Sequence[str]) -> dict[str, HeldLock]:
        """Acquire those of the locks that are free, and return them by name.

        Raises:
            Unavailable, OutcomeUnknown: The server failed before any lock was acquired. After a partial success the
                acquired locks are returned instead.
        """
        self._core.start()
        granted, claimer = dict[str, HeldLock](), object()
        try:
            undo = undone_if_interrupted(lambda: self._core.release_in_background(list(granted.values())))
            with undo, self._claimed(names, claimer) as claimed:
                await self._take(claimed, granted, claimer)
        except (Unavailable, OutcomeUnknown) as error:
            if not granted:
                raise
            _log.warning("%d of %d locks were taken, then: %s", len(granted), len(names), error)
        return granted

    async def _take(
        self, names: Sequence[str], granted: dict[str, HeldLock], claimer: object, only_from: str | None = None
    ) -> None:
        """Acquire those of the locks that are free and not yet in ``granted``.

        Args:
            names: Names of the locks.
            granted: Receives the acquired locks by name.
            claimer: Identifies the call that has marked the names as busy.
            only_from: Acquire only locks of the owner with this ID; None for any.
        """
        while left := [name for name in names if name not in granted]:
            owner = await self._use_owner(claimer)
            written: dict[str, Entry | InDoubt] = {}
            try:
                await self._table.take(left, owner.id, written, only_from=only_from)
            except Conflict:
                pass  # our own O is gone
            else:
                return
            finally:
                granted.update(self._grant(owner, written, claimer))
            self._core.lose(owner, "another owner took it over")

    async def _use_owner(self, claimer: object) -> LockOwner:
        """Return the current owner of this keeper's locks, or create one.

        It is marked as used, so that it is not ended.
        """
        while True:
            self._core.lose_if_expired()
            owner, version = self._state.use_owner(claimer)
            if owner is not None:
                return owner
            owner = LockOwner(
                self._clock,
                self._core.ttl_s,
                self._core.fork_guard,
                session=self._core.renewals.session(),
                renew=self._core.renewals.renew,
                renewed=self._core.renewed,
                release=self._core.release,
            )
            if self._state.begin_creation(owner, claimer):
                await self._make(owner)
                return owner
            await self._state.changed_since(version, 1.0)  # another thread makes one

    async def _make(self, owner: LockOwner) -> None:
        created = False
        try:
            await self._core.renewals.create(owner)
            created = True
        finally:
            self._state.end_creation(owner, created=created)
        owner.follow_session(self._core.wake.set)
        self._core.wake.set()
        _log.info("lock owner %s created with a ttl of %.3g s", owner.id, self._core.ttl_s)

    def _grant(self, owner: LockOwner, written: dict[str, Entry | InDoubt], claimer: object) -> dict[str, HeldLock]:
        holds, doubts = [], []
        for name, what in written.items():
            if isinstance(what, InDoubt):
                doubts.append(what)
            else:
                holds.append(HeldLock(owner, name, what, self._core.store.fence(what.token, At(what))))
        granted = self._state.grant(owner, holds, doubts, claimer)
        for name, held in granted.items():
            _log.debug("lock %r taken by owner %s with token %d", name, owner.id, held.fence.token)
        return granted

    @contextmanager
    def _claimed(self, names: Iterable[str], claimer: object) -> Iterator[list[str]]:
        """Mark names as busy while a ``with`` block runs, except those that are held or busy already.

        Yield the marked names.
        """
        try:
            yield self._state.claim(names, claimer)
        finally:
            self._core.end_claim(claimer)

    async def _pause(self, seconds: float | None) -> None:
        await Pause(self._clock, self._core.closing, seconds)

    async def _still_held(self, name: str, timeout_s: float | None) -> str:
        try:
            holder = (await read_state(self._table, name)).holder
        except LatchworkError:
            holder = None
        return (
            f"lock {name!r} is held by {holder or 'somebody else'} after {timeout_s or 0.0:.3g} s; "
            f"raise timeout_s, or list its holders"
        )

    # Adopting

    async def adopt(self, old: str, only: Collection[str] | None, deadline: Deadline) -> dict[str, HeldLock]:
        """Take over the locks of another owner, and return them by name.

        Then delete that owner, unless it keeps some locks.

        The owner is renewed once before, so that no client considers it dead meanwhile. It is deleted last, so that
        locks that it took after our read become free. After an error, some locks may not have been taken over. The
        others are held.
        """
        backoff = Backoff()
        granted: dict[str, HeldLock] = {}
        await self._retry(lambda: self._table.renew_other(old), deadline, backoff)
        found = await self._retry(lambda: self._table.list_locks_of_owner(old), deadline, backoff)
        left = names = [name for name in found if only is None or name in only]
        claimer = object()
        with undone_if_interrupted(lambda: self._core.release_in_background(list(granted.values()))):
            while left:
                with self._claimed(left, claimer) as claimed:  # also during the pause: no other thread settles doubts
                    await self._retry(partial(self._take, claimed, granted, claimer, old), deadline, backoff)
                left = self._state.find_busy(name for name in left if name not in granted)
                if left and not await self._pause_before_retry(deadline, backoff):  # another thread is taking them
                    return granted
            if len(names) == len(found):
                await self._core.delete(old)
            return granted

    async def _retry(self, step: Callable[[], Steps[T]], deadline: Deadline, backoff: Backoff) -> T:
        """Repeat a call while the server is unavailable, until it succeeds or the deadline has passed.

        Return its result.
        """
        while True:
            try:
                return await step()
            except (Unavailable, OutcomeUnknown):
                if not await self._pause_before_retry(deadline, backoff):
                    raise

    async def _pause_before_retry(self, deadline: Deadline, backoff: Backoff) -> bool:
        """Pause after an error. Return False if the deadline has passed."""
        if deadline.has_passed or self._core.closing.is_set():
            return False
        await self._pause(deadline.left_s(backoff.next_s()))
        return True
