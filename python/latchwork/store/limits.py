"""The limits of a call, checked before any I/O. Nothing here touches the network."""

from __future__ import annotations

from collections.abc import Sequence

from latchwork.backends.base import MAX_VALUE_BYTES, Capability
from latchwork.errors import InvalidKey, TransactionTooLarge, ValueTooLarge
from latchwork.types import Absent, Delete, Op, SessionAlive, SimpleCheck


def check_value(key: str, value: bytes) -> None:
    """Refuse a value that is no ``bytes`` or, with its key, too large.

    Raises:
        TypeError: the value is not ``bytes``.
        ValueTooLarge: value and key exceed 1,000,000 bytes.
    """
    given: object = value  # callers without a type checker pass anything
    if not isinstance(given, bytes):
        raise TypeError(f"the value of key {key!r} must be bytes, not {type(given).__name__}; encode it first")
    size = len(value) + len(key)
    if size > MAX_VALUE_BYTES:
        msg = f"the value of key {key!r} has {size:,} bytes with its key, the limit is {MAX_VALUE_BYTES:,}; split it"
        raise ValueTooLarge(msg)


def _size_of_check(check: SimpleCheck) -> int:
    """An absent key counts twice: a server may look by writing and deleting it."""
    if isinstance(check, SessionAlive):
        return 0
    return len(check.key) * (2 if isinstance(check, Absent) else 1)


def check_transaction(checks: Sequence[SimpleCheck], ops: Sequence[Op], capability: Capability) -> None:
    """Refuse a transaction that is contradictory or beyond the backend's limits.

    Raises:
        ValueError: a key is written twice, or two sessions are used.
        InvalidKey: a key is written below one that the transaction binds to a session.
        ValueTooLarge: one value is too large.
        TransactionTooLarge: too many checks, operations or bytes.
    """
    keys: set[str] = set()
    sessions: set[str] = set()
    size = sum(map(_size_of_check, checks))
    for op in ops:
        if op.key in keys:
            raise ValueError(f"key {op.key!r} is written twice in one transaction; write it once")
        keys.add(op.key)
        size += len(op.key)
        if not isinstance(op, Delete):
            check_value(op.key, op.value)
            size += len(op.value)
            if op.session is not None:
                sessions.add(op.session.id)
    if len(sessions) > 1:
        msg = f"two sessions in one transaction ({', '.join(sorted(sessions))}); use one transaction for each"
        raise ValueError(msg)
    if sessions:
        _check_leaves(ops)
    for count, limit, what in (
        (len(checks), capability.max_txn_checks, "checks"),
        (len(ops), capability.max_txn_ops, "operations"),
        (size, capability.max_txn_bytes, "bytes"),
    ):
        if count > limit:
            msg = f"the transaction has {count:,} {what}, the limit of {capability.name} is {limit:,}; split it"
            raise TransactionTooLarge(msg)


def _check_leaves(ops: Sequence[Op]) -> None:
    """Refuse a key below a session-bound one; what the store has of either is up to the backend."""
    written = [op for op in ops if not isinstance(op, Delete)]
    leaves = tuple(f"{op.key}/" for op in written if op.session is not None)
    for op in written:
        if op.key.startswith(leaves):
            leaf = next(leaf for leaf in leaves if op.key.startswith(leaf))[:-1]
            msg = f"{op.key!r} is below {leaf!r}, which the same transaction binds to a session; move one of them"
            raise InvalidKey(msg)
