"""What is known of the keys of a transaction: versions remembered from earlier replies, or states read for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from latchwork.backends.futures import Steps
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import Connection
from latchwork.backends.zookeeper.errors import check_found
from latchwork.backends.zookeeper.layout import UNKNOWN, Version, Znode, ancestors, bucket, known_key, read_entry
from latchwork.backends.zookeeper.reads import Reader
from latchwork.backends.zookeeper.wire import EXISTS, MULTI_READ, NO_NODE, OK, Data, Found, Reply
from latchwork.backends.zookeeper.writing.plan import Known
from latchwork.types import At, Entry, Op, SessionAlive, SimpleCheck

_REMEMBERED = 20_000


class Memory:
    """The last version seen of a bounded number of keys; only a guess that saves a read. Safe to share.

    Attributes:
        kept: parents known to have a ``#keep``, which are never swept.
    """

    def __init__(self) -> None:
        self._versions: dict[str, Version] = {}
        self.kept: set[str] = set()

    def note(self, entry: Entry | None) -> None:
        """Remember a version that a check can be built on."""
        if entry is None:
            return
        version = entry.version
        assert isinstance(version, Version)
        if UNKNOWN in {version.gen, version.data}:
            return
        if len(self._versions) >= _REMEMBERED:
            self._versions = {}
        self._versions[entry.key] = version

    def note_kept(self, parent: str) -> None:
        """Nobody needs to look whether it is empty each time a sequential key of it is deleted."""
        if len(self.kept) >= _REMEMBERED:
            self.kept = set()
        self.kept.add(parent)

    def forget(self, keys: Iterable[str]) -> None:
        """These are gone."""
        for key in keys:
            self._versions.pop(key, None)

    def known(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Known:
        """What may be guessed about the keys of a transaction; an ``At`` says itself what it saw."""
        nodes: dict[str, Znode] = {}
        versions = self._versions
        for each in (*checks, *ops):
            if not isinstance(each, SessionAlive):
                version = versions.get(each.key)
                if version is not None:
                    nodes[each.key] = known_key(version)
        for check in checks:
            if isinstance(check, At) and isinstance(check.version, Version):
                nodes[check.key] = known_key(check.version)
        return Known(nodes)


def read_states(
    reader: Reader, connection: Connection, keys: Sequence[str], deadline: float, sessions: Sequence[str] = ()
) -> Steps[Known]:
    """Everything a transaction may need to know of these keys, their parents and these sessions, linearizably."""
    layout = reader.layout
    parents = sorted({above for key in keys for above in ancestors(key)} - set(keys))
    buckets = sorted({bucket(key) for key in (*keys, *parents)})
    reads = [wire.read_data(layout.guards[number]) for number in buckets]  # first: older than all that follow
    for key in keys:
        reads += [wire.read_data(layout.path(key)), wire.read_data(layout.born(key))]
    reads += [wire.read_data(layout.marker(each)) for each in sessions]
    payload = wire.multi(reads)
    together = False
    while not together:
        call = connection.read(MULTI_READ, payload, deadline)
        others = [connection.call(EXISTS, wire.path_and_flag(layout.path(each)), deadline) for each in parents]
        reply: Reply = yield call
        replies = []
        for other in others:
            replies.append((yield other))  # noqa: PERF401 - a comprehension cannot yield
        together = call.linearizable and all(other.epoch == call.epoch for other in others)
    found = wire.parse_multi_read(reply.body)
    gens = _take_guards(reader, buckets, found)
    nodes = {each: _parent_state(each, answer, gens) for each, answer in zip(parents, replies, strict=True)}
    at = len(buckets)
    for key in keys:
        nodes[key] = _state(key, found[at], found[at + 1], gens)
        at += 2
    gone = frozenset(each for each, now in zip(sessions, found[at:], strict=True) if now == NO_NODE)
    return Known(nodes, gone, fresh=True)


def _take_guards(reader: Reader, buckets: Sequence[int], found: Sequence[Found]) -> dict[int, int]:
    gens = dict.fromkeys(buckets, UNKNOWN)
    for number, guard in zip(buckets, found, strict=False):
        if isinstance(guard, Data):
            gens[number] = guard.stat.version
            reader.learn(number, guard.stat.version)
    return gens


def _state(key: str, found: Found, born: Found, gens: Mapping[int, int]) -> Znode:
    gen = gens[bucket(key)]
    if not isinstance(found, Data):
        check_found(found, "read", key)
        return Znode(exists=False, gen=gen)
    stat = found.stat
    czxid = born.stat.czxid if isinstance(born, Data) else None
    entry = read_entry(key, found, gen, czxid)
    version = entry.version if entry is not None else None
    assert version is None or isinstance(version, Version)
    children = stat.children - (czxid is not None)
    return Znode(True, version, stat.version, children, gen, leaf=bool(stat.ephemeral_owner))


def _parent_state(key: str, reply: Reply, gens: Mapping[int, int]) -> Znode:
    """A parent's state by its stat alone: whether it is a key shows, but not whose."""
    gen = gens[bucket(key)]
    if reply.error != OK:
        check_found(reply.error, "read", key)
        return Znode(exists=False, gen=gen)
    stat = wire.parse_stat(reply.body)
    leaf = bool(stat.ephemeral_owner)
    version = Version(stat.mzxid, stat.version, UNKNOWN, stat.czxid, None, born=False)
    return Znode(True, version if stat.data_length and not leaf else None, stat.version, stat.children, gen, leaf)
