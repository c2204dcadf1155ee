"""Reads a partition of a work queue from its head, page by page: what nobody has claimed.

A partition has an index: a key for each sort_key, written anew by every put into that sort_key. The first sort_keys
are read from
there, then stretches of their items and the claims of the same stretches. So no request reads, or makes a server count,
more than a sort_key: etcd counts all that is in a range, however few of it are asked for.

Who sees that many at the head are taken remembers for a moment where the first free one was, and begins there: else a
take would cost the more the more are taken.

Takers that all begin at the head want the same items, and of their transactions one succeeds. So takers that know each
other take the items of their own share first, by a hash of the id. Others' they take only when there is none of theirs,
or when the first item of a share has been the same for a moment: whoever was to take it is busy, or gone. What a taker
has read of its share and had no need for it takes next, without reading it again; each claim checks that its item is as
it was read. A share is a preference: two that think they have the same one lose a round trip, and nothing else.

A sort_key that is seen empty is taken out of the index, on condition that nobody has put anything into it since the
index
was read.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from latchwork.backends.futures import together
from latchwork.errors import LatchworkError
from latchwork.primitives.queue.claims import Holding
from latchwork.primitives.queue.items import Names
from latchwork.primitives.waiting.waits import check_member
from latchwork.store.steps import Step, ask
from latchwork.store.store import Store
from latchwork.types import At, Delete, Entry

_log = logging.getLogger(__name__)

#: Items that the first page has beyond those that are wanted, and items of the largest: each is twice as long as the
#: one before.
SPARE, LONGEST_PAGE = 16, 640
#: Shelves of which the index is read at once, and that are looked at together at most.
SORT_KEYS_READ, SORT_KEYS_TOGETHER = 16, 16
#: So many lists, of one sort_key, are not worth a thread.
FEW = 2
#: So many taken items at the head are worth a hint.
MANY = 48
#: Shares there are at most: a page has to have some items of each.
MOST_SHARES = 8
#: The first item of another's share is the same for so many seconds, and so many looks, before we take from it.
LEFT_S, LEFT_LOOKS = 0.05, 3
#: So few of others' are taken in a look when there is none of ours.
FEW = 2
#: Seconds for which what was read is taken without reading it again. What comes before it waits so long.
KEPT_S = 0.25
#: Seconds for which a partition without items is not read again while there are such items of other partitions.
EMPTY_S = 0.02


class Lists(Step[list[list[Entry]]]):
    """Several lists at once: ``await Lists(store, [(prefix, limit, start_after), ...])``."""

    __slots__ = ("_store", "_wanted")

    def __init__(self, store: Store, wanted: Sequence[tuple[str, int, str | None]]) -> None:
        super().__init__()
        self._store = store
        self._wanted = wanted

    def block(self) -> list[list[Entry]]:
        """Wait for all. A few are made in this thread, one after the other: cheaper than a change of threads."""
        if len(self._wanted) > FEW:
            return self.begin().result()
        return [self._store.list(prefix, limit=limit, start_after=after) for prefix, limit, after in self._wanted]

    def begin(self) -> Future[list[list[Entry]]]:
        """Begin all."""
        begun: list[Future[Any]] = [
            self._store.begin("list", prefix, limit=limit, start_after=after) for prefix, limit, after in self._wanted
        ]
        return together(begun)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a sort_key that is to be read: from a name on, so many items.

    Attributes:
        mark: the sort_key in the index, as it was read.
        sort_key: its name.
        limit: items to read.
        after: the item behind which to begin; None at the start of the sort_key.
    """

    mark: Entry
    sort_key: str
    limit: int
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Hint:
    """Where the first free item of a partition was.

    Attributes:
        start: the stretch that begins with it.
        until: when to look from the head again, by the store's clock.
    """

    start: Stretch
    until: float


