"""Many readers or one writer, in the order of their arrival.

Keys:    <name>/t-<nonce>  one ticket per holder or waiter, dies with its session; its mode (read, write), label,
                           host and pid as JSON
Holders: the oldest ticket; and if that reads, all that follow up to the first that writes. A reader watches the nearest
         writer before it, a writer the nearest ticket, so a waiting writer is overtaken by nobody.
"""

from __future__ import annotations

import logging
from typing import Literal

from latchwork._base.decoding import encode, read_object
from latchwork.checks import check_store
from latchwork.errors import Closed, Conflict, LatchworkError, LockLost, OutcomeUnknown
from latchwork.primitives.fair.holding import Hold, SessionLock
from latchwork.primitives.fair.tickets import (
    Blocks,
    QueuePosition,
    Ticket,
    TicketQueue,
    everyone,
    take_turn,
)
from latchwork.primitives.waiting.common import Patience, check_name
from latchwork.primitives.waiting.waits import Waiter
from latchwork.store.session import Session
from latchwork.store.steps import ask, driven, ending, steps_of
from latchwork.store.store import Store
from latchwork.types import Fence, Put

_log = logging.getLogger(__name__)

Mode = Literal["read", "write"]


def reads(ticket: Ticket) -> bool:
    """True for a ticket that reads; one that cannot be read counts as a writer's."""
    return ticket.body.get("mode") == "read"


def held_count(tickets: list[Ticket]) -> int:
    """The number of tickets at the head of the queue that hold the lock. Pure."""
    if not tickets or not reads(tickets[0]):
        return min(1, len(tickets))
    return next((at for at, ticket in enumerate(tickets) if not reads(ticket)), len(tickets))


class ReadWriteLock:
    """A fair lock that many may hold for reading, or one for writing: ``with rw.read:``, ``with rw.write as fence:``.

    Each side has what ``Lock`` has. A thread that reads cannot go on to write: two that tried would wait for each
    other, so that is refused. What a thread holds by another object of the same name is not seen: it would wait for
    itself, for as long as ``timeout_s`` says. A thread that writes can go on to read, with ``downgrade``. Construction
    does no I/O. Safe to share between threads.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the key below which the tickets are.
        reentrant: a thread that holds a side may acquire the same side again, and releases it as often.
        session: the session to live by; it stays the caller's. None takes the store's primary session.
        label: what others see when they ask who holds it.

    Attributes:
        read: the shared side.
        write: the exclusive side.
    """

    def __init__(
        self, store: Store, name: str, *, reentrant: bool = False, session: Session | None = None, label: str = ""
    ) -> None:
        check_store(store, "a lock")
        self.name = check_name(name, "lock")
        self._queue = TicketQueue(store, name, f"lock {name!r}", label)
        self.read = Side(store, self._queue, "read", session=session, reentrant=reentrant)
        self.write = Side(store, self._queue, "write", session=session, reentrant=reentrant)
        self.read.other, self.write.other = self.write, self.read

    def __repr__(self) -> str:
        return (
            f"<ReadWriteLock {self.name!r} read {self.read.remaining_s():.2f}s write {self.write.remaining_s():.2f}s>"
        )

    @driven
    async def downgrade(self) -> Fence:
        """Go on reading without letting another writer in between: this thread's hold becomes a reader's.

        It keeps its fence. Release it with ``read.release()``, or by the end of the ``with`` that acquired it.

        Raises:
            LockLost: this thread does not hold it for writing, or not any more.
            LatchworkError: it holds it more than once.
            Closed: it was closed meanwhile, and is not held any more.
            Unavailable: the server was not reached; it is still held for writing.
        """
        return await self.write.downgrade()

    @driven
    async def holders(self) -> list[Ticket]:
        """Who holds it as the store knows it: one writer, or any number of readers. Takes nothing."""
        tickets = await self._queue.tickets()
        return tickets[: held_count(tickets)]

    @driven
    async def waiters(self) -> list[Ticket]:
        """Who waits, in the order of arrival; may be empty."""
        tickets = await self._queue.tickets()
        return tickets[held_count(tickets) :]

    @ending
    async def close(self) -> None:
        """Release whatever is held through this object, and call off who waits. From any thread; twice is fine."""
        try:
            await steps_of(self.read.close)()
        finally:
            await steps_of(self.write.close)()


