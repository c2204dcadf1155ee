"""Reads of entries and changes. Every function runs inside the caller's transaction and reads one root.

Keys are ASCII, so SQLite sorts them in the order that the store promises. A subtree is one range of the index:
everything below ``a`` is from ``a/`` up to, and not including, ``a0`` (the character after the slash). Keys of other
programs that are invalid are skipped and recorded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice

from latchwork.backends.base import VersionKey
from latchwork.backends.key_syntax import InvalidKeys, is_key
from latchwork.types import Change, Entry

# What another program wrote as text or as a number is bytes as well: a cast of bytes costs nothing.
_COLUMNS = "e.key, CAST(e.value AS BLOB), e.token, e.created, e.owner"
_END = "\x7f"  # after every character of a key
_BATCH = 500  # bound parameters; SQLite before 3.32 takes 999

# Visits one key per name directly below: after a key directly below, it continues with the next one ("!" comes before
# every character of a key), after one further down it jumps behind the whole subtree. So the cost is one index look-up
# per name, however much lies below. :rest is the position of the name within the key.
_NAMES = """
WITH RECURSIVE visited (key) AS (
  SELECT min(key) FROM entries WHERE root = :root AND key >= :low AND key < :high
  UNION ALL
  SELECT (
    SELECT min(e.key) FROM entries AS e WHERE e.root = :root AND e.key < :high AND e.key >=
      CASE instr(substr(v.key, :rest), '/')
        WHEN 0 THEN v.key || '!'
        ELSE substr(v.key, 1, :rest + instr(substr(v.key, :rest), '/') - 2) || '0'
      END)
  FROM visited AS v WHERE v.key IS NOT NULL)
