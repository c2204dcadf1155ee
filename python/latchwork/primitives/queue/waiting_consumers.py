"""Clients that wait until an item of a partition is free. Only the first one watches the partition.

Its watch covers the whole partition, so the free items and their order are known without a read, and can be taken by
one commit. A client that takes an item keeps its position in the queue of waiting clients until it has the item, so
clients are served in the order in which they came. A client that takes nothing leaves its position in the background,
and the next one sees the partition as it is. It may also keep the position: then its next wait continues on the same
watch without another request.

If a client sees a free item that it does not accept, it notes this in its ticket. Then later clients do not wait for
it, because one of them may accept the item.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial

from msgspec import Struct

from latchwork._base.decoding import encode, read_object
from latchwork._base.interrupts import mutex
from latchwork.errors import BadRecord
from latchwork.primitives.fair.tickets import QueuePosition, Ticket, TicketQueue, wait_for_turn
from latchwork.primitives.queue.claims import QueueClaim, QueueInfo
from latchwork.primitives.queue.item_claimer import Accept
from latchwork.primitives.queue.items import QueueItem, QueueKeys, get_holder_id, split_item_key
from latchwork.primitives.queue.partition_reader import PartitionReader
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.steps import StepCoroutine, ask
from latchwork.store.watch import Batch
from latchwork.types import Change, Entry, Put

#: Field of a ticket: later clients may overtake, because its client has seen a free item that it does not accept.
_MAY_OVERTAKE = "may_overtake"
#: Maximum number of pages read before a wait.
_MAX_PAGES = 3
#: Maximum number of free items known from a watch that are tried before a read.
_MAX_KNOWN_ITEMS = 16


#: Waits for a free item. The arguments are those of ``ConsumerQueues.wait_until_free``.
Wait = Callable[[str, Waiter, Deadline, Accept], StepCoroutine["FreeItemWatcher | None"]]


@dataclass(slots=True, eq=False)
class FirstWaiter:
    """The first waiting client of a partition, if it is in this process. Used by one thread at a time.

    Attributes:
        position: Its position in the queue of waiting clients.
        waiter: The waiting call, with the watch of the partition.
        watcher: The items that the watch has reported.
        is_watching: Whether the watch was opened.
    """

    position: QueuePosition
    waiter: Waiter
    watcher: FreeItemWatcher
    is_watching: bool = False


class ConsumerQueues:
    """The queues of clients that wait for items, one queue for each partition. Thread-safe.

    Args:
        info: The work queue.
        label: Name of this client in its tickets, shown to others.
    """

    def __init__(self, info: QueueInfo, label: str) -> None:
        self._info = info
        self._store = info.store
        self._label = label
        self._ticket_queues: dict[str, TicketQueue] = {}
        self._lock = mutex()
        self._kept_waiters: dict[str, FirstWaiter] = {}
        self._kept_watchers: dict[str, FreeItemWatcher] = {}
        self._is_closed = False

    def get_ticket_queue(self, partition: str) -> TicketQueue:
        """Return the ticket queue of the clients that wait for items of a partition."""
        what = f"waiting consumers of {self._info.what}"
        if not self._info.is_numbered:
            what = f"waiting consumers of partition {partition!r} of {self._info.what}"
        tickets = TicketQueue(self._store, self._info.keys.consumers_prefix(partition), what, self._label)
        return self._ticket_queues.setdefault(partition, tickets)

    async def wait_until_free(
        self, partition: str, waiter: Waiter, deadline: Deadline, accept: Accept
    ) -> FreeItemWatcher | None:
        """Wait until an unclaimed item that ``accept`` accepts exists, without taking it.

        Args:
            partition: The partition.
            waiter: The waiting call.
            deadline: When the wait times out.
            accept: Returns whether an item is wanted.
        Returns:
            The watcher with the free items. None after the timeout or a cancellation.
        """
        if await waiter.keep_trying(lambda: self._has_free_item(partition, accept), deadline):
            return self._new_watcher(partition, accept)
        if deadline.has_passed:
            return None
        position = await wait_for_turn(self.get_ticket_queue(partition), waiter, deadline, is_blocking=_is_blocking)
        if position is None:
            return None
        is_found = False
        first = FirstWaiter(position, waiter, self._new_watcher(partition, accept))
        try:
            is_found = await self._wait_for_item(partition, first, deadline)
        finally:
            if is_found:
                self.get_ticket_queue(partition).leave_in_background(position)
            else:
                await self.get_ticket_queue(partition).leave(position)
        return first.watcher if is_found else None

    async def take_in_turn(
        self,
        partition: str,
        waiter: Waiter,
        deadline: Deadline,
        accept: Accept,
        take: Callable[[list[QueueItem]], StepCoroutine[list[QueueClaim]]],
    ) -> list[QueueClaim]:
        """Wait for our turn and for a free item, then call ``take``. Repeat this until ``take`` returns claims.

        Args:
            partition: The partition.
            waiter: The waiting call.
            deadline: When the wait times out.
            accept: Returns whether an item is wanted.
            take: Called with the free items that are known, perhaps none. Takes items and returns their claims.

        Returns:
            The claims. Empty after the timeout or a cancellation.
        """
        position = await wait_for_turn(self.get_ticket_queue(partition), waiter, deadline, is_blocking=_is_blocking)
        if position is None:
            return []
        claims: list[QueueClaim] = []
        first = FirstWaiter(position, waiter, self._new_watcher(partition, accept))
        try:
            while not claims and await self._wait_for_item(partition, first, deadline):
                known = first.watcher.pop_free_items(_MAX_KNOWN_ITEMS)
                claims = await waiter.keep_trying(partial(take, known), deadline)
        finally:
            if claims:  # an interrupt could come in a wait, and the claims are the caller's
                self.get_ticket_queue(partition).leave_in_background(position)
            else:
                await self.get_ticket_queue(partition).leave(position)
        return claims

    # Kept positions

    def get_kept_waiter(self, partition: str) -> Waiter | None:
        """Return the waiter of an earlier call of ``wait_keeping_position`` that is still in the queue, or None."""
        first = self._kept_waiters.get(partition)
        return None if first is None else first.waiter

    def _pop_kept_waiter(self, partition: str) -> FirstWaiter | None:
        with self._lock:
            return self._kept_waiters.pop(partition, None)

    def record_claims(self, claims: Iterable[QueueClaim]) -> None:
        """Note items that this process has claimed, so that its own watches do not report them as free."""
        for claim in claims:
            item = claim.item
            watcher = self._kept_watchers.get(item.partition)
            if watcher is not None:
                watcher.own_claims[item.sort_key, item.id] = item.version

    async def wait_keeping_position(
        self,
        partition: str,
        waiter: Waiter,
        deadline: Deadline,
        accept: Accept,
        on_ahead: Callable[[int], None] | None = None,
    ) -> FreeItemWatcher | None:
        """Wait until an item that ``accept`` accepts is free, and keep our position in the queue for the next call.

        Unlike ``wait_until_free``, the call does not read the partition first. The position is also kept after the
        timeout, but not after a cancellation.

        Args:
            partition: The partition.
            waiter: The waiting call. It is the one that kept the position, if there is one.
            deadline: When the wait times out.
            accept: Returns whether an item is wanted.
            on_ahead: Called with the number of clients before us, whenever that was read.
        Returns:
            The watcher with the free items. None after the timeout or a cancellation.
        """
        is_kept, first = False, None
        try:
            first = self._pop_kept_waiter(partition)
            if first is None:
                position = await wait_for_turn(
                    self.get_ticket_queue(partition), waiter, deadline, is_blocking=_is_blocking, on_ahead=on_ahead
                )
                if position is None:
                    return None
                first = FirstWaiter(position, waiter, self._new_watcher(partition, accept))
                self._kept_watchers[partition] = first.watcher
            is_found = await self._wait_for_item(partition, first, deadline)
            is_kept = self._keep_position(partition, first)
        finally:
            if first is not None and not is_kept:
                self._kept_watchers.pop(partition, None)
                await self.get_ticket_queue(partition).leave(first.position)
        return first.watcher if is_found else None

    def _keep_position(self, partition: str, first: FirstWaiter) -> bool:
        """Keep the position of a waiting call for the next call. Return False if it must leave the queue now."""
        with self._lock:
            if self._is_closed or first.waiter.is_cancelled or first.watcher.allows_overtaking:
                return False
            self._kept_waiters[partition] = first
            first.waiter.is_kept = True
            return True

    def leave(self, partition: str) -> None:
        """Delete our ticket in the queue of a partition if an earlier call has kept it, in the background."""
        first = self._pop_kept_waiter(partition)
        if first is not None:
            self._kept_watchers.pop(partition, None)
            self.get_ticket_queue(partition).leave_in_background(first.position)
            first.waiter.close()

    def close(self) -> None:
        """Delete the tickets that earlier calls have kept, in the background, and keep none from now on. Idempotent."""
        with self._lock:
            self._is_closed = True
            partitions = list(self._kept_waiters)
        for partition in partitions:
            self.leave(partition)

    # The first waiting client

    def _new_watcher(self, partition: str, accept: Accept) -> FreeItemWatcher:
        return FreeItemWatcher(self._info.keys, partition, accept)

    async def _wait_for_item(self, partition: str, first: FirstWaiter, deadline: Deadline) -> bool:
        """Wait until the watch reports a free item that is accepted.

        Args:
            partition: The partition.
            first: Our position, which is the first one.
            deadline: When the wait times out.
        Returns:
            False after the timeout or a cancellation.
        """
        waiter, watcher = first.waiter, first.watcher
        while True:
            if first.is_watching:
                is_done = await waiter.continue_watching(watcher, deadline)
            else:
                first.is_watching = True
                prefix = self._info.keys.partition_prefix(partition)
                is_done = await waiter.watch_until(prefix, watcher, deadline, is_relevant=watcher.may_free_item)
            if not is_done or watcher.is_found:
                return is_done
            await waiter.keep_trying(lambda: self._allow_overtaking(first.position), deadline)
            watcher.allows_overtaking = True

    async def _has_free_item(self, partition: str, accept: Accept) -> bool:
        """Return whether the first pages of a partition contain a free item that is accepted.

        Args:
            partition: The partition.
            accept: Returns whether an item is wanted.
        """
        pages = PartitionReader(self._info, partition, 1)
        for _ in range(_MAX_PAGES):
            free = await pages.next_page()
            if free is None or any(_is_wanted(entry, accept) for entry in free):
                return free is not None
        return False

    async def _allow_overtaking(self, position: QueuePosition) -> None:
        """Store in our ticket that later clients may overtake us."""
        body = {**read_object(position.ticket.value), _MAY_OVERTAKE: True}
        await ask(self._store.commit, [position.fence], [Put(position.ticket.key, encode(body))])


class WatchedItem(Struct, frozen=True):
    """An item as a watch has reported it last.

    Attributes:
        version: The version of its key.
        item: The item. None if its record is invalid.
        holder: The ID of its claim holder; "" for none.
        is_wanted: Whether the caller accepts it.
    """

    version: Hashable
    item: QueueItem | None
    holder: str
    is_wanted: bool


class FreeItemWatcher:
    """A watch callback that returns True when an accepted item of a partition is free. Not thread-safe.

    An item is free if it has no claim, or if the holder of its claim does not exist. The callback also returns True for
    a free item that is not accepted, so that the caller can let later clients overtake.

    Args:
        keys: Builds the keys of the queue.
        partition: The partition.
        accept: Returns whether an item is wanted.

    Attributes:
        is_found: Whether an accepted item is free.
        allows_overtaking: Whether later clients know about the free item that is not accepted, and do not wait for us.
        own_claims: Versions of items that this process took, by sort key and ID. A server may report such an item
            before its claim holder, so that it looks free.
    """

    def __init__(self, keys: QueueKeys, partition: str, accept: Accept) -> None:
        self._items = keys.items_prefix(partition)
        self._holders = keys.holders_prefix(partition)
        self._accept = accept
        self._watched: dict[tuple[str, str], WatchedItem] = {}
        self._claimed: dict[str, set[tuple[str, str]]] = {}  # by claim holder
        self._existing_holders: set[str] = set()
        self._free_accepted: set[tuple[str, str]] = set()
        self._free_refused: set[tuple[str, str]] = set()
        self.is_found = False
        self.allows_overtaking = False
        self.own_claims: dict[tuple[str, str], Hashable] = {}

    def __call__(self, batch: Batch) -> bool:
        """Apply a batch of changes. Return whether the wait is done."""
        for change in batch:
            if change.key.startswith(f"{self._holders}/"):
                self._record_holder(change.key[len(self._holders) + 1 :], exists=change.entry is not None)
        for change in batch:
            if change.key.startswith(f"{self._items}/"):
                self._record_item(change)
        self.is_found = bool(self._free_accepted)
        return self.is_found or (bool(self._free_refused) and not self.allows_overtaking)

    def may_free_item(self, changes: Iterable[Change]) -> bool:
        """Return whether these changes may have made an item free. Called in another thread.

        An item can become free by its own change, if no existing holder has claimed it, or by the end of its claim
        holder.
        """
        items, holders, new_holders = f"{self._items}/", f"{self._holders}/", set[str]()
        for change in changes:
            if change.key.startswith(holders):
                if change.entry is None:
                    return True
                new_holders.add(change.key[len(holders) :])
        entries = (change.entry for change in changes if change.key.startswith(items) and change.entry is not None)
        return any(
            not holder or (holder not in new_holders and holder not in self._existing_holders)
            for holder in map(get_holder_id, entries)
        )

    def pop_free_items(self, limit: int) -> list[QueueItem]:
        """Return the accepted free items in order. An item is returned again only after it has changed.

        Args:
            limit: Return an empty list if there are more items than this, or if one of them is invalid.
        """
        positions, self._free_accepted = sorted(self._free_accepted), set()
        if len(positions) > limit:
            return []
        items = [self._watched[position].item for position in positions]
        return [] if None in items else items  # type: ignore[return-value]

    def _record_holder(self, holder: str, *, exists: bool) -> None:
        """Record that a claim holder was created or has ended, and classify the items that it has claimed."""
        (self._existing_holders.add if exists else self._existing_holders.discard)(holder)
        for position in self._claimed.get(holder, ()):
            self._classify(position)

    def _record_item(self, change: Change) -> None:
        """Record that an item was written or deleted, and classify it."""
        position = split_item_key(change.key, self._items)
        if position is None:
            return
        before = self._watched.pop(position, None)
        if before is not None and before.holder:
            self._claimed[before.holder].discard(position)
            if not self._claimed[before.holder]:
                del self._claimed[before.holder]
        if change.entry is None:
            self.own_claims.pop(position, None)
        else:
            watched = self._watched[position] = self._decode_item(change.entry)
            if watched.holder:
                self._claimed.setdefault(watched.holder, set()).add(position)
        self._classify(position)

    def _classify(self, position: tuple[str, str]) -> None:
        """Record whether an item is unclaimed, and whether the waiting call accepts it, after it or its claim changed.

        Args:
            position: Sort key and ID of the item.
        """
        self._free_accepted.discard(position)
        self._free_refused.discard(position)
        watched = self._watched.get(position)
        if watched is None or watched.holder in self._existing_holders:
            return
        if self.own_claims.get(position, self) != watched.version:
            (self._free_accepted if watched.is_wanted else self._free_refused).add(position)

    def _decode_item(self, entry: Entry) -> WatchedItem:
        """Decode an item. If its record is invalid, treat it as accepted, so that the next take dead-letters it."""
        try:
            item = QueueItem.from_entry(entry)
        except BadRecord:
            return WatchedItem(entry.version, None, "", is_wanted=True)
        return WatchedItem(entry.version, item, item.holder, is_wanted=self._accept(item))


def _is_wanted(entry: Entry, accept: Accept) -> bool:
    """Return whether an item is accepted. An invalid record counts as accepted: the next take makes it a dead
    letter.
    """
    try:
        return accept(QueueItem.from_entry(entry))
    except BadRecord:
        return True


def _is_blocking(ticket: Ticket) -> bool:
    """Return whether later clients must wait for the client of a ticket."""
    return ticket.body.get(_MAY_OVERTAKE) is not True
