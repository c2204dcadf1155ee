"""One owner of persistent locks: its key O, how long it is still ours, and which locks it holds."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

from latchwork.errors import LockLost
from latchwork.primitives.persistent.protocol import Lease
from latchwork.primitives.waiting.work import Ownership

if TYPE_CHECKING:
    from latchwork.clock import Clock
    from latchwork.primitives.persistent.keeper import LockKeeper
    from latchwork.primitives.waiting.work import Work
    from latchwork.types import Entry, Fence

#: Thousands of locks are held at once, few of them have work of their own: it is made when asked for.
_making = threading.Lock()


class LockOwner:
    """A uuid that is used once: created, renewed, then lost or deleted for good. Safe to share between threads.

    Attributes:
        id: the uuid.
        lost: set once it has run out or was taken over.
        held: its locks by name; guarded by the keeper.
        clock: by which it lives.
        ttl_s: how long without a renewal.
        users: calls that are using it now; guarded by the keeper.
        in_flight: renewals without an answer; guarded by the keeper.
        idle_since: when it last had a lock or a user; guarded by the keeper.
    """

    def __init__(self, clock: Clock, ttl_s: float) -> None:
        self.id = uuid.uuid4().hex
        self.lost = threading.Event()
        self.held: dict[str, HeldLock] = {}
        self.clock = clock
        self.ttl_s = ttl_s
        self.users = 0
        self.in_flight = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._lease = Lease(clock.now(), ttl_s)
        self.idle_since = clock.now()

    def remaining_s(self) -> float:
        """Seconds it is ours for certain; 0 when it is not."""
        if self.lost.is_set():
            return 0.0
        with self._lock:
            return self._lease.remaining_s(self._clock.now())

    @property
    def is_over(self) -> bool:
        """True once it has run out, whether or not anybody was told yet."""
        return self.remaining_s() <= 0.0

    def touch(self) -> None:
        """It is in use now. The caller holds the keeper's mutex."""
        self.idle_since = self._clock.now()

    def next_due(self, within_s: float) -> tuple[float, float]:
        """When the next renewal should be sent, and when the lease ends, on the local clock: ``Lease``."""
        with self._lock:
            return self._lease.next_send(within_s), self._lease.expires_at

    def silent_s(self) -> float:
        """Seconds since the send of the last confirmed renewal."""
        with self._lock:
            return self._clock.now() - self._lease.expires_at + self._lease.ttl_s

    def sending(self) -> float:
        """Note that a renewal is being sent; the local time."""
        with self._lock:
            now = self._clock.now()
            self._lease.sent(now)
            return now

    def confirm(self, sent_at: float) -> bool:
        """A renewal sent then was confirmed; False if that is too late."""
        if self.lost.is_set():
            return False
        with self._lock:
            return self._lease.confirmed(sent_at, self._clock.now())


class HeldLock:
    """A lock that this process holds, until it is released or its owner's lease runs out. Safe to share.

    Get one from ``LockKeeper.acquire``. Holding it does not stop a paused process from writing late: put ``fence``
    among the checks of every write that matters.

    Attributes:
        name: the lock's name.
        fence: the check that the lock was not taken by another; its ``token`` grows with each new holder.
        lost: set when the lock runs out; never by a release.
    """

    def __init__(self, keeper: LockKeeper, owner: LockOwner, name: str, entry: Entry, fence: Fence) -> None:
        self.name = name
        self.fence = fence
        self.lost = owner.lost
        self.entry = entry
        self.owner = owner
        self._keeper = keeper
        self._ownership: Ownership | None = None

    def __repr__(self) -> str:
        return f"<HeldLock {self.name!r} token {self.fence.token} {self.remaining_s():.2f}s>"

    @property
    def owner_id(self) -> str:
        """The id of the owner that holds it; by it a later life can ``adopt`` the lock."""
        return self.owner.id

    @property
    def is_held(self) -> bool:
        """True while it is ours for certain, by our own clock."""
        return self.remaining_s() > 0.0

    def remaining_s(self) -> float:
        """Seconds it is ours for certain if no further renewal succeeds; 0 once released or lost. Does no I/O."""
        return self.owner.remaining_s() if self._keeper.holds(self) else 0.0

    def guard_work(self, margin_s: float | None = None) -> Work:
        """A token that tells work to stop before the hold can end: ``with held.guard_work() as work:``.

        Args:
            margin_s: how long before; None takes a tenth of the TTL.
        """
        self._keeper.refuse_foreign()
        with _making:
            if self._ownership is None:
                owner = self.owner
                self._ownership = Ownership(
                    f"lock {self.name!r}",
                    self.fence,
                    ttl_s=owner.ttl_s,
                    remaining_s=self.remaining_s,
                    error=LockLost,
                    clock=owner.clock,
                )
            return self._ownership.guard_work(margin_s)

    def end_work(self) -> None:
        """It is lost or released: work under it is told at once. Does not block."""
        with _making:
            ownership = self._ownership
        if ownership is not None:
            ownership.end()

    def release(self) -> None:
        """Give the lock back; somebody else can have it at once.

        When the server cannot be reached the keeper goes on trying, and the lock runs out at the latest.

        Raises:
            LockLost: it had run out or been released already; what it protected may have been done twice.
        """
        self._keeper.release_held([self])
