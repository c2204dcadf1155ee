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
from latchwork.primitives.fair.session_lock import HeldSessionLock, SessionLock
from latchwork.primitives.fair.tickets import (
    BlockingFilter,
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
        self._is_blocking: BlockingFilter = (
            any_ticket_blocks if mode == "write" else lambda ticket: not is_reader(ticket)
        )

    async def downgrade(self) -> Fence:
        """Change this thread's write lock to a read lock; see ``ReadWriteLock.downgrade``."""
        self._home.check()
        held = self._find_lock_of_thread()
        if held is None or not held.is_held:
            raise LockLost(f"{self.what} is not held by this thread; acquire it before the downgrade")
        if len(held.acquisitions) > 1:
            raise LatchworkError(
                f"{self.what} is held {len(held.acquisitions)} times by this thread; release all but one"
            )
        ticket = held.position.ticket
        shared = encode({**read_object(ticket.value), "mode": "read"})
        await self.move_to_other_mode(held)  # first: others may read as soon as this is written
        try:
            await ask(self._store.commit, [held.position.fence], [Put(ticket.key, shared)])
        except OutcomeUnknown as error:  # others may read by now, so it is no writer's any more in any case
            _log.warning("%s: other readers may have to wait until it is released: %s", self.what, error)
        except LatchworkError as error:
            await self.other.move_to_other_mode(held)
            if isinstance(error, Conflict):
                raise LockLost(f"{self.what} was lost before the downgrade; stop what it protected") from error
            raise
        return held.position.fence

    async def move_to_other_mode(self, held: HeldSessionLock) -> None:
        """Convert a held lock of this thread to the other mode. A downgrade does so, and undoes it after an error.

        Only the records of this process change. The caller changes the stored ticket.

        Args:
            held: The held lock.

        Raises:
            Closed: The lock was closed and released.
        """
        with self._lock:
            if held.released.is_set():
                raise Closed(f"{self.what} was closed and released; create another one")
        await self.other.take_from_other_mode(held)

    async def take_from_other_mode(self, held: HeldSessionLock) -> None:
        """Record that this thread now holds a lock in this mode that it held in the other mode.

        Args:
            held: The held lock.

        Raises:
            Closed: The lock was closed and released.
        """
        held.owner = self
        self._record_mode_change(held)
        if self._waits.is_closed:
            await self._release_held_lock(held)
            raise Closed(f"{self.what} was closed and released; create another one")

    def _record_mode_change(self, held: HeldSessionLock) -> None:
        """Record a held lock under the mode that now owns it, and remove it from the other mode.

        An interrupt in between leaves it recorded under both modes, which is harmless.

        Args:
            held: The held lock.
        """
        owner = held.owner
        assert isinstance(owner, ModeLock)
        if not held.released.is_set():
            owner.add_held_lock(held)
        owner.other.remove_held_lock(held)

    def add_held_lock(self, held: HeldSessionLock) -> None:
        """Add a lock to those that this thread holds in this mode."""
        self.remove_held_lock(held)
        with self._lock:
            self._held.append(held)
        self._push(held)

    def remove_held_lock(self, held: HeldSessionLock) -> None:
        """Remove a lock from those that this thread holds in this mode."""
        with self._lock:
            self._held = [each for each in self._held if each is not held]
        self._mine.values["stack"] = [each for each in self._list_locks_of_thread() if each is not held]

    def _check_acquirable(self) -> None:
        theirs = self.other.find_lock_of_thread()
        if theirs is None or not theirs.is_held:
            return
        if self._mode == "write":
            raise LatchworkError(
                f"{self.what}: this thread holds it for reading, and two that upgrade would wait for each other; "
                f"release it first, then read again what you decide by"
            )
        raise LatchworkError(f"{self.what}: this thread holds it for writing; call downgrade(), or release it first")

    def find_lock_of_thread(self) -> HeldSessionLock | None:
        """Return the lock that this thread acquired last in this mode and still holds. None if it holds none."""
        return self._find_lock_of_thread()

    async def _acquire_ticket(self, waiter: Waiter, deadline: Deadline) -> QueuePosition | None:
        return await wait_for_turn(
            self._queue, waiter, deadline, is_blocking=self._is_blocking, body={"mode": self._mode}
        )
