"""An owner of persistent locks, a lock that it holds, and the creation and renewal of owners.

An owner without a session rewrites its record to renew its lease. An owner with a session has a liveness key, which the
server deletes when the session ends.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from msgspec.structs import replace

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.backends.futures import then
from latchwork.clock import Clock
from latchwork.errors import Conflict, LatchworkError, LockLost
from latchwork.primitives.leased.protocol import TAKEOVER_FACTOR, OwnerRecord, session_grace_s
from latchwork.primitives.leased.table import LockTable
from latchwork.primitives.waiting.ownership import Ownership, OwnershipHolder
from latchwork.store.forks import ForkGuard
from latchwork.store.lease import Lease, Renewer
from latchwork.store.session import Session
from latchwork.store.steps import StepCoroutine, shielded
from latchwork.types import Entry, Exists, Fence

_log = logging.getLogger(__name__)

#: Guards the creation of ownerships on first use: of thousands of held locks only a few have work.
_making = mutex()

#: Returns the session whose end other clients treat as the end of the owner; None if there is none now.
SessionProvider = Callable[[], Session | None]


class LockOwner(Renewer):
    """An owner of locks: a UUID with a lease that is created once, renewed, and then lost or given up. Thread-safe.

    The lease begins with the construction. An owner with a session also ends ``session_grace_s`` after the session,
    because other clients then take its locks, unless it is renewed without a session before.

    Args:
        clock: The clock of the lease.
        ttl_s: Seconds that the lease lasts without a renewal.
        session: The session to which the liveness key is bound. None for none.
        fork_guard: Detects that a forked process uses the owner.
        renew: Sends a renewal. Returns a future of the local time at which it was sent.
        renewed: Called after each renewal with the error, or None. Runs in any thread.
        release: Releases the given locks.

    Attributes:
        id: The UUID.
        lost: Set when the owner has expired or was taken over.
        held: The locks of the owner by name. ``KeeperState`` guards this attribute and the next two.
        users: The calls that use the owner now.
        idle_since: Local clock time at which it last had a lock or a user.
    """

    def __init__(
        self,
        clock: Clock,
        ttl_s: float,
        fork_guard: ForkGuard,
        *,
        session: Session | None = None,
        renew: Callable[[LockOwner], Future[float]],
        renewed: Callable[[LockOwner, BaseException | None], None],
        release: Callable[[Sequence[HeldLock]], StepCoroutine[None]],
    ) -> None:
        self.clock, self.ttl_s, self.fork_guard, self.release = clock, ttl_s, fork_guard, release
        self.id = uuid.uuid4().hex
        self.lost: Signal = Signal()
        self.held: dict[str, HeldLock] = {}
        self.users: set[object] = set()
        self.idle_since = clock.now()
        self._session = session
        self._has_liveness_key = session is not None
        self._unlisten: Callable[[], None] | None = None
        self._grace_s = session_grace_s(ttl_s) / TAKEOVER_FACTOR
        retry_s = None if session is None else min(ttl_s / 8, self._grace_s / 2)  # to go on without it in time
        lease = Lease(self.idle_since, ttl_s, retry_s=retry_s)
        super().__init__(lease, clock, lambda: renew(self), lambda error, _again: renewed(self, error))

    @property
    def session(self) -> Session | None:
        """The session that keeps the owner alive. None if renewals of its record do."""
        return self._session

    def remaining_s(self) -> float:
        """Return for how many seconds the owner certainly keeps its locks, 0 after it has ended."""
        left_s, session = super().remaining_s(), self._session
        if session is None or left_s <= 0.0:
            return left_s
        return max(0.0, min(left_s, session.ends_at + self._grace_s - self.clock.now()))

    def work_remaining_s(self, margin_s: float) -> float:
        """Return after how many seconds work that depends on the locks must be asked to stop. Zero or less means now.

        Work must stop ``margin_s`` seconds before the locks can be lost: at the end of the lease, or one grace period
        after the end of the session. In the second case at most half of the grace period is the margin, because the
        owner needs time to renew its lease without the session.

        Args:
            margin_s: Seconds that the work needs to stop.
        """
        spare_s, session = super().remaining_s() - margin_s, self._session
        if session is None:
            return spare_s
        stop_s = self._grace_s - min(margin_s, self._grace_s / 2)
        return min(spare_s, session.ends_at + stop_s - self.clock.now())

    @property
    def has_liveness_key(self) -> bool:
        """Whether the owner's liveness key exists, as far as this process knows."""
        session = self._session
        return self._has_liveness_key and session is not None and session.remaining_s() > 0.0

    def start_following_session(self, on_end: Callable[[], None]) -> None:
        """Listen for the end of the session, so that the owner is then renewed at once by rewriting its record.

        Args:
            on_end: Called when the session ends. It must not block.
        """

        def ended() -> None:
            self.hurry()
            on_end()

        if self._session is not None:
            self._unlisten = self._session.on_end(ended)

    def on_liveness_key_deleted(self) -> None:
        """Renew at once without the session, because another client has deleted the liveness key."""
        if self._has_liveness_key and self._session is not None:
            self._has_liveness_key = False
            self.hurry()

    def detach_session(self) -> None:
        """Continue without a session: from now on, rewriting the record keeps the owner alive. Idempotent."""
        self._session = None
        self.stop_following_session()

    def stop_following_session(self) -> None:
        """Stop listening for the end of the session. Idempotent."""
        if self._unlisten is not None:
            self._unlisten()


