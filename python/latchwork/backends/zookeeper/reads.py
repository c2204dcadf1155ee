"""Reading: one key, many, a level, a subtree; and the states a transaction is compiled from.

Every read that is not ``stale_ok`` rides behind a barrier on the same connection. Many keys are read by one request,
sized so that answers stay near half a megabyte. A key with children needs a second look, at its ``#born``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from latchwork._core import ZooKeeperCodec
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.errors import code_error
from latchwork.backends.zookeeper.layout import (
    BUCKETS,
    UNKNOWN,
    Layout,
    Version,
    Znode,
    ancestors,
    bucket,
    is_ours,
    read_entry,
)
from latchwork.backends.zookeeper.plan import Known
from latchwork.backends.zookeeper.subtree import SubtreePart
from latchwork.backends.zookeeper.wire import EXISTS, GET_CHILDREN, GET_DATA, MULTI_READ, NO_NODE, OK, Data, Reply
from latchwork.types import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from latchwork.backends.futures import Steps
    from latchwork.backends.zookeeper.connection import Call, Connection

_ANSWER_BYTES = 524_288
_FIRST_BATCH, _LARGEST_BATCH = 64, 1000
_IN_FLIGHT = 4
_ATTEMPTS = 50
#: Children of an implied parent that are looked at first for a key; then so many times as many, and so on.
_PROBES = 4


class Reader:
    """Reads through any connection, as steps that raise ``Cut`` when it breaks: whoever drives them starts anew.

    Safe to share.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._codec = ZooKeeperCodec(layout.root, entry=Entry, version=Version)
        self._gens = [UNKNOWN] * BUCKETS

    # Guards.

    def learn(self, number: int, gen: int) -> None:
        """A bucket's guard has had this version."""
        self._gens[number] = max(self._gens[number], gen)

    def gens(self) -> list[int]:
        """For each bucket a version its guard has reached by now; valid with whatever is read or written from now."""
        return self._gens.copy()

    # One key.

    def get(self, connection: Connection, key: str, deadline: float) -> Steps[Entry | None]:
        """A linearizable read."""
        payload = wire.multi([wire.read_data(self._layout.guard(key)), wire.read_data(self._layout.path(key))])
        call = connection.read(MULTI_READ, payload, deadline)
        reply = yield call
        while not call.linearizable:
            call = connection.read(MULTI_READ, payload, deadline)
            reply = yield call
        guard, found = wire.parse_multi_read(reply.body)
        gen = UNKNOWN
        if isinstance(guard, Data):
            gen = guard.stat.version
            self.learn(bucket(key), gen)
        if not isinstance(found, Data):
            self._refuse(found, "get", key)
            return None
        if not found.stat.children or not found.data:
            return read_entry(key, found, gen)
        entries = yield from self.get_many(connection, [key], deadline)
        return entries[0]

    def get_stale(self, connection: Connection, key: str, deadline: float) -> Steps[Entry | None]:
        """A read of whatever the connected server has. The version makes any check read the key again first."""
        reply: Reply = yield connection.call(GET_DATA, wire.path_and_flag(self._layout.path(key)), deadline)
        if reply.error != OK:
            self._refuse(reply.error, "get", key)
            return None
        found = wire.parse_data(reply.body)[0]
        if not found.stat.children or not found.data:
            return read_entry(key, found)
        entries = yield from self.get_many(connection, [key], deadline)
        return entries[0]

    # Many keys.

    def get_many(self, connection: Connection, keys: Sequence[str], deadline: float) -> Steps[list[Entry | None]]:
        """Each linearizable, in order."""
        gens = self.gens()
        yield connection.confirm(deadline)
        return (yield from self.read_keys(connection, keys, gens, deadline))

    def get_many_stale(self, connection: Connection, keys: Sequence[str], deadline: float) -> Steps[list[Entry | None]]:
        """As the connected server has them. Their versions make any check read the keys again first."""
        return (yield from self.read_keys(connection, keys, [UNKNOWN] * BUCKETS, deadline))

    def read_with_guards(
        self, connection: Connection, keys: Sequence[str], deadline: float
    ) -> Steps[list[Entry | None]]:
        """Like ``read_keys``, without a barrier: the guards are read first, as old as the connected server is.

        Guards and keys are one request where it can hold them all: reads of one request are answered in their order.
        """
        buckets = sorted({bucket(key) for key in keys})
        paths = [self._layout.guards[number] for number in buckets]
        together = len(keys) + len(buckets) <= _FIRST_BATCH
        if together:
            paths += [self._layout.path(key) for key in keys]
        found = yield from self._read_data(connection, paths, deadline)
        gens = [UNKNOWN] * BUCKETS
        for number, guard in zip(buckets, found, strict=False):
            if isinstance(guard, Data):
                gens[number] = guard.stat.version
        if together:
            return (yield from self._entries(connection, keys, found[len(buckets) :], gens, deadline))
        return (yield from self.read_keys(connection, keys, gens, deadline))

    def read_keys(
        self, connection: Connection, keys: Sequence[str], gens: list[int], deadline: float
    ) -> Steps[list[Entry | None]]:
        """Entries as the connected server has them, in order; None for what is no key.

        Args:
            connection: to read through.
            keys: full keys.
            gens: as they were before the barrier; UNKNOWN where there was none.
            deadline: of the whole.
        """
        keys = list(keys)
        entries: list[Entry | None] = []
        parents: list[int] = []

        def take(body: bytes) -> int:
            found, with_children, refused = self._codec.entries(body, keys, len(entries), gens)
            if refused is not None:
                self._refuse(refused[1], "read", keys[refused[0]])
            entries.extend(found)
            parents.extend(with_children)
            return len(found)

        encode = functools.partial(self._codec.reads, keys)
        yield from self._read_all(connection, len(keys), encode, take, deadline)
        return (yield from self._complete(connection, keys, entries, parents, gens, deadline))

    def _entries(
        self,
        connection: Connection,
        keys: Sequence[str],
        found: Sequence[Data | list[str] | int],
        gens: list[int],
        deadline: float,
    ) -> Steps[list[Entry | None]]:
        """The entries that were read; a key with children needs a second look."""
        entries: list[Entry | None] = []
        parents = []
        for index, (key, each) in enumerate(zip(keys, found, strict=True)):
            if isinstance(each, Data):
                if each.stat.children and each.data:
                    parents.append(index)
                entries.append(read_entry(key, each, gens[bucket(key)]))
            else:
                self._refuse(each, "read", key)
                entries.append(None)
        return (yield from self._complete(connection, keys, entries, parents, gens, deadline))

    def _complete(  # noqa: PLR0917
        self,
        connection: Connection,
        keys: Sequence[str],
        entries: list[Entry | None],
        parents: list[int],
        gens: list[int],
        deadline: float,
    ) -> Steps[list[Entry | None]]:
        """Look again at those that have children."""
        for _ in range(_ATTEMPTS):
            if not parents:
                break
            parents = yield from self._look_for_born(connection, keys, entries, parents, gens, deadline)
        return entries

    def _look_for_born(  # noqa: PLR0917
        self,
        connection: Connection,
        keys: Sequence[str],
        entries: list[Entry | None],
        parents: list[int],
        gens: list[int],
        deadline: float,
    ) -> Steps[list[int]]:
        """Complete the entries with children; those that changed between the looks are returned, for another."""
        paths = [self._layout.born(keys[index]) for index in parents] + [
            self._layout.path(keys[index]) for index in parents
        ]
        found = yield from self._read_data(connection, paths, deadline)
        again = []
        for index, born, now in zip(parents, found, found[len(parents) :], strict=False):
            key, before = keys[index], entries[index]
            if not isinstance(now, Data):
                entries[index] = None
                continue
            czxid = born.stat.czxid if isinstance(born, Data) else None
            entry = entries[index] = read_entry(key, now, gens[bucket(key)], czxid)
            if entry is not None and before is not None and entry.token != before.token:
                again.append(index)
        return again

    def _read_data(
        self, connection: Connection, paths: Sequence[str], deadline: float
    ) -> Steps[list[Data | list[str] | int]]:
        return (yield from self._read_each(connection, [wire.read_data(path) for path in paths], deadline))

    def _read_each(
        self, connection: Connection, reads: Sequence[bytes], deadline: float
    ) -> Steps[list[Data | list[str] | int]]:
        results: list[Data | list[str] | int] = []

        def take(body: bytes) -> int:
            found = wire.parse_multi_read(body)
            results.extend(found)
            return len(found)

        def encode(start: int, end: int) -> bytes:
            return wire.multi(list(reads[start:end]))

        yield from self._read_all(connection, len(reads), encode, take, deadline)
        return results

    def _read_all(
        self,
        connection: Connection,
        count: int,
        encode: Callable[[int, int], bytes],
        take: Callable[[bytes], int],
        deadline: float,
    ) -> Steps[None]:
        """Many reads by few requests, a few of them in flight.

        Args:
            connection: to read through.
            count: how many reads.
            encode: gives the payload of some of them, from one number to below another.
            take: is given the answers in order, and says how many reads each was for.
            deadline: of the whole.
        """
        size, at, answered, received = _FIRST_BATCH, 0, 0, 0
        flying: list[Call] = []
        while at < count or flying:
            while at < count and len(flying) < (_IN_FLIGHT if answered else 1):
                end = min(at + size, count)
                flying.append(connection.call(MULTI_READ, encode(at, end), deadline))
                at = end
            reply: Reply = yield flying.pop(0)
            received += len(reply.body)
            answered += take(reply.body)
            size = max(1, min(_LARGEST_BATCH, _ANSWER_BYTES * answered // received))

    # Levels and subtrees.

    def names(self, connection: Connection, key: str, deadline: float) -> Steps[list[str]]:
        """Names of the znodes directly below, our own left out, unsorted."""
        return (yield from self._names(key, self._ask_names(connection, key, deadline)))

    def _ask_names(self, connection: Connection, key: str, deadline: float) -> Call:
        return connection.call(GET_CHILDREN, wire.path_and_flag(self._layout.path(key)), deadline)

    def _names(self, key: str, asked: Call) -> Steps[list[str]]:
        reply: Reply = yield asked
        if reply.error != OK:
            self._refuse(reply.error, "list", key)
            return []
        return _visible(wire.parse_names(reply.body)[0], key)

    def below(self, key: str, names: Iterable[str]) -> list[str]:
        """Full keys of names."""
        return [f"{key}/{name}" for name in names] if key else list(names)

    def level(
        self, connection: Connection, prefix: str, limit: int | None, start_after: str | None, deadline: float
    ) -> Steps[list[Entry]]:
        """Keys directly below, sorted."""
        gens = self.gens()
        yield connection.confirm(deadline)
        return (yield from self._level(connection, prefix, limit, start_after, gens, deadline))

    def level_stale(
        self, connection: Connection, prefix: str, limit: int | None, start_after: str | None, deadline: float
    ) -> Steps[list[Entry]]:
        """Keys directly below, sorted, as the connected server has them; see ``get_many_stale``."""
        gens = [UNKNOWN] * BUCKETS
        return (yield from self._level(connection, prefix, limit, start_after, gens, deadline))

    def _level(  # noqa: PLR0917
        self,
        connection: Connection,
        prefix: str,
        limit: int | None,
        start_after: str | None,
        gens: list[int],
        deadline: float,
    ) -> Steps[list[Entry]]:
        names = yield from self.names(connection, prefix, deadline)
        keys = sorted(key for key in self.below(prefix, names) if start_after is None or key > start_after)
        entries: list[Entry] = []
        at = step = 0
        while at < len(keys) and (limit is None or len(entries) < limit):
            step = len(keys) if limit is None else max(limit - len(entries), min(2 * step, _LARGEST_BATCH))
            found = yield from self.read_keys(connection, keys[at : at + step], gens, deadline)
            entries.extend(entry for entry in found if entry is not None)
            at += step
        return entries[:limit]

    def ask_first(self, connection: Connection, prefix: str, deadline: float) -> tuple[Call, Call]:
        """Send what ``whole`` reads in any case: the names below a prefix, and the key there."""
        own = connection.call(MULTI_READ, wire.multi([wire.read_data(self._layout.path(prefix))]), deadline)
        return self._ask_names(connection, prefix, deadline), own

    def whole(
        self, connection: Connection, prefix: str, asked: tuple[Call, Call], deadline: float, gens: list[int]
    ) -> Steps[list[Entry]]:
        """Every key below the prefix, then the one at it, without a barrier of its own; see ``ask_first``."""
        names, own = asked
        level = self.below(prefix, (yield from self._names(prefix, names)))
        entries = yield from self._subtree(connection, level, deadline, gens)
        reply: Reply = yield own
        if prefix:
            found = wire.parse_multi_read(reply.body)
            at_prefix = yield from self._entries(connection, [prefix], found, gens, deadline)
            entries += [entry for entry in at_prefix if entry is not None]
        return entries

    def subtree(self, connection: Connection, prefix: str, deadline: float, gens: list[int]) -> Steps[list[Entry]]:
        """Every key below the prefix, sorted; level by level, without a barrier of its own."""
        level = self.below(prefix, (yield from self.names(connection, prefix, deadline)))
        return (yield from self._subtree(connection, level, deadline, gens))

    def _subtree(
        self, connection: Connection, level: list[str], deadline: float, gens: list[int]
    ) -> Steps[list[Entry]]:
        entries: list[Entry] = []
        while level:
            found = yield from self.read_keys(connection, level, gens, deadline)
            entries.extend(entry for entry in found if entry is not None)
            bound = {entry.key for entry in found if entry is not None and entry.owner is not None}
            level = yield from self._next_level(connection, [key for key in level if key not in bound], deadline)
        entries.sort(key=_key_of)
        return entries

    def _next_level(self, connection: Connection, keys: list[str], deadline: float) -> Steps[list[str]]:
        reads = [wire.read_children(self._layout.path(key)) for key in keys]
        found = yield from self._read_each(connection, reads, deadline)
        level: list[str] = []
        for key, names in zip(keys, found, strict=True):
            if isinstance(names, list):
                level.extend(self.below(key, _visible(names, key)))
            else:
                assert isinstance(names, int)
                self._refuse(names, "list", key)
        return level

    def subtree_part(
        self, connection: Connection, prefix: str, limit: int | None, start_after: str | None, deadline: float
    ) -> Steps[list[Entry]]:
        """The subtree in order, only as much of it as is asked for."""
        gens = self.gens()
        yield connection.confirm(deadline)
        if limit is None and start_after is None:
            return (yield from self.subtree(connection, prefix, deadline, gens))
        part = SubtreePart(prefix, start_after)
        entries: list[Entry] = []
        while part.todo and (limit is None or len(entries) < limit):
            wanted = _LARGEST_BATCH if limit is None else limit - len(entries)
            keys, parents = part.next(max(_FIRST_BATCH, min(wanted, _LARGEST_BATCH)))
            yield from self._expand(connection, parents, part, deadline)
            found = yield from self._read_data(connection, [self._layout.path(key) for key in keys], deadline)
            part.add(keys, found, (yield from self._entries(connection, keys, found, gens, deadline)))
            entries += part.take()
        return entries[:limit]

    def _expand(self, connection: Connection, parents: list[str], part: SubtreePart, deadline: float) -> Steps[None]:
        reads = [wire.read_children(self._layout.path(key)) for key in parents]
        found = yield from self._read_each(connection, reads, deadline)
        for key, names in zip(parents, found, strict=True):
            if isinstance(names, list):
                part.expect(self.below(key, _visible(names, key)))
            else:
                assert isinstance(names, int)
                self._refuse(names, "list", key)

    def children_stale(self, connection: Connection, prefix: str, deadline: float) -> Steps[list[str]]:
        """Names directly below as the connected server has them, sorted; also those of empty implied parents."""
        return sorted((yield from self.names(connection, prefix, deadline)))

    def children(self, connection: Connection, prefix: str, deadline: float) -> Steps[tuple[list[str], list[str]]]:
        """Names directly below that are keys or have one below them, sorted; and keys of childless implied parents."""
        yield connection.confirm(deadline)
        hollow: list[str] = []
        names = yield from self.names(connection, prefix, deadline)
        alive = yield from self._alive(connection, self.below(prefix, names), hollow, deadline)
        return sorted(key.rpartition("/")[2] for key in alive), hollow

    def _alive(self, connection: Connection, keys: list[str], hollow: list[str], deadline: float) -> Steps[list[str]]:
        """Which of these are keys or have a key below: all of them together, a level and a few children at a time."""
        alive: set[str] = set()
        todo = [(key, [key]) for key in keys]  # each, and the znodes any of which may prove it
        width = _PROBES
        while todo:
            probes = [(top, key) for top, below in todo for key in below[:width]]
            implied = yield from self._probe(connection, probes, alive, hollow, deadline)
            left = [(top, below[width:]) for top, below in todo if top not in alive and len(below) > width]
            reads = [wire.read_children(self._layout.path(key)) for _, key in implied]
            found = yield from self._read_each(connection, reads, deadline)
            for (top, key), names in zip(implied, found, strict=True):
                if isinstance(names, list):
                    left.append((top, self.below(key, _visible(names, key))))
                else:
                    assert isinstance(names, int)
                    self._refuse(names, "list", key)
            todo = left
            width *= _PROBES
        return [key for key in keys if key in alive]

    def _probe(
        self,
        connection: Connection,
        probes: list[tuple[str, str]],
        alive: set[str],
        hollow: list[str],
        deadline: float,
    ) -> Steps[list[tuple[str, str]]]:
        """Note what znodes prove, or that they are hollow; those to be looked into."""
        found = yield from self._read_data(connection, [self._layout.path(key) for _, key in probes], deadline)
        implied = []
        for (top, key), each in zip(probes, found, strict=True):
            if not isinstance(each, Data):
                assert isinstance(each, int)
                self._refuse(each, "list", key)
            elif each.data:
                alive.add(top)
            elif each.stat.children:
                implied.append((top, key))
            else:
                hollow.append(key)
        return [(top, key) for top, key in implied if top not in alive]

    # States for transactions.

    def states(
        self, connection: Connection, keys: Sequence[str], sessions: Sequence[str], deadline: float
    ) -> Steps[Known]:
        """Everything a transaction may need to know of these keys, their parents and these sessions, linearizably."""
        buckets = sorted({bucket(key) for key in (*keys, *(above for key in keys for above in ancestors(key)))})
        parents = sorted({above for key in keys for above in ancestors(key)} - set(keys))
        reads = [wire.read_data(self._layout.guards[number]) for number in buckets]  # first: older than all that follow
        for key in keys:
            reads += [wire.read_data(self._layout.path(key)), wire.read_data(self._layout.born(key))]
        reads += [wire.read_data(self._layout.marker(each)) for each in sessions]
        payload = wire.multi(reads)
        together = False
        while not together:
            call = connection.read(MULTI_READ, payload, deadline)
            others = [
                connection.call(EXISTS, wire.path_and_flag(self._layout.path(each)), deadline) for each in parents
            ]
            reply: Reply = yield call
            replies = []
            for other in others:
                replies.append((yield other))  # noqa: PERF401 - a comprehension cannot yield
            together = call.linearizable and all(other.epoch == call.epoch for other in others)
        found = wire.parse_multi_read(reply.body)
        gens = self._take_guards(buckets, found)
        nodes = {each: self._parent_state(each, answer, gens) for each, answer in zip(parents, replies, strict=True)}
        at = len(buckets)
        for key in keys:
            nodes[key] = self._state(key, found[at], found[at + 1], gens)
            at += 2
        return Known(
            nodes, frozenset(each for each, now in zip(sessions, found[at:], strict=True) if now == NO_NODE), fresh=True
        )

    def _take_guards(self, buckets: Sequence[int], found: Sequence[object]) -> dict[int, int]:
        gens = dict.fromkeys(buckets, UNKNOWN)
        for number, guard in zip(buckets, found, strict=False):
            if isinstance(guard, Data):
                gens[number] = guard.stat.version
                self.learn(number, guard.stat.version)
        return gens

    def _state(self, key: str, found: object, born: object, gens: dict[int, int]) -> Znode:
        gen = gens[bucket(key)]
        if not isinstance(found, Data):
            self._refuse(found, "read", key)
            return Znode(exists=False, gen=gen)
        stat = found.stat
        czxid = born.stat.czxid if isinstance(born, Data) else None
        entry = read_entry(key, found, gen, czxid)
        version = entry.version if entry is not None else None
        assert version is None or isinstance(version, Version)
        children = stat.children - (czxid is not None)
        return Znode(
            exists=True,
            version=version,
            data=stat.version,
            children=children,
            gen=gen,
            leaf=bool(stat.ephemeral_owner),
        )

    def _parent_state(self, key: str, reply: Reply, gens: dict[int, int]) -> Znode:
        """A parent's state by its stat alone: whether it is a key shows, but not whose."""
        gen = gens[bucket(key)]
        if reply.error != OK:
            self._refuse(reply.error, "read", key)
            return Znode(exists=False, gen=gen)
        stat = wire.parse_stat(reply.body)
        leaf = bool(stat.ephemeral_owner)
        version = Version(stat.mzxid, stat.version, UNKNOWN, stat.czxid, None, born=False)
        return Znode(
            exists=True,
            version=version if stat.data_length and not leaf else None,
            data=stat.version,
            children=stat.children,
            gen=gen,
            leaf=leaf,
        )

    # Errors.

    def _refuse(self, code: object, what: str, key: str) -> None:
        """Raise for every error but "there is no such znode"."""
        assert isinstance(code, int)
        if code not in {NO_NODE, OK}:
            raise code_error(code, what=f"{what} {key!r}", key=key)


def _visible(names: list[str], key: str) -> list[str]:
    return [name for name in names if not is_ours(name) and (key or name[:1] != "@")]


def _key_of(entry: Entry) -> str:
    return entry.key