class Pages:
    """Reads one partition once. One thread only.

    Args:
        held: the backlog.
        partition: which.
        wanted: how many free items.
        tidies: take empty sort_keys out of the index.
        start: where to begin instead of at the head.
    """

    def __init__(
        self, held: Holding, partition: str, wanted: int, *, tidies: bool = False, start: Stretch | None = None
    ) -> None:
        self.partition = partition
        self._store = held.store
        self._index = held.names.sort_keys(partition)
        self._items = held.names.items(partition)
        self._claims = held.names.claims(partition)
        self._limit = min(wanted + SPARE, LONGEST_PAGE)
        self._tidies = tidies
        self._todo = [] if start is None else [replace(start, limit=self._limit)]
        self._behind: str | None = None if start is None else start.mark.key
        self._has_more = True
        self._skipped = 0
        self._first: Stretch | None = None
        self._together = 1

    async def next(self) -> list[Entry] | None:
        """The free items of the next page, in order, may be none; None behind the last one."""
        if not self._todo and self._has_more:
            await self._read_index()
        if not self._todo:
            return None
        round_, self._todo = self._todo[: self._together], self._todo[self._together :]
        found = await Lists(self._store, [part for stretch in round_ for part in self._parts(stretch)])
        free: list[Entry] = []
        for n, stretch in enumerate(round_):
            items, claims = found[2 * n], found[2 * n + 1]
            claimed = {_name(entry) for entry in await self._claims_to(stretch, items, claims)}
            self._look_for_first(stretch, items, claimed)
            free += [entry for entry in items if _name(entry) not in claimed]
            if len(items) == stretch.limit:  # what is behind it comes before the sort_keys behind it
                longer = min(LONGEST_PAGE, 2 * stretch.limit)
                rest = Stretch(stretch.mark, stretch.sort_key, longer, _name(items[-1]))
                self._todo = [rest, *round_[n + 1 :], *self._todo]
                return free
            if not items and stretch.after is None:
                await self._tidy(stretch)
        self._together = min(2 * self._together, SORT_KEYS_TOGETHER)
        return free

    def hint(self, until: float) -> Hint | None:
        """Where the first free item was, if many before it were taken; valid until then."""
        return Hint(self._first, until) if self._first is not None and self._skipped >= MANY else None

    @property
    def is_empty(self) -> bool:
        """Whether the partition had no sort_key."""
        return self._behind is None

    @property
    def first(self) -> Stretch | None:
        """The stretch that begins with the first free item; None when there was none."""
        return self._first

    def _look_for_first(self, stretch: Stretch, items: Sequence[Entry], claimed: set[str]) -> None:
        after = stretch.after
        for name in map(_name, items if self._first is None else ()):
            if name not in claimed:
                self._first = replace(stretch, after=after)
                return
            after = name
            self._skipped += 1

    async def _read_index(self) -> None:
        marks = await ask(self._store.list, self._index, limit=SORT_KEYS_READ, start_after=self._behind)
        self._has_more = len(marks) == SORT_KEYS_READ
        self._behind = marks[-1].key if marks else None
        self._todo = [Stretch(mark, _name(mark), self._limit) for mark in marks]

    def _parts(self, stretch: Stretch) -> list[tuple[str, int, str | None]]:
        """Lists of a stretch: its items, and as many claims."""
        return [self._part(self._items, stretch, stretch.after), self._part(self._claims, stretch, stretch.after)]

    def _part(self, prefix: str, stretch: Stretch, after: str | None) -> tuple[str, int, str | None]:
        below = f"{prefix}/{stretch.sort_key}"
        return below, stretch.limit, None if after is None else f"{below}/{after}"

    async def _claims_to(self, stretch: Stretch, items: Sequence[Entry], claims: list[Entry]) -> list[Entry]:
        """The claims of a stretch, to its last item: more than were read if some are on items that are gone."""
        while items and len(claims) % stretch.limit == 0 and claims and _name(claims[-1]) < _name(items[-1]):
            (more,) = await Lists(self._store, [self._part(self._claims, stretch, _name(claims[-1]))])
            if not more:
                break
            claims = [*claims, *more]
        return claims

    async def _tidy(self, stretch: Stretch) -> None:
        if not self._tidies:
            return
        await _take_out(self._store, stretch.mark)


