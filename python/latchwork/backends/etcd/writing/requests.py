"""The parts of etcd transactions as dictionaries, because the constructor of a message copies parts that are
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from latchwork.backends.etcd import rpc_pb2 as pb

#: The fields of a ``pb.Compare`` or of a ``pb.RequestOp``.
Compare = dict[str, Any]
Operation = dict[str, Any]

#: The compared number of a key, 0 for an absent key; it is also the name of the field in messages.
Target = Literal["create_revision", "mod_revision", "lease"]

_TARGETS = {
    "create_revision": pb.Compare.CREATE,
    "mod_revision": pb.Compare.MOD,
    "lease": pb.Compare.LEASE,
}


def encode_transaction(
    compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
) -> bytes:
    """Encode the request of a transaction.

    Args:
        compares: The comparisons.
        success: The operations to execute if all comparisons hold.
        failure: The operations to execute otherwise.
    """
    return pb.TxnRequest(compare=compares, success=success, failure=failure).SerializeToString()


def comparison(target: Target, key: bytes, operand: int, end: bytes = b"", *, greater: bool = False) -> Compare:
    """Return a comparison of an attribute of a key with a number.

    Args:
        target: The attribute.
        key: The raw key.
        operand: The number.
        end: If given, compare every key in the range from ``key`` to ``end``.
        greater: Require that the attribute is greater than the number, instead of equal.
    """
    made: Compare = {"target": _TARGETS[target], "key": key, target: operand}
    if end:
        made["range_end"] = end
    if greater:
        made["result"] = pb.Compare.GREATER
    return made


def put_operation(key: bytes, value: bytes, lease: int = 0) -> Operation:
    """Return the operation that writes a key, bound to a lease unless that is 0."""
    return {"request_put": {"key": key, "value": value, "lease": lease}}


def delete_operation(key: bytes, end: bytes = b"") -> Operation:
    """Return the operation that deletes a key, or with ``end`` a range of keys."""
    return {"request_delete_range": {"key": key, "range_end": end}}


def read_operation(key: bytes) -> Operation:
    """Return the operation that reads a key."""
    return {"request_range": {"key": key}}


def read_without_value(key: bytes, end: bytes = b"") -> Operation:
    """Return the operation that reads a key without its value, or with ``end`` the first key of a range."""
    return {"request_range": {"key": key, "range_end": end, "limit": 1, "keys_only": True}}


def nested_transaction(success: Sequence[Operation]) -> Operation:
    """Return a transaction without comparisons, as an operation of another transaction."""
    return {"request_txn": {"success": success}}
