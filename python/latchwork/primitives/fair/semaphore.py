"""At most n holders at a time, in the order of their arrival.

Keys:   <name>/leases/size       the number of leases, as JSON
        <name>/leases/t-<nonce>  one per holder, bound to its session; label, host and PID as JSON
        <name>/queue/t-<nonce>   one ticket per waiter, bound to its session
Holder: the owner of a lease. Only the first in the queue may take one, in the transaction that deletes its ticket and
        checks the size. The others watch the ticket before their own, the first one watches the leases.

docs/design/locks.md says why there are never more than n holders.
"""

from __future__ import annotations

from msgspec import Struct

from latchwork._base.decoding import Decoder, Positive, encode
from latchwork._base.validation import check_store
from latchwork.errors import BadRecord, Conflict, LatchworkError, LockLost
from latchwork.primitives.fair.session_lock import SessionLock
from latchwork.primitives.fair.tickets import QueuePosition, Ticket, TicketQueue, is_ticket, sort_tickets, wait_for_turn
from latchwork.primitives.waiting.arguments import check_integer, check_name
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.waiter import Waiter, get_or_create
from latchwork.store.session import Session
from latchwork.store.steps import ask, blocking, coroutine_of
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import At, Create, Delete, Entry, Exists

_SIZE = "size"


class _Leases(Struct, frozen=True):
    """The stored size of a semaphore: its number of leases."""

    leases: Positive


_LEASES: Decoder[_Leases] = Decoder(_Leases, "the size of a semaphore", "delete it, or use another name")


