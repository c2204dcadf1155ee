"""Frozen records of the store contract: entries, checks, operations, changes.

Nothing here touches the network. Keys in these records are relative to the store (or namespace) they are used with,
but the keys inside a ``Fence`` are relative to the root of the URL, so that a fence is valid in every namespace.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol


class HasId(Protocol):
    """Anything that names a session: ``Session`` itself, or a stand-in with its id."""

    @property
    def id(self) -> str:
        """The session id."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One key as it was read or written.

    Attributes:
        key: path of segments joined by ``/``.
        value: the bytes stored.
        version: opaque; equal if and only if the key was not written in between, also when it was deleted and created
            again, or bound to another session.
        token: grows with every write to the store, shared within one commit: the fencing token.
        created: the token of the creation. Binding the key to a session, or to another one, does not change it.
        owner: the id of the session it is bound to, else None.
    """

    key: str
    value: bytes
    version: Hashable
    token: int
    created: int
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Ordered:
    """A key that was created among others of its kind; see ``Store.create_ordered``.

    Attributes:
        entry: the key.
        older: the names of the keys of its kind that are older and were still there, the oldest first. None: not known.
    """

    entry: Entry
    older: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, init=False)
class At:
    """Check: the key was not written since the entry was read."""

    key: str
    version: Hashable

    def __init__(self, entry: Entry) -> None:
        object.__setattr__(self, "key", entry.key)
        object.__setattr__(self, "version", entry.version)

    @classmethod
    def of(cls, key: str, version: Hashable) -> At:
        """The check for a key and a version read earlier."""
        check = object.__new__(cls)
        object.__setattr__(check, "key", key)
        object.__setattr__(check, "version", version)
        return check


@dataclass(frozen=True, slots=True)
class Absent:
    """Check: the key does not exist."""

    key: str


@dataclass(frozen=True, slots=True)
class Exists:
    """Check: the key exists, with whatever value."""

    key: str


@dataclass(frozen=True, slots=True)
class SessionAlive:
    """Check: the session with this id has not ended on the server. Users take it from ``session.fence``."""

    session_id: str


SimpleCheck = At | Absent | Exists | SessionAlive


@dataclass(frozen=True, slots=True)
class Fence:
    """Proof of an ownership: put it among the checks of every write that depends on it.

    Attributes:
        token: grows with each new holder; give it to systems outside (a database's WHERE clause).
        checks: what must still hold; keys relative to the root of the URL.
    """

    token: int
    checks: tuple[SimpleCheck, ...]


Check = SimpleCheck | Fence


@dataclass(frozen=True, slots=True)
class Put:
    """Operation: create or overwrite. Without a session an existing key keeps its owner, with one it is bound to it."""

    key: str
    value: bytes
    session: HasId | None = None


@dataclass(frozen=True, slots=True)
class Create:
    """Operation: create; the transaction is a Conflict if the key exists."""

    key: str
    value: bytes
    session: HasId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Operation: delete; does nothing to an absent key."""

    key: str


Op = Put | Create | Delete


@dataclass(frozen=True, slots=True)
class Committed:
    """What a transaction did.

    Attributes:
        token: the token of this commit; 0 when nothing was written.
        entries: the entries written by ``Put`` and ``Create``, in the order of the operations.
        deleted: the keys that ``Delete`` found and removed, in the order of the operations.
    """

    token: int
    entries: tuple[Entry, ...] = ()
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """The latest state of one key: its entry, or None when it is gone."""

    key: str
    entry: Entry | None = field(default=None)
