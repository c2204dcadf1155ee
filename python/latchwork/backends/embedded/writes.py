"""Writes of entries, and the commit of the store's transactions.

Every function runs inside the caller's write transaction. There are no other writers, so the data that a function has
read does not change before the commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from latchwork.backends.base import MAX_OLDER, VersionKey, check_version
from latchwork.backends.embedded import reads
from latchwork.backends.key_syntax import append_number
from latchwork.errors import Conflict, InvalidKey, SessionLost
from latchwork.types import (
    Absent,
    At,
    Committed,
    Create,
    Delete,
    Entry,
    Exists,
    HasId,
    Op,
    OrderedKey,
    Put,
    SessionAlive,
    SimpleCheck,
)

#: Deletions remembered for watches that fall behind; those further behind read everything again.
KEPT_TOMBSTONES = 10_000

#: Returns whether the session with this ID is active now.
IsAlive = Callable[[str], bool]


def create_token(conn: sqlite3.Connection) -> int:
    """Return a new token, which is greater than all earlier tokens."""
    conn.execute("UPDATE state SET token = token + 1")
    return reads.read_newest_token(conn)


def apply_transaction(
    conn: sqlite3.Connection, root: str, checks: Sequence[SimpleCheck], ops: Sequence[Op], is_alive: IsAlive
) -> Committed | Conflict:
    """Apply all operations if all checks hold, otherwise none.

    A conflict is returned and not raised, so that the caller can still commit its earlier work in the transaction.

    Args:
        conn: A connection inside a write transaction.
        root: The root of the store.
        checks: The checks.
        ops: The operations.
        is_alive: Returns whether the session with an ID is active.
    Raises:
        SessionLost: The session of an operation has ended.
        InvalidKey: A key is below a session-bound key. The caller must roll back.
    """
    for session in {op.session.id for op in ops if not isinstance(op, Delete) and op.session is not None}:
        raise_if_session_ended(session, is_alive)
    existing = [op for op in ops if isinstance(op, Create) and not _holds(conn, root, Absent(op.key), lambda _: True)]
    failed = [*find_failed_checks(conn, root, checks, is_alive), *existing]
    if failed:
        return conflict_error(failed)
    written = _Writer(conn, root)
    for op in ops:
        written.apply(op)
    _check_leaves(conn, root, written.entries)
    if written.deleted:
        _forget_old_deletions(conn)
    return Committed(written.token, tuple(written.entries), tuple(written.deleted))


def create_sequential(
    conn: sqlite3.Connection, root: str, key: str, value: bytes, session: HasId | None, *, is_alive: IsAlive
) -> Entry:
    """Create a key whose suffix is the next number below its parent.

    Raises:
        SessionLost: The session has ended.
        InvalidKey: The parent is bound to a session. The caller must roll back.
    """
    if session is not None:
        raise_if_session_ended(session.id, is_alive)
    full = append_number(key, _take_number(conn, root, key.rpartition("/")[0]))
    while reads.read_entry(conn, root, full):  # another program created this key
        full = append_number(key, _take_number(conn, root, key.rpartition("/")[0]))
    written = _Writer(conn, root)
    written.apply(Create(full, value, session))
    _check_leaves(conn, root, written.entries)
    return written.entries[0]


def create_ordered_key(
    conn: sqlite3.Connection, root: str, key_prefix: str, op: Create, is_alive: IsAlive
) -> OrderedKey | Conflict:
    """Create a key and read the older keys with the same key prefix. See ``Backend.create_ordered_key``."""
    done = apply_transaction(conn, root, (), (op,), is_alive)
    if isinstance(done, Conflict):
        return done
    entry = done.entries[0]
    return OrderedKey(entry, reads.list_older_keys(conn, root, key_prefix, entry.created, MAX_OLDER))


def find_failed_checks(
    conn: sqlite3.Connection, root: str, checks: Sequence[SimpleCheck], is_alive: IsAlive
) -> list[SimpleCheck]:
    """Return the checks that do not hold."""
    return [check for check in checks if not _holds(conn, root, check, is_alive)]


def conflict_error(failed: Sequence[SimpleCheck | Op]) -> Conflict:
    """Return the ``Conflict`` error for checks that do not hold."""
    first = failed[0]
    if isinstance(first, SessionAlive):
        what = f"session {first.session_id} has ended"
    else:
        what = f"{first.key!r} {_REASONS[type(first)]}"
    more = f" and {len(failed) - 1} more checks failed" if len(failed) > 1 else ""
    return Conflict(f"nothing was written: {what}{more}; read again, then try again", failed)


def delete_keys(conn: sqlite3.Connection, root: str, keys: Sequence[str]) -> None:
    """Delete existing keys, all with one new token. Does nothing if the list is empty."""
    if not keys:
        return
    token = create_token(conn)
    for key in keys:
        conn.execute("DELETE FROM entries WHERE root = ? AND key = ?", (root, key))
        conn.execute("REPLACE INTO tombstones (root, key, token) VALUES (?, ?, ?)", (root, key, token))
    _forget_old_deletions(conn)


def raise_if_session_ended(session_id: str, is_alive: IsAlive) -> None:
    """Raise ``SessionLost`` if the session has ended."""
    if not is_alive(session_id):
        raise SessionLost(f"session {session_id} has ended; stop what it protected and use a new session")


_REASONS = {
    At: "was written or deleted since it was read",
    Absent: "exists",
    Exists: "does not exist",
    Create: "exists already",
}


class _Writer:
    """Applies the operations of a transaction. All its changes have one token."""

    def __init__(self, conn: sqlite3.Connection, root: str) -> None:
        self._conn = conn
        self._root = root
        self.token = 0
        self.entries: list[Entry] = []
        self.deleted: list[str] = []

    def apply(self, op: Op) -> None:
        if isinstance(op, Delete):
            self._delete(op.key)
        else:
            self._put(op)

    def _put(self, op: Put | Create) -> None:
        before = None
        if isinstance(op, Put):
            query = "SELECT created, owner FROM entries WHERE root = ? AND key = ?"
            before = self._conn.execute(query, (self._root, op.key)).fetchone()
        token = self._take_token()
        created, owner = before or (token, None)
        if op.session is not None:
            owner = op.session.id
        if before:
            update = "UPDATE entries SET value = ?, token = ?, owner = ? WHERE root = ? AND key = ?"
            self._conn.execute(update, (op.value, token, owner, self._root, op.key))
        else:
            insert = "INSERT INTO entries (root, key, token, created, owner, value) VALUES (?, ?, ?, ?, ?, ?)"
            self._conn.execute(insert, (self._root, op.key, token, created, owner, op.value))
        self.entries.append(Entry(op.key, op.value, VersionKey(token), token, created, owner))

    def _delete(self, key: str) -> None:
        if self._conn.execute("DELETE FROM entries WHERE root = ? AND key = ?", (self._root, key)).rowcount == 0:
            return
        remember = "REPLACE INTO tombstones (root, key, token) VALUES (?, ?, ?)"
        self._conn.execute(remember, (self._root, key, self._take_token()))
        self.deleted.append(key)

    def _take_token(self) -> int:
        if self.token == 0:
            self.token = create_token(self._conn)
        return self.token


def _holds(conn: sqlite3.Connection, root: str, check: SimpleCheck, is_alive: IsAlive) -> bool:
    if isinstance(check, SessionAlive):
        return is_alive(check.session_id)
    row = conn.execute("SELECT token FROM entries WHERE root = ? AND key = ?", (root, check.key)).fetchone()
    if isinstance(check, At):
        check_version(check.version, VersionKey)
        return row is not None and VersionKey(row[0]) == check.version
    return (row is None) == isinstance(check, Absent)


def _check_leaves(conn: sqlite3.Connection, root: str, written: Sequence[Entry]) -> None:
    """Raise an error if a new key is below a session-bound key, or if a written key is bound to a session and has keys
    below it. Keys that exist already have no session-bound key above them.
    """
    new = {entry.key.rpartition("/")[0]: entry.key for entry in written if entry.created == entry.token}
    for key in new.values():  # one for each parent
        bound = _find_session_bound_ancestor(conn, root, key)
        if bound is not None:
            raise InvalidKey(f"{key!r} lies below {bound!r}, which is bound to a session; use another key")
    for entry in written:
        if entry.owner is not None and reads.has_descendant(conn, root, entry.key):
            raise InvalidKey(f"{entry.key!r} has keys below it, so it cannot be bound to a session; use another key")


def _find_session_bound_ancestor(conn: sqlite3.Connection, root: str, key: str) -> str | None:
    parts = key.split("/")
    if len(parts) == 1:
        return None
    above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
    marks = ",".join("?" * len(above))
    query = f"SELECT key FROM entries WHERE owner IS NOT NULL AND root = ? AND key IN ({marks})"  # noqa: S608
    row = conn.execute(query, (root, *above)).fetchone()
    return row[0] if row else None


def _take_number(conn: sqlite3.Connection, root: str, parent: str) -> int:
    conn.execute("INSERT OR IGNORE INTO counters VALUES (?, ?, 0)", (root, parent))
    conn.execute("UPDATE counters SET next = next + 1 WHERE root = ? AND parent = ?", (root, parent))
    (after,) = conn.execute("SELECT next FROM counters WHERE root = ? AND parent = ?", (root, parent)).fetchone()
    return int(after) - 1


def _forget_old_deletions(conn: sqlite3.Connection) -> None:
    # one at a time: SQLite takes a single min or max from the index, and reads the whole table for both
    ends = "SELECT (SELECT min(seq) FROM tombstones), (SELECT max(seq) FROM tombstones)"
    first, last = conn.execute(ends).fetchone()
    if last - first < 2 * KEPT_TOMBSTONES:
        return
    cut = last - KEPT_TOMBSTONES
    conn.execute("UPDATE state SET forgotten = (SELECT max(token) FROM tombstones WHERE seq <= ?)", (cut,))
    conn.execute("DELETE FROM tombstones WHERE seq <= ?", (cut,))
