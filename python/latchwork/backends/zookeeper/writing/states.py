"""The known states of the keys of a transaction: remembered versions, or states that were read for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from latchwork.backends.futures import FutureGenerator
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import ZooKeeperConnection
from latchwork.backends.zookeeper.errors import raise_for_read_error
from latchwork.backends.zookeeper.layout import (
    UNKNOWN,
    Version,
    Znode,
    decode_entry,
    get_bucket,
    get_parent,
    list_ancestors,
    znode_of_version,
)
from latchwork.backends.zookeeper.reads import ZooKeeperReader
from latchwork.backends.zookeeper.wire import EXISTS, MULTI_READ, NO_NODE, OK, Data, Found, Reply
from latchwork.backends.zookeeper.writing.compiler import KnownStates, MultiPlan
from latchwork.types import Absent, At, Create, Delete, Entry, Exists, Op, Put, SessionAlive, SimpleCheck

_REMEMBERED = 20_000
_MISSING = Znode(exists=False)
#: Of which nothing more is known: who needs more reads it again.
_COMING = Znode(True, None, UNKNOWN, 1, UNKNOWN)
V = TypeVar("V")


class ParentCache:
    """Guesses which parents exist, so that a key below a new parent is created with one request. Thread-safe.

    A parent that was recently seen exists. Any other parent is assumed to exist, unless the last unknown sibling did
    not exist, because a tree of keys is created one parent after the other. If a guess is wrong, the transaction fails
    and the states are read.

    A parent that a write in flight creates exists for later writes on the same connection, because the server executes
    them in order. If that write is refused, they fail and the states are read.
    """

    def __init__(self, max_size: int = _REMEMBERED) -> None:
        self._there: RecentValueCache[bool] = RecentValueCache(max_size)
        self._growing: RecentValueCache[bool] = RecentValueCache(
            max_size
        )  # whose children were missing when one was looked for
        self._coming: dict[str, tuple[ZooKeeperConnection | None, MultiPlan]] = {}

    def find_missing_parent(self, key: str, connection: ZooKeeperConnection | None = None) -> str | None:
        """Return the parent that must be created together with a new key, or None if the parent probably exists."""
        above = get_parent(key)
        if above in self._there or get_parent(above) not in self._growing or self.is_being_created(above, connection):
            return None
        return above

    def list_known_parents(self, key: str) -> Iterable[str]:
        """Yield the parents of a key that existed recently, which a write should read first."""
        nearest = get_parent(key)
        return (nearest,) if nearest in self._there else list_ancestors(key)

    def is_being_created(self, parent_key: str, connection: ZooKeeperConnection | None) -> bool:
        """Return whether an unanswered write on this connection creates the parent."""
        maker = self._coming.get(parent_key)
        return maker is not None and maker[0] is connection

    def record_sent(self, plan: MultiPlan, connection: ZooKeeperConnection | None) -> None:
        """Record that a write was sent. The server executes later requests on the same connection after it."""
        for above in plan.makes:
            self._coming[above] = (connection, plan)

    def record_ended(self, plan: MultiPlan) -> None:
        """Record that a write has ended or may have ended."""
        for above in plan.makes:
            maker = self._coming.get(above)
            if maker is not None and maker[1] is plan:
                self._coming.pop(above, None)

    def record_existence(self, parent_key: str, *, exists: bool) -> None:
        """Record whether a parent was found to exist."""
        if not exists:
            self._there.discard([parent_key])
            self._growing.put(get_parent(parent_key), True)
        elif parent_key not in self._there:
            self._growing.discard([get_parent(parent_key)])
            self._there.put(parent_key, True)

    def record_key_written(self, parent_key: str) -> None:
        """Record that a parent exists, because a key below it was written."""
        if parent_key not in self._there:
            self._there.put(parent_key, True)

    def record_emptied(self, parents: Iterable[str]) -> None:
        """Record that parents may have been removed, because they may be empty."""
        self._there.discard(parents)


class VersionCache:
    """A cache of the last known versions of a limited number of keys, which saves reads. Thread-safe.

    Attributes:
        kept: Parents of sequential keys, which are never removed.
        parents: Guesses which parents exist.
    """

    def __init__(self) -> None:
        self._versions: RecentValueCache[Version] = RecentValueCache(_REMEMBERED)
        self._new: RecentValueCache[bool] = RecentValueCache(
            _REMEMBERED
        )  # parents of which the key that was put unseen last was missing
        self.kept: set[str] = set()
        self.parents = ParentCache()

    def record(self, entry: Entry | None) -> None:
        """Store the version of an entry that was read or written."""
        if entry is None:
            return
        version = entry.version
        assert isinstance(version, Version)
        self._record(entry.key, version)

    def _record(self, key: str, version: Version) -> None:
        if UNKNOWN not in {version.gen, version.data}:
            self._versions.put(key, version)

    def record_sequence_parent(self, parent_key: str) -> None:
        """Record a parent of sequential keys. It is never removed, so no write needs to check whether it is empty."""
        if len(self.kept) >= _REMEMBERED:
            self.kept = set()
        self.kept.add(parent_key)

    def discard(self, keys: Iterable[str]) -> None:
        """Remove the cached versions of deleted keys."""
        self._versions.discard(keys)

    def get_known_states(
        self, checks: Sequence[SimpleCheck], ops: Sequence[Op], connection: ZooKeeperConnection
    ) -> KnownStates:
        """Return the cached or guessed states of the keys of a transaction."""
        nodes: dict[str, Znode] = {}
        versions = self._versions
        for each in (*checks, *ops):
            if not isinstance(each, SessionAlive):
                version = versions.get(each.key)
                if version is not None:
                    nodes[each.key] = znode_of_version(version)
        for check in checks:
            if isinstance(check, At) and isinstance(check.version, Version) and not self._is_newer(check):
                nodes[check.key] = znode_of_version(check.version)
        for op in ops:
            if isinstance(op, Put) and op.key not in nodes and get_parent(op.key) in self._new:
                nodes[op.key] = _MISSING  # it is created, and refused if it is there
            if not isinstance(op, Delete) and (op.key not in nodes or nodes[op.key] is _MISSING):
                above = self.parents.find_missing_parent(op.key, connection)
                if above is not None and above not in nodes:
                    nodes[above] = _MISSING
        return KnownStates(nodes)

    def _is_newer(self, check: At) -> bool:
        """Return whether the cache has a newer version of the checked key, with a later version of the guard of its
        bucket.
        """
        before, seen = self._versions.get(check.key), check.version
        if before is None or not isinstance(seen, Version) or before != seen:
            return False
        return (before.gen - seen.gen) % 2**32 < 2**31  # 32 bits, which come round

    def list_parents(self, checks: Sequence[SimpleCheck], ops: Sequence[Op], extra: Iterable[str]) -> set[str]:
        """Return the parents whose states a transaction needs.

        Args:
            checks: The checks of the transaction.
            ops: Its operations.
            extra: Further keys whose parents are needed.
        """
        found = {above for key in extra for above in list_ancestors(key)}
        for each in (*checks, *ops):
            if isinstance(each, Absent):
                found.update(list_ancestors(each.key))
            elif isinstance(each, (Create, Put)):
                found.update(self.parents.list_known_parents(each.key))
        return found - {""}

    def add_pending_parents(
        self, known: KnownStates, checks: Sequence[SimpleCheck], ops: Sequence[Op], connection: ZooKeeperConnection
    ) -> KnownStates:
        """Return a copy of the known states in which the parents that unanswered writes create exist.

        The states of the transaction's own keys are not changed, because they must be correct.
        """
        named = {each.key for each in (*checks, *ops) if not isinstance(each, SessionAlive)}
        coming = {
            key: _COMING
            for key, node in known.nodes.items()
            if not node.exists and key not in named and self.parents.is_being_created(key, connection)
        }
        return replace(known, nodes={**known.nodes, **coming}) if coming else known

    def _record_put(self, key: str, known: KnownStates) -> None:
        node = known.nodes.get(key)
        if node is not None and not node.exists:
            self._new.put(get_parent(key), True)
        else:
            self._new.discard([get_parent(key)])

    def record_read_states(self, known: KnownStates, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> None:
        """Store the states of keys and parents that were read for a transaction, for later transactions.

        The version of a key that is put stays known if the transaction is refused.
        """
        for op in ops:
            if isinstance(op, Put):
                self._record_put(op.key, known)
        for each in (*checks, *ops):
            if isinstance(each, (At, Exists, Put)):
                node = known.nodes[each.key]
                if node.version is not None:
                    self._record(each.key, node.version)
        for above in {get_parent(key) for key in known.nodes} - {""}:
            seen = known.nodes.get(above)
            if seen is not None:
                self.parents.record_existence(above, exists=seen.exists)


def read_states(
    reader: ZooKeeperReader,
    connection: ZooKeeperConnection,
    keys: Sequence[str],
    deadline: float,
    *,
    sessions: Sequence[str] = (),
    parent_keys: Iterable[str] = (),
) -> FutureGenerator[KnownStates]:
    """Read everything that a transaction may need, linearizably.

    Args:
        reader: Reads the keys.
        connection: The connection for the requests.
        keys: The keys of the transaction.
        deadline: Local clock time.
        sessions: IDs of the sessions whose existence is checked.
        parent_keys: The parents whose states are needed.
    """
    layout = reader.layout
    parents = sorted(set(parent_keys) - set(keys))
    buckets = sorted({get_bucket(key) for key in (*keys, *parents)})
    reads = [wire.encode_get_data(layout.guards[number]) for number in buckets]  # first: older than all that follow
    for key in keys:
        reads += [wire.encode_get_data(layout.path(key)), wire.encode_get_data(layout.born_path(key))]
    reads += [wire.encode_get_data(layout.session_path(each)) for each in sessions]
    payload = wire.encode_multi(reads)
    together = False
    while not together:
        call = connection.read(MULTI_READ, payload, deadline)
        others = [connection.call(EXISTS, wire.encode_path_request(layout.path(each)), deadline) for each in parents]
        reply: Reply = yield call
        replies = []
        for other in others:
            replies.append((yield other))  # noqa: PERF401 - a comprehension cannot yield
        together = call.linearizable and all(other.epoch == call.epoch for other in others)
    found = wire.parse_multi_read(reply.body)
    gens = _record_guard_versions(reader, buckets, found)
    nodes = {each: _build_parent_znode(each, answer, gens) for each, answer in zip(parents, replies, strict=True)}
    at = len(buckets)
    for key in keys:
        nodes[key] = _build_znode(key, found[at], found[at + 1], gens)
        at += 2
    gone = frozenset(each for each, now in zip(sessions, found[at:], strict=True) if now == NO_NODE)
    return KnownStates(nodes, gone, fresh=True)


def _record_guard_versions(reader: ZooKeeperReader, buckets: Sequence[int], found: Sequence[Found]) -> dict[int, int]:
    gens = dict.fromkeys(buckets, UNKNOWN)
    for number, guard in zip(buckets, found, strict=False):
        if isinstance(guard, Data):
            gens[number] = guard.stat.version
            reader.record_guard_version(number, guard.stat.version)
    return gens


def _build_znode(key: str, found: Found, born: Found, gens: Mapping[int, int]) -> Znode:
    gen = gens[get_bucket(key)]
    if not isinstance(found, Data):
        raise_for_read_error(found, "read", key)
        return Znode(exists=False, gen=gen)
    stat = found.stat
    czxid = born.stat.czxid if isinstance(born, Data) else None
    entry = decode_entry(key, found, gen, czxid)
    version = entry.version if entry is not None else None
    assert version is None or isinstance(version, Version)
    children = stat.children - (czxid is not None)
    return Znode(
        True, version, stat.version, children, gen, ephemeral=bool(stat.ephemeral_owner), is_marked=czxid is not None
    )


def _build_parent_znode(key: str, reply: Reply, gens: Mapping[int, int]) -> Znode:
    """Return the state of a parent, given its metadata.

    The metadata show whether the parent is itself a key, but not the session to which it is bound.
    """
    gen = gens[get_bucket(key)]
    if reply.error != OK:
        raise_for_read_error(reply.error, "read", key)
        return Znode(exists=False, gen=gen)
    stat = wire.parse_stat(reply.body)
    ephemeral = bool(stat.ephemeral_owner)
    version = Version(stat.mzxid, stat.version, UNKNOWN, stat.czxid, None, born=False)
    return Znode(
        True, version if stat.data_length and not ephemeral else None, stat.version, stat.children, gen, ephemeral
    )


class RecentValueCache(Generic[V]):
    """A cache of at most ``max_size`` recently used values, which always keeps at least half as many. Thread-safe.

    It has two generations. When the new one is full, it becomes the old one, and values of the previous old one are
    dropped unless they were read meanwhile. A race between threads may lose or restore a value, which is acceptable
    because values are only guesses.
    """

    def __init__(self, max_size: int) -> None:
        self._half = max(1, max_size // 2)
        self._young: dict[str, V] = {}
        self._old: dict[str, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> V | None:
        """Return the value of a key, which then stays in the cache longer. Return None if there is none."""
        value = self._young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: str, value: V) -> None:
        """Store the value of a key."""
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def discard(self, keys: Iterable[str]) -> None:
        """Remove the values of some keys."""
        for key in keys:
            self._young.pop(key, None)
            self._old.pop(key, None)
