"""Compiles checks and operations into one etcd transaction, and decodes its answer.

Compares of a transaction (all must hold):

    At, Absent, Exists, Create    on the key's revisions
    SessionAlive                  the session's marker exists
    a session-bound write         the same, so that a write of an ended session is refused
    every key that may be new     no proper ancestor has a lease: session-bound keys cannot have keys below them
    every key bound to a session  nothing exists below it
    Put without a session         the key has the lease that we write: none, or that of its owner as last seen
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from latchwork._core import EtcdCodec
from latchwork.backends.base import MAX_OLDER, VersionKey, check_version
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.layout import EtcdKeys, exclude_keys, lease_id_of_session, session_id_of_lease
from latchwork.backends.etcd.writing import requests
from latchwork.backends.etcd.writing.slots import Slot
from latchwork.backends.etcd.writing.txn import (
    FLAT_LIMIT,
    Condition,
    ConditionKind,
    Txn,
    absence_condition,
    existence_condition,
    ownership_condition,
    unchanged_condition,
)
from latchwork.backends.outcomes import describe_transaction
from latchwork.errors import SessionLost
from latchwork.types import (
    Absent,
    At,
    Committed,
    Create,
    Delete,
    Entry,
    Exists,
    Op,
    OrderedKey,
    Put,
    SessionAlive,
    SimpleCheck,
)

#: Operations, each put counted twice, whose puts and the reads of what they found stand side by side; of more, each put
#: is nested with its read. A server allows 128 by default, and the guard is one.
PAIRED_LIMIT = 100


class EtcdCommit:
    """A requested transaction. The codec encodes and decodes most of them directly, without a ``Txn``.

    A ``Txn`` is built for the others, and to find out why a transaction was refused. Both encode the same request. For
    one thread at a time.
    """

    __slots__ = ("_checks", "_compiler", "_ended", "_ops", "_txn")

    def __init__(
        self, compiler: TxnCompiler, checks: Sequence[SimpleCheck], ops: Sequence[Op], ended_sessions: set[str]
    ) -> None:
        self._compiler = compiler
        self._checks = checks
        self._ops = ops
        self._ended = ended_sessions
        self._txn: Txn | None = None

    def as_txn(self) -> Txn:
        """Return the transaction as it was last sent.

        Raises:
            SessionLost, ValueError: See ``TxnCompiler.compile_commit``.
        """
        if self._txn is None:
            self._txn = self._compiler.compile_commit(self._checks, self._ops, self._ended)
        return self._txn

    def rebuild(self) -> Txn:
        """Return the transaction for another attempt. It uses the lease IDs of keys that the last attempt has read."""
        known_leases = self.as_txn().learned
        self._txn = self._compiler.compile_commit(self._checks, self._ops, self._ended, known_leases)
        return self._txn

    def encode_request(self, keys: EtcdKeys, slot: Slot) -> bytes:
        """Encode the request with the comparison and the write of a slot key. See ``Txn.encode_request``."""
        codec = self._compiler.codec
        encoded = codec.transaction(self._checks, self._ops, self._ended, slot.key, slot.revision, slot.lease)
        return self.as_txn().encode_request(keys, slot) if encoded is None else encoded

    def decode_outcome(self, answer: bytes) -> tuple[int, Any] | None:
        """Decode the answer. See ``Txn.decode_outcome``."""
        if self._txn is None:
            return self._compiler.codec.committed(answer, self._ops)
        return self._txn.decode_outcome(answer)


class TxnCompiler:
    """Builds etcd transactions from checks and operations. Thread-safe.

    Attributes:
        codec: Encodes and decodes most transactions without a ``Txn``.
    """

    def __init__(self, keys: EtcdKeys) -> None:
        self.codec = EtcdCodec(
            keys.root,
            (FLAT_LIMIT, PAIRED_LIMIT),
            entry=Entry,
            version=VersionKey,
            committed=Committed,
            checks=(At, Absent, Exists, SessionAlive),
            ops=(Put, Create, Delete),
        )
        self._keys = keys
        self._rooted: dict[str, tuple[Condition, ...]] = {}
        self._parents: dict[str, tuple[str, ...]] = {}

    def compile_commit(
        self,
        checks: Sequence[SimpleCheck],
        ops: Sequence[Op],
        ended_sessions: Collection[str],
        known_leases: dict[bytes, int] | None = None,
    ) -> Txn:
        """Build the etcd transaction for checks and operations.

        Args:
            checks: The checks, without fences.
            ops: The operations, each key at most once.
            ended_sessions: IDs of the sessions that were closed by this store.
            known_leases: The lease IDs of keys that an earlier attempt has read.

        Raises:
            SessionLost: The session of an operation was closed by this store.
        """
        known_leases = {} if known_leases is None else known_leases
        conditions = [self._check(check) for check in checks]
        if ops:
            conditions += self._write_conditions(checks, ops, ended_sessions, known_leases)
        paired = len(ops) + sum(isinstance(op, Put) for op in ops) <= PAIRED_LIMIT
        specs = [self._operation(op, known_leases, paired=paired) for op in ops]
        return Txn(
            conditions,
            [request for spec in specs for request in spec.requests],
            lambda answers, revision: _committed(specs, _decode_op_results(specs, answers), revision),
            lambda revision: [spec.recall(revision) for spec in specs],
            lambda answers, revision: _committed(specs, [_recalled(answer) for answer in answers], revision),
            describe_transaction(checks, ops),
            known_leases,
            [spec.raw for spec in specs] if all(isinstance(op, Delete) for op in ops) else None,
        )

    def compile_create_ordered_key(self, key_prefix: str, create: Create, ended_sessions: Collection[str]) -> Txn:
        """Return the transaction that creates a key and reads the older keys with the same key prefix.

        Its result is an ``OrderedKey``.

        Args:
            key_prefix: The parent and the beginning of the names.
            create: The creation of the key.
            ended_sessions: IDs of the sessions that were closed by this store.
        Raises:
            SessionLost: The session was closed by this store.
        """
        txn = self.compile_commit((), (create,), ended_sessions)
        txn.ops.append(_read_oldest(self._keys.encode_key(key_prefix)))
        decode, recalled = txn.decode, txn.decode_recall
        txn.decode = lambda answers, revision: OrderedKey(
            decode(answers[:-1], revision).entries[0], self._older(key_prefix, answers[-1].response_range, revision)
        )
        txn.decode_recall = lambda answers, revision: OrderedKey(recalled(answers, revision).entries[0], None)
        return txn

    # Private.

    def _older(self, key_prefix: str, found: Any, revision: int) -> tuple[str, ...] | None:
        if found.more:
            return None
        start = len(self._keys.encode_key(key_prefix[: key_prefix.rfind("/") + 1]))
        names = (kv.key[start:].decode(errors="replace") for kv in found.kvs if kv.create_revision < revision)
        return tuple(name for name in names if "/" not in name)

    def _check(self, check: SimpleCheck) -> Condition:
        if isinstance(check, At):
            check_version(check.version, VersionKey)
            assert isinstance(check.version, VersionKey)
            return unchanged_condition(self._keys.encode_key(check.key), check.version.token, check)
        if isinstance(check, Absent):
            return absence_condition(ConditionKind.CHECK, (self._keys.encode_key(check.key), b""), check)
        if isinstance(check, Exists):
            return existence_condition(ConditionKind.CHECK, self._keys.encode_key(check.key), check)
        return existence_condition(ConditionKind.CHECK, self._keys.session_key(check.session_id), check)

    def _write_conditions(
        self,
        checks: Sequence[SimpleCheck],
        ops: Sequence[Op],
        ended_sessions: Collection[str],
        known_leases: dict[bytes, int],
    ) -> list[Condition]:
        """Return the conditions under which the operations are allowed: on created keys, sessions, owners, and keys
        that must not have children.

        Args:
            checks: The checks of the transaction.
            ops: The operations.
            ended_sessions: IDs of the sessions that were closed by this store.
            known_leases: The lease IDs of keys that an earlier attempt has read.
        """
        conditions: list[Condition] = []
        sessions: dict[str, None] = {}
        bound: list[str] = []
        written: list[str] = []
        for op in ops:
            if isinstance(op, Delete):
                continue
            written.append(op.key)
            if op.session is not None:
                sessions.setdefault(op.session.id)
                bound.append(op.key)
            if isinstance(op, Create):
                conditions.append(absence_condition(ConditionKind.CHECK, (self._keys.encode_key(op.key), b""), op))
            elif op.session is None:
                raw = self._keys.encode_key(op.key)
                conditions.append(ownership_condition(ConditionKind.OWNER, raw, known_leases.get(raw, 0), raw))
        for session_id in sessions:
            if session_id in ended_sessions:
                raise SessionLost(f"session {session_id} was closed here; use a new session")
            lease_id_of_session(session_id)
            conditions.append(
                existence_condition(ConditionKind.SESSION, self._keys.session_key(session_id), session_id)
            )
        return conditions + self._leaf_conditions(checks, ops, written, bound)

    def _leaf_conditions(
        self, checks: Sequence[SimpleCheck], ops: Sequence[Op], written: list[str], bound: list[str]
    ) -> list[Condition]:
        """Return the conditions which ensure that no key is below a session-bound key.

        The store has already checked the operations against each other. A key that a check requires to exist has no
        session-bound parent.

        Args:
            checks: The checks.
            ops: The operations.
            written: The keys that may be created.
            bound: The keys that are bound to a session.
        """
        deleted = [op.key for op in ops if isinstance(op, Delete)] if len(ops) > 1 else []
        above: dict[str, None] = {}
        known = {check.key for check in checks if isinstance(check, (At, Exists))}
        for key in written:
            if key not in known:
                above.update(dict.fromkeys(self._ancestors(key)))
        for gone in deleted:
            above.pop(gone, None)
        conditions = [condition for key in above for condition in self._unbound(key)]
        for key in bound:
            conditions += self._require_childless(key, deleted)
        return conditions

    def _ancestors(self, key: str) -> tuple[str, ...]:
        parent = key.rpartition("/")[0]
        if not parent:
            return ()
        found = self._parents.get(parent)
        if found is None:
            found = tuple(accumulate(parent.split("/"), "{}/{}".format))
            _add_to_cache(self._parents, parent, found)
        return found

    def _unbound(self, key: str) -> tuple[Condition, ...]:
        found = self._rooted.get(key)
        if found is None:
            found = (ownership_condition(ConditionKind.LEAF, self._keys.encode_key(key), 0, key),)
            _add_to_cache(self._rooted, key, found)
        return found

    def _require_childless(self, key: str, deleted: list[str]) -> list[Condition]:
        holes = sorted(self._keys.encode_key(gone) for gone in deleted if gone.startswith(key + "/"))
        return [
            absence_condition(ConditionKind.LEAF, span, key)
            for span in exclude_keys(self._keys.ranges_below(key)[0], holes)
        ]

    def _operation(self, op: Op, known_leases: dict[bytes, int], *, paired: bool) -> _CompiledOp:
        """Return the etcd operations for an operation of the caller.

        A put is followed by a read that returns when the key was created.

        Args:
            op: The operation.
            known_leases: The lease IDs of keys that an earlier attempt has read.
            paired: Whether a put is followed by that read.
        """
        raw = self._keys.encode_key(op.key)
        if isinstance(op, Delete):
            return _CompiledOp(op, raw, (requests.delete_operation(raw),), 0)
        lease = lease_id_of_session(op.session.id) if op.session is not None else known_leases.get(raw, 0)
        write = requests.put_operation(raw, op.value, lease)
        if isinstance(op, Create):
            return _CompiledOp(op, raw, (write,), lease)
        both = (write, requests.read_without_value(raw))
        return _CompiledOp(op, raw, both if paired else (requests.nested_transaction(both),), lease)


@dataclass(slots=True)
class _CompiledOp:
    """One operation of the caller, and the etcd operations that execute it."""

    op: Op
    raw: bytes
    requests: tuple[requests.Operation, ...]
    lease: int

    def recall(self, revision: int) -> Any:
        """Return the read that shows what this operation did at a revision: the written key, or the keys that it
        deleted.

        Args:
            revision: The revision of the transaction.
        """
        at = revision - 1 if isinstance(self.op, Delete) else revision
        return pb.RangeRequest(key=self.raw, keys_only=True, revision=at)


def _decode_op_results(specs: Sequence[_CompiledOp], answers: Sequence[Any]) -> list[tuple[int, int]]:
    """Return two numbers per operation: the revision at which its key was created (0 for this transaction), and the
    number of deleted keys.
    """
    found, at = [], 0
    for spec in specs:
        if isinstance(spec.op, Delete):
            found.append((0, answers[at].response_delete_range.deleted))
        elif isinstance(spec.op, Create):
            found.append((0, 0))
        else:
            after = answers[at + 1] if len(spec.requests) > 1 else answers[at].response_txn.responses[1]
            found.append((after.response_range.kvs[0].create_revision, 0))
        at += len(spec.requests)
    return found


def _read_oldest(key_prefix: bytes) -> requests.Operation:
    """Return the operation that reads the oldest keys with a key prefix. It reads one more than is returned, for the
    caller's own key.
    """
    by_creation = {"sort_order": pb.RangeRequest.ASCEND, "sort_target": pb.RangeRequest.CREATE}
    span = {"key": key_prefix, "range_end": key_prefix[:-1] + bytes([key_prefix[-1] + 1])}
    return {"request_range": {**span, **by_creation, "limit": MAX_OLDER + 1, "keys_only": True}}


def _recalled(answer: Any) -> tuple[int, int]:
    kvs = answer.kvs
    return (kvs[0].create_revision if kvs else 0), len(kvs)


def _committed(specs: Sequence[_CompiledOp], facts: Sequence[tuple[int, int]], revision: int) -> Committed:
    entries = []
    deleted = []
    for spec, (created, count) in zip(specs, facts, strict=True):
        op = spec.op
        if isinstance(op, Delete):
            if count:
                deleted.append(op.key)
            continue
        version = VersionKey(revision)
        entries.append(Entry(op.key, op.value, version, revision, created or revision, session_id_of_lease(spec.lease)))
    return Committed(revision if entries or deleted else 0, tuple(entries), tuple(deleted))


def _add_to_cache(cache: dict[str, Any], key: str, value: Any) -> None:
    """Store a value in a cache of limited size. Needs no lock: a value that another thread removes is computed again.

    Args:
        cache: The cache.
        key: The key in the cache.
        value: The value.
    """
    if len(cache) >= 4096:
        cache.clear()
    cache[key] = value