"""
_VISITED_KEYS = _NAMES + "SELECT key FROM visited WHERE key IS NOT NULL"  # noqa: S608
_IS_PLAIN = "key NOT GLOB '*[^ -~]*'"
_SUBTREE = f"SELECT {_COLUMNS} FROM entries AS e WHERE root = ? AND key >= ? AND key < ? ORDER BY key"  # noqa: S608


def is_at_or_below(key: str, prefix: str) -> bool:
    """Return whether a key equals a prefix or is below it. False for reserved keys."""
    if not prefix:
        return not key.startswith("@")
    return key.startswith(prefix) and (len(key) == len(prefix) or key[len(prefix)] == "/")


def read_newest_token(conn: sqlite3.Connection) -> int:
    """Return the token of the newest write in the database."""
    return int(conn.execute("SELECT token FROM state").fetchone()[0])


def list_older_keys(
    conn: sqlite3.Connection, root: str, key_prefix: str, created: int, max_count: int
) -> tuple[str, ...] | None:
    """Return the names of the keys that begin with a key prefix and were created before a token, the oldest first.

    Args:
        conn: A connection inside a transaction.
        root: The root of the store.
        key_prefix: The parent and the beginning of the names.
        created: The token.
        max_count: The maximum number of names.

    Returns:
        The last segment of each key, or None if there are more than ``max_count``.
    """
    query = "SELECT key FROM entries WHERE root = ? AND key >= ? AND key < ? AND created < ? ORDER BY created LIMIT ?"
    rows = conn.execute(query, (root, key_prefix, key_prefix + _END, created, max_count + 1)).fetchall()
    if len(rows) > max_count:
        return None
    start = key_prefix.rfind("/") + 1
    names = (key[start:] for (key,) in rows if isinstance(key, str))
    return tuple(name for name in names if "/" not in name)


def read_entry(conn: sqlite3.Connection, root: str, key: str) -> Entry | None:
    """Read the entry of a key. Return None if it does not exist."""
    row = conn.execute(f"SELECT {_COLUMNS} FROM entries AS e WHERE root = ? AND key = ?", (root, key)).fetchone()  # noqa: S608
    return _decode_row(row) if row else None


def read_entries(conn: sqlite3.Connection, root: str, keys: Iterable[str]) -> dict[str, Entry]:
    """Read several keys. Return a dictionary of the entries by key, without the keys that do not exist."""
    found: dict[str, Entry] = {}
    rest = iter(keys)
    while batch := list(islice(rest, _BATCH)):
        marks = ",".join("?" * len(batch))
        rows = conn.execute(f"SELECT {_COLUMNS} FROM entries AS e WHERE root = ? AND key IN ({marks})", (root, *batch))  # noqa: S608
        found.update((row[0], _decode_row(row)) for row in rows)
    return found


def list_entries_below(
    conn: sqlite3.Connection,
    root: str,
    prefix: str,
    invalid_keys: InvalidKeys,
    *,
    recursive: bool,
    limit: int | None,
    start_after: str | None,
) -> list[Entry]:
    """Read the entries directly below a prefix, or its whole subtree with ``recursive``, sorted by key."""
    walk = (
        _scan_subtree(conn, root, prefix, start_after) if recursive else _scan_children(conn, root, prefix, start_after)
    )
    return list(islice(_skip_invalid_keys(walk, invalid_keys), limit))


def list_entries_at_and_below(
    conn: sqlite3.Connection, root: str, prefix: str, invalid_keys: InvalidKeys
) -> list[Entry]:
    """Read the entry at a prefix, if it exists, and its whole subtree."""
    own = read_entry(conn, root, prefix) if prefix else None
    return ([own] if own else []) + list(_skip_invalid_keys(_scan_subtree(conn, root, prefix, None), invalid_keys))


def list_child_names(conn: sqlite3.Connection, root: str, prefix: str, invalid_keys: InvalidKeys) -> list[str]:
    """Read the names directly below a prefix, unique and sorted, including names that only have keys below them."""
    skip = len(prefix) + 1 if prefix else 0
    names: set[str] = set()
    for low, high in _ranges_of_subtree(prefix, None):
        rows = conn.execute(_VISITED_KEYS, {"root": root, "low": low, "high": high, "rest": skip + 1})
        names.update(key[skip:].partition("/")[0] for (key,) in rows)
    unknown = [name for name in names if not is_key(name)]
    invalid_keys.record([f"{prefix}/{name}" if prefix else name for name in unknown])
    return sorted(names.difference(unknown))


def has_descendant(conn: sqlite3.Connection, root: str, key: str) -> bool:
    """Return whether any key is below this key."""
    query = "SELECT 1 FROM entries WHERE root = ? AND key >= ? AND key < ? LIMIT 1"
    return conn.execute(query, (root, key + "/", key + "0")).fetchone() is not None


def list_keys_at_and_below(conn: sqlite3.Connection, root: str, prefix: str, limit: int) -> list[str]:
    """Return up to ``limit`` keys to delete at and below a prefix. The prefix itself is last.

    Invalid keys of other programs are included if they are text.
    """
    found: list[str] = []
    for low, high in _ranges_of_subtree(prefix, None):
        query = f"SELECT key FROM entries WHERE root = ? AND key >= ? AND key < ? AND {_IS_PLAIN} LIMIT ?"  # noqa: S608
        found.extend(key for (key,) in conn.execute(query, (root, low, high, limit - len(found))))
    if prefix and len(found) < limit and read_entry(conn, root, prefix):
        found.append(prefix)
    return found


def read_changes_since(
    conn: sqlite3.Connection, root: str, token: int, prefixes: Sequence[str], invalid_keys: InvalidKeys
) -> list[Change] | None:
    """Read what has changed at and below some prefixes since a token.

    Returns:
        The latest change of each key, in the order of the writes. None if deletions of that age are no longer stored,
            so that the caller must read everything again.
    """
    (forgotten,) = conn.execute("SELECT forgotten FROM state").fetchone()
    if forgotten > token:
        return None
    written = "SELECT token, key FROM {} WHERE root = ? AND token > ? AND typeof(key) = 'text'"
    order: dict[str, int] = {}
    for table in ("tombstones", "entries"):  # a key in both was created again: its entry counts
        found = conn.execute(written.format(table), (root, token))
        order.update((key, at) for at, key in found if any(is_at_or_below(key, prefix) for prefix in prefixes))
    unknown = [key for key in order if not is_key(key)]
    invalid_keys.record(unknown)
    for key in unknown:
        del order[key]
    present = read_entries(conn, root, order)
    return [Change(key, present.get(key)) for key in sorted(order, key=lambda key: order[key])]


def _skip_invalid_keys(entries: Iterable[Entry], invalid_keys: InvalidKeys) -> Iterator[Entry]:
    for entry in entries:
        if is_key(entry.key):
            yield entry
        else:
            invalid_keys.record([entry.key])


def _scan_children(conn: sqlite3.Connection, root: str, prefix: str, start_after: str | None) -> Iterator[Entry]:
    """Yield the entries directly below a prefix.

    When the scan finds a deeper key, it continues after the subtree that contains this key.
    """
    skip = len(prefix) + 1 if prefix else 0
    for low, high in _ranges_of_subtree(prefix, start_after):
        at: str | None = low
        while at is not None:
            at = yield from _yield_children(conn.execute(_SUBTREE, (root, at, high)), skip)


def _yield_children(
    rows: Iterable[tuple[str, bytes, int, int, str | None]], skip: int
) -> Generator[Entry, None, str | None]:
    """Yield entries until a row is not directly below the prefix.

    Returns:
        The key at which to continue, or None at the end.
    """
    for row in rows:
        slash = row[0].find("/", skip)
        if slash >= 0 and row[0].isascii():
            return row[0][:slash] + "0"
        yield _decode_row(row)
    return None


def _scan_subtree(conn: sqlite3.Connection, root: str, prefix: str, start_after: str | None) -> Iterator[Entry]:
    for low, high in _ranges_of_subtree(prefix, start_after):
        for row in conn.execute(_SUBTREE, (root, low, high)):
            yield _decode_row(row)


def _ranges_of_subtree(prefix: str, start_after: str | None) -> list[tuple[str, str]]:
    """Return the ranges of keys that make up a subtree, in order. At the root they exclude reserved keys."""
    ranges = [(prefix + "/", prefix + "0")] if prefix else [("", "@"), ("A", _END)]
    if start_after is None:
        return ranges
    first = start_after + "!"
    return [(max(low, first), high) for low, high in ranges if first < high]


def _decode_row(row: tuple[str, bytes, int, int, str | None]) -> Entry:
    key, value, token, created, owner = row
    return Entry(key, value, VersionKey(token), token, created, owner)
