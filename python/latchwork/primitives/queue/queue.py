"""Queues: items are taken at least once, by one consumer at a time, in the order of their arrival or priority.

Keys:   see ``items`` and ``ordered_puts``; all items are in the partition ``all``
Order:  by the number that an item gets in the transaction that puts it. The sort key is the priority and a block of
        numbers, the id the priority and the number, so that items sort by priority, then by number.

Both kinds are thin wrappers of ``WorkQueue``. docs/design/groups-and-queues.md has the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from latchwork.errors import LatchworkError
from latchwork.primitives.fair.tickets import Ticket
from latchwork.primitives.queue.claims import QueueClaim
from latchwork.primitives.queue.items import QueueItem, build_index_put, build_put_ops, check_payload
from latchwork.primitives.queue.ordered_puts import OrderedPuts
from latchwork.primitives.queue.work_queue import WorkQueue
from latchwork.primitives.waiting.closable import Closable
from latchwork.store.session import Session
from latchwork.store.steps import blocking, coroutine_of
from latchwork.store.store import Store
from latchwork.types import At, Check, Create, Delete, Op

#: The priority of an item for which none is given.
DEFAULT_PRIORITY = 5
#: The only partition.
_PARTITION = "all"
#: Numbers that share a sort key.
_NUMBERS_PER_SORT_KEY = 500
_MAX_NUMBER = 10**12
#: Items, and bytes, of one transaction of ``put_many``.
_BATCH_ITEMS, _BATCH_BYTES = 40, 500_000


class _NumberedWorkQueue(WorkQueue):
    """The work queue behind a ``Queue``. Messages call it a queue, and every take reads from its start."""

    _is_numbered = True


class Queue(Closable):
    """A queue of bytes: ``queue.put(b"...")`` here, ``with queue.take() as claim: handle(claim.value)`` there.

    Every item is taken at least once, and by one consumer at a time: a consumer that has lost its claim cannot end it.
    Use the fence of the claim in all writes. Construction does no I/O. Thread-safe, and safe to use from many
    processes.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key below which everything is stored.
        capacity: Maximum number of items, including claimed ones. The first use stores it. None uses the stored
            capacity, or no limit.
        max_attempts: How often an item is taken without being acknowledged before it becomes a dead letter. Each
            consumer sets it for its own takes.
        session: The session to which claims are bound, which the caller closes. None uses the store's primary session.
        label: Name of this client in its tickets, shown to others.
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
        self._work = _NumberedWorkQueue(store, name, max_attempts=max_attempts, session=session, label=label)
        self.name = name
        self._info, self._waits = self._work._info, self._work._waits  # noqa: SLF001 - this wraps it
        count = partial(self._work._count, _PARTITION)  # noqa: SLF001
        self._puts = OrderedPuts(self._info, self._waits, count, capacity, label)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # Putting

    @blocking
    async def put(
        self,
        value: bytes,
        *,
        checks: Sequence[Check] = (),
        ops: Sequence[Op] = (),
        timeout_s: float | None = None,
    ) -> str:
        """Put an item at the end, optionally in one transaction with writes of yours.

        If the call is interrupted while it waits for space, nothing is put. If it is interrupted during the write
        itself, the item and your writes may or may not have been put.

        Args:
            value: Up to 990,000 bytes; up to 4,096 are cheapest.
            checks: Further preconditions of the transaction.
            ops: Further writes in the same transaction.
            timeout_s: Seconds to wait for space and for the server. None waits forever, 0 tries once.
        Returns:
            The ID of the item.
        Raises:
            Conflict: One of your checks or writes failed; nothing was put.
            WaitTimeout: The queue is full, or other clients put items until the timeout; nothing was put.
            ValueTooLarge, TypeError: The value cannot be stored.
            OutcomeUnknown: The item may have been put.
            Unavailable: The server could not be reached in time; nothing was put.
            SessionLost, Closed, ForkedProcess, LatchworkError: As for ``take``.
        """
        return await self._put(value, DEFAULT_PRIORITY, checks, ops, timeout_s)

    @blocking
    async def put_many(self, values: Iterable[bytes], *, timeout_s: float | None = None) -> list[str]:
        """Put items at the end, in order, in several transactions of many items each.

        After an error, the items of earlier transactions stay in the queue.

        Args:
            values: The values, as for ``put``.
            timeout_s: As for ``put``.
        Returns:
            The IDs of the items, in order.
        """
        return await self._put_many(list(values), DEFAULT_PRIORITY, timeout_s)

    async def _put(
        self, value: bytes, priority: int, checks: Sequence[Check], ops: Sequence[Op], timeout_s: float | None
    ) -> str:
        check_payload(value, self._info.what)
        async with self._waits.start(timeout_s) as (waiter, deadline):
            build_ops = partial(self._build_creates, priority, [value])
            number = await self._puts.put(build_ops, 1, waiter=waiter, deadline=deadline, checks=checks, ops=ops)
        return _build_item_id(priority, number)

    async def _put_many(self, values: list[bytes], priority: int, timeout_s: float | None) -> list[str]:
        for value in values:
            check_payload(value, self._info.what)
        ids: list[str] = []
        async with self._waits.start(timeout_s) as (waiter, deadline):
            is_bounded = await waiter.keep_trying(self._puts.read_capacity, deadline) is not None
            for batch in _batches(values, 1 if is_bounded else _BATCH_ITEMS):
                build_ops = partial(self._build_creates, priority, batch)
                first = await self._puts.put(build_ops, len(batch), waiter=waiter, deadline=deadline)
                ids += [_build_item_id(priority, first + n) for n in range(len(batch))]
        return ids

    def _build_creates(self, priority: int, values: Sequence[bytes], first: int) -> list[Op]:
        """Build the writes that put values as items with consecutive numbers.

        Args:
            priority: The priority of all items.
            values: The values, in order.
            first: The number of the first item.
        """
        ops: list[Op] = []
        for number, value in enumerate(values, first):
            sort_key, item_id = _build_sort_key(priority, number), _build_item_id(priority, number)
            ops += build_put_ops(self._info.keys, _PARTITION, sort_key, item_id, value)[1]
        return ops

    # Taking

    @blocking
    async def take(self, timeout_s: float | None = None) -> QueueClaim:
        """Take the first free item, and wait for one if there is none.

        Consumers that come at the same time may get neighboring items in any order. Waiting consumers are served in the
        order in which they came, but a consumer that comes together with an item may be faster. The first read uses the
        server to which the store is connected. An item that was put or released through another server just before may
        be overlooked, so that a later item is taken.

        Args:
            timeout_s: Seconds to wait. None waits forever, 0 tries once.
        Returns:
            A claim on the item. It lasts until you end it, or our session ends.
        Raises:
            WaitTimeout: There was no item; nothing is taken.
            SessionLost: Our session ended while waiting.
            Unavailable, OutcomeUnknown: The server could not be reached in that time. Nothing is taken, or an item is
                taken and released soon.
            Closed: The queue, its session or its store was closed.
            ForkedProcess: The queue was created by the parent of this process.
            LatchworkError: The call is made inside a callback.
        """
        return await coroutine_of(self._work.take)(_PARTITION, timeout_s)

    # Reading

    @blocking
    async def size(self) -> int:
        """Return the number of items, including claimed ones. Reads the keys of all of them."""
        return await coroutine_of(self._work.size)(_PARTITION)

    @blocking
    async def items(self, limit: int = 100) -> list[QueueItem]:
        """Return the first items in the order in which they are taken, including claimed ones, without large values."""
        return await coroutine_of(self._work.items)(_PARTITION, limit)

    @blocking
    async def claims(self) -> dict[str, Ticket]:
        """Return the tickets of the clients that have claimed items, by item ID, sorted."""
        found = await coroutine_of(self._work.claims)(_PARTITION, _MAX_NUMBER)
        return {path.rpartition("/")[2]: ticket for path, ticket in found.items()}

    @blocking
    async def waiting_consumers(self) -> list[Ticket]:
        """Return the clients that wait to take an item, in the order in which they are served."""
        return await coroutine_of(self._work.waiting_consumers)(_PARTITION)

    @blocking
    async def waiting_producers(self) -> list[Ticket]:
        """Return the clients that wait for space to put an item, in the order in which they are served."""
        return await self._puts.waiting_producers.tickets()

    # Dead letters

    @blocking
    async def dead_letters(self, limit: int = 100) -> list[QueueItem]:
        """Return the first dead letters with their reasons, by priority and number, without large values."""
        return await coroutine_of(self._work.dead_letters)(limit)

    @blocking
    async def requeue(
        self,
        dead_letter_id: str,
        *,
        checks: Sequence[Check] = (),
        ops: Sequence[Op] = (),
        timeout_s: float | None = None,
    ) -> str:
        """Put a dead letter back at the end of the queue, with no attempts counted. Return its new ID.

        Args:
            dead_letter_id: The attribute of this name of an item that ``dead_letters`` returned.
            checks: Further preconditions of the transaction.
            ops: Further writes in the same transaction.
            timeout_s: As for ``put``.
        Raises:
            Conflict: There is no such dead letter, another client was faster, or one of your checks or writes failed.
            BadRecord: Its record is invalid; drop it.
            WaitTimeout: The queue was full. The other errors are those of ``put``.
        """
        async with self._waits.start(timeout_s) as (waiter, deadline):
            entry = await waiter.keep_trying(
                lambda: self._work._read_dead_letter(dead_letter_id),  # noqa: SLF001 - this wraps it
                deadline,
            )
            dead = QueueItem.from_dead_letter(entry)
            priority = DEFAULT_PRIORITY if dead.priority is None else dead.priority

            def build_ops(first: int) -> list[Op]:
                sort_key, item_id = _build_sort_key(priority, first), _build_item_id(priority, first)
                item = replace(dead.with_attempts_reset(), id=item_id, partition=_PARTITION, sort_key=sort_key)
                key = self._info.keys.item_key(_PARTITION, sort_key, item_id)
                return [
                    build_index_put(self._info.keys, _PARTITION, sort_key),
                    Create(key, item.to_bytes()),
                    Delete(entry.key),
                ]

            all_checks = [At(entry), *checks]
            number = await self._puts.put(build_ops, 1, waiter=waiter, deadline=deadline, checks=all_checks, ops=ops)
        return _build_item_id(priority, number)

    @blocking
    async def drop(self, dead_letter_id: str, *, checks: Sequence[Check] = (), ops: Sequence[Op] = ()) -> None:
        """Delete a dead letter permanently, optionally in one transaction with writes of yours.

        Args:
            dead_letter_id: The attribute of this name of an item that ``dead_letters`` returned.
            checks: Further preconditions of the transaction.
            ops: Further writes in the same transaction.
        Raises:
            Conflict: There is no such dead letter, or one of your checks or writes failed.
        """
        await coroutine_of(self._work.drop)(dead_letter_id, checks=checks, ops=ops)

    def close(self) -> None:
        """Make all waiting calls of this object raise ``Closed``. Claims stay valid. Thread-safe and idempotent."""
        self._work.close()


