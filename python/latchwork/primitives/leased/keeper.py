"""Persistent locks: they outlive their process and its session for a TTL, and one write renews any number of them.

Keys:   @locks/owners/<uuid>  one per owner, used once; TTL, label, host and pid; rewritten every third of the TTL
        @locks/locks/<name>   who holds it; names may have several segments (``report/item-1``)
Holder: the owner that the lock names, until its own deadline: the send of its last confirmed renewal + TTL.

A keeper of another system, such as that of a job cluster, has ``owners/`` and ``locks/`` in the tree of that system.

The decisions are in ``protocol``, their race analysis in docs/design/0006.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from latchwork.errors import Closed, Conflict, LatchworkError, OutcomeUnknown, Unavailable, WaitTimeout
from latchwork.primitives.leased.inspect import LockState, state_of, states_below
from latchwork.primitives.leased.owner import HeldLock, LockOwner
from latchwork.primitives.leased.protocol import InDoubt
from latchwork.primitives.leased.thread import KeeperThread
from latchwork.primitives.waiting.common import Patience, check_name, refuse_in_callback
from latchwork.primitives.waiting.waits import check_member
from latchwork.store.backoff import Backoff
from latchwork.store.observers import check_listener
from latchwork.store.steps import Pause, Signal, Steps, driven, ending, steps_of, undone_if_interrupted
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
        try:
            let_go = undone_if_interrupted(lambda: self._let_go(list(granted.values())))
            with let_go, self._claimed(names, claimer) as claimed:
                await self._take(claimed, granted, claimer)
        except (Unavailable, OutcomeUnknown) as error:
            if not granted:
                raise
            _log.warning("%d of %d locks were taken, then: %s", len(granted), len(names), error)
        return granted

    async def _take(
        self, names: Sequence[str], granted: dict[str, HeldLock], claimer: object, heir_of: str | None = None
    ) -> None:
        """Take those of the names that are free and not granted yet; with ``heir_of`` only those of that owner."""
        while left := [name for name in names if name not in granted]:
            owner = await self._use_owner(claimer)
            written: dict[str, Entry | InDoubt] = {}
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
            )
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

    def _grant(self, owner: LockOwner, written: dict[str, Entry | InDoubt], claimer: object) -> dict[str, HeldLock]:
        holds, doubts = [], []
        for name, what in written.items():
            if isinstance(what, InDoubt):
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
        with undone_if_interrupted(lambda: self._let_go(list(granted.values()))):
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


class LockKeeper(Taker):
    """Holds any number of persistent locks under one owner. Safe to share between threads.

    Construction does no I/O. The keeper starts with its first use, with ``start()`` or with ``with``, and then follows
    the other owners: one that will compete for locks should start early, so that it need not wait for another TTL
    after a dead owner without a session. Close it to release everything and to end its thread.

    Locks are not reentrant, and not fair: whoever notices first takes a free lock. A lock held by this keeper is held
    for every thread of this process. A keeper that lost its locks goes on with a new owner.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        ttl_s: seconds that locks outlive the last renewal; less than 0.3 is raised to that, with a logged warning.
        owner_label: what others see when they ask who holds a lock.
        session: gives the session to share renewals with, None for none: its end tells newcomers, too, that we died.
    """

    def __repr__(self) -> str:
        return f"<LockKeeper {self._record.label!r} {len(self.held())} locks {self.remaining_s():.2f}s>"

    @ending
    async def close(self, *, release: bool = True) -> None:
        """End the keeper; whoever waits for a lock gets ``Closed``. From any thread; twice is fine.

        Args:
            release: give all locks back: others can have them at once. With False they run out, in up to 1.05 TTL: for
                when what they protect may still be going on.
        """
        if self._home.is_foreign:
            return
        held = self._state.close()
        if held is None:
            return
        self._closing.set()
        self._waits.close()
        try:
            if release:
                await self._give_back(held)
        finally:
            self._end_thread()
        await self._ended_thread()

    # Taking and releasing

    @driven
    async def acquire(self, name: str, timeout_s: float | None = None) -> HeldLock:
        """Wait for a lock and take it.

        Waits through disconnects: errors of the server are raised only when the time is over. A call that is under way
        then can take longer, up to the store's call timeout.

        Args:
            name: the lock's name, one or more key segments.
            timeout_s: seconds to wait; None waits for ever, 0 tries once.
        Returns:
            The lock, with the fence for the writes that depend on it.
        Raises:
            WaitTimeout: somebody else still holds it.
            Unavailable, OutcomeUnknown: the server could not be reached in that time; nothing is left behind.
            LatchworkError: this is a callback, which must not wait.
            Closed: the keeper or its store was closed.
            ForkedProcess: it was made by the parent of this process.
            InvalidKey: the name cannot be a key.
        Source:
            docs/design/0006.
        """
        return await self.acquire_unless(name, timeout_s, Signal())

    async def acquire_unless(self, name: str, timeout_s: float | None, off: Signal) -> HeldLock:
        """Like ``acquire``, until the signal is set: ``Closed`` then."""
        check_name(name, "lock")
        self._home.check()
        refuse_in_callback(f"lock {name!r}", timeout_s)
        patience, backoff = Patience(self._clock, timeout_s), Backoff()
        while True:
            trouble: LatchworkError | None = None
            try:
                held = (await self._take_free([name])).get(name)
            except (Unavailable, OutcomeUnknown) as error:
                held, trouble = None, error
            if held is not None:
                return held
            if patience.is_over:
                raise trouble or WaitTimeout(await self._still_held(name, timeout_s))
            pause_s = backoff.next_s()
            if trouble is None and await self._waits.until_free(name, patience, off):
                backoff.reset()
            elif not off.is_set():
                await self._pause(patience.left_s(pause_s))
            if off.is_set():
                raise Closed(f"lock {name!r} was closed while it was waited for; make another one")

    @driven
    async def try_acquire(self, name: str) -> HeldLock | None:
        """Take a lock if it can be had now; None if somebody else holds it, another thread of ours included.

        Raises:
            Unavailable: the server could not be reached.
            OutcomeUnknown: it may have been taken; if so the keeper gives it back by itself.
            Closed, InvalidKey: as for ``acquire``.
        """
        return (await self._take_free([check_name(name, "lock")])).get(name)

    @driven
    async def try_acquire_many(self, names: Iterable[str]) -> dict[str, HeldLock]:
        """Take those of the locks that can be had now, many in one transaction.

        Not all or nothing: each lock is taken for itself. When the server fails half-way, the locks taken so far are
        returned, and the others can be tried again.

        Returns:
            The locks taken, by name; those missing are held by others, or by this keeper already.
        Raises:
            Unavailable, OutcomeUnknown, Closed, InvalidKey: as for ``try_acquire``, and nothing was taken.
        """
        return await self._take_free([check_name(name, "lock") for name in dict.fromkeys(names)])

    @driven
    async def adopt(
        self, owner_id: str, names: Collection[str] | None = None, timeout_s: float | None = None
    ) -> dict[str, HeldLock]:
        """Take over, at once, the locks that our own process still holds from before its restart; no TTL is waited for.

        Each lock passes from exactly that owner to this keeper, with a new fence: writes under the old one are refused
        from then on. The caller has to know that the earlier process has stopped its work. If it still runs, its
        keeper reports the loss as soon as it learns of it.

        Args:
            owner_id: the earlier owner: its ``owner_id``, kept by the caller, or that of a ``holder`` in ``holders()``.
            names: only these locks; None for all of them.
            timeout_s: seconds to wait for a server that cannot be reached; None waits for ever, 0 tries once.
        Returns:
            The locks that are ours now, by name; not those that others had taken over meanwhile. May be empty.
        Raises:
            ValueError: it is the owner by which this keeper holds its locks now.
            Unavailable, OutcomeUnknown: the server could not be reached in that time; what was adopted is in
                ``held()``, call again for the rest.
            Closed, ForkedProcess, LatchworkError: as for ``acquire``.
        Source:
            docs/design/0006.
        """
        self._home.check()
        refuse_in_callback("locks of an earlier owner", timeout_s)
        if owner_id == self.owner_id:
            raise ValueError(f"owner {owner_id!r} is this keeper's own; give the id of an earlier life")
        patience = Patience(self._clock, timeout_s)
        self.start()
        try:
            return await self._adopt(check_member(owner_id, "owner"), names, patience)
        except (Unavailable, OutcomeUnknown):
            self._refuse_closed()  # the reason why it was not tried again
            raise

    @ending
    async def release(self, names: Iterable[str]) -> None:
        """Give locks back, many in one transaction; others can have them at once.

        When the server cannot be reached the keeper goes on trying; they run out at the latest.

        Raises:
            LockLost: some had run out or were not held; all the others are released all the same.
        """
        self._home.check()
        found, missing = self._state.find(list(dict.fromkeys(names)))
        await self._release(found, missing)

    def when_free(self, name: str, fn: Callable[[str], None]) -> Callable[[], None]:
        """Call ``fn(name)`` once, in a callback thread, when the lock looks free: then try to acquire it.

        It may be taken again by then, or have been seen wrongly; ask again if so. Waiting costs no thread, and names
        that share their first segment share one watch. Returns what cancels it.

        Raises:
            Closed, InvalidKey: as for ``acquire``.
            TypeError: it is no plain function.
        """
        call = partial(check_listener(fn), check_name(name, "lock"))
        self.start()
        cancel = self._waits.add(name, lambda: self._relaxed.post(call))
        self._wake.set()
        return cancel

    # What is whose

    @driven
    async def state(self, name: str) -> LockState:
        """Who holds a lock, without taking it."""
        return await state_of(self._table, check_name(name, "lock"))

    @driven
    async def holders(self, below: str = "") -> list[LockState]:
        """Every lock that somebody holds, sorted by name. Not a snapshot.

        Args:
            below: only names below this one; "" for all.
        """
        return [state for state in await states_below(self._table, below) if state.holder is not None]

    def waiting(self) -> list[str]:
        """The names that this keeper waits for, sorted."""
        return self._waits.names()

    @driven
    async def sweep(self) -> tuple[int, int]:
        """Remove what dead owners left behind; safe to run anywhere, at any time, best by one node now and then.

        Returns:
            How many owners were removed (silent for 2 TTL), and how many locks were freed, or forgotten because nobody
            had taken them since an earlier sweep at least ten minutes ago.
        """
        self.start()
        return await self._sweeper.sweep()
