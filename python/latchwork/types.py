"""The records of the store: entries, checks, operations and changes.

Keys are relative to the store or namespace that they are used with. The keys inside a ``Fence`` are relative to the
root of the URL, so a fence is valid in every namespace.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct


class HasId(Protocol):
    """An object that names a session: a ``Session``, or a stand-in with its ID."""

    @property
    def id(self) -> str:
        """The ID of the session."""
        ...


class Entry(Struct, frozen=True):
    """A key as it was read or written.

    Attributes:
        key: Segments joined by ``/``.
        value: The stored bytes.
        version: Opaque. Equal only if the key was not written in between, including deletion, re-creation and binding.
        token: The fencing token: grows with every write to the store. All writes of a transaction share it.
        created: The token of the creation. Binding the key to a session does not change it.
        owner: The ID of the session that the key is bound to, or None.
    """

    key: str
    value: bytes
    version: Hashable
    token: int
    created: int
    owner: str | None = None


class OrderedKey(Struct, frozen=True):
    """A key that was created in an order with others; see ``Store.create_ordered_key``.

    Attributes:
        entry: The key.
        older: The names of the older keys with the same key prefix, oldest first. None if they are not known.
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
        """Return the check that a key still has a version that was read earlier."""
        check = object.__new__(cls)
        object.__setattr__(check, "key", key)
        object.__setattr__(check, "version", version)
        return check


class Absent(Struct, frozen=True):
    """Check: the key does not exist."""

    key: str


class Exists(Struct, frozen=True):
    """Check: the key exists, with any value."""

    key: str


class SessionAlive(Struct, frozen=True):
    """Check: the session has not ended on the server. ``session.fence`` contains it."""

    session_id: str


SimpleCheck = At | Absent | Exists | SessionAlive


class Fence(Struct, frozen=True):
    """The proof of an ownership. Add it to the checks of every write that depends on the ownership.

    Attributes:
        token: Greater than that of every earlier owner. Pass it to systems outside, such as a database's WHERE clause.
        checks: The conditions, with keys relative to the root of the URL.
    """

    token: int
    checks: tuple[SimpleCheck, ...]


Check = SimpleCheck | Fence


class Put(Struct, frozen=True):
    """Operation: create or overwrite a key. With a session, the key is bound to it; without one, it keeps its owner."""

    key: str
    value: bytes
    session: HasId | None = None


class Create(Struct, frozen=True):
    """Operation: create a key. The transaction is a ``Conflict`` if it exists."""

    key: str
    value: bytes
    session: HasId | None = None


class Delete(Struct, frozen=True):
    """Operation: delete a key. An absent key is ignored."""

    key: str


Op = Put | Create | Delete


class Committed(Struct, frozen=True):
    """The result of a transaction.

    Attributes:
        token: The token of this commit; 0 if nothing was written.
        entries: The entries written by ``Put`` and ``Create``, in the order of the operations.
        deleted: The keys that ``Delete`` removed, in the order of the operations.
    """

    token: int
    entries: tuple[Entry, ...] = ()
    deleted: tuple[str, ...] = ()


class Change(Struct, frozen=True):
    """The latest state of a key: its entry, or None if it was deleted."""

    key: str
    entry: Entry | None = None
