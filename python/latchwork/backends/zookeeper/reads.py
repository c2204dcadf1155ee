"""Reads of keys, and lists of the keys below a prefix.

Every read follows a barrier on the same connection unless ``stale_ok``. Many keys are read with one request, whose
answer is about half a megabyte. A key with children needs a second read, of its ``#born`` node.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from latchwork._core import ZooKeeperCodec
from latchwork.backends.futures import FutureGenerator, completed, run_generator
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import ZooKeeperConnection
from latchwork.backends.zookeeper.errors import raise_for_read_error
from latchwork.backends.zookeeper.layout import (
    BUCKETS,
    UNKNOWN,
    Version,
    ZnodeLayout,
    build_child_keys,
    decode_entry,
    get_bucket,
)
from latchwork.backends.zookeeper.loop import Request
from latchwork.backends.zookeeper.wire import GET_CHILDREN, GET_DATA, MULTI_READ, OK, Data, Found, Reply
from latchwork.types import Entry

_ANSWER_BYTES = 524_288
FIRST_BATCH, LARGEST_BATCH = 64, 1000
_IN_FLIGHT = 4
_ATTEMPTS = 50
_NO_GENS = [UNKNOWN] * BUCKETS
#: Children of an implied parent that are looked at first for a key; then so many times as many, and so on.
_PROBES = 4


@dataclass(frozen=True, slots=True)
class ReadContext:
    """The parameters that the requests of one read share.

    Attributes:
        connection: The connection for the requests.
        deadline: Local clock time at which the call must end.
        gens: For each bucket of keys, a version of its guard znode from before the barrier. UNKNOWN if there is no
            barrier.
    """

    connection: ZooKeeperConnection
    deadline: float
    gens: list[int]


@dataclass(frozen=True, slots=True)
class GuardedRead:
    """A request that reads the guard znodes of the keys' buckets and then the keys.

    Attributes:
        context: The context of the read, without the versions of the guards until it is decoded.
        keys: The keys.
        buckets: The numbers of their buckets.
        request: The request.
    """

    context: ReadContext
    keys: Sequence[str]
    buckets: Sequence[int]
    request: Request


class ZooKeeperReader:
    """Reads keys through any connection. Thread-safe.

    If the connection is lost, a read raises ``NoReply`` and the caller repeats it.
    """

    def __init__(self, layout: ZnodeLayout) -> None:
        self.layout = layout
        self._codec = ZooKeeperCodec(layout.root, entry=Entry, version=Version)
        self._gens = _NO_GENS.copy()

    # Guards and barriers.

    def record_guard_version(self, number: int, gen: int) -> None:
        """Record the version of the guard of a bucket, as read from a server.

        Args:
            number: The number of the bucket.
            gen: The version.
        """
        before = self._gens[number]
        if before == UNKNOWN or (gen - before) % 2**32 < 2**31:  # 32 bits, which come round
            self._gens[number] = gen

    def guard_versions(self) -> list[int]:
        """Return the last known version of the guard znode of each bucket, for reads and writes that start now."""
        return self._gens.copy()

    def make_context(self, connection: ZooKeeperConnection, deadline: float) -> ReadContext:
        """Return the context for reads that follow a barrier. The caller must send the barrier after this call."""
        return ReadContext(connection, deadline, self.guard_versions())

    def begin_read(
        self, connection: ZooKeeperConnection, deadline: float, *, stale_ok: bool = False
    ) -> tuple[ReadContext, Future[Any]]:
        """Send a barrier, unless ``stale_ok``, and return the context for the reads that follow.

        The reads can be sent at once, because the answers arrive in the order of the requests. Their results are valid
        when the barrier was answered, so the caller waits for it last.

        Returns:
            The context, and the future of the barrier.
        """
        if stale_ok:
            return ReadContext(connection, deadline, _NO_GENS), completed(None)
        return self.make_context(connection, deadline), connection.send_barrier(deadline)

    # One key.

    def get(
        self, connection: ZooKeeperConnection, key: str, deadline: float, *, stale_ok: bool
    ) -> FutureGenerator[Entry | None]:
        """Read a key. The read is linearizable unless ``stale_ok``. Return its entry, or None."""
        path, gen = self.layout.path(key), UNKNOWN
        if stale_ok:
            reply: Reply = yield connection.call(GET_DATA, wire.encode_path_request(path), deadline)
            found: Found = wire.parse_data(reply.body)[0] if reply.error == OK else reply.error
        else:
            payload = wire.encode_multi([wire.encode_get_data(self.layout.guard_path(key)), wire.encode_get_data(path)])
            call = connection.read(MULTI_READ, payload, deadline)
            reply = yield call
            while not call.linearizable:
                call = connection.read(MULTI_READ, payload, deadline)
                reply = yield call
            guard, found = wire.parse_multi_read(reply.body)
            if isinstance(guard, Data):
                gen = guard.stat.version
                self.record_guard_version(get_bucket(key), gen)
        if not isinstance(found, Data):
            raise_for_read_error(found, "get", key)
            return None
        if not found.stat.children or not found.data:
            return decode_entry(key, found, gen)
        entries = yield from self.get_many(connection, [key], deadline)
        return entries[0]

    # Many keys.

    def get_many(
        self, connection: ZooKeeperConnection, keys: Sequence[str], deadline: float, *, stale_ok: bool = False
    ) -> FutureGenerator[list[Entry | None]]:
        """Read several keys. Return an entry or None for each, in order. Each read is linearizable unless
        ``stale_ok``.
        """
        context, barrier = self.begin_read(connection, deadline, stale_ok=stale_ok)
        entries = yield from self.read_keys(context, keys)
        yield barrier
        return entries

    def read_with_guards(
        self, connection: ZooKeeperConnection, keys: Sequence[str], deadline: float
    ) -> FutureGenerator[list[Entry | None]]:
        """Read the guard znodes of the keys' buckets and then the keys, without a barrier. Return an entry or None for
        each key, in order.

        The result may be stale. All reads are made with one request if it is not too large and no key has children,
        because a server executes the reads of a request in order.
        """
        read = self.send_guarded_read(connection, keys, deadline)
        if read is not None:
            entries, parents = self.decode_guarded_read(read, (yield read.request))
            return (yield from self._reread_parents(read.context, keys, entries, parents))
        context = ReadContext(connection, deadline, _NO_GENS.copy())
        buckets = sorted({get_bucket(key) for key in keys})
        guards = yield from self.read_data(context, [self.layout.guards[number] for number in buckets])
        self._record_guards(context, buckets, guards)
        return (yield from self.read_keys(context, keys))

    def send_guarded_read(
        self, connection: ZooKeeperConnection, keys: Collection[str], deadline: float
    ) -> GuardedRead | None:
        """Send one request that reads the guard znodes of the keys' buckets and then the keys, without a barrier.

        Returns:
            The request, or None if the keys need several requests. Then nothing was sent.
        """
        if len(keys) >= FIRST_BATCH:
            return None
        keys = list(keys)
        buckets = sorted({get_bucket(key) for key in keys})
        if len(keys) + len(buckets) > FIRST_BATCH:
            return None
        paths = [*(self.layout.guards[number] for number in buckets), *map(self.layout.path, keys)]
        payload = wire.encode_multi([wire.encode_get_data(path) for path in paths])
        if len(payload) > wire.MAX_PAYLOAD:
            return None
        context = ReadContext(connection, deadline, _NO_GENS.copy())
        return GuardedRead(context, keys, buckets, connection.call(MULTI_READ, payload, deadline))

    def decode_guarded_read(self, read: GuardedRead, reply: Reply) -> tuple[list[Entry | None], list[int]]:
        """Return an entry or None for each key of a read, in order, and the indexes of the keys that have children.

        The entries of keys with children are incomplete.
        """
        found = wire.parse_multi_read(reply.body)
        self._record_guards(read.context, read.buckets, found)
        return _decode_data(read.context, read.keys, found[len(read.buckets) :])

    def _record_guards(self, context: ReadContext, buckets: Sequence[int], guards: Sequence[Found]) -> None:
        for number, guard in zip(buckets, guards, strict=False):
            if isinstance(guard, Data):
                context.gens[number] = guard.stat.version
                self.record_guard_version(number, guard.stat.version)

    def read_keys(self, context: ReadContext, keys: Sequence[str]) -> FutureGenerator[list[Entry | None]]:
        """Read keys without a barrier. Return an entry or None for each, in order."""
        keys = list(keys)
        entries: list[Entry | None] = []
        parents: list[int] = []

        def take(body: bytes) -> int:
            found, with_children, refused = self._codec.entries(body, keys, len(entries), context.gens)
            if refused is not None:
                raise_for_read_error(refused[1], "read", keys[refused[0]])
            entries.extend(found)
            parents.extend(with_children)
            return len(found)

        yield from self._read_all(context, len(keys), functools.partial(self._codec.reads, keys), take)
        return (yield from self._reread_parents(context, keys, entries, parents))

    def decode_entries(
        self, context: ReadContext, keys: Sequence[str], found: Sequence[Found]
    ) -> FutureGenerator[list[Entry | None]]:
        """Return the entries for the data of znodes that were read. Keys with children are read again.

        Args:
            context: The context of the reads.
            keys: The keys.
            found: The results of the reads of their znodes.
        """
        entries, parents = _decode_data(context, keys, found)
        return (yield from self._reread_parents(context, keys, entries, parents))

    def _reread_parents(
        self, context: ReadContext, keys: Sequence[str], entries: list[Entry | None], parents: list[int]
    ) -> FutureGenerator[list[Entry | None]]:
        """Read the keys that have children again, until none of these keys has changed between two reads. Return the
        entries.

        Args:
            context: The context of the reads.
            keys: All keys.
            entries: Their entries, which are replaced.
            parents: The indexes of the keys that have children.
        """
        for _ in range(_ATTEMPTS):
            if not parents:
                break
            parents = yield from self._reread_parents_once(context, keys, entries, parents)
        return entries

    def _reread_parents_once(
        self, context: ReadContext, keys: Sequence[str], entries: list[Entry | None], parents: list[int]
    ) -> FutureGenerator[list[int]]:
        """Read the missing data of keys that have children. Return the indexes of the keys that changed meanwhile."""
        paths = [self.layout.born_path(keys[index]) for index in parents]
        paths += [self.layout.path(keys[index]) for index in parents]
        found = yield from self.read_data(context, paths)
        again = []
        for index, born, now in zip(parents, found, found[len(parents) :], strict=False):
            key, before = keys[index], entries[index]
            if not isinstance(now, Data):
                entries[index] = None
                continue
            czxid = born.stat.czxid if isinstance(born, Data) else None
            entry = entries[index] = decode_entry(key, now, context.gens[get_bucket(key)], czxid)
            if entry is not None and before is not None and entry.token != before.token:
                again.append(index)
        return again

    # Many reads of any kind.

    def read_data(self, context: ReadContext, paths: Sequence[str]) -> FutureGenerator[list[Found]]:
        """Read the data of znodes. Return the results in order."""
        return (yield from self.read_each(context, [wire.encode_get_data(path) for path in paths]))

    def read_each(self, context: ReadContext, reads: Sequence[bytes]) -> FutureGenerator[list[Found]]:
        """Send many encoded reads with few requests, and return their results in order."""
        results: list[Found] = []

        def take(body: bytes) -> int:
            found = wire.parse_multi_read(body)
            results.extend(found)
            return len(found)

        yield from self._read_all(
            context, len(reads), lambda start, end: wire.encode_multi(list(reads[start:end])), take
        )
        return results

    def _read_all(
        self,
        context: ReadContext,
        count: int,
        encode: Callable[[int, int], bytes],
        take: Callable[[bytes], int],
    ) -> FutureGenerator[None]:
        """Make many reads with few requests, several of which are in flight at the same time.

        Args:
            context: The context of the reads.
            count: The number of reads.
            encode: Returns the request for a range of reads.
            take: Called with the replies in order. Returns the number of reads that a reply has answered.
        """
        size, at, answered, received = FIRST_BATCH, 0, 0, 0
        flying: list[Request] = []
        while at < count or flying:
            while at < count and len(flying) < (_IN_FLIGHT if answered else 1):
                end = min(at + size, count)
                payload = encode(at, end)
                while len(payload) > wire.MAX_PAYLOAD:  # a single read never is
                    end -= (end - at) // 2
                    payload = encode(at, end)
                flying.append(context.connection.call(MULTI_READ, payload, context.deadline))
                at = end
            reply: Reply = yield flying.pop(0)
            received += len(reply.body)
            answered += take(reply.body)
            size = max(1, min(LARGEST_BATCH, _ANSWER_BYTES * answered // received))

    # Names.

    def list_names(self, connection: ZooKeeperConnection, key: str, deadline: float) -> FutureGenerator[list[str]]:
        """Return the names directly below a key, without those of internal znodes, unsorted. Sends no barrier."""
        return (yield from self.receive_names(key, self.send_names_request(connection, key, deadline)))

    def send_names_request(self, connection: ZooKeeperConnection, key: str, deadline: float) -> Request:
        """Send the request for the names directly below a key."""
        return connection.call(GET_CHILDREN, wire.encode_path_request(self.layout.path(key)), deadline)

    def receive_names(self, key: str, request: Request) -> FutureGenerator[list[str]]:
        """Wait for the reply to ``send_names_request``, and return the names.

        Args:
            key: The key.
            request: The request.
        """
        reply: Reply = yield request
        if reply.error != OK:
            raise_for_read_error(reply.error, "list", key)
            return []
        return self.layout.filter_valid_names(wire.parse_names(reply.body)[0], key)


def _decode_data(
    context: ReadContext, keys: Sequence[str], found: Sequence[Found]
) -> tuple[list[Entry | None], list[int]]:
    """Return the entries for the data of znodes that were read, and the indexes of the keys that have children.

    Args:
        context: The context of the reads.
        keys: The keys.
        found: The results of the reads of their znodes.
    """
    entries: list[Entry | None] = []
    parents = []
    for index, (key, each) in enumerate(zip(keys, found, strict=True)):
        if isinstance(each, Data):
            if each.stat.children and each.data:
                parents.append(index)
            entries.append(decode_entry(key, each, context.gens[get_bucket(key)]))
        else:
            raise_for_read_error(each, "read", key)
            entries.append(None)
    return entries, parents


class Lister:
    """Lists keys through any connection. Thread-safe.

    If the connection is lost, a read raises ``NoReply`` and the caller repeats it.
    """

    def __init__(self, reader: ZooKeeperReader) -> None:
        self.reader = reader
        self._layout = reader.layout

    # Entries.

    def list_direct_entries(
        self,
        connection: ZooKeeperConnection,
        prefix: str,
        limit: int | None,
        start_after: str | None,
        deadline: float,
        *,
        stale_ok: bool = False,
    ) -> FutureGenerator[list[Entry]]:
        """Read the entries directly below a prefix, sorted by key. Checks can use their versions even if they are
        stale.
        """
        context, barrier = self.reader.begin_read(connection, deadline, stale_ok=stale_ok)
        names = yield from self.reader.list_names(connection, prefix, deadline)
        keys = sorted(key for key in build_child_keys(prefix, names) if start_after is None or key > start_after)
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
        yield barrier
        return entries[:limit]

    def list_subtree(
        self, connection: ZooKeeperConnection, prefix: str, limit: int | None, start_after: str | None, deadline: float
    ) -> FutureGenerator[list[Entry]]:
        """Read the entries of a subtree, sorted by key, up to a limit."""
        context, barrier = self.reader.begin_read(connection, deadline)
        if limit is None and start_after is None:
            entries = yield from self.subtree(context, prefix)
        else:
            entries = yield from self._subtree_part(context, prefix, limit, start_after)
        yield barrier
        return entries

    def _subtree_part(
        self, context: ReadContext, prefix: str, limit: int | None, start_after: str | None
    ) -> FutureGenerator[list[Entry]]:
        part = _SubtreePart(prefix, start_after)
        entries: list[Entry] = []
        while part.todo and (limit is None or len(entries) < limit):
            wanted = LARGEST_BATCH if limit is None else limit - len(entries)
            keys, parents = part.next(max(FIRST_BATCH, min(wanted, LARGEST_BATCH)))
            for _, found_below in (yield from self._list_below_each(context, parents)):
                part.expect(found_below)
            found = yield from self.reader.read_data(context, [self._layout.path(key) for key in keys])
            part.add(keys, found, (yield from self.reader.decode_entries(context, keys, found)))
            entries += part.take()
        return entries[:limit]

    def subtree(self, context: ReadContext, prefix: str) -> FutureGenerator[list[Entry]]:
        """Read all entries below a prefix, sorted by key. Sends no barrier."""
        names = yield from self.reader.list_names(context.connection, prefix, context.deadline)
        return (yield from self._subtree(context, build_child_keys(prefix, names)))

    def _subtree(self, context: ReadContext, level: list[str]) -> FutureGenerator[list[Entry]]:
        entries: list[Entry] = []
        while level:
            reading = run_generator(self._list_below_each(context, level))  # at once: one round trip for each level
            found = yield from self.reader.read_keys(context, level)
            entries.extend(entry for entry in found if entry is not None)
            parents: list[tuple[str, list[str]]] = yield reading
            level = [key for _, found_below in parents for key in found_below]
        entries.sort(key=attrgetter("key"))
        return entries

    def send_subtree_requests(self, context: ReadContext, prefix: str) -> tuple[Request, Request]:
        """Send the first requests of ``read_subtree_with_root``: one for the names below the prefix, one for its
        key.
        """
        payload = wire.encode_multi([wire.encode_get_data(self._layout.path(prefix))])
        own = context.connection.call(MULTI_READ, payload, context.deadline)
        return self.reader.send_names_request(context.connection, prefix, context.deadline), own

    def read_subtree_with_root(
        self, context: ReadContext, prefix: str, requests: tuple[Request, Request]
    ) -> FutureGenerator[list[Entry]]:
        """Read the entries below a prefix, then the entry at the prefix if there is one. Sends no barrier.

        Args:
            context: The context of the reads.
            prefix: The prefix.
            requests: The requests that ``send_subtree_requests`` returned.
        """
        names, own = requests
        level = build_child_keys(prefix, (yield from self.reader.receive_names(prefix, names)))
        entries = yield from self._subtree(context, level)
        reply: Reply = yield own
        if prefix:
            found = wire.parse_multi_read(reply.body)
            at_prefix = yield from self.reader.decode_entries(context, [prefix], found)
            entries += [entry for entry in at_prefix if entry is not None]
        return entries

    def _list_below_each(self, context: ReadContext, keys: list[str]) -> FutureGenerator[list[tuple[str, list[str]]]]:
        """Return each of these keys whose znode exists, together with the keys directly below it."""
        found = yield from self.reader.read_each(
            context, [wire.encode_get_children(self._layout.path(key)) for key in keys]
        )
        there = []
        for key, names in zip(keys, found, strict=True):
            if isinstance(names, list):
                there.append((key, build_child_keys(key, self._layout.filter_valid_names(names, key))))
            else:
                raise_for_read_error(names, "list", key)
        return there

    # Names.

    def children(
        self, connection: ZooKeeperConnection, prefix: str, deadline: float, *, stale_ok: bool = False
    ) -> FutureGenerator[tuple[list[str], list[str]]]:
        """Read the names directly below a prefix, including names that only have keys below them.

        Returns:
            The names, and the keys of parents that have no keys below them. With ``stale_ok`` the names may be stale
                and include those of empty parents.
        """
        context, barrier = self.reader.begin_read(connection, deadline, stale_ok=stale_ok)
        names = yield from self.reader.list_names(connection, prefix, deadline)
        if stale_ok:
            return sorted(names), []
        childless: list[str] = []
        alive = yield from self._find_existing(context, build_child_keys(prefix, names), childless)
        yield barrier
        return sorted(key.rpartition("/")[2] for key in alive), childless

    def _find_existing(self, context: ReadContext, keys: list[str], childless: list[str]) -> FutureGenerator[set[str]]:
        """Return the keys that exist or have a key below them. One level of all subtrees is read with one request.

        Args:
            context: The context of the reads.
            keys: The candidates.
            childless: Receives the parents that have no children.
        """
        alive: set[str] = set()
        todo = [(key, [key]) for key in keys]  # each, and the znodes any of which may prove it
        width = _PROBES
        while todo:
            probes = {key: top for top, candidates in todo for key in candidates[:width]}
            implied = yield from self._read_parents(context, probes, alive, childless)
            todo = [(top, rest[width:]) for top, rest in todo if top not in alive and len(rest) > width]
            found = yield from self._list_below_each(context, [key for key in implied if probes[key] not in alive])
            todo += [(probes[key], found_below) for key, found_below in found]
            width *= _PROBES
        return alive

    def _read_parents(
        self, context: ReadContext, probes: dict[str, str], alive: set[str], childless: list[str]
    ) -> FutureGenerator[list[str]]:
        """Read some keys, and return those that are parents without a value but with children.

        Args:
            context: The context of the reads.
            probes: The keys to read, each with the key on whose behalf it is read.
            alive: Receives the keys that were found to have a key below them.
            childless: Receives the parents that have no children.
        """
        found = yield from self.reader.read_data(context, [self._layout.path(key) for key in probes])
        implied = []
        for key, each in zip(probes, found, strict=True):
            if not isinstance(each, Data):
                raise_for_read_error(each, "list", key)
            elif each.data:
                alive.add(probes[key])
            elif each.stat.children:
                implied.append(key)
            else:
                childless.append(key)
        return implied


class _SubtreePart:
    """The progress of reading the entries of a subtree in order, up to a limit.

    A key with "/" appended stands for everything below the key. It sorts at the place of the keys below it ("a/" after
    "a" and "a-b"). Nothing is below a key that was read without children.
    """

    def __init__(self, prefix: str, start_after: str | None) -> None:
        self.todo = [prefix + "/"]
        self._start_after = start_after
        self._read: dict[str, Entry | None] = {}

    def next(self, count: int) -> tuple[list[str], list[str]]:
        """Return the next keys to read, and the next keys below which to list the names."""
        some = [heapq.heappop(self.todo) for _ in range(min(count, len(self.todo)))]
        return [each for each in some if each[-1] != "/"], [each[:-1] for each in some if each[-1] == "/"]

    def expect(self, keys: list[str]) -> None:
        """Add keys that exist and must be read.

        A key before the start of the listing is not read, but keys below it may still be in the listing, because they
        sort later.
        """
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
        """Return, in order, the entries before the first key that was not read yet."""
        end = self.todo[0] if self.todo else None
        ready = sorted(key for key in self._read if end is None or key < end)
        found = [self._read.pop(key) for key in ready]
        return [entry for entry in found if entry is not None]
