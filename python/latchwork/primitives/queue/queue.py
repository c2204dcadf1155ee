"""A queue of work: items are taken at least once, by one at a time, in the order of their arrival.

Keys:   see ``items``
Order:  by the number that an item gets in the transaction that puts it.
Claim:  a session-bound key for the item. Its taker removes the item by acknowledging it; when the taker dies, the claim
        vanishes, and the item is where it was.

docs/design/0011 has the races, and why a new item wakes one taker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from latchwork.checks import check_store
from latchwork.errors import Conflict, WaitTimeout
from latchwork.primitives.fair.tickets import Ticket
from latchwork.primitives.queue.numbered_claim import Claim
from latchwork.primitives.queue.numbered_items import Item, Names, item_id, make_id
from latchwork.primitives.queue.numbered_taking import Taking
from latchwork.primitives.queue.putting import Putting
from latchwork.primitives.waiting.common import Closes, check_name, check_whole
from latchwork.primitives.waiting.waits import Waits
from latchwork.store.session import Session
from latchwork.store.steps import ask, driven
from latchwork.store.store import Store
from latchwork.types import At, Create, Delete, Entry, Op

#: What an item has unless it is told otherwise.
DEFAULT_PRIORITY = 5


class Queue(Closes):
    """A queue of bytes: ``queue.put(b"...")`` here, ``with queue.take() as claim: handle(claim.value)`` there.

    Every item is taken at least once, and by one at a time as far as fences reach: a taker that has lost its claim can
    end nothing. Construction does no I/O. Safe to share between threads and processes.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the key below which all is stored.
        capacity: how many items there may be, taken ones included; decided by the first use, None takes what is stored,
            or no limit. Each put into a bounded queue waits for the puts before it.
        max_attempts: an item taken that often, and not acknowledged, becomes a dead letter; as the taker says.
        session: the session that claims live by; it stays the caller's. None takes the store's primary session.
        label: what others see when they ask who has taken what.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        capacity: int | None = None,
        max_attempts: int = 5,
        session: Session | None = None,
        label: str = "",
    ) -> None:
        check_store(store, "a queue")
        self.name = check_name(name, "queue")
        if not check_whole(max_attempts, "max_attempts") >= 1:
            raise ValueError(f"max_attempts must be at least 1, not {max_attempts!r}")
        if capacity is not None and not check_whole(capacity, "capacity") >= 1:
            raise ValueError(f"capacity must be None or at least 1, not {capacity!r}")
        self._what = f"queue {name!r}"
        self._names = Names(name)
        self._store = store
        self._waits = Waits(store, self._what, session)
        self._putting = Putting(store, self._names, self._waits, what=self._what, capacity=capacity, label=label)
        self._taking = Taking(store, self._names, what=self._what, most=max_attempts, label=label)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # Putting

    @driven
    async def put(self, value: bytes, *, timeout_s: float | None = None) -> str:
        """Put an item at the end.

        Args:
            value: up to 990,000 bytes; up to 4,096 are cheapest.
            timeout_s: seconds to wait for room, and for the server; None waits for ever, 0 tries once.
        Returns:
            The id of the item.
        Raises:
            WaitTimeout: the queue is full, or others put items all that time; nothing was put.
            ValueTooLarge, TypeError: before any I/O.
            OutcomeUnknown: put or not, and no way to tell.
            Unavailable: the server could not be reached in time; nothing was put.
            SessionLost, Closed, ForkedProcess, LatchworkError: as for ``take``.
        """
        return (await self._putting.put([value], DEFAULT_PRIORITY, timeout_s))[0]

    @driven
    async def put_many(self, values: Iterable[bytes], *, timeout_s: float | None = None) -> list[str]:
        """Put items at the end, in order, many in one transaction; not all in one.

        An error says nothing of the transactions before it. Arguments and errors as for ``put``.
        """
        return await self._putting.put(list(values), DEFAULT_PRIORITY, timeout_s)

    # Taking

    @driven
    async def take(self, timeout_s: float | None = None) -> Claim:
        """Take the first item that nobody has taken; wait for one.

        Takers that come at the same time may get neighbouring items in any order. Waiting takers are served in the
        order in which they came, but one that comes just when an item does may be faster.

        Args:
            timeout_s: seconds to wait; None waits for ever, 0 tries once.
        Returns:
            The item: ours until we end it, or our session ends.
        Raises:
            WaitTimeout: there was none; nothing is taken.
            SessionLost: our session ended while waiting.
            Unavailable, OutcomeUnknown: the server could not be reached in that time; nothing is taken, or only until
                that is found out.
            Closed: the queue, its session or its store was closed.
            ForkedProcess: it was made by the parent of this process.
            LatchworkError: this is a callback.
        """
        async with self._waits.begin(timeout_s) as (waiter, patience):
            claim = await waiter.keep_trying(lambda: self._taking.try_take(waiter.session), patience)
            if claim is None and not patience.is_over:
                claim = await self._taking.await_item(waiter, patience)
            if claim is None:
                self._waits.refuse_ended(waiter)
                raise WaitTimeout(f"{self._what} had no item for us within {timeout_s or 0.0:.3g} s")
            return claim

    # Looking around

    @driven
    async def size(self) -> int:
        """How many items there are, taken ones included. Reads their names."""
        self._waits.check()
        return len(await ask(self._store.children, self._names.items))

    @driven
    async def items(self, limit: int = 100) -> list[Item]:
        """The first items, taken ones included, in the order in which they are taken; without large values."""
        self._waits.check()
        return [Item.shown(entry) for entry in await ask(self._store.list, self._names.items, limit=limit)]

    @driven
    async def claims(self) -> dict[str, Ticket]:
        """Who has taken which item, by its id, sorted."""
        self._waits.check()
        return {item_id(entry): Ticket.of(entry) for entry in await ask(self._store.list, self._names.claims)}

    @driven
    async def takers(self) -> list[Ticket]:
        """Who waits for an item, in order."""
        return await self._taking.queue.tickets()

    @driven
    async def putters(self) -> list[Ticket]:
        """Who waits for room, in order."""
        return await self._putting.queue.tickets()

    # Dead letters

    @driven
    async def dead_letters(self, limit: int = 100) -> list[Item]:
        """Items that were given up, by priority and number, with the reason; without large values."""
        self._waits.check()
        return [Item.shown(entry) for entry in await ask(self._store.list, self._names.dead, limit=limit)]

    @driven
    async def revive(self, item_id: str, *, timeout_s: float | None = None) -> str:
        """Put a dead letter at the end of the queue, with all its attempts before it; its new id.

        Raises:
            Conflict: there is no such letter, or somebody else was faster.
            BadRecord: its key had been written by something else; drop it.
            WaitTimeout, and the others: as for ``put``.
        """
        async with self._waits.begin(timeout_s) as (waiter, patience):
            await waiter.keep_trying(self._putting.agree, patience)
            letter = await waiter.keep_trying(lambda: self._letter(item_id), patience)
            dead = Item.of(letter)

            def creations(first: int) -> list[Op]:
                alive = replace(dead, id=make_id(dead.priority, first), attempts=0)
                return [Create(self._names.item(alive.id), alive.to_bytes()), Delete(letter.key)]

            ids = await self._putting.append(
                dead.priority, creations, 1, waiter=waiter, patience=patience, checks=[At(letter)]
            )
            return ids[0]

    @driven
    async def drop(self, item_id: str) -> None:
        """Delete a dead letter for good.

        Raises:
            Conflict: there is no such letter.
        """
        letter = await self._letter(item_id)
        data_id = Item.shown(letter).data_id
        data = [Delete(self._names.data(data_id))] if data_id else []
        await ask(self._store.commit, [At(letter)], [Delete(letter.key), *data])

    async def _letter(self, item_id: str) -> Entry:
        self._waits.check()
        letter = await ask(self._store.get, self._names.letter(item_id))
        if letter is None:
            raise Conflict(f"{self._what} has no dead letter {item_id!r}; list them with dead_letters()")
        return letter

    def close(self) -> None:
        """Call off who waits through this object. Claims stay with who has them. From any thread; twice is fine."""
        self._waits.close()


class PriorityQueue(Queue):
    """A ``Queue`` with priorities: ``queue.put(b"...", priority=0)`` is taken before all others.

    An item of low priority waits as long as others come: nothing ages. All else is as for ``Queue``, and both kinds of
    object may share a name: a plain queue puts with priority 5.
    """

    @driven
    async def put(self, value: bytes, *, priority: int = DEFAULT_PRIORITY, timeout_s: float | None = None) -> str:
        """Put an item behind those of the same priority, 0 (first) to 9 (last). All else as for ``Queue.put``."""
        return (await self._putting.put([value], _check_priority(priority), timeout_s))[0]

    @driven
    async def put_many(
        self, values: Iterable[bytes], *, priority: int = DEFAULT_PRIORITY, timeout_s: float | None = None
    ) -> list[str]:
        """Put items of one priority, in order, many in one transaction; not all in one."""
        return await self._putting.put(list(values), _check_priority(priority), timeout_s)


def _check_priority(priority: int) -> int:
    if priority not in range(10):
        raise ValueError(f"priority must be a whole number from 0 to 9, not {priority!r}")
    return int(priority)
