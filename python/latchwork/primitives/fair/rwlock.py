"""Many readers or one writer, in the order of their arrival.

Keys:    <name>/t-<nonce>  one ticket per holder or waiter, bound to its session: mode (read, write), label, host and
                           PID as JSON
Holders: the oldest ticket, and if that reads, all that follow up to the first writer. A reader watches the nearest
         writer before it, a writer the nearest ticket, so no one overtakes a waiting writer.
"""

from __future__ import annotations

import logging
from typing import Literal

from latchwork._base.decoding import encode, read_object
from latchwork._base.validation import check_store
from latchwork.errors import Closed, Conflict, LatchworkError, LockLost, OutcomeUnknown
from latchwork.primitives.fair.session_lock import Hold, SessionLock
from latchwork.primitives.fair.tickets import (
    Blocks,
    QueuePosition,
    Ticket,
    TicketQueue,
    any_ticket_blocks,
    wait_for_turn,
)
from latchwork.primitives.waiting.arguments import check_name
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.session import Session
from latchwork.store.steps import ask, blocking, coroutine_of, shielded
from latchwork.store.store import Store
from latchwork.types import Fence, Put

_log = logging.getLogger(__name__)

Mode = Literal["read", "write"]


def is_reader(ticket: Ticket) -> bool:
    """Return whether a ticket belongs to a client that reads. A ticket with an invalid record counts as one that
    writes.
    """
    return ticket.body.get("mode") == "read"


def count_holders(tickets: list[Ticket]) -> int:
    """Return how many of the first tickets hold the lock: one writer, or all readers before the first writer.

    Args:
        tickets: The tickets of the lock, in order.
    """
    if not tickets or not is_reader(tickets[0]):
        return min(1, len(tickets))
    return next((at for at, ticket in enumerate(tickets) if not is_reader(ticket)), len(tickets))


class ReadWriteLock:
    """A fair lock for many readers or one writer: ``with rw.read:``, ``with rw.write as fence:``.

    Each mode works like ``Lock``. A thread that reads cannot also write, because two such threads would wait for each
    other; it gets an error. This is not detected if the thread uses two objects with the same name: it waits for itself
    until the timeout. A thread that writes can continue to read with ``downgrade``. Construction does no I/O.
    Thread-safe.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key of the tickets.
        reentrant: Whether a thread that holds the lock may acquire it again in the same mode. It must release it as
            often.
        session: The session of the tickets, which the caller closes. None uses the store's primary session.
        label: The name of this client, shown to others.

    Attributes:
        read: The lock for readers, shared.
        write: The lock for writers, exclusive.
    """

    def __init__(
        self, store: Store, name: str, *, reentrant: bool = False, session: Session | None = None, label: str = ""
    ) -> None:
        check_store(store, "a lock")
        self.name = check_name(name, "lock")
        self._queue = TicketQueue(store, name, f"lock {name!r}", label)
        self.read = ModeLock(store, self._queue, "read", session=session, reentrant=reentrant)
        self.write = ModeLock(store, self._queue, "write", session=session, reentrant=reentrant)
        self.read.other, self.write.other = self.write, self.read

    def __repr__(self) -> str:
        return (
            f"<ReadWriteLock {self.name!r} read {self.read.remaining_s():.2f}s write {self.write.remaining_s():.2f}s>"
        )

    @blocking
    async def downgrade(self) -> Fence:
        """Change this thread's write lock to a read lock. No other writer can acquire the lock in between.

        The fence stays the same. Release the lock with ``read.release()``, or at the end of the ``with`` block that
        acquired it.

        Raises:
            LockLost: This thread does not hold the write lock, or has lost it.
            LatchworkError: This thread holds it more than once.
            Closed: The lock was closed during the call and is not held any more.
            Unavailable: The server could not be reached. The write lock is still held.
        """
        return await self.write.downgrade()

    @blocking
    async def holders(self) -> list[Ticket]:
        """Return the tickets of the holders, read from the store: one writer, or any number of readers."""
        tickets = await self._queue.tickets()
        return tickets[: count_holders(tickets)]

    @blocking
    async def waiters(self) -> list[Ticket]:
        """Return the tickets of the clients that wait for the lock, in the order of their arrival."""
        tickets = await self._queue.tickets()
        return tickets[count_holders(tickets) :]

    @shielded
    async def close(self) -> None:
        """Release everything held through this object, and make its waiting calls raise ``Closed``. Thread-safe and
        idempotent.
        """
        try:
            await coroutine_of(self.read.close)()
        finally:
            await coroutine_of(self.write.close)()


