"""Persistent locks: they outlive their process and its session for a TTL, and one write renews any number of them.

Keys:   @locks/owners/<uuid>  one per owner, used once; TTL, label, host and pid; rewritten every third of the TTL
        @locks/locks/<name>   who holds it; names may have several segments (``report/item-1``)
Holder: the owner that the lock names, until its own deadline: the send of its last confirmed renewal + TTL.

A keeper of another system, such as that of a job cluster, has ``owners/`` and ``locks/`` in the tree of that system.

The decisions are in ``protocol``, their race analysis in docs/design/locks.md.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TypeVar

from latchwork.errors import OutcomeUnknown, Unavailable
from latchwork.primitives.leased.inspect import LockState, state_of, states_below
from latchwork.primitives.leased.owner import HeldLock, SessionOfTheMoment
from latchwork.primitives.leased.protocol import LEAST_TTL_S
from latchwork.primitives.leased.taking import Taking
from latchwork.primitives.leased.upkeep import Upkeep
from latchwork.primitives.waiting.common import Patience, Starts, check_least, check_name, refuse_in_callback
from latchwork.primitives.waiting.waits import check_member
from latchwork.store.forks import lost_by_fork
from latchwork.store.observers import check_listener, listen
from latchwork.store.steps import Signal, driven, ending
from latchwork.store.store import Store

_log = logging.getLogger(__name__)
T = TypeVar("T")


class LockKeeper(Starts):
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

    def __init__(
        self,
        store: Store,
        *,
        ttl_s: float = 10.0,
        owner_label: str = "",
        session: SessionOfTheMoment | None = None,
    ) -> None:
        self._upkeep = upkeep = Upkeep(store, ttl_s=ttl_s, owner_label=owner_label, session=session)
        self._taking = Taking(upkeep)
        upkeep.keeper = self
        self.ttl_s = upkeep.ttl_s
        self._record = upkeep.record
        self._table = upkeep.table
        self._store = upkeep.store
        self._clock = upkeep.clock
        self._state = upkeep.state
        self._home = upkeep.home
        self._waits = upkeep.waits

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
        self._upkeep.closing.set()
        self._waits.close()
        try:
            if release:
                await self._upkeep.give_back(held)
        finally:
            self._upkeep.end()
        await self._upkeep.wait_ended()

    def start(self) -> None:
        """Follow the other owners from now on. Idempotent.

        Raises:
            Closed: the keeper was closed.
        """
        self._upkeep.start()

    def end_soon(self) -> None:
        """Give back what is held, and end the thread, in the background."""
        self._upkeep.end_soon()

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
            docs/design/locks.md.
        """
        return await self._taking.acquire(name, timeout_s, Signal())

    async def acquire_unless(self, name: str, timeout_s: float | None, off: Signal) -> HeldLock:
        """Like ``acquire``, until the signal is set: ``Closed`` then."""
        return await self._taking.acquire(name, timeout_s, off)

    @driven
    async def try_acquire(self, name: str) -> HeldLock | None:
        """Take a lock if it can be had now; None if somebody else holds it, another thread of ours included.

        Raises:
            Unavailable: the server could not be reached.
            OutcomeUnknown: it may have been taken; if so the keeper gives it back by itself.
            Closed, InvalidKey: as for ``acquire``.
        """
        return (await self._taking.take_free([check_name(name, "lock")])).get(name)

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
        return await self._taking.take_free([check_name(name, "lock") for name in dict.fromkeys(names)])

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
            docs/design/locks.md.
        """
        self._home.check()
        refuse_in_callback("locks of an earlier owner", timeout_s)
        if owner_id == self.owner_id:
            raise ValueError(f"owner {owner_id!r} is this keeper's own; give the id of an earlier life")
        patience = Patience(self._clock, timeout_s)
        self._upkeep.start()
        try:
            return await self._taking.adopt(check_member(owner_id, "owner"), names, patience)
        except (Unavailable, OutcomeUnknown):
            self._upkeep.refuse_closed()  # the reason why it was not tried again
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
        await self._upkeep.release_found(found, missing)

    def when_free(self, name: str, fn: Callable[[str], None]) -> Callable[[], None]:
        """Call ``fn(name)`` once, in a callback thread, when the lock looks free: then try to acquire it.

        It may be taken again by then, or have been seen wrongly; ask again if so. Waiting costs no thread, and names
        that share their first segment share one watch. Returns what cancels it.

        Raises:
            Closed, InvalidKey: as for ``acquire``.
            TypeError: it is no plain function.
        """
        call = partial(check_listener(fn), check_name(name, "lock"))
        self._upkeep.start()
        cancel = self._waits.add(name, lambda: self._upkeep.relaxed.post(call))
        self._upkeep.wake.set()
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
        self._upkeep.start()
        return await self._upkeep.sweeper.sweep()

    def held(self) -> dict[str, HeldLock]:
        """The locks this keeper holds for certain, by name."""
        return {} if self._home.is_foreign else self._state.held()

    def holds(self, held: HeldLock) -> bool:
        """True if this very hold was not released; it may have run out."""
        return held.is_kept

    @property
    def owner_id(self) -> str | None:
        """The id of the owner that holds our locks, None before the first; another one after a loss. See ``adopt``."""
        owner = self._state.current
        return owner.id if owner is not None else None

    def remaining_s(self) -> float:
        """Seconds the locks are ours for certain if no further renewal succeeds; 0 without any. Does no I/O."""
        if self._home.is_foreign:
            return 0.0
        owner = self._state.current
        return owner.remaining_s() if owner is not None and owner.held else 0.0

    @property
    def lost(self) -> Signal:
        """Set when the locks held at this moment run out; ask again after that, for the next ones."""
        if self._home.is_foreign:
            return lost_by_fork()
        owner = self._state.current
        return owner.lost if owner is not None else Signal()

    def renew_within(self, seconds: float | None) -> None:
        """Renew as often as a TTL of so many seconds would need, from now on; None for as often as this TTL needs.

        For callers that have to know sooner than after a TTL that the server is out of reach. The TTL stays as it is.
        This does nothing after ``close``.
        """
        self._upkeep.within_s = math.inf if seconds is None else check_least(seconds, "seconds", LEAST_TTL_S)
        self._upkeep.wake.set()

    def on_lost(self, fn: Callable[[tuple[str, ...]], None]) -> Callable[[], None]:
        """Call ``fn(names)`` when locks run out or are taken over: what they protected must stop. Not on release.

        Returns:
            A function that ends it.
        """
        self._upkeep.refuse_closed()
        return listen(self._upkeep.lost_listeners, fn)

    def on_prolong_failed(self, fn: Callable[[BaseException, float], None]) -> Callable[[], None]:
        """Call ``fn(error, remaining_s)`` when a renewal fails or is not answered; the locks are ours that long.

        Returns:
            A function that ends it.
        """
        self._upkeep.refuse_closed()
        return listen(self._upkeep.failed_listeners, fn)

    @ending
    async def release_held(self, locks: Sequence[HeldLock]) -> None:
        """Give exactly these locks back; see ``release``. A lock taken again since is not meant."""
        await self._upkeep.release(locks)
