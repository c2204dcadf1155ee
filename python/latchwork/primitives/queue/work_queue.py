"""A work queue: named items in partitions, which consumers claim. Every operation can be part of your transaction.

Keys: see ``items``.

Items are taken in the order of the partitions that the consumer lists; in a partition by sort key, under a sort key by
ID, as text. Puts do not wait for each other: the index key that puts with one sort key share is written without a
condition.

A claimed item names its holder, a session-bound key. When that disappears with its session, the item is free.

docs/design/groups-and-queues.md has the steps, the races, and why a partition is never read as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from latchwork._base.validation import check_store
from latchwork.errors import Conflict, KeyExists, LatchworkError, OutcomeUnknown, Unavailable, WaitTimeout
from latchwork.primitives.fair.tickets import Ticket
from latchwork.primitives.queue.claims import CreateClaimed, QueueClaim, QueueInfo
from latchwork.primitives.queue.item_claimer import (
    Accept,
    Extra,
    ItemClaimer,
    TakeRequest,
    accept_all,
    add_nothing,
    get_whole_partition,
)
from latchwork.primitives.queue.items import (
    QueueItem,
    QueueKeys,
    build_index_put,
    build_put_ops,
    check_inline_value,
    check_item_name,
    check_payload,
    generate_id,
    get_holder_id,
    get_last_segment,
    read_for_display,
    split_item_key,
)
from latchwork.primitives.queue.ordered_puts import OrderedPuts
from latchwork.primitives.queue.partition_reader import (
    MAX_PAGE_ITEMS,
    ConsumerShard,
    ParallelLists,
    check_partitions,
    clean_index,
)
from latchwork.primitives.queue.waiting_consumers import ConsumerQueues, FreeItemWatcher, Wait
from latchwork.primitives.waiting.arguments import check_integer, check_member, check_name, check_text
from latchwork.primitives.waiting.closable import Closable
from latchwork.primitives.waiting.ownership import Identity
from latchwork.primitives.waiting.waiter import Waiter, WaiterRegistry
from latchwork.store.session import Session
from latchwork.store.steps import StepCoroutine, ask, blocking, coroutine_of
from latchwork.store.store import Store
from latchwork.types import At, Check, Create, Delete, Entry, Op, Put


class WorkQueue(Closable):
    """A queue of named items of bytes, in partitions. Its consumers claim items and acknowledge them.

    ``tasks.put("any", "s1", "task-7", b"...")`` here, ``with tasks.take("any") as claim: handle(claim.value)`` there.

    Every item is taken at least once, and by one consumer at a time: a consumer that has lost its claim cannot end it.
    Use the fence of the claim in all writes. Construction does no I/O. Thread-safe, and safe to use from many
    processes.

    A consumer takes items from partitions. A sort key orders the items in a partition, and divides the partition so
    that no request reads all of it. Put a few hundred items under one sort key, then start another one, also after some
    seconds: each sort key with few items costs a take one more read. Partitions and sort keys are created with their
    first item, and removed when a consumer finds them empty. A name is one segment of a key.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key below which everything is stored.
        capacity: Maximum number of items, including claimed ones. Every client that puts must pass the same one. With a
            capacity each put waits for the puts before it, ``put_ops`` and ``create_claimed`` are refused, and items
            stay in their partitions. None for no limit.
        max_attempts: How often an item is taken without being acknowledged before it becomes a dead letter. Each
            consumer sets it for its own takes.
        session: The session to which claims are bound, which the caller closes. None uses the store's primary session.
        label: Name of this client in its tickets, shown to others.
    """

    _is_numbered = False

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
        kind = "queue" if self._is_numbered else "work queue"
        check_store(store, f"a {kind}")
        self.name = check_name(name, kind)
        if not check_integer(max_attempts, "max_attempts") >= 1:
            raise ValueError(f"max_attempts must be at least 1, not {max_attempts!r}")
        self._what = f"{kind} {name!r}"
        identity = Identity()
        check_text(label, f"the label of {self._what}")
        self._store = store
        self._keys = QueueKeys(name)
        self._waits = WaiterRegistry(store, self._what, session)
        self._info = QueueInfo(
            store,
            self._keys,
            self._what,
            self._waits.home,
            max_attempts,
            is_bounded=capacity is not None,
            is_numbered=self._is_numbered,
        )
        self._consumer_queues = ConsumerQueues(self._info, label)
        self._claimer = ItemClaimer(self._info, {"label": label, "host": identity.host, "pid": identity.pid})
        self._puts: OrderedPuts | None = None
        if capacity is not None:
            self._puts = OrderedPuts(self._info, self._waits, partial(self._count, None), capacity, label)

    def __repr__(self) -> str:
        return f"<WorkQueue {self.name!r}>"

    # Putting

    def put_ops(self, partition: str, sort_key: str, items: Mapping[str, bytes]) -> list[Op]:
        """Build the writes that put items, for a transaction of yours. Does no I/O.

        There is one write for each item, and one for the sort key. The latter is the same in each call. Include it only
        once in a transaction: ``list(dict.fromkeys(ops))``.

        Args:
            partition: The partition of the items.
            sort_key: The sort key of the items. Items are taken in the order of ``<sort key>/<id>``, as text.
            items: Values by ID, which is unique under the sort key. At most 4,096 bytes each; ``put`` takes larger
                ones.
        Raises:
            InvalidKey: A name is not a valid key segment.
            ValueTooLarge, TypeError: A value cannot be stored.
            ValueError: The queue is bounded.
        """
        self._raise_if_bounded()
        creates = []
        for item_id, value in items.items():
            check_item_name(partition, sort_key, item_id)
            item = QueueItem(item_id, size=len(check_inline_value(value, self._what)), value=value)
            creates.append(Create(self._keys.item_key(partition, sort_key, item_id), item.to_bytes()))
        return [build_index_put(self._keys, partition, sort_key), *creates] if creates else []

    def create_claimed(
        self, partition: str, sort_key: str, item_id: str, value: bytes, *, session: Session
    ) -> CreateClaimed:
        """Build the writes that put an item and claim it at once, for a transaction of yours. Does no I/O.

        Args:
            partition: As for ``put_ops``.
            sort_key: As for ``put_ops``.
            item_id: ID of the item, unique under its sort key.
            value: At most 4,096 bytes.
            session: The session to which the claim is bound.
        Raises:
            InvalidKey: A name is not a valid key segment.
            ValueTooLarge, TypeError: The value cannot be stored.
            ValueError: The queue is bounded.
        """
        self._raise_if_bounded()
        check_item_name(partition, sort_key, item_id)
        return self._claimer.create_claimed(
            partition, sort_key, item_id, check_inline_value(value, self._what), session
        )

    def _raise_if_bounded(self) -> None:
        if self._info.is_bounded:
            raise ValueError(f"{self._what} has a capacity, which your own transaction cannot enforce; use put()")

    @blocking
    async def put(
        self,
        partition: str,
        sort_key: str,
        item_id: str,
        value: bytes,
        *,
        checks: Sequence[Check] = (),
        ops: Sequence[Op] = (),
        timeout_s: float | None = None,
    ) -> None:
        """Put an item, optionally in one transaction with writes of yours.

        Args:
            partition: The partition of the item.
            sort_key: The sort key of the item. Items are taken in the order of ``<sort key>/<id>``, as text.
            item_id: ID of the item, unique under its sort key.
            value: Up to 990,000 bytes; up to 4,096 are cheapest.
            checks: Further preconditions of the transaction.
            ops: Further writes in the same transaction.
            timeout_s: Seconds to wait until a bounded queue has space. None waits forever, 0 tries once.
        Raises:
            KeyExists: There is an item with this sort key and ID; nothing was put.
            Conflict: One of your checks or writes failed; nothing was put.
            WaitTimeout: A bounded queue was full, or other clients put items until the timeout; nothing was put.
            InvalidKey, ValueTooLarge, TypeError: An argument is invalid.
            OutcomeUnknown: The item may be put, now or later, or may even be taken and done already.
            Unavailable: Nothing was put.
            SessionLost: The session ended while waiting for space.
            Closed, ForkedProcess: The queue cannot be used here.
        """
        check_item_name(partition, sort_key, item_id)
        check_payload(value, self._what)
        self._waits.ensure_usable()
        position = (partition, sort_key, item_id)
        key = self._keys.item_key(*position)
        try:
            if self._puts is not None:
                _, writes = build_put_ops(self._keys, *position, value)
                await self._put_in_order(self._puts, writes, checks, ops, timeout_s)
            else:
                await self._put_at_once(position, value, checks, ops)
        except Conflict as error:
            if any(getattr(each, "key", None) == key for each in error.failed):
                raise KeyExists(f"{self._what} has an item {'/'.join(position)} already; nothing was put") from error
            raise

    async def _put_at_once(
        self, position: tuple[str, str, str], value: bytes, checks: Sequence[Check], ops: Sequence[Op]
    ) -> None:
        """Put an item into an unbounded queue. After an unknown outcome, read whether it was put.

        Args:
            position: Partition, sort key and ID of the item.
            value: The value.
            checks: Further preconditions of the transaction.
            ops: Further writes in the same transaction.
        """
        nonce = generate_id()
        create, writes = build_put_ops(self._keys, *position, value, nonce=nonce)
        try:
            await ask(self._store.commit, checks, list(dict.fromkeys([*writes, *ops])))
        except OutcomeUnknown:
            found = await self._find(create.key)
            if found is None or found.nonce != nonce:
                raise

    async def _put_in_order(
        self,
        puts: OrderedPuts,
        writes: Sequence[Op],
        checks: Sequence[Check],
        ops: Sequence[Op],
        timeout_s: float | None,
    ) -> None:
        """Put an item into a bounded queue. Wait while it is full.

        Args:
            puts: Puts items one transaction after the other.
            writes: The writes that create the item.
            checks: Further preconditions of the transaction.
            ops: Further writes in the same transaction.
            timeout_s: Seconds to wait for space.
        """
        async with self._waits.start(timeout_s) as (waiter, deadline):
            await puts.put(lambda _: writes, 1, waiter=waiter, deadline=deadline, checks=checks, ops=ops)

    def key(self, partition: str, sort_key: str, item_id: str) -> str:
        """Return the key of an item, for checks and writes of yours such as ``Exists(key)``. Does no I/O."""
        check_item_name(partition, sort_key, item_id)
        return self._keys.item_key(partition, sort_key, item_id)

    # Removing

    def removal_ops(self, item: QueueItem, *, even_if_claimed: bool = False) -> tuple[list[Check], list[Op]]:
        """Build the checks and writes that remove an item, for a transaction of yours. Does no I/O.

        Args:
            item: The item as it was read.
            even_if_claimed: Remove it even if it is claimed.
        """
        checks: list[Check] = [item.check] if even_if_claimed else self._keys.build_free_checks(item)
        ops: list[Op] = [Delete(self._keys.data_key(item.data_id))] if item.data_id else []
        if even_if_claimed and item.claim:
            ops.append(Put(self._keys.removed_key(item), b""))
        return checks, [Delete(item.key), *ops]

    @blocking
    async def remove(
        self, item: QueueItem, checks: Sequence[Check] = (), ops: Sequence[Op] = (), *, even_if_claimed: bool = False
    ) -> bool:
        """Remove an item that was read before, optionally in one transaction with writes of yours.

        Args:
            item: The item as it was read. It is not removed if it was taken or released since.
            checks: Further preconditions of the transaction.
            ops: Further writes in the same transaction.
            even_if_claimed: Remove it even if it is claimed. Its consumer can no longer end it, and is not notified.
        Returns:
            False if the item is gone, changed or claimed; nothing was changed.
        Raises:
            Conflict: One of your checks or writes failed; nothing was changed.
            Unavailable: Nothing was changed.
            OutcomeUnknown: The item may be removed.
        """
        self._waits.ensure_usable()
        own_checks, writes = self.removal_ops(item, even_if_claimed=even_if_claimed)
        try:
            await ask(self._store.commit, [*own_checks, *checks], [*writes, *ops])
        except Conflict as error:
            if not any(part in own_checks for part in error.failed):
                raise
            return False
        return True

    @blocking
    async def move_to_dead_letters(
        self, item: QueueItem, why: str = "", checks: Sequence[Check] = (), ops: Sequence[Op] = ()
    ) -> bool:
        """Make a dead letter of an item that was read before and is not claimed, optionally with writes of yours.

        Args:
            item: The item as it was read. It does not become a dead letter if it was taken or released since.
            why: The reason, stored in the dead letter.
            checks: Further preconditions of the transaction.
            ops: Further writes in the same transaction.
        Returns:
            False if the item is gone, changed or claimed, or if one of your checks or writes failed; nothing was
                changed.
        Raises:
            Unavailable: Nothing was changed.
            OutcomeUnknown: The item may be a dead letter.
        """
        self._waits.ensure_usable()
        return await self._claimer.move_to_dead_letters(item, check_text(why, "the reason"), lambda _: (checks, ops))

    # Taking

    @blocking
    async def take(self, partition: str, timeout_s: float | None = None, *, accept: Accept | None = None) -> QueueClaim:
        """Take the first free item of a partition, and wait for one if there is none.

        Consumers that come at the same time may get neighboring items in any order. Waiting consumers are served in the
        order in which they came, but a consumer that comes together with an item may be faster. The first read uses the
        server to which the store is connected. An item that was put or released through another server just before may
        be overlooked, so that a later item is taken.

        Args:
            partition: The partition.
            timeout_s: Seconds to wait. None waits forever, 0 tries once.
            accept: Called with a free item; returns whether it is wanted. None accepts all.
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
        check_member(partition, "partition")
        request = TakeRequest((partition,), accept=accept or accept_all)
        async with self._waits.start(timeout_s) as (waiter, deadline):
            session, is_try = waiter.session, timeout_s == 0
            claims = await waiter.keep_trying(
                lambda: self._claimer.take_first(request, session, is_conclusive=is_try), deadline
            )
            if not claims and not deadline.has_passed:
                claims = await self._consumer_queues.take_in_turn(
                    partition,
                    waiter,
                    deadline,
                    request.accept,
                    lambda known: self._claimer.take_known_or_search(known, request, session),
                )
            if not claims:
                self._waits.raise_if_ended(waiter)
                raise WaitTimeout(f"{self._what} had no item for us within {timeout_s or 0.0:.3g} s")
        self._consumer_queues.record_claims(claims)
        return claims[0]

    @blocking
    async def try_take(
        self,
        partitions: Sequence[str],
        *,
        limit: int = 1,
        accept: Accept | None = None,
        extra: Extra | None = None,
        extra_for_dead_letter: Extra | None = None,
        on_refused: Callable[[QueueItem], object] | None = None,
        on_dead_letter: Callable[[QueueItem], object] | None = None,
        shard: Callable[[str], ConsumerShard] | None = None,
    ) -> list[QueueClaim]:
        """Take the first free items, many in one transaction, without waiting.

        Consumers that come at the same time may get neighboring items in any order.

        Args:
            partitions: The partitions to search, in this order.
            limit: Maximum number of items.
            accept: Called with a free item; returns whether it is wanted. An item that is wanted is not always taken.
            extra: Called with an item that is wanted; returns checks and writes for the transaction that takes it.
                Items of one transaction may share checks. Two items that write the same key are taken in different
                transactions.
            extra_for_dead_letter: Called with an item that is invalid, or that has no attempts left and whose last
                consumer died; returns checks and writes for the transaction that makes it a dead letter.
            on_refused: Called with an item whose extra checks or writes failed; it stays in the queue.
            on_dead_letter: Called with an item that this call made a dead letter.
            shard: Called with a partition; returns the shard of it that this consumer prefers. Consumers that know each
                other take items of their own shard first, so that they do not compete for the same ones. An item of
                another shard waits for 0.05 s at most, and a new item that sorts before items already read waits for
                0.25 s at most.
        Returns:
            Claims in the order in which they were made, perhaps none. Each lasts until you end it, or our session ends.
                An error after the first claim is not raised.
        Raises:
            Unavailable: Nothing is taken.
            OutcomeUnknown: Items that may have been taken are returned by the next call, or released after a second.
            SessionLost: Our session has ended.
            Closed: The queue, its session or its store was closed.
            ForkedProcess: The queue was created by the parent of this process.
        """
        check_partitions(partitions)
        if not check_integer(limit, "limit") >= 1:
            raise ValueError(f"limit must be at least 1, not {limit!r}")
        request = TakeRequest(
            tuple(dict.fromkeys(partitions)),
            limit,
            accept or accept_all,
            extra or add_nothing,
            extra_for_dead_letter or add_nothing,
            on_refused,
            on_dead_letter,
            shard or get_whole_partition,
        )
        return await self._take(partial(self._claimer.try_take, request))

    @blocking
    async def take_items(
        self,
        items: Sequence[QueueItem],
        *,
        accept: Accept | None = None,
        extra: Extra | None = None,
        on_refused: Callable[[QueueItem], object] | None = None,
    ) -> list[QueueClaim]:
        """Take items that ``wait_items`` or another call returned, without reading them again.

        An item that other clients have taken, removed or changed since is left out. So is an item that has no attempts
        left, which the next ``try_take`` makes a dead letter.

        Args:
            items: The items as they were read, in the order in which to take them.
            accept: As for ``try_take``.
            extra: As for ``try_take``.
            on_refused: As for ``try_take``.
        Returns:
            Claims in the order of ``items``, perhaps none.
        Raises:
            ValueError: An item is of another queue, or a dead letter.
            Unavailable, OutcomeUnknown, SessionLost, Closed, ForkedProcess: As for ``try_take``.
        """
        for item in items:
            if item.key != self._keys.item_key(item.partition, item.sort_key, item.id):
                raise ValueError(
                    f"{item.path} is not an item of {self._what} that can be taken; it was read at {item.key!r}"
                )
        fresh = [item for item in items if item.attempts < self._info.max_attempts]
        request = TakeRequest((), max(1, len(fresh)), accept or accept_all, extra or add_nothing, on_refused=on_refused)
        return await self._take(partial(self._claimer.take_items, fresh, request))

    async def _take(self, take: Callable[[Session], StepCoroutine[list[QueueClaim]]]) -> list[QueueClaim]:
        """Call a function that takes items in our session, and return the claims."""
        session = await self._waits.session()
        try:
            claims = await take(session)
        except LatchworkError as error:
            self._waits.check_open(session, error)
            raise
        self._consumer_queues.record_claims(claims)
        return claims

    # Waiting without taking

    @blocking
    async def wait_free(self, partition: str, timeout_s: float | None = None, *, accept: Accept | None = None) -> bool:
        """Wait until an item of a partition is unclaimed, without taking it. Then call ``try_take``.

        Another client may take it first, so that ``try_take`` returns nothing; wait again in that case. Waiting clients
        are notified one after the other, in the order in which they came.

        Args:
            partition: The partition.
            timeout_s: Seconds to wait. None waits forever, 0 tries once.
            accept: As for ``try_take``.
        Returns:
            False after the timeout.
        Raises:
            SessionLost: Our session ended while waiting.
            Unavailable, OutcomeUnknown: The server could not be reached in that time.
            Closed: The queue, its session or its store was closed.
            ForkedProcess: The queue was created by the parent of this process.
            LatchworkError: The call is made inside a callback.
        """
        return await self._wait(partition, timeout_s, accept, self._consumer_queues.wait_until_free) is not None

    @blocking
    async def wait_items(
        self,
        partition: str,
        timeout_s: float | None = None,
        *,
        limit: int = 20,
        accept: Accept | None = None,
        keep_position: bool = False,
        on_ahead: Callable[[int], None] | None = None,
    ) -> list[QueueItem] | None:
        """Wait until items of a partition are free, and return them. ``take_items`` takes them without reading them
        again.

        Args:
            partition: The partition.
            timeout_s: As for ``wait_free``.
            limit: If more items than this are free, return an empty list.
            accept: As for ``try_take``.
            keep_position: Keep our position among the waiting clients after the call, also after the timeout. The next
                such call, from one thread at a time, returns the items that are new, using the ``accept`` of this call.
                No other waiting client is notified meanwhile: call ``leave`` when you have enough.
            on_ahead: With ``keep_position``: called with the number of clients before us, whenever that was read. A
                client before us may be dead or slow: while there is one, call ``try_take`` now and then.
        Returns:
            All free items of the partition, in order. The list is empty if items are free that only ``try_take`` can
                find. None after the timeout.
        Raises:
            SessionLost, Unavailable, OutcomeUnknown, Closed, ForkedProcess, LatchworkError: As for ``wait_free``.
        """
        if not check_integer(limit, "limit") >= 1:
            raise ValueError(f"limit must be at least 1, not {limit!r}")
        wait = (
            partial(self._consumer_queues.wait_keeping_position, on_ahead=on_ahead)
            if keep_position
            else self._consumer_queues.wait_until_free
        )
        kept = self._consumer_queues.get_kept_waiter(partition) if keep_position else None
        watcher = await self._wait(partition, timeout_s, accept, wait, kept)
        return None if watcher is None else watcher.pop_free_items(limit)

    def leave(self, partition: str) -> None:
        """Leave the queue of clients that wait for items of a partition, in the background.

        Only needed after ``wait_items`` with ``keep_position``, which keeps the position of this client in that queue.
        """
        self._consumer_queues.leave(partition)

    async def _wait(
        self, partition: str, timeout_s: float | None, accept: Accept | None, wait: Wait, kept: Waiter | None = None
    ) -> FreeItemWatcher | None:
        """Wait for a free item in one of the ways of ``ConsumerQueues``.

        Args:
            partition: The partition.
            timeout_s: Seconds to wait.
            accept: Returns whether an item is wanted; None accepts all.
            wait: The method that waits.
            kept: The waiter of an earlier call that has kept its position, if there is one.
        Returns:
            The watcher with the free items; None after the timeout.
        """
        check_member(partition, "partition")
        async with self._waits.start(timeout_s, kept) as (waiter, deadline):
            try:
                watcher = await wait(partition, waiter, deadline, accept or accept_all)
            except (Unavailable, OutcomeUnknown) as error:
                self._waits.raise_if_ended(waiter, error)
                raise
            if watcher is None:
                self._waits.raise_if_ended(waiter)
            return watcher

    # Reading

    @blocking
    async def partitions(self) -> list[str]:
        """Return the names of the partitions that have items, sorted. A partition that became empty just now may be
        included.
        """
        return list(await self._list_partitions(None))

    @blocking
    async def find(self, partition: str, sort_key: str, item_id: str) -> QueueItem | None:
        """Return the item with this sort key and ID, claimed or not. None if there is none. Large values are not
        read.
        """
        check_item_name(partition, sort_key, item_id)
        self._waits.ensure_usable()
        return await self._find(self._keys.item_key(partition, sort_key, item_id))

    async def _find(self, key: str) -> QueueItem | None:
        entry = await ask(self._store.get, key)
        return None if entry is None else read_for_display(entry)

    @blocking
    async def find_all(self, keys: Sequence[str]) -> list[QueueItem | None]:
        """Return the items with these keys, in order, without large values. None for a key without an item.

        Args:
            keys: Keys that ``WorkQueue.key`` returned.
        """
        self._waits.ensure_usable()
        return [None if entry is None else read_for_display(entry) for entry in await ask(self._store.get_many, keys)]

    @blocking
    async def items(self, partition: str | None = None, limit: int = 100) -> list[QueueItem]:
        """Return the first items of a partition or of the whole queue, including claimed ones, without large values.

        Args:
            partition: The partition. None for all partitions, sorted by name.
            limit: Maximum number of items.
        """
        found: list[QueueItem] = []
        for name in await self._list_partitions(partition):
            for index_entry in await ask(self._store.list, self._keys.sort_keys_prefix(name)):
                if len(found) >= limit:
                    return found
                prefix = f"{self._keys.items_prefix(name)}/{get_last_segment(index_entry)}"
                found += [
                    read_for_display(entry) for entry in await ask(self._store.list, prefix, limit=limit - len(found))
                ]
        return found

    @blocking
    async def size(self, partition: str | None = None) -> int:
        """Return the number of items, including claimed ones. Reads the keys of all of them.

        Args:
            partition: The partition. None for all partitions.
        """
        self._waits.ensure_usable()
        return await self._count(partition)

    async def _count(self, partition: str | None) -> int:
        count = 0
        for name in await self._list_partitions(partition):
            for index_entry in await ask(self._store.list, self._keys.sort_keys_prefix(name)):
                prefix = f"{self._keys.items_prefix(name)}/{get_last_segment(index_entry)}"
                count += len(await ask(self._store.children, prefix))
        return count

    @blocking
    async def claims(self, partition: str | None = None, limit: int = 1000) -> dict[str, Ticket]:
        """Return which clients have claimed items.

        Reads items in order until enough claims are found, or all items.

        Args:
            partition: The partition. None for all partitions.
            limit: Maximum number of claims.
        Returns:
            The ticket of the claim holder for each claimed item, by ``<partition>/<sort key>/<id>``, sorted.
        """
        found: dict[str, Ticket] = {}
        for name in await self._list_partitions(partition):
            prefix = self._keys.items_prefix(name)
            holders = {
                get_last_segment(entry): entry for entry in await ask(self._store.list, self._keys.holders_prefix(name))
            }
            after: str | None = None
            while holders and len(found) < limit:
                page = await ask(self._store.list, prefix, recursive=True, limit=MAX_PAGE_ITEMS, start_after=after)
                for entry in page:
                    holder = holders.get(get_holder_id(entry))
                    if holder is not None and split_item_key(entry.key, prefix) is not None and len(found) < limit:
                        found[f"{name}{entry.key[len(prefix) :]}"] = Ticket.from_entry(holder)
                if len(page) < MAX_PAGE_ITEMS:
                    break
                after = page[-1].key
        return found

    @blocking
    async def holder(self, item: QueueItem) -> Ticket | None:
        """Return the client that has claimed an item, as its ``Ticket`` describes it.

        Args:
            item: The item, as it was read.
        Returns:
            None if the item was not claimed when it was read, or if its client has ended.
        """
        return (await coroutine_of(self.holders)([item]))[0]

    @blocking
    async def holders(self, items: Sequence[QueueItem]) -> list[Ticket | None]:
        """Return for each item the client that has claimed it, or None, in the order of the items. See ``holder``."""
        self._waits.ensure_usable()
        keys = {item.claim: self._keys.holder_key(item.partition, item.holder) for item in items if item.holder}
        entries = dict(zip(keys, await ask(self._store.get_many, list(keys.values())), strict=True)) if keys else {}
        found = [entries.get(item.claim) for item in items]
        return [None if entry is None else Ticket.from_entry(entry) for entry in found]

    @blocking
    async def waiting_consumers(self, partition: str) -> list[Ticket]:
        """Return the clients that wait to take items of a partition, in the order in which they are served."""
        check_member(partition, "partition")
        return await self._consumer_queues.get_ticket_queue(partition).tickets()

    @blocking
    async def waiting_producers(self) -> list[Ticket]:
        """Return the clients that wait for space to put items, in the order in which they are served.

        Empty if the queue has no capacity.
        """
        self._waits.home.check()
        return [] if self._puts is None else await self._puts.waiting_producers.tickets()

    @blocking
    async def clean_index(self, partition: str) -> bool:
        """Remove the unused entries from the index of sort keys of a partition that no consumer reads.

        These are the entries of sort keys without items, and the records of removed items whose consumers have ended.
        Consumers remove the former while they read. Call this for a partition whose items were removed, or deleted in
        a transaction of yours.

        Returns:
            True if the index of the partition is empty now.

        Raises:
            Unavailable: Some entries may already have been removed.
            Closed, ForkedProcess: The queue cannot be used here.
        """
        check_member(partition, "partition")
        self._waits.ensure_usable()
        return await clean_index(self._store, self._keys, partition)

    async def _list_partitions(self, partition: str | None) -> Sequence[str]:
        """Return the given partition, or the names of all partitions that have sort keys."""
        self._waits.ensure_usable()
        if partition is not None:
            return [check_member(partition, "partition")]
        names = await ask(self._store.children, self._keys.partitions)
        first_sort_keys = (
            await ParallelLists(self._store, [(self._keys.sort_keys_prefix(name), 1, None) for name in names])
            if names
            else []
        )
        return [name for name, found in zip(names, first_sort_keys, strict=True) if found]  # others have holders only

    # Dead letters

    @blocking
    async def dead_letters(self, limit: int = 100) -> list[QueueItem]:
        """Return the first dead letters with their reasons, sorted by ``dead_letter_id``, without large values."""
        self._waits.ensure_usable()
        return [read_for_display(entry) for entry in await ask(self._store.list, self._keys.dead, limit=limit)]

    @blocking
    async def requeue(
        self,
        dead_letter_id: str,
        *,
        partition: str | None = None,
        checks: Sequence[Check] = (),
        ops: Sequence[Op] = (),
        timeout_s: float | None = None,
    ) -> QueueItem:
        """Put a dead letter back into the queue at its old position, with no attempts counted.

        Args:
            dead_letter_id: The attribute of this name of an item that ``dead_letters`` returned.
            partition: Put it into this partition. None for its old partition.
            checks: Further preconditions of the transaction.
            ops: Further writes in the same transaction.
            timeout_s: As for ``put``.
        Returns:
            The item.
        Raises:
            KeyExists: There is another item with its sort key and ID.
            Conflict: There is no such dead letter, another client was faster, or one of your checks or writes failed.
            BadRecord: Its record is invalid; drop it.
            WaitTimeout: As for ``put``.
        """
        entry = await self._read_dead_letter(dead_letter_id)
        dead = QueueItem.from_dead_letter(entry)
        target = dead.partition if partition is None else check_member(partition, "partition")
        key = self._keys.item_key(target, dead.sort_key, dead.id)
        writes: list[Op] = [
            Create(key, dead.with_attempts_reset().to_bytes()),
            build_index_put(self._keys, target, dead.sort_key),
            Delete(entry.key),
        ]
        all_checks: list[Check] = [At(entry), *checks]
        try:
            if self._puts is None:
                done = await ask(self._store.commit, all_checks, list(dict.fromkeys([*writes, *ops])))
                return QueueItem.from_entry(done.entries[0])
            await self._put_in_order(self._puts, writes, all_checks, ops, timeout_s)
        except Conflict as error:
            if any(getattr(each, "key", None) == key for each in error.failed):
                raise KeyExists(
                    f"{self._what} has an item {target}/{dead.sort_key}/{dead.id}; nothing was changed"
                ) from error
            raise
        return await self._find(key) or dead.with_attempts_reset()

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
        entry = await self._read_dead_letter(dead_letter_id)
        data_id = read_for_display(entry).data_id
        data = [Delete(self._keys.data_key(data_id))] if data_id else []
        await ask(self._store.commit, [At(entry), *checks], [Delete(entry.key), *data, *ops])

    async def _read_dead_letter(self, dead_letter_id: str) -> Entry:
        """Return the entry of a dead letter.

        Raises:
            Conflict: There is none with this ID.
        """
        self._waits.ensure_usable()
        check_member(dead_letter_id, "dead letter")
        entry = await ask(self._store.get, self._keys.dead_letter_key(dead_letter_id))
        if entry is None:
            raise Conflict(f"{self._what} has no dead letter {dead_letter_id!r}; list them with dead_letters()")
        return entry

    def close(self) -> None:
        """Make all waiting calls of this object raise ``Closed``. Claims stay valid. Thread-safe and idempotent."""
        if self._waits.home.is_foreign:
            return
        self._waits.close()
        self._consumer_queues.close()
