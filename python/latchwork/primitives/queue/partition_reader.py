"""Reads a partition of a work queue from its start, page by page, to find items that no client has claimed.

A partition has an index with one key for each sort key. Every put writes the key of its sort key again. The first sort
keys are read from the index, then ranges of their items. So no request reads, or makes a server count, more than the
items of one sort key: etcd counts all keys of a range, however few of them are requested. An item names the holder that
has claimed it. The holders of claims are read once, when the first such item is seen.

A consumer that sees many claimed items at the start briefly remembers where the first free one was, and begins there.
Otherwise a take would cost more the more items are claimed.

If all consumers begin at the start, they want the same items, and only one of their transactions succeeds. So consumers
that know each other divide the items into shards, by a hash of the ID. Each takes items of its own shard first. It
takes items of other shards only if its own shard has none, or if the first item of a shard has not changed for a while,
because its consumer is busy or gone. A consumer keeps the items of its shard that it has read and not needed, and takes
them next without reading them again. Each claim checks that its item is unchanged since it was read. A shard is only a
preference: two consumers with the same shard lose one round trip.

A sort key without items is removed from the index, on condition that nothing was put with it since the index was read.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from latchwork._base.interrupts import call_allowing_reentry
from latchwork.backends.futures import together
from latchwork.errors import Conflict, LatchworkError
from latchwork.primitives.queue.claims import QueueInfo
from latchwork.primitives.queue.items import QueueKeys, get_holder_id, get_last_segment
from latchwork.primitives.waiting.arguments import check_member
from latchwork.store.steps import Step, ask
from latchwork.store.store import Store
from latchwork.types import At, Delete, Entry

_log = logging.getLogger(__name__)

#: Number of items on the first page beyond the wanted ones, and maximum number of items on a page. Each page is twice
#: as long as the one before.
EXTRA_PAGE_ITEMS, MAX_PAGE_ITEMS = 16, 640
#: Number of sort keys read from the index in one request, and maximum number whose items are read in parallel.
INDEX_PAGE, MAX_PARALLEL_SORT_KEYS = 16, 16
#: Maximum number of lists that are read one after the other in the calling thread.
_MAX_SEQUENTIAL_LISTS = 2
#: Minimum number of claimed items at the start of a partition for a hint to skip them.
MIN_SKIPPED_FOR_HINT = 48
#: Maximum number of shards: a page must have some items of each.
MAX_SHARDS = 8
#: Seconds, and reads, for which the first item of another shard stays the same before we take from that shard.
STUCK_SHARD_S, STUCK_SHARD_READS = 0.05, 3
#: Maximum number of items of other shards taken per read, if there is none of ours.
MAX_FOREIGN_ITEMS = 2
#: Seconds for which items that were read are taken without reading them again. If the read took long, that is
#: ``CACHE_READS`` times its duration. New items before them wait that long.
CACHE_S, CACHE_READS = 0.25, 3.0
#: Seconds for which an empty partition is not read again while items of other partitions are known.
EMPTY_CACHE_S = 0.02
#: Maximum number of sort keys whose items ``read_head`` reads.
_MAX_HEAD_SORT_KEYS = 4


class ParallelLists(Step[list[list[Entry]]]):
    """A step that sends several list calls at once: ``await ParallelLists(store, [(prefix, limit, start_after),
    ...])``.

    Args:
        store: The store.
        wanted: For each call the key prefix, the maximum number of entries, and the key after which to start, or None.
    """

    __slots__ = ("_store", "_wanted")

    def __init__(self, store: Store, wanted: Sequence[tuple[str, int, str | None]]) -> None:
        super().__init__()
        self._store = store
        self._wanted = wanted

    def block(self) -> list[list[Entry]]:
        """Wait for the results of all calls. A few calls run in this thread, which is cheaper than other threads."""
        if len(self._wanted) > _MAX_SEQUENTIAL_LISTS:
            return self.as_future().result()
        return call_allowing_reentry(self._list_each)

    def _list_each(self) -> list[list[Entry]]:
        return [self._store.list(prefix, limit=limit, start_after=after) for prefix, limit, after in self._wanted]

    def as_future(self) -> Future[list[list[Entry]]]:
        """Start all calls, and return a future of their results in order."""
        futures: list[Future[Any]] = [
            self._store.start_call("list", prefix, limit=limit, start_after=after)
            for prefix, limit, after in self._wanted
        ]
        return together(futures)


@dataclass(frozen=True, slots=True)
class HeadSnapshot:
    """The first items of a partition, as the connected server sees them.

    Attributes:
        free: The first free items, in order.
        is_whole: Whether these are all free items of the partition.
    """

    free: list[Entry]
    is_whole: bool


async def read_head(info: QueueInfo, partition: str) -> HeadSnapshot:
    """Read the first free items of a partition from the connected server, in few cheap requests.

    The result may be older than a write that was confirmed through another server. This is safe, because a claim checks
    that its item is unchanged. Nothing is removed from the index here, because that needs consistent reads.
    """
    store, keys = info.store, info.keys
    sort_keys = await ask(store.children, keys.sort_keys_prefix(partition), stale_ok=True)
    holders: Sequence[str] | None = None
    for sort_key in sort_keys[:_MAX_HEAD_SORT_KEYS]:
        items = await ask(
            store.list, f"{keys.items_prefix(partition)}/{sort_key}", limit=EXTRA_PAGE_ITEMS, stale_ok=True
        )
        if holders is None and any(map(get_holder_id, items)):
            holders = await ask(store.children, keys.holders_prefix(partition), stale_ok=True)
        free = [entry for entry in items if get_holder_id(entry) not in (holders or ())]
        if free or len(items) == EXTRA_PAGE_ITEMS:
            return HeadSnapshot(free, is_whole=False)
        if not items:  # the next ``PartitionReader`` removes it from the index
            return HeadSnapshot([], is_whole=sort_key == sort_keys[-1])
    return HeadSnapshot([], is_whole=len(sort_keys) <= _MAX_HEAD_SORT_KEYS)


@dataclass(frozen=True, slots=True)
class ItemRange:
    """A range of items with one sort key, to be read in one request.

    Attributes:
        index_entry: The entry of the sort key in the index, as it was read.
        sort_key: The sort key, which orders the items of a partition.
        limit: Number of items to read.
        after: ID of the item after which to start. None starts at the first item.
    """

    index_entry: Entry
    sort_key: str
    limit: int
    after: str | None = None


@dataclass(frozen=True, slots=True)
class StartHint:
    """Where a read of a partition can start, because all items before that are claimed.

    Attributes:
        start: The range that begins with the first free item.
        until: The time on the store's clock at which the hint expires.
    """

    start: ItemRange
    until: float


class PartitionReader:
    """Reads the free items of one partition once, page by page. Not thread-safe.

    Args:
        info: The queue.
        partition: The partition.
        wanted: Number of free items that the caller needs.
        cleans_index: Whether to remove sort keys without items from the index.
        keeps_last: Whether to keep the last sort key in the index in any case, because the next put uses it.
        start: Where to start. None for the start of the partition.
        own_holder: ID of our own claim holder, which exists; "" if there is none.
    """

    def __init__(
        self,
        info: QueueInfo,
        partition: str,
        wanted: int,
        *,
        cleans_index: bool = False,
        keeps_last: bool = False,
        start: ItemRange | None = None,
        own_holder: str = "",
    ) -> None:
        self.partition = partition
        self._store = info.store
        self._index = info.keys.sort_keys_prefix(partition)
        self._items = info.keys.items_prefix(partition)
        self._holders_prefix = info.keys.holders_prefix(partition)
        self._own_holder = own_holder
        self._holders: set[str] | None = None
        self._limit = min(wanted + EXTRA_PAGE_ITEMS, MAX_PAGE_ITEMS)
        self._cleans_index = cleans_index
        self._keeps_last = keeps_last
        self._next_ranges = [] if start is None else [replace(start, limit=self._limit)]
        self._last_index_key: str | None = None if start is None else start.index_entry.key
        self._has_more = True
        self._skipped = 0
        self._first_free_range: ItemRange | None = None
        self._parallel_ranges = 1

    async def next_page(self) -> list[Entry] | None:
        """Return the free items of the next page, in order. The list may be empty. Return None after the last page."""
        if not self._next_ranges and self._has_more:
            await self._read_index()
        if not self._next_ranges:
            return None
        ranges = self._next_ranges[: self._parallel_ranges]
        self._next_ranges = self._next_ranges[self._parallel_ranges :]
        found = await ParallelLists(self._store, [self._build_list_args(item_range) for item_range in ranges])
        free: list[Entry] = []
        empty: list[Entry] = []
        for n, (item_range, items) in enumerate(zip(ranges, found, strict=True)):
            free += await self._filter_free(item_range, items)
            if len(items) == item_range.limit:  # the rest of it comes before the sort keys after it
                limit = min(MAX_PAGE_ITEMS, 2 * item_range.limit)
                rest = ItemRange(item_range.index_entry, item_range.sort_key, limit, get_last_segment(items[-1]))
                self._next_ranges = [rest, *ranges[n + 1 :], *self._next_ranges]
                break
            if not items and item_range.after is None:
                empty.append(item_range.index_entry)
        else:
            self._parallel_ranges = min(2 * self._parallel_ranges, MAX_PARALLEL_SORT_KEYS)
        await self._remove_empty_sort_keys(empty)
        return free

    def build_hint(self, until: float) -> StartHint | None:
        """Return where the next read of this partition can start, to skip the claimed items at its beginning.

        None if there are so few of them that it should start at the beginning.

        Args:
            until: The time on the store's clock at which the hint expires.
        """
        if self._first_free_range is None or self._skipped < MIN_SKIPPED_FOR_HINT:
            return None
        return StartHint(self._first_free_range, until)

    @property
    def is_empty(self) -> bool:
        """Whether the partition had no sort keys, and so no items."""
        return self._last_index_key is None

    @property
    def first_free_range(self) -> ItemRange | None:
        """The range of items that starts at the first free item, where a later read can start. None if none is free."""
        return self._first_free_range

    async def _filter_free(self, item_range: ItemRange, items: Sequence[Entry]) -> list[Entry]:
        """Return the items of a range that no running client has claimed.

        Args:
            item_range: The range.
            items: Its items. Claim holders are read after the items, so a holder that is missing then is gone.
        """
        holders = [get_holder_id(entry) for entry in items]
        if self._holders is None and not {"", self._own_holder}.issuperset(holders):
            self._holders = set(await ask(self._store.children, self._holders_prefix))
        existing = self._holders if self._holders is not None else {self._own_holder} - {""}
        free: list[Entry] = []
        after = item_range.after
        for entry, holder in zip(items, holders, strict=True):
            if holder in existing:
                self._skipped += self._first_free_range is None
                after = get_last_segment(entry)
                continue
            if self._first_free_range is None:
                self._first_free_range = replace(item_range, after=after)
            free.append(entry)
        return free

    async def _read_index(self) -> None:
        """Read the next sort keys from the index, and plan to read their items."""
        index = await ask(self._store.list, self._index, limit=INDEX_PAGE, start_after=self._last_index_key)
        self._has_more = len(index) == INDEX_PAGE
        self._last_index_key = index[-1].key if index else self._last_index_key
        self._next_ranges = [ItemRange(entry, get_last_segment(entry), self._limit) for entry in index]

    def _build_list_args(self, item_range: ItemRange) -> tuple[str, int, str | None]:
        """Return the arguments with which ``ParallelLists`` reads a range."""
        prefix = f"{self._items}/{item_range.sort_key}"
        return prefix, item_range.limit, None if item_range.after is None else f"{prefix}/{item_range.after}"

    async def _remove_empty_sort_keys(self, empty: Sequence[Entry]) -> None:
        """Remove sort keys without items from the index, if this reader does that.

        Args:
            empty: Their entries in the index, as they were read.
        """
        kept = self._last_index_key if self._keeps_last and not self._has_more else None
        if self._cleans_index:
            await _remove_from_index(self._store, [entry for entry in empty if entry.key != kept])


@dataclass(frozen=True, slots=True)
class ConsumerShard:
    """The shard of a partition that one of several consumers prefers.

    Attributes:
        rank: Number of the consumer, from 0.
        consumers: Number of consumers; 0 if they do not know each other.
        is_patient: Whether to leave the items of other shards to their consumers, even if our shard has none.
    """

    rank: int = 0
    consumers: int = 0
    is_patient: bool = False

    @property
    def is_sharded(self) -> bool:
        """Whether the partition is divided among its consumers. They must know their number and ranks for that."""
        return self.consumers > 0

    @property
    def count(self) -> int:
        """The number of shards."""
        return max(1, min(self.consumers, MAX_SHARDS))

    def get_shard(self, entry: Entry) -> int:
        """Return the number of the shard that contains an item."""
        return zlib.crc32(entry.key[entry.key.rindex("/") :].encode()) % self.count


#: The shard of consumers that do not know each other: the whole partition.
NO_SHARD = ConsumerShard()


@dataclass(slots=True)
class ConsumerCache:
    """What one consumer remembers about a partition. Used by one thread at a time.

    Attributes:
        entries: Free items of its shard, in order.
        until: The time on the store's clock at which they are forgotten.
        heads: For each shard number the key of its first free item, since when it is the first, and in how many reads.
        is_empty_until: The time until which the partition is not read again, because it had no items.
    """

    entries: list[Entry] = field(default_factory=list)
    until: float = 0.0
    heads: dict[int, tuple[str, float, int]] = field(default_factory=dict)
    is_empty_until: float = 0.0

    def split_by_shard(
        self, free: Iterable[Entry], shard: ConsumerShard, now: float
    ) -> tuple[list[Entry], list[Entry]]:
        """Split free items into those to take and those to leave to other consumers.

        The items to take are those of our shard, and of shards whose first item has not changed for a while.

        Args:
            free: The free items.
            shard: Our shard.
            now: The time on the store's clock.
        Returns:
            The items to take and the items to leave, both in order.
        """
        if shard.consumers <= 1:
            return list(free), []
        to_take: list[Entry] = []
        to_leave: list[Entry] = []
        heads: dict[int, tuple[str, float, int]] = {}
        own_number = shard.rank % shard.count
        for entry in free:
            number = shard.get_shard(entry)
            if number not in heads:
                key, since, reads = self.heads.get(number, ("", now, 0))
                heads[number] = (key, since, reads + 1) if key == entry.key else (entry.key, now, 0)
            _, since, reads = heads[number]
            is_stuck = reads >= STUCK_SHARD_READS and now - since >= STUCK_SHARD_S
            (to_take if number == own_number or is_stuck else to_leave).append(entry)
        self.heads = heads
        return to_take, to_leave

    def get_fresh(self, now: float) -> list[Entry]:
        """Return the remembered items, or an empty list if they must be read again.

        Args:
            now: The time on the store's clock.
        """
        return self.entries if now < self.until else []


def check_partitions(partitions: Sequence[str]) -> None:
    """Check that the argument is a list of valid partition names.

    Raises:
        TypeError: It is a single string.
        InvalidKey: A name is not a valid key segment.
    """
    if isinstance(partitions, str):
        raise TypeError(f"partitions must be a list of names, not {partitions!r}; give [{partitions!r}]")
    for partition in partitions:
        check_member(partition, "partition")


async def clean_index(store: Store, keys: QueueKeys, partition: str) -> bool:
    """Remove the sort keys that have no items from the index of a partition.

    Also removes records of removed items whose claim holders have ended. IDs of holders are never reused.

    Returns:
        True if the index is empty now.
    """
    recorded = set(await ask(store.children, keys.removals_prefix(partition)))
    existing = set(await ask(store.children, keys.holders_prefix(partition))) if recorded else set[str]()
    for holder in recorded - existing:
        await ask(store.delete_tree, f"{keys.removals_prefix(partition)}/{holder}")
    after: str | None = None
    is_empty = True
    while index := await ask(store.list, keys.sort_keys_prefix(partition), limit=INDEX_PAGE, start_after=after):
        first_items = await ParallelLists(
            store, [(f"{keys.items_prefix(partition)}/{get_last_segment(entry)}", 1, None) for entry in index]
        )
        empty = [entry for entry, items in zip(index, first_items, strict=True) if not items]
        is_empty = await _remove_from_index(store, empty) == len(index) and is_empty
        after = index[-1].key
    return is_empty


async def _remove_from_index(store: Store, index_entries: Sequence[Entry]) -> int:
    """Remove those sort keys from the index with which nothing was put since the index was read, in one transaction.

    Args:
        store: The store of the queue.
        index_entries: The entries of the sort keys in the index, as they were read.
    Returns:
        The number of removed sort keys.
    """
    left = list(index_entries)
    while left:
        try:
            await ask(store.commit, [At(entry) for entry in left], [Delete(entry.key) for entry in left])
        except Conflict as error:
            used = {getattr(part, "key", None) for part in error.failed}
            left = [entry for entry in left if entry.key not in used]
        except LatchworkError as error:
            _log.debug("sort keys from %s stay in their index: %s", left[0].key, error)
            return 0
        else:
            return len(left)
    return 0
