"""The background work of a lock keeper: its thread renews the keeper's owner, watches other owners and cleans up.

Nothing here acquires a lock.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence
from functools import partial

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.trouble_log import TroubleLog
from latchwork.errors import Closed, LatchworkError, LockLost, Unavailable
from latchwork.primitives.leased.inspect import LockSweeper
from latchwork.primitives.leased.lock_waiters import LockWaiters
from latchwork.primitives.leased.owner import HeldLock, LockOwner, OwnerRenewer, SessionProvider
from latchwork.primitives.leased.protocol import (
    OWNERS,
    OwnerRecord,
    UnconfirmedWrite,
    clamp_ttl_s,
)
from latchwork.primitives.leased.state import KeeperState
from latchwork.primitives.leased.table import LockTable
from latchwork.primitives.waiting.arguments import check_text
from latchwork.primitives.waiting.listeners import ListenerQueue
from latchwork.primitives.waiting.ownership import Identity
from latchwork.store.dispatch import Dispatcher
from latchwork.store.driving.background import Background
from latchwork.store.forks import ForkGuard
from latchwork.store.mirror import Mirror
from latchwork.store.steps import Pause, coroutine_of, run, undone_if_interrupted
from latchwork.store.store import Store
from latchwork.types import Change

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0
#: Default seconds between two sweeps by one of the keepers of a store.
SWEEP_PERIOD_S = 600.0


class KeeperMaintenance:
    """The state and background work of one lock keeper. Does not acquire locks. Thread-safe.

    Args:
        store: The store, or a namespace of it.
        ttl_s: Seconds that locks outlive the last renewal.
        owner_label: Name of the lock holder, shown to others.
        session: Returns a session of this process to which a new owner is bound. None for no session.
        sweep_period_s: Seconds between two cleanups of records that dead owners left. None for never.
    """

    def __init__(
        self,
        store: Store,
        *,
        ttl_s: float = 10.0,
        owner_label: str = "",
        session: SessionProvider | None = None,
        sweep_period_s: float | None = SWEEP_PERIOD_S,
    ) -> None:
        self.ttl_s = clamp_ttl_s(ttl_s, f"lock keeper {check_text(owner_label, 'owner_label')!r}")
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
        self.renewals = OwnerRenewer(self.table, self.record, session)
        self._dispatcher = Dispatcher(f"locks-{owner_label or identity.pid}", size=3)
        self._urgent = ListenerQueue(self._dispatcher, "a lock keeper")
        self.free_listeners = ListenerQueue(self._dispatcher, "waits for locks")
        self._cleanup_drain = self._dispatcher.create_serial_drain(lambda: run(self._clean_up()), "a lock keeper")
        self._renewal_trouble = TroubleLog(_log)
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
        """Start the background thread, and start to watch the lock owners of other clients. Idempotent.

        Raises:
            Closed: The keeper was closed.
        """
        self.check_open()
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

    def check_open(self) -> None:
        """Check that the keeper can be used.

        Raises:
            Closed: The keeper was closed.
            ForkedProcess: This process inherited the keeper through a fork.
        """
        self.fork_guard.check()
        self.state.check_open()

    def request_stop(self) -> None:
        """Ask the background thread to end. It first deletes the records of owners that hold no locks."""
        self._stopping.set()
        self.wake.set()

    async def wait_stopped(self) -> None:
        """Wait until the background thread has ended."""
        background = self._background
        if background is None:
            self._dispatcher.close()
        elif not background.is_running_here and await Pause(self.clock, self._ended, _CLOSE_TIMEOUT_S):
            await background

    async def release(self, locks: Sequence[HeldLock]) -> None:
        """Release these locks. A lock that was released and acquired again since is not released.

        Raises:
            LockLost: Some had expired, or were not held any more. All others are released.
        """
        self.fork_guard.check()
        found = [held for held in locks if held.is_unreleased]
        await self.release_all(found, [held.name for held in locks if held not in found])

    async def release_all(self, locks: Sequence[HeldLock], missing: list[str]) -> None:
        """Release these locks, and report locks that were not held.

        Args:
            locks: The locks to release.
            missing: Names of further locks that the caller wanted to release but does not hold.
        Raises:
            LockLost: Some locks had expired, or ``missing`` is not empty.
        """
        lost = [held.name for held in locks if held.owner.has_ended]
        gone = await self.release_on_server(locks)
        failed = sorted({*lost, *gone, *missing})
        if failed:
            raise LockLost(
                f"{len(failed)} locks had been lost before they were released ({', '.join(failed[:5])}); "
                f"the work that they protected may have been done twice"
            )

    # The thread

    async def _run(self, runner: object) -> None:
        while not self._stopping.is_set():
            if self._runner is not runner:
                return
            try:
                due = await self._run_due_work(self.clock.now())
            except Exception:  # renewing must go on, whatever went wrong once
                _log.exception("lock keeper %r: a step failed; continuing with the next one", self.record.label)
                due = self.clock.now() + self.ttl_s / 8
            await Pause(self.clock, self.wake, max(0.0, due - self.clock.now()))
            self.wake.clear()
        await self.renewals.detach_from_session(self.state.current)
        await self._remove_ended_owners(end_current=True)
        self.waits.close()
        if self._mirror is not None:
            self._mirror.close()
        await self._urgent.wait_until_delivered(self.clock, 1.0)
        self._dispatcher.close()
        self._ended.set()

    async def _run_due_work(self, now: float) -> float:
        """Do the background work that is due. Return the local clock time at which to call this again.

        Args:
            now: Local clock time.
        """
        due = [now + self.ttl_s, self.waits.notify_waiters_of_dead_owners(), self._maintain_current_owner()]
        if now >= self._next_cleanup:
            self._next_cleanup = now + self.ttl_s / 4
            if await self._is_abandoned():
                self._stopping.set()
            self._cleanup_drain.signal()
        return min(*due, self._next_cleanup)

    async def _is_abandoned(self) -> bool:
        """Return True if the store was closed and no lock is held, so that the background thread can end."""
        if self._mirror is None or self.state.current is not None:
            return False
        try:
            await coroutine_of(self._mirror.wait_until)(lambda _mirror: False, timeout_s=0.0)
        except Closed:
            return True
        except LatchworkError:
            pass
        return False

    async def _clean_up(self) -> None:
        """Do the regular cleanup of this keeper, at least four times per TTL.

        - Delete the stored records of this keeper's ended owners.
        - Resolve writes whose outcome is unknown.
        - Read the owners of locks that have waiters here, and notify the waiters if an owner was removed.
        - Close watches without waiters.
        - Sweep the store if a sweep is due.
        """
        await self._remove_ended_owners()
        for write in self.state.unconfirmed_writes:
            await self._resolve_write(write)
        try:
            # The watch may not have reported that a liveness key is gone.
            for owner in await self.table.find_removed_owners(self.waits.list_blocking_owners()):
                self.waits.notify_waiters_of_owner(owner)
        except LatchworkError as error:
            _log.info("the owners of the awaited locks could not be read: %s", error)
        self.waits.close_idle_watches()
        if self.clock.now() >= self._next_sweep:
            self._next_sweep = self.clock.now() + self._sweep_period_s
            await self._sweep()

    async def _sweep(self) -> None:
        """Remove records of dead owners and free locks, if this keeper's owner has the lowest ID.

        A keeper without an owner does so if no owner in the store is alive.
        """
        owner, first = self.state.current, self.table.find_lowest_alive_owner()
        if first is None or (owner is not None and owner.id == first):
            try:
                await self.sweeper.sweep()
            except LatchworkError as error:
                _log.info("records of free locks are not removed yet: %s", error)

    async def _remove_ended_owners(self, *, end_current: bool = False) -> None:
        """Delete the records of ended owners without locks, and the liveness keys of lost owners with locks.

        Other clients treat an owner as alive while its liveness key exists, so they cannot take the locks of a lost
        owner before. A failed deletion is repeated later.

        Args:
            end_current: End the current owner first, too.
        """
        for owner in self.state.find_lost_owners_with_liveness_key():
            try:
                await self.table.delete_liveness_key(owner.id)
                owner.detach_session()
            except LatchworkError as error:
                _log.info("lock owner %s is lost, but its liveness key is not removed yet: %s", owner.id, error)
        for owner in self.state.collect_removable_owners(end_current=end_current):
            owner.stop_following_session()
            if await self.delete(owner.id, has_liveness_key=owner.session is not None):
                self.state.remove_ended_owner(owner)

    async def delete(self, owner_id: str, *, has_liveness_key: bool = True) -> bool:
        """Delete the stored record of an owner. Return False if that failed and the caller must try again.

        Args:
            owner_id: ID of the owner.
            has_liveness_key: Whether the owner may have a liveness key, which is then deleted too.
        """
        try:
            await self.table.delete_owner(owner_id, has_liveness_key=has_liveness_key)
        except LatchworkError as error:
            _log.info("lock owner %s, which no longer holds any lock, is not removed yet: %s", owner_id, error)
            return False
        return True

    async def _resolve_write(self, write: UnconfirmedWrite) -> None:
        ours = self.state.reserve_for_resolution(write, write)
        if ours is None:
            return
        try:
            await self.table.resolve_write(write, ours)
            self.state.remove_unconfirmed([write])
        except LatchworkError as error:
            _log.info("the outcome of a write to lock %r is not known yet: %s", write.name, error)
        finally:
            self.release_reservations(write)

    async def release_on_server(self, locks: Sequence[HeldLock]) -> list[str]:
        """Release these locks on the server. If the server fails, the background thread retries.

        Returns:
            Names of the locks that another owner has taken over.
        """
        call_id = object()
        unconfirmed = self.state.begin_release(locks, call_id)
        with undone_if_interrupted(self._cleanup_drain.signal):  # at once; else it happens after a quarter of a TTL
            try:
                for held in locks:
                    held.stop_work()
                gone = await self.table.release({held.name: held.entry for held in locks})
            except LatchworkError as error:
                _log.warning("%d locks are not released yet: %s", len(locks), error)
                return []
            else:
                self.state.remove_unconfirmed(unconfirmed)
                return gone
            finally:
                self.release_reservations(call_id)

    def close_in_background(self) -> None:
        """Release all locks and end the background thread, without waiting."""
        held = self.state.close()
        self.closing.set()
        self.waits.close()
        self.release_in_background(held or ())
        self.request_stop()

    def release_in_background(self, locks: Sequence[HeldLock]) -> None:
        """Ask the work that depends on these locks to stop, and release the locks in the background.

        Locks that were already released are skipped.
        """
        call_id = object()
        self.state.begin_release([held for held in locks if held.is_unreleased], call_id)
        for held in locks:
            held.stop_work()
        self.release_reservations(call_id)
        self._cleanup_drain.signal()  # last: reserved names are skipped for a quarter of a TTL

    def release_reservations(self, call_id: object) -> None:
        """Release the lock names that a call has reserved, and wake the waiters for these locks."""
        self.waits.notify_waiters_if_free(self.state.release_reservations(call_id))

    # The owner

    def _maintain_current_owner(self) -> float:
        """Renew the current owner, end it if it is idle, or mark it as lost if its lease has expired.

        Returns:
            The local clock time at which to call this again.
        """
        self.check_owner_expiry()
        owner = self.state.current
        if owner is None or self.state.end_if_idle(owner):
            return math.inf
        due = owner.renew_if_due(self.within_s)
        if due is None:
            return 0.0  # it ran out just now
        if due[1]:
            self._report_renewal_failure(
                owner, Unavailable(f"no renewal was answered for {owner.since_renewal_s():.2f} s")
            )
        return min(due[0], self.clock.now() + owner.remaining_s())

    def handle_renewal_result(self, owner: LockOwner, error: BaseException | None) -> None:
        """Handle the result of a renewal. Called in a thread of the client library.

        Args:
            owner: The owner that was renewed.
            error: Why the renewal failed. None if it succeeded.
        """
        if error is not None:
            self._report_renewal_failure(owner, error)
        else:
            self._renewal_trouble.record_success("lock owner %s is renewed again", owner.id)
        self.wake.set()

    def _report_renewal_failure(self, owner: LockOwner, error: BaseException) -> None:
        if owner is not self.state.current:
            return  # given up or lost while the renewal was under way
        remaining_s = owner.remaining_s()
        message = "lock owner %s: could not be renewed, %.2f s left"
        self._renewal_trouble.record_failure(error, message, owner.id, remaining_s)
        self._urgent.post(*(partial(fn, error, remaining_s) for fn in list(self.failed_listeners.values())))
        if self.renewals.is_taken_over(owner, error):
            self.on_owner_lost(owner, "another owner took it over")

    def check_owner_expiry(self) -> None:
        """If the lease of the current owner has expired, handle the loss of the owner."""
        owner = self.state.current
        if owner is not None and owner.has_ended:
            self.on_owner_lost(owner, "no renewal was confirmed in time")

    def on_owner_lost(self, owner: LockOwner, reason: str) -> None:
        """Handle the loss of an owner.

        Stop renewing it, ask the work that depends on its locks to stop, and notify the listeners and waiters.

        Args:
            owner: The owner. Nothing is done if it is not the current one.
            reason: Why the owner was lost, for the log.
        """
        held = self.state.end_lost_owner(owner)
        if held is None:
            return
        owner.lost.set()
        for each in held:
            each.stop_work()
        self._cleanup_drain.signal()
        names = tuple(sorted(each.name for each in held))
        _log.warning(
            "lock owner %s is lost with %d locks: %s; stop the work that they protect", owner.id, len(names), reason
        )
        if names:
            self._urgent.post(*(partial(fn, names) for fn in list(self.lost_listeners.values())))
        self.waits.notify_waiters_if_free(names)

    # The other owners

    def _owners_changed(self, changes: Sequence[Change]) -> None:
        owner = self.state.current
        if owner is not None and Change(self.table.liveness_key(owner.id), None) in changes:
            owner.on_liveness_key_deleted()
        for gone in self.table.record_changes(changes):
            owner = self.state.current
            if owner is not None and owner.id == gone:
                self.on_owner_lost(owner, "another owner took it over")
            self.waits.notify_waiters_of_owner(gone)
        if self._find_unwatched_owners():
            self._cleanup_drain.signal()
        self.wake.set()

    def _find_unwatched_owners(self) -> list[str]:
        """Return the IDs of owners that block waiters and are missing in the mirror, so that no watch reports their
        end.
        """
        mirror = self._mirror
        if mirror is None:
            return []
        return [owner for owner in self.waits.list_blocking_owners() if self.table.owner_key(owner) not in mirror]
