"""How takers of one lane keep out of each other's way: each has a share of the items, and what it has read beyond need.

Takers that all begin at the head want the same items, and of their transactions one succeeds. So takers that know each
other take the items of their own share first, by a hash of the id. Others' they take only when there is none of theirs,
or when the first item of a share has been the same for a moment: whoever was to take it is busy, or gone. What a taker
has read of its share and had no need for it takes next, without reading it again; each claim checks that its item is as
it was read.

A share is a preference: two that think they have the same one lose a round trip, and nothing else. No I/O here.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from latchwork.types import Entry

#: Shares there are at most: a page has to have some items of each.
MOST_SHARES = 8
#: The first item of another's share is the same for so many seconds, and so many looks, before we take from it.
LEFT_S, LEFT_LOOKS = 0.05, 3
#: So few of others' are taken in a look when there is none of ours.
FEW = 2
#: Seconds for which what was read is taken without reading it again. What comes before it waits so long.
KEPT_S = 0.25
#: Seconds for which a lane without items is not read again while there are such items of other lanes.
EMPTY_S = 0.02


@dataclass(frozen=True, slots=True)
class Share:
    """Which of the takers of a lane one is.

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
    """What one taker remembers of a lane. One thread at a time.

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
