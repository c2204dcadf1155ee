"""A subtree listed in order and in part: what is to be read next, and what can be given out. Nothing here does I/O."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from latchwork.backends.zookeeper.wire import Data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from latchwork.types import Entry


class SubtreePart:
    """A subtree read in order, only as far as it is wanted. What stands for all below a key is the key and "/".

    That sorts as the first of them would ("a/" after "a" and "a-b"). A key read to have no children has nothing below.
    """

    def __init__(self, prefix: str, start_after: str | None) -> None:
        self.todo = [prefix + "/"]
        self._start_after = start_after
        self._read: dict[str, Entry | None] = {}

    def next(self, count: int) -> tuple[list[str], list[str]]:
        """The first of what is to be read: keys, and keys below which to look."""
        some = [heapq.heappop(self.todo) for _ in range(min(count, len(self.todo)))]
        return [each for each in some if each[-1] != "/"], [each[:-1] for each in some if each[-1] == "/"]

    def expect(self, keys: list[str]) -> None:
        """These exist; "0" follows "/": a subtree whose end is not before the start may have something to give."""
        after = self._start_after
        for key in keys:
            if after is None or key > after:
                heapq.heappush(self.todo, key)
            elif key + "0" > after:
                heapq.heappush(self.todo, key + "/")

    def add(self, keys: list[str], found: Sequence[Data | list[str] | int], entries: list[Entry | None]) -> None:
        """What was read of keys."""
        for key, each, entry in zip(keys, found, entries, strict=True):
            self._read[key] = entry
            if isinstance(each, Data) and each.stat.children and not each.stat.ephemeral_owner:
                heapq.heappush(self.todo, key + "/")

    def take(self) -> list[Entry]:
        """The entries before which nothing is left to be read, in order."""
        end = self.todo[0] if self.todo else None
        ready = sorted(key for key in self._read if end is None or key < end)
        found = [self._read.pop(key) for key in ready]
        return [entry for entry in found if entry is not None]