class ModeLock(SessionLock):
    """The lock for one mode of a ``ReadWriteLock``, which is reading or writing. It is used like a ``Lock``.

    Args:
        store: The store.
        queue: The tickets of the lock.
        mode: ``read`` or ``write``.
        session: The session of the tickets. None uses the store's primary session.
        reentrant: Whether a thread that holds the lock may acquire it again in this mode.

    Attributes:
        other: The lock for the other mode.
    """

    other: ModeLock

    def __init__(
        self, store: Store, queue: TicketQueue, mode: Mode, *, session: Session | None, reentrant: bool
    ) -> None:
        super().__init__(store, f"{queue.what} ({mode})", queue, session=session, reentrant=reentrant)
        self._mode = mode
        self._blocks: Blocks = any_ticket_blocks if mode == "write" else lambda ticket: not is_reader(ticket)

    async def downgrade(self) -> Fence:
        """Change this thread's write lock to a read lock; see ``ReadWriteLock.downgrade``."""
        self._home.check()
        hold = self._hold_of_thread()
        if hold is None or not hold.is_held:
            raise LockLost(f"{self.what} is not held by this thread; acquire it before the downgrade")
        if len(hold.acquisitions) > 1:
            raise LatchworkError(
                f"{self.what} is held {len(hold.acquisitions)} times by this thread; release all but one"
            )
        ticket = hold.position.ticket
        shared = encode({**read_object(ticket.value), "mode": "read"})
        await self.transfer_hold(hold)  # first: others may read as soon as this is written
        try:
            await ask(self._store.commit, [hold.position.fence], [Put(ticket.key, shared)])
        except OutcomeUnknown as error:  # others may read by now, so it is no writer's any more in any case
            _log.warning("%s: other readers may have to wait until it is released: %s", self.what, error)
        except LatchworkError as error:
            await self.other.transfer_hold(hold)
            if isinstance(error, Conflict):
                raise LockLost(f"{self.what} was lost before the downgrade; stop what it protected") from error
            raise
        return hold.position.fence

    async def transfer_hold(self, hold: Hold) -> None:
        """Turn a held lock of this thread into one of the other mode, for a downgrade or to undo a downgrade.

        Args:
            hold: The held lock.

        Raises:
            Closed: The lock was closed and released.
        """
        with self._lock:
            if hold.released.is_set():
                raise Closed(f"{self.what} was closed and released; create another one")
        await self.other.receive_hold(hold)

    async def receive_hold(self, hold: Hold) -> None:
        """Take over a held lock from the other mode, in the same thread.

        Args:
            hold: The held lock.

        Raises:
            Closed: The lock was closed and released.
        """
        hold.owner = self
        self._record_hold(hold)
        if self._waits.is_closed:
            await self._release_hold(hold)
            raise Closed(f"{self.what} was closed and released; create another one")

    def _record_hold(self, hold: Hold) -> None:
        """Record a held lock under this mode, and remove it from the other mode. If the thread is interrupted in
        between, the lock is recorded under both modes, which is harmless.

        Args:
            hold: The held lock.
        """
        owner = hold.owner
        assert isinstance(owner, ModeLock)
        if not hold.released.is_set():
            owner.add_hold(hold)
        owner.other.remove_hold(hold)

    def add_hold(self, hold: Hold) -> None:
        """Record that this thread holds the lock in this mode."""
        self.remove_hold(hold)
        with self._lock:
            self._holds.append(hold)
        self._push(hold)

    def remove_hold(self, hold: Hold) -> None:
        """Record that this thread no longer holds the lock in this mode."""
        with self._lock:
            self._holds = [each for each in self._holds if each is not hold]
        self._mine.values["stack"] = [each for each in self._holds_of_thread() if each is not hold]

    def _check_acquirable(self) -> None:
        theirs = self.other.find_own_hold()
        if theirs is None or not theirs.is_held:
            return
        if self._mode == "write":
            raise LatchworkError(
                f"{self.what}: this thread holds it for reading, and two that upgrade would wait for each other; "
                f"release it first, then read again what you decide by"
            )
        raise LatchworkError(f"{self.what}: this thread holds it for writing; call downgrade(), or release it first")

    def find_own_hold(self) -> Hold | None:
        """Return the lock that this thread acquired last in this mode and still holds. None if it holds none."""
        return self._hold_of_thread()

    async def _acquire_ticket(self, waiter: Waiter, deadline: Deadline) -> QueuePosition | None:
        return await wait_for_turn(self._queue, waiter, deadline, blocks=self._blocks, body={"mode": self._mode})