class PriorityQueue(Queue):
    """A ``Queue`` with priorities: ``queue.put(b"...", priority=0)`` is taken before all others.

    An item of low priority waits as long as there are items of higher priority: priorities do not age. Everything else
    is as for ``Queue``. Both kinds of object may use the same queue: a plain ``Queue`` puts with priority 5.
    """

    @blocking
    async def put(
        self,
        value: bytes,
        *,
        priority: int = DEFAULT_PRIORITY,
        checks: Sequence[Check] = (),
        ops: Sequence[Op] = (),
        timeout_s: float | None = None,
    ) -> str:
        """Put an item after those of the same priority.

        Args:
            value: As for ``Queue.put``.
            priority: 0 (first) to 9 (last).
            checks: As for ``Queue.put``.
            ops: As for ``Queue.put``.
            timeout_s: As for ``Queue.put``.
        Returns:
            The ID of the item.
        """
        return await self._put(value, _check_priority(priority), checks, ops, timeout_s)

    @blocking
    async def put_many(
        self, values: Iterable[bytes], *, priority: int = DEFAULT_PRIORITY, timeout_s: float | None = None
    ) -> list[str]:
        """Put items of one priority, in order, in several transactions of many items each.

        Args:
            values: The values, as for ``Queue.put``.
            priority: 0 (first) to 9 (last).
            timeout_s: As for ``Queue.put``.
        Returns:
            The IDs of the items, in order.
        """
        return await self._put_many(list(values), _check_priority(priority), timeout_s)


def _check_priority(priority: int) -> int:
    if priority not in range(10):
        raise ValueError(f"priority must be a whole number from 0 to 9, not {priority!r}")
    return int(priority)


def _build_sort_key(priority: int, number: int) -> str:
    return f"{priority}-{number // _NUMBERS_PER_SORT_KEY:09d}"


def _build_item_id(priority: int, number: int) -> str:
    """Return the ID of an item. Sorted as text, IDs are in the order of priority, then number."""
    if not number < _MAX_NUMBER:
        raise LatchworkError(f"{number - 1:,} items have gone through this queue, which is its limit; use another name")
    return f"{priority}-{number:012d}"


def _batches(values: list[bytes], limit: int) -> Iterable[list[bytes]]:
    """Divide values, in order, into batches that fit into one transaction each.

    Args:
        values: The values.
        limit: Maximum number of values in a batch.
    """
    batch: list[bytes] = []
    size = 0
    for value in values:
        if batch and (len(batch) >= limit or size + len(value) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(value)
        size += len(value)
    if batch:
        yield batch
