"""etcd's requests in protobuf's wire format, put together in Python: what ``EtcdRequest`` in Rust is compared with.

Every function has the name and the arguments of its counterpart. test_requests.py reads what they make back with the
generated classes.
"""

from __future__ import annotations

from collections.abc import Sequence

_SMALL = tuple(bytes([n]) for n in range(128))


#: What of a key is compared: how it and its operand are introduced.
_TARGETS = {"create": (b"\x10\x01", b"\x28"), "mod": (b"\x10\x02", b"\x30"), "lease": (b"\x10\x04", b"\x40")}


def compare(target: str, key: bytes, operand: int, end: bytes = b"", *, greater: bool = False) -> bytes:
    """A ``Compare``: equal to the operand, or greater; of every key in a range when there is an end."""
    until = b"\x82\x04%b%b" % (_size(end), end) if end else b""
    result = b"\x08\x01" if greater else b""
    kind, introduced = _TARGETS[target]
    return _sized(b"%b%b\x1a%b%b%b%b%b" % (result, kind, _size(key), key, introduced, _number(operand), until))


def put(key: bytes, value: bytes, lease: int = 0, *, ignore_lease: bool = False) -> bytes:
    """A ``RequestOp`` that puts."""
    bound = b"\x18" + _number(lease) if lease else b""
    kept = b"\x30\x01" if ignore_lease else b""
    return _tagged(b"\x12", b"\x0a%b%b\x12%b%b%b%b" % (_size(key), key, _size(value), value, bound, kept))


def delete(key: bytes, end: bytes = b"") -> bytes:
    """A ``RequestOp`` that deletes one key, or a range."""
    until = b"\x12%b%b" % (_size(end), end) if end else b""
    return _tagged(b"\x1a", b"\x0a%b%b%b" % (_size(key), key, until))


def peek(key: bytes, end: bytes = b"") -> bytes:
    """A ``RequestOp`` that reads one key without its value: the first of a range."""
    until = b"\x12%b%b" % (_size(end), end) if end else b""
    return _tagged(b"\x0a", b"\x0a%b%b%b\x18\x01\x40\x01" % (_size(key), key, until))


def read(key: bytes) -> bytes:
    """A ``RequestOp`` that reads one key."""
    return _tagged(b"\x0a", b"\x0a%b%b" % (_size(key), key))


def nested(transaction: bytes) -> bytes:
    """A ``RequestOp`` that is a transaction."""
    return _tagged(b"\x22", transaction)


def txn(compares: Sequence[bytes], success: Sequence[bytes] = (), failure: Sequence[bytes] = ()) -> bytes:
    """A ``TxnRequest`` of what the functions above made. Alone among them it has no length in front."""
    return b"".join(
        (
            b"\x0a" + b"\x0a".join(compares) if compares else b"",
            b"\x12" + b"\x12".join(success) if success else b"",
            b"\x1a" + b"\x1a".join(failure) if failure else b"",
        )
    )


def _tagged(tag: bytes, body: bytes) -> bytes:
    """The operation of this kind, its length in front."""
    return _sized(b"%b%b%b" % (tag, _size(body), body))


def _sized(body: bytes) -> bytes:
    return _size(body) + body


def _size(data: bytes) -> bytes:
    size = len(data)
    return _SMALL[size] if size < 128 else _number(size)


def _number(value: int) -> bytes:
    """A number of 0 or more."""
    if value < 128:
        return _SMALL[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
