"""Compiles checks and operations into one multi, given the known states of their keys, and decodes its reply.

These are pure functions without I/O or a clock. Known states may be outdated (remembered, or from the version of an
entry). Then a contradiction only raises ``MissingStates``, so that the caller reads them again. A failed check is a
``Conflict`` only if the states were just read, or if the multi failed at the version of a key with an ``At`` check.
docs/design/zookeeper.md lists the guards of the multi and the race that each prevents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.layout import (
    ANY,
    UNKNOWN,
    Version,
    Znode,
    ZnodeLayout,
    encode_data,
    get_bucket,
    get_parent,
    list_ancestors,
)
from latchwork.errors import Conflict, InvalidKey, Unavailable
from latchwork.types import Absent, At, Create, Delete, Entry, Exists, Op, Put, SessionAlive, SimpleCheck


@dataclass(slots=True)
class _Node:
    """The state of a znode after the operations that were compiled so far."""

    exists: bool
    is_key: bool
    children: int
    seen: Znode | None  # None: nothing is known, it is taken to be there


def compile_plan(
    layout: ZnodeLayout,
    checks: Sequence[SimpleCheck],
    ops: Sequence[Op],
    known: KnownStates,
    *,
    session_id: str | None = None,
) -> MultiPlan:
    """Compile checks and operations into one ZooKeeper transaction, given the known states of their keys.

    Args:
        layout: The paths of the root.
        checks: The checks.
        ops: The operations.
        known: The known states.
        session_id: ID of the session through whose connection the transaction is sent. None for the main connection.
    Raises:
        MissingStates: The known states do not suffice, so that the caller must read them.
        Conflict: A check failed, or a key to create exists. Only with fresh states.
        InvalidKey: A key is below a session-bound key. Only with fresh states.
        HasDescendants: A key to bind to a session has keys or empty parents below it. Only with fresh states.
    """
    compiler = _Compiler(layout, known, {op.key for op in ops}, session_id)
    for each in checks:
        compiler.compile_check(each)
    for op in sorted(ops, key=_deletion_sort_key):
        compiler.compile_op(op)
    return compiler.build_plan()


def _deletion_sort_key(op: Op) -> bool:
    """Return the sort key of an operation. Deletions sort first, because they free space for other operations."""
    return not isinstance(op, Delete)


class _Compiler:
    """Compiles one transaction. See ``compile_plan``."""

    def __init__(self, layout: ZnodeLayout, known: KnownStates, touched: set[str], session_id: str | None) -> None:
        self.layout = layout
        self.known = known
        self.touched = touched
        self.session_id = session_id
        self.nodes: dict[str, _Node] = {}
        self.pinned: dict[str, int] = {}  # keys with an At check: their dataVersion
        self.guards: dict[int, int] = {}  # version each bucket's guard must have
        self.bumps: dict[int, None] = {}
        self.markers: dict[str, None] = {}
        self.checks: list[MultiPart] = []
        self.probes: dict[str, None] = {}
        self.absent: set[str] = set()  # keys with an Absent check
        self.body: list[MultiPart] = []
        self.plan = MultiPlan()

    # Checks.

    def compile_check(self, check: SimpleCheck) -> None:
        if isinstance(check, SessionAlive):
            if check.session_id in self.known.gone:
                raise Conflict(f"session {check.session_id} has ended; stop the work it protected", [check])
            self.markers[check.session_id] = None
        elif isinstance(check, At):
            self._check_at(check)
        elif isinstance(check, Exists):
            self._check_exists(check)
        else:
            self._check_absent(check)

    def _check_at(self, check: At) -> None:
        version = check.version
        if not isinstance(version, Version):
            raise ValueError(  # noqa: TRY004 - a wrong value, not a wrong type, for the caller
                f"version {version!r} of {check.key!r} did not come from this store; "
                "read the key again with the store you write with"
            )
        seen = self._require_known_state(check.key)
        if seen.version != version:
            self._refuse(_describe_written(check.key), check)
        self._add_guard_checks(check.key, seen)
        self.pinned[check.key] = self._version_to_check(check.key, seen)
        self.plan.pinned[check.key] = check
        if check.key not in self.touched:
            self._add_check(check.key, seen.data)

    def _check_exists(self, check: Exists) -> None:
        seen = self._require_known_state(check.key)
        if seen.version is None:
            self._refuse(f"{check.key!r} does not exist", check)
        if check.key in self.touched or seen.data:
            self._add_guard_checks(check.key, seen)
        else:
            self._add_owner_check(seen)
        if check.key not in self.touched:
            self._add_check(check.key, -1 if seen.data else 0)  # a znode of version 0 is a key

    def _check_absent(self, check: Absent) -> None:
        seen = self.known.nodes.get(check.key)
        if seen is not None and seen.version is not None:
            self._refuse(f"{check.key!r} exists", check)
        self.absent.add(check.key)
        if check.key not in self.touched:
            self._require_absent(check.key, seen)

    def _require_absent(self, key: str, seen: Znode | None) -> None:
        """Add what is needed for the transaction to fail if the key exists."""
        if seen is not None and seen.exists:  # an implied parent: becoming a key changes its version
            self._add_guard_checks(key, seen)
            self._add_check(key, self._version_to_check(key, seen))
            return
        if self.known.fresh and self._has_unknown_parent(key):  # all at once: each look is another attempt
            raise MissingStates(
                [key, *(each for each in self.touched if self._is_absent(each) and self._has_unknown_parent(each))]
            )
        top = key
        for above in list_ancestors(key):
            node = self.known.nodes.get(above)
            if node is not None and node.exists:
                if node.ephemeral:
                    self._require_leaf(above, node)
                    return
                break
            if node is not None:
                top = above
        self.probes[top] = None

    def _is_absent(self, key: str) -> bool:
        seen = self.known.nodes.get(key)
        return seen is not None and not seen.exists

    def _has_unknown_parent(self, key: str) -> bool:
        """Return whether the nearest existing parent of a key is unknown."""
        for above in list_ancestors(key):
            node = self.known.nodes.get(above)
            if node is None or node.exists:
                return node is None
        return False

    def _require_leaf(self, key: str, node: Znode) -> None:
        """Add a check that a session-bound key exists. While it exists, no key can be below it."""
        if node.version is None:
            raise MissingStates([key])
        self._add_guard_checks(key, node)
        self._add_check(key, self._version_to_check(key, node))

    def _add_check(self, key: str, version: int) -> None:
        self.checks.append(MultiPart("check", key, wire.encode_check(self.layout.path(key), version)))

    def _require_known_state(self, key: str) -> Znode:
        """Return the known state of a key on which the transaction depends."""
        seen = self.known.nodes.get(key)
        if seen is None:
            raise MissingStates([key])
        return seen

    def _refuse(self, message: str, failed: object) -> None:
        if not self.known.fresh:
            raise MissingStates
        raise Conflict(message, [failed])

    def _add_guard_checks(self, key: str, seen: Znode) -> None:
        """Add checks that the znode is still the same: no key in its bucket was deleted meanwhile, and its session is
        active.
        """
        number = get_bucket(key)
        if UNKNOWN in {seen.gen, seen.data} or seen.gen == ANY or self.guards.setdefault(number, seen.gen) != seen.gen:
            raise MissingStates([key])
        self._add_owner_check(seen)

    def _add_owner_check(self, seen: Znode) -> None:
        """Add a check that the session to which a key is bound is active."""
        owner = seen.version.owner if seen.version is not None else None
        if owner is not None and owner != self.session_id:
            self.markers[owner] = None

    def _version_to_check(self, key: str, seen: Znode) -> int:
        """Return the version of a znode's data that the transaction must check."""
        if seen.data == ANY:
            if not self.known.fresh:
                raise MissingStates([key])
            raise Unavailable(
                f"{key!r} has been written 4,294,967,295 times: at this version of it, and at no other, ZooKeeper "
                "checks nothing; put it once without a check, then try again"
            )
        return seen.data

    def _mark_bucket_changed(self, key: str) -> None:
        self.bumps[get_bucket(key)] = None

    # Operations.

    def compile_op(self, op: Op) -> None:
        if isinstance(op, Delete):
            self._delete(op)
        elif isinstance(op, Create):
            self._create(op)
        else:
            self._put(op)

    def _node(self, key: str) -> _Node:
        node = self.nodes.get(key)
        if node is None:
            seen = self.known.nodes.get(key)
            if seen is None:
                if self.known.fresh:
                    raise MissingStates([key])
                node = _Node(exists=True, is_key=False, children=1, seen=None)
            else:
                node = _Node(seen.exists, seen.version is not None, seen.children, seen)
            self.nodes[key] = node
        return node

    def _create(self, op: Create) -> None:
        if op.key not in self.known.nodes and not self.known.fresh:
            self._create_znode(op.key, op.value, self.session_id if op.session is not None else None)
            return
        node = self._node(op.key)
        if node.is_key:
            self._refuse(f"{op.key!r} exists already; put overwrites", op)
        self._create_key(op.key, op.value, node, bound=op.session is not None)

    def _put(self, op: Put) -> None:
        if op.key not in self.known.nodes and not self.known.fresh:
            if len(self.touched) > 1:
                raise MissingStates([op.key])
            self._create_znode(op.key, op.value, self.session_id if op.session is not None else None)
            return
        node = self._node(op.key)
        seen = node.seen
        if not node.is_key or seen is None or seen.version is None:
            self._create_key(op.key, op.value, node, bound=op.session is not None)
        elif op.session is None or seen.version.owner == self.session_id:
            self._overwrite(op, seen, seen.version)
        else:
            self._add_guard_checks(op.key, seen)  # it is still the key whose `created` is kept
            self._remove(op.key, node, seen, seen.version)
            if node.exists:
                raise self._has_descendants(op.key)
            self._create_znode(op.key, op.value, self.session_id, created=seen.version.created)

    def _overwrite(self, op: Put, seen: Znode, version: Version) -> None:
        self._add_guard_checks(op.key, seen)
        path, pinned = self.layout.path(op.key), self.pinned.get(op.key, -1)
        if seen.data == 0:  # no key has version 1
            self._add_part("op", op.key, wire.encode_set_data(path, b"", pinned))
            pinned = -1
        data = encode_data(op.value, version.owner, version.created)
        at = self._add_part("op", op.key, wire.encode_set_data(path, data, pinned))
        self.plan.entries.append(PlannedEntry(op.key, op.value, version.owner, at, version.created, version.born))

    def _create_key(self, key: str, value: bytes, node: _Node, *, bound: bool) -> None:
        if not node.exists:
            self._create_znode(key, value, self.session_id if bound else None, node)
            return
        path = self.layout.path(key)
        if bound and node.children > 0:
            raise self._has_descendants(key)
        if node.seen is None or not node.seen.exists:  # created in this multi as a parent
            at = self._add_part("op", key, wire.encode_set_data(path, encode_data(value, None)))
            node.is_key = True
            self.plan.entries.append(PlannedEntry(key, value, None, at))
            return
        self._add_guard_checks(key, node.seen)
        pinned = self._version_to_check(key, node.seen)
        if node.seen.is_marked:
            self._add_part("op", key, wire.encode_delete(self.layout.born_path(key)))
        if bound:
            self._add_part("op", key, wire.encode_delete(path, pinned))
            self._mark_bucket_changed(key)
            self._adjust_child_count(key, -1)
            self._create_znode(key, value, self.session_id, node)
            return
        at = self._add_part("op", key, wire.encode_set_data(path, encode_data(value, None), pinned))
        self._add_part("op", key, self.layout.encode_create(self.layout.born_path(key)))
        node.is_key = True
        self.plan.entries.append(PlannedEntry(key, value, None, at, None, born=True))

    def _has_descendants(self, key: str) -> HasDescendants:
        if not self.known.fresh:
            raise MissingStates
        return HasDescendants(key)

    def _create_znode(
        self, key: str, value: bytes, owner: str | None, node: _Node | None = None, created: int | None = None
    ) -> None:
        """Create the znode of a key, and its missing parents.

        Args:
            key: The key.
            value: Its value.
            owner: ID of the session to which it is bound, or None.
            node: The state of its znode so far.
            created: The number of the transaction that created the key, if it existed before.
        """
        self._require_parents(key)
        flags = wire.PERSISTENT if owner is None else wire.EPHEMERAL
        self._add_part(
            "op", key, self.layout.encode_create(self.layout.path(key), encode_data(value, owner, created), flags)
        )
        self._adjust_child_count(key, +1)
        if node is not None:
            node.exists = node.is_key = True
        self.plan.entries.append(PlannedEntry(key, value, owner, created=created))

    def _require_parents(self, key: str) -> None:
        missing = []
        above = key
        while above := get_parent(above):
            node = self._node(above)
            if node.exists:
                if node.seen is not None and node.seen.ephemeral:
                    raise InvalidKey(
                        f"{key!r} lies below {above!r}, which is bound to a session; session-bound "
                        "keys cannot have keys below them"
                    )
                break
            missing.append(above)
        for above in reversed(missing):
            for part in self.layout.encode_create_parent(above, is_key=above in self.touched):
                self._add_part("parent", key, part)
            self.plan.makes.append(above)
            node = self.nodes[above]
            node.exists, node.children = True, 0
            self._adjust_child_count(above, +1)

    def _delete(self, op: Delete) -> None:
        if op.key not in self.known.nodes and not self.known.fresh and op.key not in self.absent:
            self._delete_unseen(op.key)
            return
        seen = self._require_known_state(op.key)
        node = self._node(op.key)
        if node.is_key and seen.version is not None:
            self._remove(op.key, node, seen, seen.version)
            self.plan.deleted.append(op.key)
        else:
            self._require_absent(op.key, seen)

    def _delete_unseen(self, key: str) -> None:
        """Delete a key of unknown state, assuming that it was written only once, like most keys.

        If that is wrong, the transaction fails and the state is read.
        """
        self._mark_bucket_changed(key)
        self._add_part("op", key, wire.encode_delete(self.layout.path(key), 0))
        self.plan.deleted.append(key)
        self.plan.emptied.update(list_ancestors(key)[:1])

    def _remove(self, key: str, node: _Node, seen: Znode, version: Version) -> None:
        """Delete a key. If other keys are below it, its znode stays without a value."""
        path = self.layout.path(key)
        pinned = self.pinned.get(key, -1)
        if seen.data:
            self._add_guard_checks(key, seen)
        else:
            pinned = 0  # a znode of version 0 is a key, whichever: no guard is needed
        self._mark_bucket_changed(key)
        if node.children > 0:
            self._add_part("op", key, wire.encode_set_data(path, b"", pinned))
            node.is_key = False
        else:
            if version.born:
                self._add_part("op", key, wire.encode_delete(self.layout.born_path(key)))
            self._add_part("op", key, wire.encode_delete(path, pinned))
            node.exists = node.is_key = False
            self._adjust_child_count(key, -1)
            self.plan.emptied.update(list_ancestors(key)[:1])

    def _adjust_child_count(self, key: str, change: int) -> None:
        above = get_parent(key)
        if above and (above in self.nodes or above in self.known.nodes):
            self._node(above).children += change

    def _add_part(self, role: str, key: str, data: bytes) -> int:
        self.plan.writes = True
        self.body.append(MultiPart(role, key, data))
        return len(self.body) - 1

    # Together.

    def build_plan(self) -> MultiPlan:
        plan = self.plan
        for number, gen in self.guards.items():
            if number not in self.bumps:
                plan.parts.append(MultiPart("guard", "", wire.encode_check(self.layout.guards[number], gen)))
        for number in self.bumps:
            plan.bumped[number] = len(plan.parts)
            bump = wire.encode_set_data(self.layout.guards[number], b"", self.guards.get(number, -1))
            plan.parts.append(MultiPart("guard", "", bump))
        plan.parts.extend(
            MultiPart("marker", each, wire.encode_check(self.layout.session_path(each))) for each in self.markers
        )
        plan.parts.extend(self.checks)
        for key in self.probes:
            path = self.layout.path(key)
            plan.parts.append(MultiPart("probe", key, self.layout.encode_create(path, b"=")))
            plan.parts.append(MultiPart("probe", key, wire.encode_delete(path)))
        for planned in plan.entries:
            if planned.at is not None:
                planned.at += len(plan.parts)
        plan.parts.extend(self.body)
        return plan


