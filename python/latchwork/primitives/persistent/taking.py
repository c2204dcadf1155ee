"""How a keeper takes locks: under an owner of its own, many in one transaction, or from an earlier life of its process.

Used by ``keeper`` alone. Keys and races are told there, and in docs/design/0006.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from latchwork.errors import Conflict, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.primitives.persistent.held import HeldLock, LockOwner
from latchwork.primitives.persistent.outside import state_of
from latchwork.primitives.persistent.protocol import Doubt
from latchwork.primitives.persistent.thread import KeeperThread
from latchwork.primitives.waiting.common import Patience
from latchwork.store.backoff import Backoff
from latchwork.store.steps import OnInterrupt, Pause, Settled, Steps, steps_of
from latchwork.types import At, Entry

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Taker(KeeperThread):
    """The part of a keeper that takes locks. What it has taken is held, also when an error ends the call."""

    async def _take_free(self, names: Sequence[str]) -> dict[str, HeldLock]:
        """Take those of the locks that can be had now.

        Raises:
            Unavailable, OutcomeUnknown: and nothing was taken; else what was taken so far is returned.
        """
        self.start()
        granted, claimer = dict[str, HeldLock](), object()
        before = await OnInterrupt(partial(self._done_with, claimer))
        try:
            with self._claimed(names, claimer) as claimed:
                await self._take(claimed, granted, claimer)
        except (Unavailable, OutcomeUnknown) as error:
            if not granted:
                await Settled(before)
                raise
            _log.warning("%d of %d locks were taken, then: %s", len(granted), len(names), error)
        if not granted:
            await Settled(before)
        return granted

    async def _take(
        self, names: Sequence[str], granted: dict[str, HeldLock], claimer: object, heir_of: str | None = None
    ) -> None:
        """Take those of the names that are free and not granted yet; with ``heir_of`` only those of that owner."""
        while left := [name for name in names if name not in granted]:
            owner = await self._use_owner(claimer)
            written: dict[str, Entry | Doubt] = {}
            await OnInterrupt(partial(self._undo, owner, written, claimer))
            try:
                await self._table.take(left, owner.id, written, heir_of=heir_of)
            except Conflict:
                pass  # our own O is gone
            else:
                return
            finally:
                granted.update(self._grant(owner, written, claimer))
            self._lose(owner, "another owner took it over")

    async def _use_owner(self, claimer: object) -> LockOwner:
        """The current owner, counted as used, so that it is not given up meanwhile; made if there is none."""
        while True:
            self._lose_if_over()
            current = self._state.current
            if current is not None:
                await OnInterrupt(partial(current.users.discard, claimer))
            owner, rings = self._state.use_owner(claimer)
            if owner is not None:
                return owner
            owner = LockOwner(
                self._clock,
                self.ttl_s,
                self._home,
                session=self._renewals.session(),
                renew=self._renewals.renew,
                renewed=self._renewed,
                release=steps_of(self.release_held),
                let_go=self._let_go,
            )
            await OnInterrupt(partial(self._undo, owner, {}, claimer))
            if self._state.begin_making(owner, claimer):
                await self._make(owner)
                return owner
            await self._state.rung(rings, 1.0)  # another thread makes one

    async def _make(self, owner: LockOwner) -> None:
        created = False
        try:
            await self._renewals.create(owner)
            created = True
        finally:
            self._state.end_making(owner, created=created)
        owner.follow_session(self._wake.set)
        self._wake.set()
        _log.info("lock owner %s created with a ttl of %.3g s", owner.id, self.ttl_s)

    def _grant(self, owner: LockOwner, written: dict[str, Entry | Doubt], claimer: object) -> dict[str, HeldLock]:
        holds, doubts = [], []
        for name, what in written.items():
            if isinstance(what, Doubt):
                doubts.append(what)
            else:
                holds.append(HeldLock(owner, name, what, self._store.fence(what.token, At(what))))
        granted = self._state.grant(owner, holds, doubts, claimer)
        for name, held in granted.items():
            _log.debug("lock %r taken by owner %s with token %d", name, owner.id, held.fence.token)
        return granted

    @contextmanager
    def _claimed(self, names: Iterable[str], claimer: object) -> Iterator[list[str]]:
        """Claim these names against other threads of this process, except those that are held or busy already."""
        try:
            yield self._state.claim(names, claimer)
        finally:
            self._done_with(claimer)

    async def _pause(self, seconds: float | None) -> None:
        await Pause(self._clock, self._closing, seconds)

    async def _still_held(self, name: str, timeout_s: float | None) -> str:
        try:
            holder = (await state_of(self._table, name)).holder
        except LatchworkError:
            holder = None
        return (
            f"lock {name!r} is held by {holder or 'somebody else'} after {timeout_s or 0.0:.3g} s; "
            f"raise timeout_s, or list its holders"
        )

    # Adopting

    async def _adopt(self, old: str, only: Collection[str] | None, patience: Patience) -> dict[str, HeldLock]:
        """Take what another owner holds, from it and from nobody else; then remove it, unless it keeps some.

        It is renewed once before, so that nobody else takes it for dead meanwhile. It is removed last, so that whatever
        it took after we had looked is free then. An error says that not everything was taken; what was taken is held.
        """
        backoff = Backoff()
        granted: dict[str, HeldLock] = {}
        await self._persist(lambda: self._table.prolong(old), patience, backoff)
        found = await self._persist(lambda: self._table.held_by(old), patience, backoff)
        left = names = [name for name in found if only is None or name in only]
        claimer = object()
        await OnInterrupt(partial(self._done_with, claimer))
        while left:
            with self._claimed(left, claimer) as claimed:  # also while we pause: nobody settles what is in doubt
                await self._persist(partial(self._take, claimed, granted, claimer, old), patience, backoff)
            left = self._state.are_busy(name for name in left if name not in granted)
            if left and not await self._keep_on(patience, backoff):  # another thread of ours tries to have them
                return granted
        if len(names) == len(found):
            await self._delete(old)
        return granted

    async def _persist(self, step: Callable[[], Steps[T]], patience: Patience, backoff: Backoff) -> T:
        """Try a step again and again while the server cannot be reached and there is time."""
        while True:
            try:
                return await step()
            except (Unavailable, OutcomeUnknown):
                if not await self._keep_on(patience, backoff):
                    raise

    async def _keep_on(self, patience: Patience, backoff: Backoff) -> bool:
        """Pause after trouble; False when there is no more time."""
        if patience.is_over or self._closing.is_set():
            return False
        await self._pause(patience.left_s(backoff.next_s()))
        return True