class HeldLock(OwnershipHolder):
    """A lock that this process holds, until it is released or its owner's lease expires. Thread-safe.

    ``LockKeeper.acquire`` returns it. Holding it does not prevent a paused process from writing late: add ``fence`` to
    the checks of every write that matters.

    Attributes:
        name: The name of the lock.
        fence: The check that no other client has taken the lock. Its ``token`` grows with each new holder.
    """

    def __init__(self, owner: LockOwner, name: str, entry: Entry, fence: Fence) -> None:
        self.name = name
        self.fence = fence
        self.entry = entry
        self.owner = owner
        self._ownership: Ownership | None = None

    def __repr__(self) -> str:
        return f"<HeldLock {self.name!r} token {self.fence.token} {self.remaining_s():.2f}s>"

    @property
    def lost(self) -> Signal:
        """A signal that is set when the lock expires, but not when it is released."""
        return self.owner.lost

    @property
    def owner_id(self) -> str:
        """The ID of the lock's owner. A restarted process can pass it to ``adopt`` to take over the lock."""
        return self.owner.id

    @property
    def is_held(self) -> bool:
        """Whether this process certainly holds the lock now, judged by its own clock."""
        return self.remaining_s() > 0.0

    @property
    def is_unreleased(self) -> bool:
        """Whether the lock has not been released yet. Also True if it has expired."""
        return self.owner.held.get(self.name) is self and not self.owner.fork_guard.is_foreign

    def remaining_s(self) -> float:
        """Return for how many seconds the lock is certainly held without a further renewal. Performs no I/O.

        The result is 0 after the lock was released or lost.
        """
        return self.owner.remaining_s() if self.is_unreleased else 0.0

    @shielded
    async def release(self) -> None:
        """Release the lock. Another client can acquire it at once.

        If the server cannot be reached, the keeper retries in the background. A lock that cannot be released expires
        after its TTL.

        Raises:
            LockLost: It had expired or been released. The protected work may have been done twice.
        """
        await self.owner.release([self])

    def stop_work(self) -> None:
        """Ask the work that depends on the lock to stop, because the lock was lost or released. Does not block."""
        with _making:
            ownership = self._ownership
        if ownership is not None:
            ownership.end()

    @property
    def ownership(self) -> Ownership:
        """The ownership of this lock. Work that depends on the lock registers with it, to be stopped at its loss."""
        owner = self.owner
        owner.fork_guard.check()
        with _making:
            if self._ownership is None:
                self._ownership = Ownership(
                    f"lock {self.name!r}",
                    self.fence,
                    ttl_s=owner.ttl_s,
                    remaining_s=self.remaining_s,
                    error=LockLost,
                    clock=owner.clock,
                )
            return self._ownership

    def _get_ownership(self) -> Ownership:
        return self.ownership


class OwnerRenewer:
    """Creates and renews the stored records of a keeper's owners. Thread-safe.

    Args:
        table: Reads and writes the records.
        record: The record to store for each owner, without a session ID.
        session: Returns the current session of this process or None. None for no session.
    """

    def __init__(self, table: LockTable, record: OwnerRecord, session: SessionProvider | None) -> None:
        self._table = table
        self._record = record
        self._session = session

    def find_session(self) -> Session | None:
        """Return the session to which a new owner can be bound, or None.

        A session is used only if it is running and its TTL is not shorter than that of the locks.
        """
        session = self._session() if self._session is not None else None
        if session is None or session.ttl_s < self._record.ttl_s or session.remaining_s() <= 0.0:
            return None
        return session

    async def create(self, owner: LockOwner) -> None:
        """Store the record of a new owner, and its liveness key if it has a session."""
        await self._table.create_owner(owner.id, self._build_record(owner.session), owner.session)

    def renew(self, owner: LockOwner) -> Future[float]:
        """Send the request that renews the lease of an owner.

        - The owner has a session and its liveness key: check that the record and the liveness key exist.
        - Its session has ended, or its liveness key is gone: rewrite the record and delete the liveness key. From then
          on the owner has no session.
        - It has no session: rewrite the record.

        Returns:
            A future of the local time at which the request was sent.
        """
        session = owner.session
        if session is None:
            return self._table.renew(owner.id, self._record)
        if owner.has_liveness_key:
            return self._table.renew_by_check(owner.id, session)

        def detached(sent_at: float) -> float:
            owner.detach_session()
            return sent_at

        return then(self._table.renew_and_detach(owner.id, self._record), detached)

    def is_taken_over(self, owner: LockOwner, error: BaseException) -> bool:
        """Handle a failed renewal. Return whether it failed because another client has removed the owner.

        If only its liveness key is missing, the owner continues without a session, and the result is False.
        """
        if not isinstance(error, Conflict):
            return False
        if owner.session is None or Exists(self._table.owner_key(owner.id)) in error.failed:
            return True
        owner.on_liveness_key_deleted()
        return False

    async def detach_from_session(self, owner: LockOwner | None) -> None:
        """Make an owner that holds locks independent of its session, so that its locks expire by their own TTL.

        Args:
            owner: The owner. Nothing is done for None, or if the owner has no session or no locks.
        """
        if owner is None or owner.session is None or not owner.held or owner.has_ended:
            return
        try:
            await self._table.detach_owner_from_session(owner.id, self._record)
        except LatchworkError as error:
            _log.warning("lock owner %s may end with its session instead of after its TTL: %s", owner.id, error)

    def _build_record(self, session: Session | None) -> OwnerRecord:
        return self._record if session is None else replace(self._record, session=session.id)
