"""Where things live in etcd's flat key space, and records read from it. Nothing here touches the network.

etcd orders keys by their bytes and the contract by plain string order of the full key: with ASCII keys these are the
same. ``0`` follows ``/``, so the subtree below ``p`` is the range from ``p/`` to ``p0``; ``A`` follows ``@``, so the
reserved keys of a root are the range from ``/root/@`` to ``/root/A``.
"""

from __future__ import annotations

from typing import Any

from latchwork.backends.base import VersionKey
from latchwork.backends.grammar import Strangers, is_key
from latchwork.types import Entry

#: Start inclusive, end exclusive.
KeyRange = tuple[bytes, bytes]


class Keys:
    """Key names below one root. Safe to share.

    Attributes:
        root: what stands before every key.
        strangers: what is below the root and no key.
    """

    def __init__(self, root: str) -> None:
        self.root = f"/{root}/".encode()
        self.strangers = Strangers(f"/{root}")
        self._skip = len(self.root)

    def of(self, key: str) -> bytes:
        """Where a key lives."""
        return self.root + key.encode()

    def name(self, raw: bytes) -> str:
        """The key that lives here, which is one."""
        return raw[self._skip :].decode()

    def known(self, raw: bytes) -> str | None:
        """The key that lives here; None, and noted, for what is none."""
        try:
            name = self.name(raw)
        except UnicodeDecodeError:
            name = ""
        if is_key(name):
            return name
        self.strangers.note([raw])
        return None

    def marker(self, session_id: str) -> bytes:
        """The marker of a session."""
        return self.root + b"@s/" + session_id.encode()

    def slot(self, writer_id: int, number: int) -> bytes:
        """A guard of a writer."""
        return b"%s@w/%x/%d" % (self.root, writer_id, number)

    def counter(self, parent: str) -> bytes:
        """The last number given out below a parent."""
        return self.root + b"@q/" + parent.encode()

    def absent(self, number: int) -> bytes:
        """A key that nobody ever writes."""
        return b"%s@never/%d" % (self.root, number)

    def below(self, prefix: str) -> list[KeyRange]:
        """The subtree below a prefix, the prefix itself not included; of the root, without the reserved keys."""
        if not prefix:
            return [(self.root, self.root + b"@"), (self.root + b"A", self.root[:-1] + b"0")]
        key = self.of(prefix)
        return [(key + b"/", key + b"0")]

    def at_or_below(self, prefix: str) -> list[KeyRange]:
        """The subtree at and below a prefix."""
        return ([exactly(self.of(prefix))] if prefix else []) + self.below(prefix)

    def entry(self, kv: Any) -> Entry:
        """The entry of a key read from the server."""
        revision = kv.mod_revision
        return Entry(
            kv.key[self._skip :].decode(),
            kv.value,
            VersionKey(revision),
            revision,
            kv.create_revision,
            owner_of(kv.lease),
        )


def exactly(raw: bytes) -> KeyRange:
    """The range of one key."""
    return raw, raw + b"\0"


def owner_of(lease: int) -> str | None:
    """The session id of a lease; None for no lease."""
    return f"{lease:x}" if lease else None


def lease_of(session_id: str) -> int:
    """The lease of a session id.

    Raises:
        ValueError: no etcd session has such an id.
    """
    try:
        lease = int(session_id, 16)
    except ValueError:
        lease = 0
    if not 0 < lease < 2**63 or f"{lease:x}" != session_id:
        msg = f"{session_id!r} is no session of an etcd store; pass a session of the store you write with"
        raise ValueError(msg)
    return lease


def without(span: KeyRange, holes: list[bytes]) -> list[KeyRange]:
    """The range with some keys cut out of it; the holes are sorted."""
    start, end = span
    parts = []
    for hole in holes:
        if start <= hole < end:
            if start < hole:
                parts.append((start, hole))
            start = hole + b"\0"
    return [*parts, (start, end)] if start < end else parts
