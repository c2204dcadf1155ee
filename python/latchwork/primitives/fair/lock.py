"""Exclusive lock held by one session at a time.

Keys:   <name>/t-<nonce>  one ticket per holder or waiter, dies with its session; label, host and pid as JSON
Holder: the oldest ticket. Each waiter watches exactly the ticket before its own.
"""

from __future__ import annotations

from latchwork.checks import check_store
from latchwork.primitives.fair.holding import SessionLock
from latchwork.primitives.fair.tickets import QueuePosition, Ticket, TicketQueue, take_turn
from latchwork.primitives.waiting.common import Patience, check_name
from latchwork.primitives.waiting.waits import Waiter
from latchwork.store.session import Session
from latchwork.store.steps import driven
from latchwork.store.store import Store


class Lock(SessionLock):
    """An exclusive, fair lock that its session holds: it is free again when that is closed, or ends within its TTL.

    ``with Lock(store, "orders") as fence:`` acquires and releases. Construction does no I/O. Safe to share between
    threads: they exclude each other as processes do. After its session is lost a hold is over for good; the next
    ``acquire`` takes the store's next session. To keep a lock through disconnects, see ``PersistentLock``.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the key below which the tickets are.
        reentrant: a thread that holds it may acquire it again, and releases it as often.
        session: the session to live by; it stays the caller's. None takes the store's primary session.
        label: what others see when they ask who holds it.
    """

    def __init__(
        self, store: Store, name: str, *, reentrant: bool = False, session: Session | None = None, label: str = ""
    ) -> None:
        check_store(store, "a lock")
        self.name = check_name(name, "lock")
        what = f"lock {name!r}"
        super().__init__(store, what, TicketQueue(store, name, what, label), session=session, reentrant=reentrant)

    @driven
    async def holder(self) -> Ticket | None:
        """Who holds it as the store knows it, or None. Takes nothing."""
        return next(iter(await self._queue.tickets()), None)

    @driven
    async def waiters(self) -> list[Ticket]:
        """Who waits, in the order in which they will have it; may be empty."""
        return (await self._queue.tickets())[1:]

    async def _take(self, waiter: Waiter, patience: Patience) -> QueuePosition | None:
        return await take_turn(self._queue, waiter, patience)
