"""Listing a level or a subtree, and the names of a level. Keys themselves are read by ``reads``.

Listing goes level by level: a server tells the names directly below a znode and no more.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from operator import attrgetter

from latchwork.backends.futures import Steps
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.calls import Call
from latchwork.backends.zookeeper.connection import Connection
from latchwork.backends.zookeeper.errors import check_found
from latchwork.backends.zookeeper.layout import below
from latchwork.backends.zookeeper.reads import FIRST_BATCH, LARGEST_BATCH, ReadContext, Reader
from latchwork.backends.zookeeper.wire import MULTI_READ, Data, Found, Reply
from latchwork.types import Entry

#: Children of an implied parent that are looked at first for a key; then so many times as many, and so on.
_PROBES = 4


class Lister:
    """Lists through any connection, as steps like those of ``Reader``. Safe to share."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._layout = reader.layout

    # Entries.

    def level(
        self,
        connection: Connection,
        prefix: str,
        limit: int | None,
        start_after: str | None,
        deadline: float,
        *,
        stale_ok: bool = False,
    ) -> Steps[list[Entry]]:
        """Return the keys directly below, sorted. Also a stale entry has a version that a check can be built on."""
        context = yield from self.reader.begin(connection, deadline, stale_ok=stale_ok)
        names = yield from self.reader.names(connection, prefix, deadline)
        keys = sorted(key for key in below(prefix, names) if start_after is None or key > start_after)
        entries: list[Entry] = []
        at = step = 0
        while at < len(keys) and (limit is None or len(entries) < limit):
            step = len(keys) if limit is None else max(limit - len(entries), min(2 * step, LARGEST_BATCH))
            some = keys[at : at + step]
            if stale_ok:
                found = yield from self.reader.read_with_guards(connection, some, deadline)
            else:
                found = yield from self.reader.read_keys(context, some)
            entries.extend(entry for entry in found if entry is not None)
            at += step
        return entries[:limit]

    def subtree_part(
        self, connection: Connection, prefix: str, limit: int | None, start_after: str | None, deadline: float
    ) -> Steps[list[Entry]]:
        """The subtree in order, only as much of it as is asked for."""
        context = yield from self.reader.begin(connection, deadline)
        if limit is None and start_after is None:
            return (yield from self.subtree(context, prefix))
        part = _SubtreePart(prefix, start_after)
        entries: list[Entry] = []
        while part.todo and (limit is None or len(entries) < limit):
            wanted = LARGEST_BATCH if limit is None else limit - len(entries)
            keys, parents = part.next(max(FIRST_BATCH, min(wanted, LARGEST_BATCH)))
            for _, found_below in (yield from self._below_each(context, parents)):
                part.expect(found_below)
            found = yield from self.reader.read_data(context, [self._layout.path(key) for key in keys])
            part.add(keys, found, (yield from self.reader.entries(context, keys, found)))
            entries += part.take()
        return entries[:limit]

    def subtree(self, context: ReadContext, prefix: str) -> Steps[list[Entry]]:
        """Every key below the prefix, sorted, without a barrier of its own."""
        names = yield from self.reader.names(context.connection, prefix, context.deadline)
        return (yield from self._subtree(context, below(prefix, names)))

    def _subtree(self, context: ReadContext, level: list[str]) -> Steps[list[Entry]]:
        entries: list[Entry] = []
        while level:
            found = yield from self.reader.read_keys(context, level)
            entries.extend(entry for entry in found if entry is not None)
            bound = {entry.key for entry in found if entry is not None and entry.owner is not None}
            parents = yield from self._below_each(context, [key for key in level if key not in bound])
            level = [key for _, found_below in parents for key in found_below]
        entries.sort(key=attrgetter("key"))
        return entries

    def ask_first(self, context: ReadContext, prefix: str) -> tuple[Call, Call]:
        """Send what ``whole`` reads in any case: the names below a prefix, and the key there."""
        payload = wire.multi([wire.read_data(self._layout.path(prefix))])
        own = context.connection.call(MULTI_READ, payload, context.deadline)
        return self.reader.ask_names(context.connection, prefix, context.deadline), own

    def whole(self, context: ReadContext, prefix: str, asked: tuple[Call, Call]) -> Steps[list[Entry]]:
        """Every key below the prefix, then the one at it, without a barrier of its own; see ``ask_first``."""
        names, own = asked
        level = below(prefix, (yield from self.reader.names_of(prefix, names)))
        entries = yield from self._subtree(context, level)
        reply: Reply = yield own
        if prefix:
            found = wire.parse_multi_read(reply.body)
            at_prefix = yield from self.reader.entries(context, [prefix], found)
            entries += [entry for entry in at_prefix if entry is not None]
        return entries

    def _below_each(self, context: ReadContext, keys: list[str]) -> Steps[list[tuple[str, list[str]]]]:
        """The keys among these that exist, each with the keys directly below it."""
        found = yield from self.reader.read_each(context, [wire.read_children(self._layout.path(key)) for key in keys])
        there = []
        for key, names in zip(keys, found, strict=True):
            if isinstance(names, list):
                there.append((key, below(key, self._layout.visible(names, key))))
            else:
                check_found(names, "list", key)
        return there

    # Names.

    def children(
        self, connection: Connection, prefix: str, deadline: float, *, stale_ok: bool = False
    ) -> Steps[tuple[list[str], list[str]]]:
        """Names directly below that are keys or have one below them, sorted; and keys of childless implied parents.

        When stale, of whatever is below, childless or not, as the connected server has it.
        """
        context = yield from self.reader.begin(connection, deadline, stale_ok=stale_ok)
        names = yield from self.reader.names(connection, prefix, deadline)
        if stale_ok:
            return sorted(names), []
        childless: list[str] = []
        alive = yield from self._alive(context, below(prefix, names), childless)
        return sorted(key.rpartition("/")[2] for key in alive), childless

    def _alive(self, context: ReadContext, keys: list[str], childless: list[str]) -> Steps[set[str]]:
        """Which of these are keys or have a key below: all of them together, a level and a few children at a time."""
        alive: set[str] = set()
        todo = [(key, [key]) for key in keys]  # each, and the znodes any of which may prove it
        width = _PROBES
        while todo:
            probes = {key: top for top, candidates in todo for key in candidates[:width]}
            implied = yield from self._probe(context, probes, alive, childless)
            todo = [(top, rest[width:]) for top, rest in todo if top not in alive and len(rest) > width]
            found = yield from self._below_each(context, [key for key in implied if probes[key] not in alive])
            todo += [(probes[key], found_below) for key, found_below in found]
            width *= _PROBES
        return alive

    def _probe(
        self, context: ReadContext, probes: dict[str, str], alive: set[str], childless: list[str]
    ) -> Steps[list[str]]:
        """Look at the probes: the implied parents with children among them.

        ``alive`` gets the keys that the probes prove to be alive, ``childless`` the implied parents without children.
        """
        found = yield from self.reader.read_data(context, [self._layout.path(key) for key in probes])
        implied = []
        for key, each in zip(probes, found, strict=True):
            if not isinstance(each, Data):
                check_found(each, "list", key)
            elif each.data:
                alive.add(probes[key])
            elif each.stat.children:
                implied.append(key)
            else:
                childless.append(key)
        return implied


class _SubtreePart:
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

    def add(self, keys: list[str], found: Sequence[Found], entries: list[Entry | None]) -> None:
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