class Side(SessionLock):
    """One side of a ``ReadWriteLock``: used like a ``Lock``. Get it from there."""

    other: Side

    def __init__(
        self, store: Store, queue: TicketQueue, mode: Mode, *, session: Session | None, reentrant: bool
    ) -> None:
        super().__init__(store, f"{queue.what} ({mode})", queue, session=session, reentrant=reentrant)
        self._mode = mode
        self._blocks: Blocks = everyone if mode == "write" else lambda ticket: not reads(ticket)

    async def downgrade(self) -> Fence:
        """See ``ReadWriteLock.downgrade``."""
        self._home.check()
        hold = self._of_thread()
        if hold is None or not hold.is_held:
            raise LockLost(f"{self.what} is not held by this thread; acquire it before the downgrade")
        if len(hold.uses) > 1:
            raise LatchworkError(
                f"{self.what} is held {len(hold.uses)} times by this thread; release all but one of them"
            )
        ticket = hold.place.ticket
        shared = encode({**read_object(ticket.value), "mode": "read"})
        await self.hand_to_other(hold)  # first: others may read once this is written, before we hear of it
        try:
            await ask(self._store.commit, [hold.place.fence], [Put(ticket.key, shared)])
        except OutcomeUnknown as error:  # others may read by now, so it is no writer's any more in any case
            _log.warning("%s: other readers may have to wait until it is released: %s", self.what, error)
        except LatchworkError as error:
            await self.other.hand_to_other(hold)
            if isinstance(error, Conflict):
                raise LockLost(f"{self.what} was lost before the downgrade; stop what it protected") from error
            raise
        return hold.place.fence

    async def hand_to_other(self, hold: Hold) -> None:
        """Make the other side hold what this one held, in this thread."""
        with self._lock:
            if hold.given_back.is_set():
                raise Closed(f"{self.what} was closed, and its hold released; make another one")
        await self.other.adopt(hold)

    async def adopt(self, hold: Hold) -> None:
        """Hold what the other side held, in this thread."""
        hold.owner = self
        self._house(hold)
        if self._waits.is_closed:
            await self._give_back(hold)
            raise Closed(f"{self.what} was closed, and its hold released; make another one")

    def _house(self, hold: Hold) -> None:
        """Have a hold of this thread known to its owner, and to no other side; an interrupt may be between the two."""
        owner = hold.owner
        assert isinstance(owner, Side)
        if not hold.given_back.is_set():
            owner.note(hold)
        owner.other.forget(hold)

    def note(self, hold: Hold) -> None:
        """Know of a hold of this thread."""
        self.forget(hold)
        with self._lock:
            self._holds.append(hold)
        self._push(hold)

    def forget(self, hold: Hold) -> None:
        """Know of it no more."""
        with self._lock:
            self._holds = [each for each in self._holds if each is not hold]
        self._mine.own["stack"] = [each for each in self._stack() if each is not hold]

    def _before(self) -> None:
        theirs = self.other.of_this_thread()
        if theirs is None or not theirs.is_held:
            return
        if self._mode == "write":
            raise LatchworkError(
                f"{self.what}: this thread holds it for reading, and two that upgrade would wait for each other; "
                f"release it first, then read again what you decide by"
            )
        raise LatchworkError(f"{self.what}: this thread holds it for writing; call downgrade(), or release it first")

    def of_this_thread(self) -> Hold | None:
        """What this thread holds of this side."""
        return self._of_thread()

    async def _take(self, waiter: Waiter, patience: Patience) -> QueuePosition | None:
        return await take_turn(self._queue, waiter, patience, blocks=self._blocks, body={"mode": self._mode})