@dataclass(frozen=True, slots=True)
class Share:
    """Which of the takers of a partition one is.

    Attributes:
        rank: its number, from 0.
        of: how many there are; 0 when they do not know each other.
        is_patient: others' items are left to them, even when there is none of ours: more come soon.
    """

    rank: int = 0
    of: int = 0
    is_patient: bool = False

    @property
    def is_known(self) -> bool:
        """Whether the takers know each other."""
        return self.of > 0

    @property
    def count(self) -> int:
        """How many shares there are."""
        return max(1, min(self.of, MOST_SHARES))

    def of_entry(self, entry: Entry) -> int:
        """The number of the share that an item is of."""
        return zlib.crc32(entry.key[entry.key.rindex("/") :].encode()) % self.count


#: Of takers that do not know each other.
NO_SHARE = Share()


@dataclass(slots=True)
class Kept:
    """What one taker remembers of a partition. One thread at a time.

    Attributes:
        entries: items of its share that were free, in order.
        until: when they are forgotten, by the store's clock.
        heads: by the number of a share its first free item, since when that is it, and for how many looks.
        is_empty_until: until then there was nothing.
    """

    entries: list[Entry] = field(default_factory=list)
    until: float = 0.0
    heads: dict[int, tuple[str, float, int]] = field(default_factory=dict)
    is_empty_until: float = 0.0

    def split(self, free: Iterable[Entry], share: Share, now: float) -> tuple[list[Entry], list[Entry]]:
        """Items that are ours or were left for long enough, and the others; both in order."""
        if share.of <= 1:
            return list(free), []
        mine: list[Entry] = []
        others: list[Entry] = []
        heads: dict[int, tuple[str, float, int]] = {}
        own = share.rank % share.count
        for entry in free:
            number = share.of_entry(entry)
            if number not in heads:
                key, since, looks = self.heads.get(number, ("", now, 0))
                heads[number] = (key, since, looks + 1) if key == entry.key else (entry.key, now, 0)
            _, since, looks = heads[number]
            is_left = looks >= LEFT_LOOKS and now - since >= LEFT_S
            (mine if number == own or is_left else others).append(entry)
        self.heads = heads
        return mine, others

    def keep(self, entries: list[Entry], now: float) -> None:
        """Take these next."""
        self.entries, self.until = entries, now + KEPT_S

    def fresh(self, now: float) -> list[Entry]:
        """What may be taken without reading it again."""
        return self.entries if now < self.until else []


def check_partitions(partitions: Sequence[str]) -> None:
    """Refuse what is no list of names of partitions."""
    if isinstance(partitions, str):
        raise TypeError(f"partitions must be a list of names, not {partitions!r}; give [{partitions!r}]")
    for partition in partitions:
        check_member(partition, "partition")


async def tidy(store: Store, names: Names, partition: str) -> bool:
    """Take the empty sort_keys of a partition out of its index; whether none is left there."""
    behind: str | None = None
    is_empty = True
    while marks := await ask(store.list, names.sort_keys(partition), limit=SORT_KEYS_READ, start_after=behind):
        heads = await Lists(store, [(f"{names.items(partition)}/{_name(mark)}", 1, None) for mark in marks])
        for mark, head in zip(marks, heads, strict=True):
            is_out = not head and await _take_out(store, mark)
            is_empty = is_empty and is_out
        behind = marks[-1].key
    return is_empty


async def _take_out(store: Store, mark: Entry) -> bool:
    """Take a sort_key out of the index, if nobody has put anything into it since the index was read."""
    try:
        await ask(store.commit, [At(mark)], [Delete(mark.key)])
    except LatchworkError as error:
        _log.debug("sort_key %s stays in its index: %s", mark.key, error)
        return False
    return True


def _name(entry: Entry) -> str:
    return entry.key.rpartition("/")[2]
