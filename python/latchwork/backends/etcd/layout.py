"""The mapping of keys to etcd's flat key space.

etcd sorts keys by bytes, and the store by strings. For ASCII keys these are the same. ``0`` is the character after
``/``, so the subtree below ``p`` is the range from ``p/`` to ``p0``. ``A`` is the character after ``@``, so the
reserved keys of a root are the range from ``/root/@`` to ``/root/A``.
"""

from __future__ import annotations

from typing import Any

from latchwork.backends.base import VersionKey
from latchwork.backends.key_syntax import InvalidKeys, is_key
from latchwork.types import Entry

#: Start inclusive, end exclusive.
KeyRange = tuple[bytes, bytes]


class EtcdKeys:
    """Converts the keys of a store to etcd's keys, called raw keys, and back. Thread-safe.

    Attributes:
        root: The prefix of every raw key.
        invalid_keys: Invalid keys of other programs below the root.
    """

    def __init__(self, root: str) -> None:
        self.root = f"/{root}/".encode()
        self.invalid_keys = InvalidKeys(f"/{root}")
        self._skip = len(self.root)

    def encode_key(self, key: str) -> bytes:
        """Return the raw key of a key: its name in etcd."""
        return self.root + key.encode()

    def decode_key(self, raw_key: bytes) -> str:
        """Return the key for a valid raw key."""
        return raw_key[self._skip :].decode()

    def decode_key_or_none(self, raw_key: bytes) -> str | None:
        """Return the key for a raw key. For an invalid one, record it and return None."""
        try:
            name = self.decode_key(raw_key)
        except UnicodeDecodeError:
            name = ""
        if is_key(name):
            return name
        self.invalid_keys.record([raw_key])
        return None

    def session_key(self, session_id: str) -> bytes:
        """Return the raw key of a session's marker, which exists as long as the session."""
        return self.root + b"@s/" + session_id.encode()

    def slot_key(self, writer_id: int, number: int) -> bytes:
        """Return the raw key of a slot, which is a key that guards one write of a client at a time.

        Args:
            writer_id: The lease ID of the client.
            number: The number of the slot.
        """
        return b"%s@w/%x/%d" % (self.root, writer_id, number)

    def counter_key(self, parent: str) -> bytes:
        """Return the raw key of the counter for sequential keys below a parent."""
        return self.root + b"@q/" + parent.encode()

    def unused_key(self, number: int) -> bytes:
        """Return a raw key that is never written, for comparisons."""
        return b"%s@never/%d" % (self.root, number)

    def ranges_below(self, prefix: str) -> list[KeyRange]:
        """Return the ranges of raw keys below a prefix, without the prefix itself and without reserved keys."""
        if not prefix:
            return [(self.root, self.root + b"@"), (self.root + b"A", self.root[:-1] + b"0")]
        key = self.encode_key(prefix)
        return [(key + b"/", key + b"0")]

    def ranges_at_or_below(self, prefix: str) -> list[KeyRange]:
        """Return the ranges of raw keys at and below a prefix."""
        return ([single_key_range(self.encode_key(prefix))] if prefix else []) + self.ranges_below(prefix)

    def entry(self, kv: Any) -> Entry:
        """Return the entry for a key-value message of etcd."""
        revision = kv.mod_revision
        return Entry(
            kv.key[self._skip :].decode(),
            kv.value,
            VersionKey(revision),
            revision,
            kv.create_revision,
            session_id_of_lease(kv.lease),
        )


def single_key_range(raw_key: bytes) -> KeyRange:
    """Return the range that contains only this raw key."""
    return raw_key, raw_key + b"\0"


def session_id_of_lease(lease: int) -> str | None:
    """Return the ID of the session that has a lease. Return None if the lease ID is 0, which means no lease."""
    return f"{lease:x}" if lease else None


def lease_id_of_session(session_id: str) -> int:
    """Return the ID of the lease of a session.

    Raises:
        ValueError: The session ID is not that of an etcd session.
    """
    try:
        lease = int(session_id, 16)
    except ValueError:
        lease = 0
    if not 0 < lease < 2**63 or f"{lease:x}" != session_id:
        msg = f"{session_id!r} is not a session of an etcd store; pass a session of the store that you write with"
        raise ValueError(msg)
    return lease


def exclude_keys(key_range: KeyRange, excluded: list[bytes]) -> list[KeyRange]:
    """Split a range of keys into ranges that do not contain certain keys.

    Args:
        key_range: The range.
        excluded: The keys to exclude, sorted.
    """
    start, end = key_range
    parts = []
    for hole in excluded:
        if start <= hole < end:
            if start < hole:
                parts.append((start, hole))
            start = hole + b"\0"
    return [*parts, (start, end)] if start < end else parts