class Semaphore(SessionLock):
    """A limited number of leases that sessions hold: ``with Semaphore(store, "scanner", leases=3) as fence:``.

    The first use stores the number. A client that gives another number is refused at its first use; ``resize`` changes
    the number for all. Construction does no I/O. Thread-safe, and a thread may hold several leases.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key of the leases and tickets.
        leases: The number of leases, at least 1. None uses the stored number.
        session: The session of leases and tickets, which the caller closes. None uses the store's primary session.
        label: The name of this client, shown to others.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        leases: int | None = None,
        session: Session | None = None,
        label: str = "",
    ) -> None:
        check_store(store, "a semaphore")
        self.name = check_name(name, "semaphore")
        self._wanted = leases if leases is None else _check_size(leases)
        self._agreed = False
        self._leases = f"{name}/leases"
        self._size_key = f"{self._leases}/{_SIZE}"
        what = f"semaphore {name!r}"
        queue = TicketQueue(store, f"{name}/queue", what, label)
        super().__init__(store, what, queue, session=session, allow_several=True)

    @blocking
    async def size(self) -> int | None:
        """Return how many leases the semaphore has, free or held. None if it was never used."""
        entry = await ask(self._store.get, self._size_key)
        return _read_size(entry) if entry is not None else None

    @blocking
    async def resize(self, leases: int) -> None:
        """Change the number of leases for all clients.

        No holder loses its lease. If there are more holders than leases now, no client gets a lease until enough are
        released.
        """
        self._waits.ensure_usable()
        await ask(self._store.put, self._size_key, encode({"leases": _check_size(leases)}))
        self._agreed = True

    @blocking
    async def holders(self) -> list[Ticket]:
        """Return the clients that hold the semaphore now, oldest first. Read from the store.

        Returns:
            One ``Ticket`` per held lease, which describes the client.
        """
        entries = await ask(self._store.list, self._leases)
        return sort_tickets(Ticket.from_entry(entry) for entry in entries if _is_lease(entry))

    @blocking
    async def waiters(self) -> list[Ticket]:
        """Return the tickets of the clients that wait for a lease, in the order in which they will get one."""
        return await self._queue.tickets()

    # Taking a lease

    async def _acquire_ticket(self, waiter: Waiter, deadline: Deadline) -> QueuePosition | None:
        await waiter.keep_trying(self._agree_on_size, deadline)
        position = await wait_for_turn(self._queue, waiter, deadline)
        if position is None:
            return None
        lease: QueuePosition | None = None
        try:
            lease = await self._await_lease(position, waiter, deadline)
        finally:
            if lease is None:
                await self._queue.delete_now_or_later(
                    position.session, (position.ticket.key, self._lease_key(position))
                )
        return lease

    async def _agree_on_size(self) -> None:
        """Store the number of leases on first use. Otherwise check that it is the stored number.

        Raises:
            LatchworkError: This object has another number of leases, or no number is known.
        """
        if self._agreed:
            return
        if self._wanted is not None:
            entry = await get_or_create(self._store, self._size_key, encode({"leases": self._wanted}))
        elif (found := await ask(self._store.get, self._size_key)) is not None:
            entry = found
        else:
            raise LatchworkError(f"{self.what} has no size yet; create it with leases=n")
        stored = _read_size(entry)
        if self._wanted not in {None, stored}:
            raise LatchworkError(
                f"{self.what} has {stored} leases, not {self._wanted}; create it with leases={stored}, or resize it"
            )
        self._agreed = True

    async def _await_lease(self, position: QueuePosition, waiter: Waiter, deadline: Deadline) -> QueuePosition | None:
        """Wait for a free lease and take it. The caller is first in the queue.

        Args:
            position: Our position in the queue.
            waiter: The waiting call.
            deadline: When the wait times out.
        Returns:
            The position with the lease. None after the timeout or a cancellation.
        """
        while True:
            lease = await waiter.keep_trying(lambda: self._try_lease(position), deadline)
            if lease is not None:
                return lease
            if deadline.has_passed or not await waiter.watch_until(self._leases, _FreeLease(self._size_key), deadline):
                self._queue.raise_if_session_ended(position)
                return None

    async def _try_lease(self, position: QueuePosition) -> QueuePosition | None:
        """Take a lease if one is free. Return the position with the lease, or None.

        Only the first client in the queue adds leases. So after it has read the leases, their number can only decrease.
        """
        while True:
            self._queue.raise_if_session_ended(position)
            entries = {entry.key: entry for entry in await ask(self._store.list, self._leases)}
            ours = entries.get(self._lease_key(position))
            if ours is not None and ours.owner == position.session.id:  # an earlier try got through, its answer did not
                return self._lease(ours, position.session)
            if ours is not None:
                raise BadRecord(f"key {ours.key!r} is not a lease of {self.what}: another program wrote it; delete it")
            size = entries.get(self._size_key)
            if size is None:  # it was deleted
                self._agreed = False
                await self._agree_on_size()
                continue
            if sum(map(_is_lease, entries.values())) >= _read_size(size):
                return None
            try:
                return self._lease(await self._take_lease(position, size), position.session)
            except Conflict as error:  # resized meanwhile, or our ticket is gone
                await self._raise_if_gone(position, error)

    async def _take_lease(self, position: QueuePosition, size: Entry) -> Entry:
        lease = Create(self._lease_key(position), position.ticket.value, position.session)
        done = await ask(self._store.commit, [At(size), position.fence], [Delete(position.ticket.key), lease])
        return done.entries[0]

    async def _raise_if_gone(self, position: QueuePosition, error: Conflict) -> None:
        ticket, lease = await ask(self._store.get_many, [position.ticket.key, self._lease_key(position)])
        if ticket is None and lease is None:  # no snapshot: a move of ours may have landed between the reads of the two
            lease = await ask(self._store.get, self._lease_key(position))
        if ticket is None and lease is None:
            self._queue.raise_if_session_ended(position)
            what = f"ticket {position.ticket.key!r} in {self.what}"
            raise LockLost(f"{what} is gone because another client deleted it; queue again") from error

    def _lease(self, entry: Entry, session: Session) -> QueuePosition:
        return QueuePosition(entry, session, self._store.fence(entry.created, Exists(entry.key), session.fence))

    def _lease_key(self, position: QueuePosition) -> str:
        return f"{self._leases}/{position.name}"

    async def _describe_holders(self) -> str:
        try:
            holders = await coroutine_of(self.holders)()
        except LatchworkError:
            return "others"
        more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
        return (", ".join(map(str, holders[:3])) or "no one any more") + more


class _FreeLease:
    """A watch callback that counts the leases, and returns True when one is free. Single-threaded."""

    def __init__(self, size_key: str) -> None:
        self._size_key = size_key
        self._size = 0
        self._live: set[str] = set()

    def __call__(self, batch: Batch) -> bool:
        for change in batch:
            if change.key == self._size_key:
                self._size = _read_size(change.entry) if change.entry is not None else 0
            elif change.entry is None:
                self._live.discard(change.key)
            elif _is_lease(change.entry):
                self._live.add(change.key)
        return len(self._live) < self._size


def _is_lease(entry: Entry) -> bool:
    """Return whether an entry is a lease that ends with a session.

    Other entries do not count: other programs wrote them, and they would block a lease forever.
    """
    return is_ticket(entry.key) and entry.owner is not None


def _check_size(leases: int) -> int:
    if not check_integer(leases, "the number of leases") >= 1:
        raise ValueError(f"a semaphore needs at least 1 lease, not {leases!r}")
    return leases


def _read_size(entry: Entry) -> int:
    return _LEASES.decode_entry(entry).leases
