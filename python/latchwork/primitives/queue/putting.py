"""Putting items into a queue: numbers in one transaction with the items, and room for them.

Keys:  see ``items``
Room:  every put changes the tail, so puts are one after the other, and all else only makes items fewer. So a count of
       the items, taken after the tail was read, leaves room for as many puts as the capacity exceeds it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from latchwork.errors import Conflict, LatchworkError, Unavailable, WaitTimeout
from latchwork.primitives.fair.tickets import TicketQueue
from latchwork.primitives.fair.turns import take_turn
from latchwork.primitives.numbers.cell import Cell
from latchwork.primitives.queue.numbered_items import Item, Names, Room, make_id
from latchwork.primitives.queue.stored import check_payload
from latchwork.primitives.waiting.common import Patience
from latchwork.primitives.waiting.waiter import Waiter, get_or_create
from latchwork.primitives.waiting.waits import Waits
from latchwork.store.backoff import Backoff
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Check, Create, Op, Put

_BATCH_ITEMS, _BATCH_BYTES = 40, 500_000
_CELL_PATIENCE_S = 30.0


class _Full(Exception):
    """There is no room."""


class Putting:
    """The end of one queue. Safe to share between threads.

    Attributes:
        queue: the tickets of those that wait for room.
    """

    def __init__(
        self, store: Store, names: Names, waits: Waits, *, what: str, capacity: int | None, label: str
    ) -> None:
        self.queue = TicketQueue(store, f"{names.name}/putters", f"putters of {what}", label)
        self._store = store
        self._names = names
        self._waits = waits
        self._what = what
        self._capacity = capacity
        self._agreed = False
        self._tail = Cell(store, names.tail, f"the tail of {what}")

    async def put(self, values: list[bytes], priority: int, timeout_s: float | None) -> list[str]:
        """Put items of one priority, many in one transaction; their ids."""
        for value in values:
            check_payload(value, self._what)
        ids: list[str] = []
        async with self._waits.begin(timeout_s) as (waiter, patience):
            bounded = await waiter.keep_trying(self.agree, patience) is not None
            for batch in _batches(values, 1 if bounded else _BATCH_ITEMS):
                creations = partial(self._creations, priority, batch)
                ids += await self.append(priority, creations, len(batch), waiter=waiter, patience=patience)
        return ids

    def _creations(self, priority: int, values: Sequence[bytes], first: int) -> list[Op]:
        items = [Item.made(make_id(priority, first + n), value) for n, value in enumerate(values)]
        ops: list[Op] = [Create(self._names.item(item.id), item.to_bytes()) for item in items]
        pairs = zip(items, values, strict=True)
        return [*ops, *(Create(self._names.data(item.id), value) for item, value in pairs if item.data_id)]

    async def append(
        self,
        priority: int,
        creations: Callable[[int], list[Op]],
        count: int,
        *,
        waiter: Waiter,
        patience: Patience,
        checks: Sequence[Check] = (),
    ) -> list[str]:
        """Give items the next numbers; waits for room."""

        async def append() -> list[str]:
            last = await self._try_append(creations, count, waiter, patience, checks)
            return [make_id(priority, number) for number in range(last - count + 1, last + 1)]

        try:
            return await append()
        except _Full:
            pass
        place = None if patience.is_over else await take_turn(self.queue, waiter, patience)
        if place is None:
            raise self._no_room(waiter)
        try:
            while await waiter.follow(self._names.items, _HasRoom(await self.agree() or 0), patience):
                with contextlib.suppress(_Full):
                    return await append()
            raise self._no_room(waiter)
        finally:
            await self.queue.leave(place)

    async def _try_append(
        self,
        creations: Callable[[int], list[Op]],
        count: int,
        waiter: Waiter,
        patience: Patience,
        checks: Sequence[Check],
    ) -> int:
        async def writes(before: int, _after: int) -> list[Op]:
            return [*creations(before + 1), *await self._use_room(count)]

        backoff = Backoff()
        while True:
            try:
                last = await self._tail.change(
                    lambda now: now + count, checks=checks, ops=writes, timeout_s=patience.left_s(_CELL_PATIENCE_S)
                )
            except (Unavailable, Conflict) as error:
                if isinstance(error, Conflict) and any(one in checks for one in error.failed):
                    raise
                if patience.is_over:
                    self._refuse_crowded(error)
                    raise
                if not await waiter.pause(patience.left_s(backoff.next_s())):
                    self._waits.refuse_ended(waiter, error)
                    raise
            else:
                assert last is not None
                return last

    async def _use_room(self, count: int) -> list[Op]:
        """Count room as used. Puts come one after the other, and everything else only makes the items fewer."""
        if self._capacity is None:
            return []
        entry = await ask(self._store.get, self._names.room)
        room = Room(self._capacity) if entry is None else Room.of(entry)
        free = room.free
        if free < count:
            free = self._capacity - len(await ask(self._store.children, self._names.items))
        if free < count:
            raise _Full
        return [Put(self._names.room, Room(self._capacity, free - count).to_bytes())]

    async def agree(self) -> int | None:
        """The capacity, as stored by the first use."""
        if self._agreed:
            return self._capacity
        entry = await get_or_create(self._store, self._names.room, Room(self._capacity).to_bytes())
        stored = Room.of(entry).capacity
        if self._capacity not in {None, stored}:
            raise LatchworkError(
                f"{self._what} has a capacity of {stored}, not {self._capacity}; make it with that, or use another name"
            )
        self._capacity, self._agreed = stored, True
        return stored

    def _refuse_crowded(self, error: LatchworkError) -> None:
        if isinstance(error, Conflict):
            raise WaitTimeout(f"others kept putting items into {self._what}, nothing was put; wait longer") from error

    def _no_room(self, waiter: Waiter) -> WaitTimeout:
        self._waits.refuse_ended(waiter)
        return WaitTimeout(f"{self._what} is full, it holds {self._capacity} items; wait longer, or take some")


class _HasRoom:
    """Follows the items, and says whether there are fewer than the capacity. One thread only."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: set[str] = set()

    def __call__(self, batch: Batch) -> bool:
        for change in batch:
            if change.entry is None:
                self._items.discard(change.key)
            else:
                self._items.add(change.key)
        return len(self._items) < self._capacity


def _batches(values: list[bytes], most: int) -> Iterable[list[bytes]]:
    """The values in order, so many and so large together as one transaction takes."""
    batch: list[bytes] = []
    size = 0
    for value in values:
        if batch and (len(batch) >= most or size + len(value) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(value)
        size += len(value)
    if batch:
        yield batch
