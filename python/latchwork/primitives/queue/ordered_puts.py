"""Ordered puts, one after the other: they number their items, or limit them to a capacity.

Keys:  <name>/tail       the number of the last item that was put, see ``shared_number``
       <name>/capacity   the capacity, and the number of puts until the items have to be counted again; JSON

Every put writes the tail on condition that it is unchanged, so puts come one after the other. All other steps only
remove items. So after a count of the items, made after the tail was read, as many puts are possible as the capacity
exceeds that count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from latchwork._base.decoding import Decoder, Positive, Record, Whole
from latchwork.errors import Conflict, LatchworkError, Unavailable, WaitTimeout
from latchwork.primitives.fair.tickets import TicketQueue, wait_for_turn
from latchwork.primitives.numbers.shared_number import SharedNumber
from latchwork.primitives.queue.claims import QueueInfo
from latchwork.primitives.waiting.arguments import check_integer
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.waiter import Waiter, WaiterRegistry, get_or_create
from latchwork.store.backoff import Backoff
from latchwork.store.steps import StepCoroutine, ask
from latchwork.store.watch import Batch
from latchwork.types import Check, Entry, Op, Put

#: Maximum seconds for one attempt to change the tail.
_TAIL_TIMEOUT_S = 30.0


class Capacity(Record, frozen=True):
    """The stored capacity of a queue.

    Attributes:
        capacity: Maximum number of items. None for no limit.
        free: Number of items that can be put before the items must be counted again.
    """

    capacity: Positive | None
    free: Whole = 0

    @classmethod
    def from_entry(cls, entry: Entry) -> Capacity:
        """Decode the stored capacity.

        Raises:
            BadRecord: The value is another kind of record.
        """
        return _CAPACITY.decode_entry(entry)


_CAPACITY: Decoder[Capacity] = Decoder(Capacity, "a capacity of a queue", "use another name")


class _QueueFull(Exception):
    """The queue is full."""


class OrderedPuts:
    """Puts items into one queue, one transaction after the other. Thread-safe.

    Args:
        info: The queue.
        waits: The waiting calls of the queue object.
        count: Counts the items in the queue.
        capacity: Maximum number of items. None uses the stored capacity, or no limit.
        label: Name of this client in its ticket, shown to other clients.

    Attributes:
        waiting_producers: The tickets of the clients that wait for space.
    """

    def __init__(
        self,
        info: QueueInfo,
        waits: WaiterRegistry,
        count: Callable[[], StepCoroutine[int]],
        capacity: int | None,
        label: str,
    ) -> None:
        if capacity is not None and not check_integer(capacity, "capacity") >= 1:
            raise ValueError(f"capacity must be None or at least 1, not {capacity!r}")
        self.waiting_producers = TicketQueue(
            info.store, info.keys.producers, f"waiting producers of {info.what}", label
        )
        self._store = info.store
        self._keys = info.keys
        self._what = info.what
        self._waits = waits
        self._count = count
        self._capacity = capacity
        self._is_capacity_read = False
        self._tail = SharedNumber(info.store, info.keys.tail, f"the tail of {info.what}")

    async def put(
        self,
        build_ops: Callable[[int], Sequence[Op]],
        count: int,
        *,
        waiter: Waiter,
        deadline: Deadline,
        checks: Sequence[Check] = (),
        ops: Sequence[Op] = (),
    ) -> int:
        """Put items in one transaction. Wait while the queue is full.

        Args:
            build_ops: Called with the number of the first item. Returns the writes that create all items.
            count: Number of items; at most 1 for a queue with a capacity.
            waiter: The waiting call.
            deadline: When the wait times out.
            checks: Further preconditions of the transaction.
            ops: Further writes of the transaction.
        Returns:
            The number of the first item.
        Raises:
            Conflict: One of the caller's checks or writes failed, or an item exists; nothing was put.
            WaitTimeout: The queue was full, or other clients put items until the deadline; nothing was put.
            Unavailable, OutcomeUnknown: As for ``Queue.put``.
        """

        async def put() -> int:
            return await self._try_put(build_ops, count, waiter, deadline, checks, ops)

        capacity = await waiter.keep_trying(self.read_capacity, deadline)
        try:
            return await put()
        except _QueueFull:
            assert capacity is not None
        position = None if deadline.has_passed else await wait_for_turn(self.waiting_producers, waiter, deadline)
        if position is None:
            raise self._build_full_error(waiter)
        try:
            partitions = self._keys.partitions
            while await waiter.watch_until(partitions, _SpaceWatcher(partitions, capacity), deadline):
                with contextlib.suppress(_QueueFull):
                    return await put()
            raise self._build_full_error(waiter)
        finally:
            await self.waiting_producers.leave(position)

    async def _try_put(  # noqa: PLR0917 - one caller
        self,
        build_ops: Callable[[int], Sequence[Op]],
        count: int,
        waiter: Waiter,
        deadline: Deadline,
        checks: Sequence[Check],
        ops: Sequence[Op],
    ) -> int:
        async def build_writes(before: int, _after: int) -> list[Op]:
            return list(dict.fromkeys([*build_ops(before + 1), *await self._reserve_space(count), *ops]))

        backoff = Backoff()
        while True:
            try:
                last = await self._tail.change(
                    lambda number: number + count,
                    checks=checks,
                    ops=build_writes,
                    timeout_s=deadline.left_s(_TAIL_TIMEOUT_S),
                )
            except (Unavailable, Conflict) as error:
                if isinstance(error, Conflict) and self._is_callers_conflict(error):
                    raise
                if deadline.has_passed:
                    if isinstance(error, Conflict):
                        msg = f"other clients kept putting items into {self._what}, nothing was put; wait longer"
                        raise WaitTimeout(msg) from error
                    raise
                if not await waiter.pause(deadline.left_s(backoff.next_s())):
                    self._waits.raise_if_ended(waiter, error)
                    raise
            else:
                assert last is not None
                return last - count + 1

    async def _reserve_space(self, count: int) -> list[Op]:
        """Build the writes that subtract items from the stored free space of a bounded queue.

        Args:
            count: Number of items. The items in the queue are counted if the stored free space is too small.
        Raises:
            _QueueFull: There is no space.
        """
        if self._capacity is None:
            return []
        entry = await ask(self._store.get, self._keys.capacity_key)
        free = 0 if entry is None else Capacity.from_entry(entry).free
        if free < count:
            free = self._capacity - await self._count()
        if free < count:
            raise _QueueFull
        return [Put(self._keys.capacity_key, Capacity(self._capacity, free - count).to_bytes())]

    async def read_capacity(self) -> int | None:
        """Return the capacity of the queue. The first use stores it.

        Raises:
            LatchworkError: The stored capacity differs from that of this object.
        """
        if self._is_capacity_read:
            return self._capacity
        entry = await get_or_create(self._store, self._keys.capacity_key, Capacity(self._capacity).to_bytes())
        stored = Capacity.from_entry(entry).capacity
        if self._capacity not in {None, stored}:
            raise LatchworkError(
                f"{self._what} has a capacity of {stored}, not {self._capacity}; create "
                "it with that, or use another name"
            )
        self._capacity, self._is_capacity_read = stored, True
        return stored

    def _is_callers_conflict(self, error: Conflict) -> bool:
        """Return whether a put failed because of the caller's own checks or writes, and not because of other
        clients.
        """
        return bool(error.failed) and all(getattr(part, "key", None) != self._keys.tail for part in error.failed)

    def _build_full_error(self, waiter: Waiter) -> WaitTimeout:
        """Return the timeout error of a put into a full queue. Raise another error if the wait has ended early."""
        self._waits.raise_if_ended(waiter)
        return WaitTimeout(f"{self._what} is full, it holds {self._capacity} items; wait longer, or take some")


class _SpaceWatcher:
    """A watch callback that returns True when the queue has fewer items than its capacity."""

    def __init__(self, partitions: str, capacity: int) -> None:
        self._partitions = partitions
        self._capacity = capacity
        self._items: set[str] = set()

    def __call__(self, batch: Batch) -> bool:
        for change in batch:
            path = change.key[len(self._partitions) + 1 :].split("/")
            if len(path) == 4 and path[1] == "items":
                (self._items.discard if change.entry is None else self._items.add)(change.key)
        return len(self._items) < self._capacity
