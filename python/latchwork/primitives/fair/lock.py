"""A lock that one session holds at a time.

Keys:   <name>/t-<nonce>  one ticket per holder or waiter, bound to its session; label, host and PID as JSON
Holder: the oldest ticket. Each waiter watches the ticket directly before its own.
"""

from __future__ import annotations

from latchwork._base.validation import check_store
from latchwork.primitives.fair.session_lock import SessionLock
from latchwork.primitives.fair.tickets import QueuePosition, Ticket, TicketQueue, wait_for_turn
from latchwork.primitives.waiting.arguments import check_name
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.session import Session
from latchwork.store.steps import blocking
from latchwork.store.store import Store


class Lock(SessionLock):
    """An exclusive, fair lock. It is free again when its session is closed or has expired.

    ``with Lock(store, "orders") as fence:`` acquires and releases it. Construction does no I/O. Thread-safe: threads
    exclude each other as processes do. If the session is lost, the lock is no longer held, and the next ``acquire``
    uses the store's next session. See ``PersistentLock`` for locks that survive disconnects.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key of the tickets.
        reentrant: Whether a thread that holds the lock may acquire it again. It must release it as often.
        session: The session of the tickets, which the caller closes. None uses the store's primary session.
        label: The name of this client, shown to others.
    """

    def __init__(
        self, store: Store, name: str, *, reentrant: bool = False, session: Session | None = None, label: str = ""
    ) -> None:
        check_store(store, "a lock")
        self.name = check_name(name, "lock")
        what = f"lock {name!r}"
        super().__init__(store, what, TicketQueue(store, name, what, label), session=session, reentrant=reentrant)

    @blocking
    async def holder(self) -> Ticket | None:
        """Return the ticket of the client that holds the lock, read from the store. None if the lock is free."""
        return next(iter(await self._queue.tickets()), None)

    @blocking
    async def waiters(self) -> list[Ticket]:
        """Return the tickets of the clients that wait for the lock, in the order in which they will get it."""
        return (await self._queue.tickets())[1:]

    async def _acquire_ticket(self, waiter: Waiter, deadline: Deadline) -> QueuePosition | None:
        return await wait_for_turn(self._queue, waiter, deadline)
