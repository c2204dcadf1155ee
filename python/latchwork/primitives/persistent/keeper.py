"""Persistent locks: they outlive their process and its session for a TTL, and one write renews any number of them.

Keys:   owners/<uuid>     one per keeper and life; ttl, label, host and pid as JSON; rewritten every third of the TTL
        locks/<name>      who holds it, as JSON; names may have several segments (``report/item-1``)
Holder: the owner that ``locks/<name>`` names, until its own deadline: the send of its last confirmed renewal + TTL.

The protocol is in ``lock_protocol``, its race analysis in docs/design/0006.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from latchwork.errors import Closed, LatchworkError, OutcomeUnknown, Unavailable, WaitTimeout
from latchwork.primitives.persistent.holds import LockHolds
from latchwork.primitives.persistent.life import LockLife
from latchwork.primitives.persistent.listeners import LockListeners
from latchwork.primitives.persistent.loop import LockLoop
from latchwork.primitives.persistent.outside import LockState, state_of, states_of
from latchwork.primitives.persistent.owner import HeldLock, LockOwner
from latchwork.primitives.persistent.protocol import LEAST_TTL_S, LOCKS_PREFIX, OWNERS_PREFIX, OwnerRecord, raised_ttl_s
from latchwork.primitives.persistent.table import LockTable
from latchwork.primitives.persistent.waits import LockWaits
from latchwork.primitives.waiting.common import (
    Announcer,
    Identity,
    Patience,
    check_least,
    check_name,
    check_text,
    lost_by_fork,
    refuse_in_callback,
)
from latchwork.primitives.waiting.waits import check_member
from latchwork.store.backoff import Backoff
from latchwork.store.dispatch import Dispatcher
from latchwork.store.forks import Home
from latchwork.store.steps import run
from latchwork.types import At

if TYPE_CHECKING:
    from latchwork.store.store import Store
    from latchwork.types import Entry


class LockKeeper:
    """Holds any number of persistent locks under one owner. Safe to share between threads.

    Construction does no I/O. The keeper starts with its first use, with ``start()`` or with ``with``, and then follows
    the other owners: one that will compete for locks should start early, so that it can take over a dead owner's locks
    without waiting for another TTL. Close it to release everything and to end its thread.

    Locks are not reentrant, and not fair: whoever notices first takes a free lock. A lock held by this keeper is held
    for every thread of this process. A keeper that lost its locks goes on with a new owner.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        owners_prefix: where owners are kept; all that compete for the same locks must agree on both prefixes.
        locks_prefix: where locks are kept.
        ttl_s: seconds that locks outlive the last renewal; less than 0.3 is raised to that, with a logged warning.
        owner_label: what others see when they ask who holds a lock.
    """

    def __init__(
        self,
        store: Store,
        *,
        owners_prefix: str = OWNERS_PREFIX,
        locks_prefix: str = LOCKS_PREFIX,
        ttl_s: float = 10.0,
        owner_label: str = "",
    ) -> None:
        self.ttl_s = raised_ttl_s(ttl_s, f"lock keeper {check_text(owner_label, 'owner_label')!r}")
        self._store = store
        self._clock = store.clock
        self._table = LockTable(store, owners_prefix, locks_prefix)
        identity = Identity()
        self._home = Home("a lock keeper")
        self._record = OwnerRecord(self.ttl_s, owner_label, identity.host, identity.pid)
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._dispatcher = Dispatcher(f"locks-{owner_label or identity.pid}", size=3)
        self._urgent = Announcer(self._dispatcher, "a lock keeper")
        self._listeners = LockListeners(self._urgent)
        self._relaxed = Announcer(self._dispatcher, "waits for locks")
        self._life = LockLife(
            self._table,
            self._record,
            self._changed,
            on_lost=self._tell_lost,
            on_failed=self._listeners.tell_failed,
            wake=self._wake.set,
        )
        self._holds = LockHolds(
            self._table, self._life, self._changed, refuse_closed=self._refuse_closed, poke=self._poke
        )
        self._waits = LockWaits(self._table, self._holds.is_ours, self._wake.set)
        self._loop = LockLoop(
            self._table,
            self._life,
            self._holds,
            self._waits,
            dispatcher=self._dispatcher,
            changed=self._changed,
            wake=self._wake,
            ttl_s=self.ttl_s,
            label=owner_label,
        )
        self._closed = False

    def __repr__(self) -> str:
        return f"<LockKeeper {self._record.label!r} {len(self.held())} locks {self.remaining_s():.2f}s>"

    def __enter__(self) -> LockKeeper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Life

    def start(self) -> None:
        """Follow the other owners from now on. Twice is fine.

        Raises:
            Closed: the keeper was closed.
        """
        self._home.check()
        self._loop.start(self._refuse_closed)

    def close(self, *, release: bool = True) -> None:
        """End the keeper; whoever waits for a lock gets ``Closed``. From any thread; twice is fine.

        Args:
            release: give all locks back, so that others can have them at once. False leaves them to run out, which
                takes others up to 1.05 TTL; use it when what they protect may still be going on.
        """
        if self._home.is_foreign:
            return
        with self._changed:
            if self._closed:
                return
            self._closed = True
            held = self._life.all_held()
            if not release:
                self._loop.renew_no_more()
            self._changed.notify_all()
        self._waits.close()
        if release:
            self._holds.give_back(held)
        self._loop.stop()
        run(self._urgent.settle(self._clock, 1.0))
        self._dispatcher.close()

    # Taking and releasing

    def acquire(self, name: str, timeout_s: float | None = None) -> HeldLock:
        """Wait for a lock and take it.

        Waits through disconnects: trouble with the server is raised only when the time is over, which a call that
        is under way then can exceed by the store's call timeout.

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
        check_name(name, "lock")
        self._home.check()
        refuse_in_callback(f"lock {name!r}", timeout_s)
        patience = Patience(self._clock, timeout_s)
        backoff = Backoff()
        while True:
            trouble: LatchworkError | None = None
            try:
                held = self.try_acquire(name)
            except (Unavailable, OutcomeUnknown) as error:
                held, trouble = None, error
            if held is not None:
                return held
            if patience.is_over:
                raise trouble or WaitTimeout(self._still_held(name, timeout_s))
            pause_s = backoff.next_s()
            if trouble is None and self._waits.wait_free(name, patience):
                backoff.reset()
            else:
                self._pause(patience.left_s(pause_s))

    def try_acquire(self, name: str) -> HeldLock | None:
        """Take a lock if it can be had now; None if somebody else holds it, another thread of ours included.

        Raises:
            Unavailable: the server could not be reached.
            OutcomeUnknown: it may have been taken; if so the keeper gives it back by itself.
            Closed, InvalidKey: as for ``acquire``.
        """
        return self.try_acquire_many([name]).get(name)

    def try_acquire_many(self, names: Iterable[str]) -> dict[str, HeldLock]:
        """Take those of the locks that can be had now, many in one transaction.

        Not all or nothing: each lock is taken for itself. When the server fails half-way the locks taken so far are
        returned, and the others can be tried again.

        Returns:
            The locks taken, by name; those missing are held by others, or by this keeper already.
        Raises:
            Unavailable, OutcomeUnknown, Closed, InvalidKey: as for ``try_acquire``, and nothing was taken.
        """
        wanted = [check_name(name, "lock") for name in dict.fromkeys(names)]
        self.start()
        return self._holds.take(wanted, self._hold)

    def adopt(
        self, owner_id: str, names: Collection[str] | None = None, timeout_s: float | None = None
    ) -> dict[str, HeldLock]:
        """Have, at once, the locks that an earlier life of ours still holds: after a restart, without waiting a TTL.

        Each lock passes from exactly that owner to this keeper, with a new fence: writes under the old one are refused
        from then on. Whoever calls this vouches that the earlier life has stopped its work. Should it still run, it is
        told as soon as it hears of it that its locks are lost.

        Args:
            owner_id: of the earlier life: ``owner_id`` of then, or of the ``holder`` in ``holders()``.
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
        patience, backoff = Patience(self._clock, timeout_s), Backoff()

        def keep_on() -> bool:
            if patience.is_over or self._closed:
                return False
            self._pause(patience.left_s(backoff.next_s()))
            return True

        self.start()
        try:
            return self._holds.adopt(check_member(owner_id, "owner"), names, self._hold, keep_on)
        except (Unavailable, OutcomeUnknown):
            self._refuse_closed()  # the reason why it was not tried again
            raise

    def release(self, names: Iterable[str]) -> None:
        """Give locks back, many in one transaction; others can have them at once.

        When the server cannot be reached the keeper goes on trying; they run out at the latest.

        Raises:
            LockLost: some had run out or were not held; all the others are released all the same.
        """
        self._home.check()
        self._holds.release(names)

    def release_held(self, locks: Sequence[HeldLock]) -> None:
        """Give exactly these locks back; see ``release``. A lock taken again since is not meant."""
        self._home.check()
        self._holds.release_these(locks)

    def when_free(self, name: str, fn: Callable[[str], None]) -> Callable[[], None]:
        """Call ``fn(name)`` once, in a callback thread, when the lock looks free: then try to acquire it.

        It may be taken again by then, or have been seen wrongly; ask again if so. Waiting costs no thread, and names
        that share their first segment share one watch.

        Returns:
            A function that cancels it.
        Raises:
            Closed, InvalidKey: as for ``acquire``.
        """
        check_name(name, "lock")
        self.start()
        cancel = self._waits.add(name, lambda: self._relaxed.post(partial(fn, name)))
        self._wake.set()
        return cancel

    # What is ours

    def held(self) -> dict[str, HeldLock]:
        """The locks this keeper holds for certain, by name."""
        return {} if self._home.is_foreign else self._holds.now()

    def holds(self, held: HeldLock) -> bool:
        """True if this very hold was not released; it may have run out."""
        return held.owner.held.get(held.name) is held and not self._home.is_foreign

    @property
    def owner_id(self) -> str | None:
        """The id of the owner that holds our locks, None before the first; another one after a loss. See ``adopt``."""
        owner = self._life.current
        return owner.id if owner is not None else None

    def refuse_foreign(self) -> None:
        """Let a call pass, except in a child of the process that made us."""
        self._home.check()

    def remaining_s(self) -> float:
        """Seconds the locks are ours for certain if no further renewal succeeds; 0 without any. Does no I/O."""
        if self._home.is_foreign:
            return 0.0
        owner = self._life.current
        return owner.remaining_s() if owner is not None and owner.held else 0.0

    @property
    def lost(self) -> threading.Event:
        """Set when the locks held at this moment run out; ask again after that, for the next ones."""
        if self._home.is_foreign:
            return lost_by_fork()
        owner = self._life.current
        return owner.lost if owner is not None else threading.Event()

    def renew_within(self, seconds: float | None) -> None:
        """Renew as often as a TTL of so many seconds would need, from now on; None for as often as this TTL needs.

        For who has to know sooner than by the TTL that the server is out of reach. The TTL stays what it is. A keeper
        that was closed renews nothing: this does nothing then.
        """
        self._life.within_s = math.inf if seconds is None else check_least(seconds, "seconds", LEAST_TTL_S)
        self._wake.set()

    def on_lost(self, fn: Callable[[tuple[str, ...]], None]) -> Callable[[], None]:
        """Call ``fn(names)`` when locks run out or are taken over: what they protected must stop. Not on release.

        Returns:
            A function that ends it.
        """
        self._refuse_closed()
        return self._listeners.on_lost(fn)

    def on_prolong_failed(self, fn: Callable[[BaseException, float], None]) -> Callable[[], None]:
        """Call ``fn(error, remaining_s)`` when a renewal fails or is not answered; so long the locks are still ours.

        Returns:
            A function that ends it.
        """
        self._refuse_closed()
        return self._listeners.on_failed(fn)

    # What is whose

    def state(self, name: str) -> LockState:
        """Who holds a lock, without taking it."""
        return state_of(self._table, check_name(name, "lock"))

    def holders(self, below: str = "") -> list[LockState]:
        """Every lock that somebody holds, sorted by name. Not a snapshot.

        Args:
            below: only names below this one; "" for all.
        """
        prefix = self._table.lock_key(below) if below else self._table.locks_prefix
        found = states_of(self._table, self._store.list(prefix, recursive=True))
        return [state for state in found if state.holder is not None]

    def waiting(self) -> list[str]:
        """The names that this keeper waits for, sorted."""
        return self._waits.names()

    def sweep(self) -> tuple[int, int]:
        """Remove what dead owners left behind; safe to run anywhere, at any time, best by one node now and then.

        Returns:
            How many owners were removed (silent for 2 TTL), and how many locks were freed, or forgotten because nobody
            had taken them since an earlier sweep at least ten minutes ago.
        """
        self.start()
        return self._table.sweep()

    # Inside

    def _poke(self, names: Iterable[str]) -> None:
        self._waits.poke(names)

    def _hold(self, owner: LockOwner, name: str, entry: Entry) -> HeldLock:
        return HeldLock(self, owner, name, entry, self._store.fence(entry.token, At(entry)))

    def _pause(self, seconds: float | None) -> None:
        with self._changed:
            if not self._closed:
                self._clock.wait_condition(self._changed, seconds)

    def _still_held(self, name: str, timeout_s: float | None) -> str:
        try:
            holder = self.state(name).holder
        except LatchworkError:
            holder = None
        return (
            f"lock {name!r} is held by {holder or 'somebody else'} after {timeout_s or 0.0:.3g} s; "
            f"raise timeout_s, or list its holders"
        )

    # Telling

    def _tell_lost(self, names: tuple[str, ...]) -> None:
        self._listeners.tell_lost(names)
        self._poke(names)

    def _refuse_closed(self) -> None:
        self._home.check()
        if self._closed:
            raise Closed("the lock keeper was closed; make another one")