class MissingStates(Exception):
    """The known states do not suffice: the states of all keys of the transaction must be read, and of these additional
    keys.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        super().__init__("states are needed")
        self.keys = frozenset(keys)


class HasDescendants(InvalidKey):
    """A key that is to be bound to a session has znodes below it, which may be keys."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key!r} has keys below it and cannot be bound to a session; session-bound "
            "keys cannot have keys below them"
        )
        self.key = key


@dataclass(frozen=True, slots=True)
class KnownStates:
    """The states that were known before compiling.

    Attributes:
        nodes: The states by key. Keys without one were not read.
        gone: The checked sessions whose marker does not exist.
        fresh: Whether all states were read linearizably for this compilation.
    """

    nodes: Mapping[str, Znode]
    gone: frozenset[str] = frozenset()
    fresh: bool = False


class MultiPart(NamedTuple):
    """An operation of a ZooKeeper transaction and its role: guard, marker, check, probe, op or parent."""

    role: str
    key: str
    data: bytes


@dataclass(slots=True)
class PlannedEntry:
    """How to build the entry of a Put or Create from the reply.

    Attributes:
        key, value, owner: Those of the entry.
        at: The index, among the parts with the role op, of the setData whose reply has the dataVersion. None if the
            znode is created, so that it is 0.
        created: The number of the transaction that created the key. None if this one does.
        born: Whether the key has a ``#born`` node.
    """

    key: str
    value: bytes
    owner: str | None
    at: int | None = None
    created: int | None = None
    born: bool = False


