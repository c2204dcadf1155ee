"""Persistent locks: they outlive their process and its session for a TTL, and one write renews any number of them.

Keys:   owners/<uuid>     one per keeper and life; ttl, label, host and pid as JSON; rewritten every third of the TTL
        locks/<name>      who holds it, as JSON; names may have several segments (``report/item-1``)
Holder: the owner that ``locks/<name>`` names, until its own deadline: the send of its last confirmed renewal + TTL.

The protocol is in ``lock_protocol``, its race analysis in docs/design/0006.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from latchwork.errors import Closed, Conflict, LatchworkError, LockLost, OutcomeUnknown, Unavailable, WaitTimeout
from latchwork.primitives.common import Announcer, Backoff, Identity, Patience, check_name, check_positive
from latchwork.primitives.lock_owner import HeldLock, LockOwner
from latchwork.primitives.lock_protocol import OwnerRecord
from latchwork.primitives.lock_state import LockState, states_of
from latchwork.primitives.lock_table import Doubt, Doubtful, LockTable
from latchwork.primitives.lock_waits import LockWaits
from latchwork.store.dispatch import Dispatcher
from latchwork.types import At, Exists, Put

if TYPE_CHECKING:
    from concurrent.futures import Future

    from latchwork.store.mirror import Mirror
    from latchwork.store.store import Store
    from latchwork.types import Committed, Entry

_log = logging.getLogger(__name__)

#: Renewals without an answer at once; one that hangs must not keep the next from being sent.
_MAX_IN_FLIGHT = 4
#: An owner without locks is given up after so many TTLs, so that an idle keeper writes nothing.
_IDLE_TTLS = 2.0
_CLOSE_TIMEOUT_S = 5.0


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
        ttl_s: seconds that locks outlive the last renewal, at least 0.3.
        owner_label: what others see when they ask who holds a lock.
    """

    def __init__(
        self,
        store: Store,
        *,
        owners_prefix: str = "owners",
        locks_prefix: str = "locks",
        ttl_s: float = 10.0,
        owner_label: str = "",
    ) -> None:
        self.ttl_s = check_positive(ttl_s, "ttl_s", 0.299)
        self._store = store
        self._clock = store.clock
        self._table = LockTable(store, owners_prefix, locks_prefix)
        identity = Identity()
        self._pid = identity.pid
        self._record = OwnerRecord(self.ttl_s, owner_label, identity.host, identity.pid)
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._waits = LockWaits(self._table, self._is_ours, self._wake.set)
        self._dispatcher = Dispatcher(f"locks-{owner_label or identity.pid}", size=3)
        self._urgent = Announcer(self._dispatcher, "a lock keeper")
        self._relaxed = Announcer(self._dispatcher, "waits for locks")
        self._chores = self._dispatcher.lane(self._tidy, "the chores of a lock keeper")
        self._next_chores = 0.0
        self._thread: threading.Thread | None = None
        self._mirror: Mirror | None = None
        self._owner: LockOwner | None = None
        self._own_ids: set[str] = set()
        self._ended: list[LockOwner] = []
        self._creating = False
        self._busy: set[str] = set()
        self._doubts: dict[str, Doubt] = {}
        self._lost_listeners: list[Callable[[tuple[str, ...]], None]] = []
        self._failed_listeners: list[Callable[[BaseException, float], None]] = []
        self._pipeline = store.pipeline(max_in_flight=2 * _MAX_IN_FLIGHT)
        self._closed = False
        self._stopping = False

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
        with self._changed:
            self._refuse_closed()
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name=f"latchwork-locks-{self._record.label}", daemon=True)
        try:
            mirror = self._store.mirror(self._table.owners_prefix, wait=False)
        except BaseException:
            with self._changed:
                self._thread = None
            raise
        mirror.on_change(self._owners_changed)
        with self._changed:
            self._mirror = mirror
        self._thread.start()

    def close(self, *, release: bool = True) -> None:
        """End the keeper; whoever waits for a lock gets ``Closed``. From any thread; twice is fine.

        Args:
            release: give all locks back, so that others can have them at once. False leaves them to run out, which
                takes others up to 1.05 TTL; use it when what they protect may still be going on.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            held = self._all_held()
            self._stopping = not release
            self._changed.notify_all()
        self._waits.close()
        if release:
            self._give_back(held)
        with self._changed:
            self._stopping = True
            thread, mirror = self._thread, self._mirror
        self._wake.set()
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(timeout=_CLOSE_TIMEOUT_S)
        if mirror is not None:
            mirror.close()
        self._urgent.settle(self._clock, 1.0)
        self._dispatcher.close()

    # Taking and releasing

    def acquire(self, name: str, timeout_s: float | None = None) -> HeldLock:
        """Wait for a lock and take it.

        Waits through disconnects: trouble with the server is raised only when the time is over.

        Args:
            name: the lock's name, one or more key segments.
            timeout_s: seconds to wait; None waits for ever, 0 tries once.
        Returns:
            The lock, with the fence for the writes that depend on it.
        Raises:
            WaitTimeout: somebody else still holds it.
            Unavailable, OutcomeUnknown: the server could not be reached in that time; nothing is left behind.
            Closed: the keeper or its store was closed.
            InvalidKey: the name cannot be a key.
        Source:
            docs/design/0006.
        """
        check_name(name, "lock")
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
            if trouble is None and self._wait_free(name, patience):
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
        granted: dict[str, HeldLock] = {}
        with self._claimed(wanted) as claimed:
            try:
                self._take(claimed, granted)
            except (Unavailable, OutcomeUnknown) as error:
                if not granted:
                    raise
                _log.warning("%d of %d locks were taken, then: %s", len(granted), len(claimed), error)
        return granted

    def release(self, names: Iterable[str]) -> None:
        """Give locks back, many in one transaction; others can have them at once.

        When the server cannot be reached the keeper goes on trying; they run out at the latest.

        Raises:
            LockLost: some had run out or were not held; all the others are released all the same.
        """
        wanted = list(dict.fromkeys(names))
        with self._changed:
            by_name = {held.name: held for held in self._all_held()}
        found = [by_name[name] for name in wanted if name in by_name]
        self._release(found, [name for name in wanted if name not in by_name])

    def release_held(self, locks: Sequence[HeldLock]) -> None:
        """Give exactly these locks back; see ``release``. A lock taken again since is not meant."""
        with self._changed:
            found = [held for held in locks if held.owner.held.get(held.name) is held]
        self._release(found, [held.name for held in locks if held not in found])

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
        with self._changed:
            owner = self._owner
            return dict(owner.held) if owner is not None and not owner.is_over else {}

    def holds(self, held: HeldLock) -> bool:
        """True if this very hold was not released; it may have run out."""
        return held.owner.held.get(held.name) is held and os.getpid() == self._pid

    def remaining_s(self) -> float:
        """Seconds the locks are ours for certain if no further renewal succeeds; 0 without any. Does no I/O."""
        owner = self._owner
        return owner.remaining_s() if owner is not None and owner.held else 0.0

    @property
    def lost(self) -> threading.Event:
        """Set when the locks held at this moment run out; ask again after that, for the next ones."""
        owner = self._owner
        return owner.lost if owner is not None else threading.Event()

    def on_lost(self, fn: Callable[[tuple[str, ...]], None]) -> None:
        """Call ``fn(names)`` when locks run out or are taken over: what they protected must stop. Not on release."""
        with self._changed:
            self._lost_listeners.append(fn)

    def on_prolong_failed(self, fn: Callable[[BaseException, float], None]) -> None:
        """Call ``fn(error, remaining_s)`` when a renewal fails; the locks are held for so many seconds more."""
        with self._changed:
            self._failed_listeners.append(fn)

    # What is whose

    def state(self, name: str) -> LockState:
        """Who holds a lock, without taking it."""
        key = self._table.lock_key(check_name(name, "lock"))
        entry = self._store.get(key)
        states = states_of(self._table, [entry] if entry is not None else [])
        return states[0] if states else LockState(name, None, 0)

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

    # Taking, inside

    @contextmanager
    def _claimed(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Keep other threads of this process off these names, except those that are ours or theirs already."""
        with self._changed:
            self._refuse_closed()
            theirs = self._busy | {held.name for held in self._all_held() if held.is_held}
            claimed = [name for name in names if name not in theirs]
            self._busy.update(claimed)
        try:
            yield claimed
        finally:
            with self._changed:
                self._busy.difference_update(claimed)
            self._waits.poke(claimed)

    def _take(self, names: Sequence[str], granted: dict[str, HeldLock]) -> None:
        left = list(names)
        while left:
            with self._using_owner() as owner:
                try:
                    self._table.take(left, owner.id, partial(self._grant, owner, granted))
                    return
                except Doubtful as error:
                    self._remember(error.doubts)
                    raise
                except Conflict:
                    self._lose(owner, "another owner took it over")
            left = [name for name in left if name not in granted]

    def _grant(self, owner: LockOwner, granted: dict[str, HeldLock], name: str, entry: Entry) -> None:
        held = HeldLock(self, owner, name, entry, self._store.fence(entry.token, At(entry)))
        with self._changed:
            too_late = owner.is_over or self._closed
            if not too_late:
                for ended in self._ended:
                    ended.held.pop(name, None)
                owner.held[name] = granted[name] = held
            else:
                self._doubts[name] = Doubt(name, entry)
        if not too_late:
            _log.debug("lock %r taken by owner %s with token %d", name, owner.id, entry.token)

    @contextmanager
    def _using_owner(self) -> Iterator[LockOwner]:
        owner = self._live_owner() or self._new_owner()
        try:
            yield owner
        finally:
            with self._changed:
                owner.users -= 1
                owner.idle_since = self._clock.now()

    def _live_owner(self) -> LockOwner | None:
        """The current owner, counted as used; None when the caller has to create one, which then others wait for."""
        while True:
            with self._changed:
                self._refuse_closed()
                owner = self._owner
                if owner is not None and not owner.is_over:
                    owner.users += 1
                    return owner
                if owner is None and not self._creating:
                    self._creating = True
                    return None
                if owner is None:
                    self._clock.wait_condition(self._changed, 1.0)
            if owner is not None:
                self._lose(owner, "no renewal was confirmed in time")

    def _new_owner(self) -> LockOwner:
        owner = LockOwner(self._clock, self.ttl_s)  # its lease counts from now, before the request is sent
        created = False
        try:
            with self._changed:
                self._own_ids.add(owner.id)
            self._table.create_owner(owner.id, self._record)
            created = True
        finally:
            with self._changed:
                self._creating = False
                if created:
                    self._owner = owner
                    owner.users += 1
                else:
                    self._ended.append(owner)  # it may have been created all the same
                self._changed.notify_all()
        self._wake.set()
        _log.info("lock owner %s created with a ttl of %.3g s", owner.id, self.ttl_s)
        return owner

    # Waiting, inside

    def _wait_free(self, name: str, patience: Patience) -> bool:
        """Wait until the lock looks free or the time is over; False if it looked free at once."""
        looks_free = threading.Event()
        cancel = self._waits.add(name, looks_free.set)
        try:
            if looks_free.is_set():
                return False
            self._wake.set()
            self._clock.wait(looks_free, patience.left_s())
            return True
        finally:
            cancel()

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

    # Releasing, inside

    def _release(self, found: Sequence[HeldLock], missing: list[str]) -> None:
        lost = [held.name for held in found if held.owner.is_over]
        gone = self._give_back(found)
        failed = sorted({*lost, *gone, *missing})
        if failed:
            raise LockLost(
                f"{len(failed)} locks were not held any more when they were released ({', '.join(failed[:5])}); "
                f"what they protected may have been done by another as well"
            )

    def _give_back(self, found: Sequence[HeldLock]) -> list[str]:
        """Free these locks on the server, now or later; the names of those that were taken by another."""
        with self._changed:
            for held in found:
                held.owner.held.pop(held.name, None)
                held.owner.idle_since = self._clock.now()
        entries = {held.name: held.entry for held in found}
        try:
            gone = self._table.free(entries)
        except LatchworkError as error:
            _log.warning("%d locks are not released yet: %s", len(entries), error)
            self._remember([Doubt(name, entry) for name, entry in entries.items()])
            gone = []
        self._waits.poke(entries)
        return gone

    def _remember(self, doubts: Iterable[Doubt]) -> None:
        with self._changed:
            self._doubts.update({doubt.name: doubt for doubt in doubts})

    # What happens by itself

    def _run(self) -> None:
        while not self._stopping:
            due = self._step(self._clock.now())
            if self._clock.wait(self._wake, max(0.0, due - self._clock.now())):
                self._wake.clear()
        with self._changed:
            owners = [owner for owner in (self._owner, *self._ended) if owner is not None and not owner.held]
        for owner in owners:
            self._delete(owner)

    def _step(self, now: float) -> float:
        """Do what is due; when to come back, at the latest."""
        due = [now + self.ttl_s, self._waits.fire_due(now) or now + self.ttl_s]
        owner = self._owner
        if owner is not None:
            renew_at, expires_at = owner.next_due()
            if owner.is_over:
                self._lose(owner, "no renewal was confirmed in time")
            elif self._is_idle(owner, now):
                self._retire(owner)
            elif now >= renew_at:
                self._renew(owner)
                renew_at = owner.next_due()[0]
            due += [renew_at, expires_at]
        if now >= self._next_chores:
            self._next_chores = now + self.ttl_s / 4
            self._stopping = self._stopping or self._is_abandoned()
            self._chores.signal()
        return min(*due, self._next_chores)

    def _is_abandoned(self) -> bool:
        """True if the store was closed and nothing is held: there is nothing left to do, ever."""
        mirror = self._mirror
        if mirror is None or self._owner is not None:
            return False
        try:
            mirror.wait_until(lambda _mirror: False, timeout_s=0.0)
        except Closed:
            return True
        except LatchworkError:
            pass
        return False

    def _renew(self, owner: LockOwner) -> None:
        sent_at = owner.sending()
        with self._changed:
            if owner.in_flight >= _MAX_IN_FLIGHT:
                return
            owner.in_flight += 1
        key = self._table.owner_key(owner.id)
        try:
            future = self._pipeline.commit([Exists(key)], [Put(key, self._record.encode())])
        except LatchworkError as error:
            self._renewal_failed(owner, error)
        else:
            future.add_done_callback(lambda ended: self._renewed(owner, sent_at, ended))

    def _renewed(self, owner: LockOwner, sent_at: float, future: Future[Committed]) -> None:
        error = future.exception()
        if error is None:
            with self._changed:
                owner.in_flight -= 1
            owner.confirm(sent_at)
        else:
            self._renewal_failed(owner, error)
        self._wake.set()

    def _renewal_failed(self, owner: LockOwner, error: BaseException) -> None:
        with self._changed:
            owner.in_flight -= 1
            listeners = list(self._failed_listeners) if owner is self._owner else []
        if owner is not self._owner:
            return  # retired or lost while the renewal was under way
        _log.warning("lock owner %s: renewal failed, %.2f s are left: %s", owner.id, owner.remaining_s(), error)
        if isinstance(error, Conflict):
            self._lose(owner, "another owner took it over")
        self._urgent.post(*(partial(listener, error, owner.remaining_s()) for listener in listeners))

    def _lose(self, owner: LockOwner, why: str) -> None:
        """Never renew this owner again, and tell whom it concerns."""
        with self._changed:
            if owner.lost.is_set():
                return
            owner.lost.set()
            if self._owner is owner:
                self._owner = None
            self._ended.append(owner)
            names = tuple(sorted(owner.held))
            listeners = list(self._lost_listeners) if names else []
            self._changed.notify_all()
        _log.warning("lock owner %s is lost with %d locks: %s; their work must stop", owner.id, len(names), why)
        self._urgent.post(*(partial(listener, names) for listener in listeners))
        self._waits.poke(names)

    def _is_idle(self, owner: LockOwner, now: float) -> bool:
        with self._changed:
            return not owner.held and not owner.users and now > owner.idle_since + _IDLE_TTLS * self.ttl_s

    def _retire(self, owner: LockOwner) -> None:
        with self._changed:
            if owner.held or owner.users or self._owner is not owner:
                return
            self._owner = None
            self._ended.append(owner)
        _log.debug("lock owner %s has nothing to hold and is given up", owner.id)

    def _owners_changed(self, changes: Sequence[object]) -> None:
        for owner in self._table.note(changes):  # type: ignore[arg-type]
            self._waits.owner_gone(owner)
        self._wake.set()

    def _is_ours(self, name: str) -> bool:
        with self._changed:
            owner = self._owner
            return name in self._busy or (owner is not None and name in owner.held and not owner.is_over)

    # Chores, in the callback pool

    def _tidy(self) -> None:
        """Delete owners that ended and hold nothing, settle doubtful writes, close watches nobody needs."""
        with self._changed:
            ended = [owner for owner in self._ended if not owner.held]
            doubts = [doubt for doubt in self._doubts.values() if doubt.name not in self._busy]
        for owner in ended:
            self._delete(owner)
        for doubt in doubts:
            self._settle(doubt)
        self._waits.trim()

    def _delete(self, owner: LockOwner) -> None:
        try:
            self._table.delete_owner(owner.id)
        except LatchworkError as error:
            _log.info("lock owner %s is not removed yet: %s", owner.id, error)
            return
        with self._changed:
            self._ended = [other for other in self._ended if other is not owner]

    def _settle(self, doubt: Doubt) -> None:
        with self._changed:
            is_held = doubt.name in {held.name for held in self._all_held()}
            if is_held:  # taken again since: the doubtful write can land no more
                self._doubts.pop(doubt.name, None)
            if is_held or doubt.name in self._busy:
                return
            self._busy.add(doubt.name)
            ours = frozenset(self._own_ids)
        try:
            self._table.settle(doubt, ours)
        except LatchworkError as error:
            _log.info("lock %r is not settled yet: %s", doubt.name, error)
        else:
            with self._changed:
                if self._doubts.get(doubt.name) is doubt:
                    self._doubts.pop(doubt.name)
        finally:
            with self._changed:
                self._busy.discard(doubt.name)
            self._waits.poke([doubt.name])

    def _all_held(self) -> list[HeldLock]:
        owners = [owner for owner in (self._owner, *self._ended) if owner is not None]
        return [held for owner in owners for held in owner.held.values()]

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Closed("the lock keeper was closed; make another one")
