"""The background work of a lock keeper: its thread, its owners, and its writes in doubt.

The thread renews the current owner, watches the other owners and starts cleanups. Nothing here takes a lock.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence
from functools import partial

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.errors import Closed, LatchworkError, LockLost, Unavailable
from latchwork.primitives.leased.inspect import LockSweeper
from latchwork.primitives.leased.owner import HeldLock, LockOwner, Renewals, SessionProvider
from latchwork.primitives.leased.protocol import (
    OWNERS,
    InDoubt,
    OwnerRecord,
    raised_ttl_s,
)
from latchwork.primitives.leased.state import KeeperState
from latchwork.primitives.leased.table import LockTable
from latchwork.primitives.leased.waits import LockWaiters
from latchwork.primitives.waiting.common import Identity, ListenerQueue, check_text
from latchwork.store.dispatch import Dispatcher
from latchwork.store.driving.background import Background
from latchwork.store.forks import ForkGuard
from latchwork.store.mirror import Mirror
from latchwork.store.steps import Pause, run, steps_of, undone_if_interrupted
from latchwork.store.store import Store
from latchwork.types import Change

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0
#: Default seconds between two sweeps by one of the keepers of a store.
SWEEP_PERIOD_S = 600.0


class KeeperCore:
    """The state and background work of one lock keeper. Takes no locks. Thread-safe."""

    def __init__(
        self,
        store: Store,
        *,
        ttl_s: float = 10.0,
        owner_label: str = "",
        session: SessionProvider | None = None,
        sweep_period_s: float | None = SWEEP_PERIOD_S,
    ) -> None:
        self.ttl_s = raised_ttl_s(ttl_s, f"lock keeper {check_text(owner_label, 'owner_label')!r}")
        self.table = LockTable(store)
        self.store = self.table.store
        self.clock = store.clock
        self.sweeper = LockSweeper(self.table)
        self.state = KeeperState(store.clock)
        self._sweep_period_s = math.inf if sweep_period_s is None else sweep_period_s
        self._next_sweep = self.clock.now() + random.uniform(0.5, 1.0) * self._sweep_period_s
        self.fork_guard = ForkGuard("a lock keeper")
        identity = Identity()
        self.record = OwnerRecord(self.ttl_s, owner_label, identity.host, identity.pid)
        self.renewals = Renewals(self.table, self.record, session)
        self._dispatcher = Dispatcher(f"locks-{owner_label or identity.pid}", size=3)
        self._urgent = ListenerQueue(self._dispatcher, "a lock keeper")
        self.relaxed = ListenerQueue(self._dispatcher, "waits for locks")
        self._cleanup_drain = self._dispatcher.serial_drain(lambda: run(self._clean_up()), "a lock keeper")
        self._next_cleanup = 0.0
        self.within_s = math.inf
        self.lost_listeners: dict[object, Callable[[tuple[str, ...]], None]] = {}
        self.failed_listeners: dict[object, Callable[[BaseException, float], None]] = {}
        self.wake = Signal()
        self.waits = LockWaiters(self.table, self.state, self.wake)
        self.closing = Signal()
        self._stopping = Signal()
        self._ended = Signal()
        self._starting = mutex()
        self.keeper: object = None  # keeps it alive as long as the thread
        self._background: Background | None = None
        self._runner: object = None  # an interrupt may leave a started thread that is not recorded
        self._mirror: Mirror | None = None

    def start(self) -> None:
        """Start to watch the owners of other clients' locks. Idempotent.

        Raises:
            Closed: The keeper was closed.
        """
        self.refuse_closed()
        if self._is_running():
            return
        with self._starting:
            if self._is_running():
                return
            mirror = self._mirror
            if mirror is None:
                mirror = self._mirror = self.store.mirror(OWNERS, wait=False)
                mirror.on_change(self._owners_changed)
            runner = self._runner = object()
            self._background = Background(partial(self._run, runner), f"latchwork-locks-{self.record.label}")
        if self._stopping.is_set():  # closed meanwhile, which may not have seen it
            mirror.close()

    def _is_running(self) -> bool:
        return self._background is not None

    def refuse_closed(self) -> None:
        """Raise ``Closed`` if the keeper was closed, or ``ForkedProcess`` if this process inherited it through a
        fork.
        """
        self.fork_guard.check()
        self.state.refuse_closed()

    def end(self) -> None:
        """Ask the background thread to end. It first deletes the records of owners that hold no locks."""
        self._stopping.set()
        self.wake.set()

    async def wait_ended(self) -> None:
        """Wait until the background thread has ended."""
        background = self._background
        if background is None:
            self._dispatcher.close()
        elif not background.is_running_here and await Pause(self.clock, self._ended, _CLOSE_TIMEOUT_S):
            await background

    async def release(self, locks: Sequence[HeldLock]) -> None:
        """Release these held locks. A lock that was released and acquired again since is not released."""
        self.fork_guard.check()
        found = [held for held in locks if held.is_kept]
        await self.release_found(found, [held.name for held in locks if held not in found])

    async def release_found(self, found: Sequence[HeldLock], missing: list[str]) -> None:
        """Release these held locks.

        Raises:
            LockLost: Some holds had expired, or names are missing.
        """
        lost = [held.name for held in found if held.owner.has_ended]
        gone = await self.free_held(found)
        failed = sorted({*lost, *gone, *missing})
        if failed:
            raise LockLost(
                f"{len(failed)} locks were not held any more when they were released ({', '.join(failed[:5])}); "
                f"what they protected may have been done by another as well"
            )

    # The thread

    async def _run(self, runner: object) -> None:
        while not self._stopping.is_set():
            if self._runner is not runner:
                return
            try:
                due = await self._step(self.clock.now())
            except Exception:  # renewing must go on, whatever went wrong once
                _log.exception("lock keeper %r: a step failed, the next one follows", self.record.label)
                due = self.clock.now() + self.ttl_s / 8
            await Pause(self.clock, self.wake, max(0.0, due - self.clock.now()))
            self.wake.clear()
        await self.renewals.detach(self.state.current)
        await self._remove_ended_owners(also_current=True)
        self.waits.close()
        if self._mirror is not None:
            self._mirror.close()
        await self._urgent.settle(self.clock, 1.0)
        self._dispatcher.close()
        self._ended.set()

    async def _step(self, now: float) -> float:
        """Do the background work that is due. Return the local clock time of the next step."""
        due = [now + self.ttl_s, self.waits.recheck_dead_owners(), self._renew_current()]
        if now >= self._next_cleanup:
            self._next_cleanup = now + self.ttl_s / 4
            if await self._is_abandoned():
                self._stopping.set()
            self._cleanup_drain.signal()
        return min(*due, self._next_cleanup)

    async def _is_abandoned(self) -> bool:
        """Return whether the store was closed and no lock is held, so that the background thread can end."""
        if self._mirror is None or self.state.current is not None:
            return False
        try:
            await steps_of(self._mirror.wait_until)(lambda _mirror: False, timeout_s=0.0)
        except Closed:
            return True
        except LatchworkError:
            pass
        return False

    async def _clean_up(self) -> None:
        """Do the regular cleanup of this keeper.

        It deletes the records of ended owners, settles writes whose outcome is unknown, reads owners that are not
        watched, closes idle watches, and removes what dead owners left.
        """
        await self._remove_ended_owners()
        for doubt in self.state.doubts:
            await self._settle(doubt)
        try:
            # The watch may not have reported that an alive key is gone.
            for owner in await self.table.find_removed_owners(self.waits.blocking()):
                self.waits.recheck_locks_of(owner)
        except LatchworkError as error:
            _log.info("owners that hold what is waited for could not be read: %s", error)
        self.waits.close_idle_watches()
        if self.clock.now() >= self._next_sweep:
            self._next_sweep = self.clock.now() + self._sweep_period_s
            await self._sweep()

    async def _sweep(self) -> None:
        """Remove what dead owners left, if this keeper's owner has the lowest ID.

        While no lock is held, every keeper does so.
        """
        owner, first = self.state.current, self.table.first_owner()
        if first is None or (owner is not None and owner.id == first):
            try:
                await self.sweeper.sweep()
            except LatchworkError as error:
                _log.info("records of free locks are not removed yet: %s", error)

    async def _remove_ended_owners(self, *, also_current: bool = False) -> None:
        """Delete the records of ended owners that hold no locks, and the alive keys of lost owners that hold some.

        An alive key that is left would keep other clients from the locks. A deletion that fails is repeated later.
        """
        for owner in self.state.find_lost_owners_with_session():
            try:
                await self.table.delete_alive_key(owner.id)
                owner.drop_session()
            except LatchworkError as error:
                _log.info("lock owner %s is lost, but its alive key is not removed yet: %s", owner.id, error)
        for owner in self.state.find_removable_owners(also_current=also_current):
            owner.unfollow_session()
            if await self.delete(owner.id, has_alive_key=owner.session is not None):
                self.state.record_removal(owner)

    async def delete(self, owner_id: str, *, has_alive_key: bool = True) -> bool:
        """Delete the record of an owner. Return False if the caller must try again."""
        try:
            await self.table.delete_owner(owner_id, has_alive_key=has_alive_key)
        except LatchworkError as error:
            _log.info("lock owner %s, which holds nothing any more, is not removed yet: %s", owner_id, error)
            return False
        return True

    async def _settle(self, doubt: InDoubt) -> None:
        ours = self.state.begin_settling(doubt, doubt)
        if ours is None:
            return
        try:
            await self.table.settle(doubt, ours)
            self.state.remove_doubts([doubt])
        except LatchworkError as error:
            _log.info("lock %r is not settled yet: %s", doubt.name, error)
        finally:
            self.end_claim(doubt)

    async def free_held(self, found: Sequence[HeldLock]) -> list[str]:
        """Release these locks on the server, now or later. Return the names of locks that another owner has taken."""
        claimer = object()
        doubts = self.state.begin_release(found, claimer)
        with undone_if_interrupted(self._cleanup_drain.signal):  # at once; else they settle it after a quarter of a TTL
            try:
                for held in found:
                    held.end_work()
                gone = await self.table.release({held.name: held.entry for held in found})
            except LatchworkError as error:
                _log.warning("%d locks are not released yet: %s", len(found), error)
                return []
            else:
                self.state.remove_doubts(doubts)
                return gone
            finally:
                self.end_claim(claimer)

    def end_soon(self) -> None:
        """Release all locks and end the background thread, without waiting."""
        held = self.state.close()
        self.closing.set()
        self.waits.close()
        self.release_in_background(held or ())
        self.end()

    def release_in_background(self, found: Sequence[HeldLock]) -> None:
        """Stop the work under these locks, and release them in the background.

        Locks that were already released are skipped.
        """
        claimer = object()
        self.state.begin_release([held for held in found if held.is_kept], claimer)
        for held in found:
            held.end_work()
        self.end_claim(claimer)
        self._cleanup_drain.signal()  # last: busy names are skipped for a quarter of a TTL

    def end_claim(self, claimer: object) -> None:
        """Remove the busy marks of a call, and wake the waiters for its names."""
        self.waits.recheck(self.state.end_claim(claimer))

    # The owner

    def _renew_current(self) -> float:
        """Renew the current owner, end it if it is idle, or mark it as lost, depending on what is due.

        Returns:
            The local clock time of the next step.
        """
        self.lose_if_expired()
        owner = self.state.current
        if owner is None or self.state.end_if_idle(owner):
            return math.inf
        due = owner.step(self.within_s)
        if due is None:
            return 0.0  # it ran out just now
        if due[1]:
            self._failed(owner, Unavailable(f"no renewal was answered for {owner.silent_s():.2f} s"))
        return min(due[0], self.clock.now() + owner.remaining_s())

    def renewed(self, owner: LockOwner, error: BaseException | None) -> None:
        """Handle the result of a renewal. Called in a thread of the client library."""
        if error is not None:
            self._failed(owner, error)
        self.wake.set()

    def _failed(self, owner: LockOwner, error: BaseException) -> None:
        if owner is not self.state.current:
            return  # given up or lost while the renewal was under way
        remaining_s = owner.remaining_s()
        _log.warning("lock owner %s: not renewed, %.2f s are left: %s", owner.id, remaining_s, error)
        self._urgent.post(*(partial(fn, error, remaining_s) for fn in list(self.failed_listeners.values())))
        if self.renewals.is_taken_over(owner, error):
            self.lose(owner, "another owner took it over")

    def lose_if_expired(self) -> None:
        """Mark the current owner as lost if its lease has expired."""
        owner = self.state.current
        if owner is not None and owner.has_ended:
            self.lose(owner, "no renewal was confirmed in time")

    def lose(self, owner: LockOwner, why: str) -> None:
        """Stop renewing an owner, stop the work under its locks, and notify listeners and waiters."""
        held = self.state.lose(owner)
        if held is None:
            return
        owner.lost.set()
        for each in held:
            each.end_work()
        self._cleanup_drain.signal()
        names = tuple(sorted(each.name for each in held))
        _log.warning("lock owner %s is lost with %d locks: %s; their work must stop", owner.id, len(names), why)
        if names:
            self._urgent.post(*(partial(fn, names) for fn in list(self.lost_listeners.values())))
        self.waits.recheck(names)

    # The other owners

    def _owners_changed(self, changes: Sequence[Change]) -> None:
        owner = self.state.current
        if owner is not None and Change(self.table.alive_key(owner.id), None) in changes:
            owner.on_alive_key_removed()
        for gone in self.table.record_changes(changes):
            owner = self.state.current
            if owner is not None and owner.id == gone:
                self.lose(owner, "another owner took it over")
            self.waits.recheck_locks_of(gone)
        if self._find_unwatched_owners():
            self._cleanup_drain.signal()
        self.wake.set()

    def _find_unwatched_owners(self) -> list[str]:
        """Return the owners that block waiters but are not in the mirror, which therefore would not report their
        end.
        """
        mirror = self._mirror
        if mirror is None:
            return []
        return [owner for owner in self.waits.blocking() if self.table.owner_key(owner) not in mirror]