@dataclass(slots=True)
class MultiPlan:
    """A ZooKeeper transaction, and how to decode its results.

    Attributes:
        parts: The operations in order, without the one that sets the write counter.
        entries: The entries that Put and Create write, in the order of the operations.
        deleted: The keys that Delete removes, in the order of the operations.
        writes: Whether it changes keys. Otherwise it only checks.
        bumped: For each bucket, the index of the setData on its guard.
        emptied: Parents that may have no children afterwards.
        makes: Parents that it creates.
        pinned: The ``At`` checks by key.
    """

    parts: list[MultiPart] = field(default_factory=list)
    entries: list[PlannedEntry] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    writes: bool = False
    bumped: dict[int, int] = field(default_factory=dict)
    emptied: set[str] = field(default_factory=set)
    makes: list[str] = field(default_factory=list)
    pinned: dict[str, At] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the approximate size of the transaction in bytes."""
        return sum(len(part.data) for part in self.parts)

    def find_conflict(self, failed: int, error: int) -> Conflict | None:
        """Return the error of a transaction that failed because a key with an ``At`` check was written.

        The guards come first in the transaction, so the key was not deleted and created again before.

        Args:
            failed: The index of the part that failed.
            error: Its error code.
        Returns:
            The error. None if only a read of the states can tell what has changed.
        """
        check = self.pinned.get(self.parts[failed].key)
        return None if check is None or error != wire.BAD_VERSION else Conflict(_describe_written(check.key), [check])


def _describe_written(key: str) -> str:
    return f"{key!r} was written since it was read; read it again"


def build_written_entries(
    plan: MultiPlan, results: Sequence[object], token: int, gens: Mapping[int, int]
) -> tuple[Entry, ...]:
    """Return the entries that a transaction has written, built from the reply of the server.

    Args:
        plan: The transaction.
        results: The results of its operations. If they are empty, the versions of the entries are incomplete.
        token: The number of the transaction.
        gens: For each bucket of keys, the version of its guard znode before this transaction or in it.
    """
    entries = []
    for planned in plan.entries:
        data, gen = 0, gens.get(get_bucket(planned.key), UNKNOWN)
        if planned.at is not None:
            stat = results[planned.at] if results else None
            data = stat.version if isinstance(stat, wire.Stat) else UNKNOWN
        created = token if planned.created is None else planned.created
        version = Version(token, data, gen, created, planned.owner, planned.born)
        entries.append(Entry(planned.key, planned.value, version, token, created, planned.owner))
    return tuple(entries)
