"""The format of the file: tables, versions, and how a connection is opened.

    state       one row: the newest token, and the newest token whose deletion was forgotten
    entries     the keys; an index by token finds what was written since
    tombstones  the last deleted keys, so that watches see deletions; the oldest are forgotten
    counters    one per parent of sequential keys, never removed
    sessions    their deadlines: CLOCK_BOOTTIME, valid within one boot

Several processes may create the file at once. A file of a newer format is refused and never changed.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path

from latchwork._base.files import explain_write_failure
from latchwork.errors import ConnectFailed, PermissionDenied

#: Format of the file, in its header's user_version; raised by every incompatible change.
FORMAT_VERSION = 1
#: "LWCH" in the header's application_id, so that another application's database is never taken for ours.
APPLICATION_ID = 0x4C574348

_TABLES = f"""
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 1), token INTEGER NOT NULL, forgotten INTEGER NOT NULL);
INSERT INTO state VALUES (1, 0, 0);
CREATE TABLE entries (
    root TEXT NOT NULL, key TEXT NOT NULL, token INTEGER NOT NULL, created INTEGER NOT NULL,
    owner TEXT, value BLOB NOT NULL, UNIQUE (root, key));
CREATE INDEX entries_by_token ON entries (root, token, key);
CREATE INDEX entries_by_owner ON entries (owner) WHERE owner IS NOT NULL;
CREATE TABLE tombstones (
    seq INTEGER PRIMARY KEY, root TEXT NOT NULL, key TEXT NOT NULL, token INTEGER NOT NULL, UNIQUE (root, key));
CREATE INDEX tombstones_by_token ON tombstones (root, token, key);
CREATE TABLE counters (
    root TEXT NOT NULL, parent TEXT NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (root, parent)) WITHOUT ROWID;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, root TEXT NOT NULL, boot TEXT NOT NULL, ttl_s REAL NOT NULL, deadline REAL NOT NULL
    ) WITHOUT ROWID;
CREATE INDEX sessions_by_deadline ON sessions (deadline);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION}"""  # noqa: S608 - two numbers of ours


def open_memory_connection() -> sqlite3.Connection:
    """Open a connection to a new database in memory, and create its tables."""
    conn = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    create_tables(conn)
    return conn


def open_file_connection(path: Path, sync: str) -> sqlite3.Connection:
    """Open a connection to a database file. The file is created empty if it does not exist.

    Does not read or write the file yet.

    Args:
        path: The file.
        sync: When commits are flushed to the disk: "normal" or "full".
    """
    conn = sqlite3.connect(str(path), timeout=0, isolation_level=None, check_same_thread=False)
    # The keys of another program need be no UTF-8; ours all are.
    conn.text_factory = methodcaller("decode", "utf-8", "surrogateescape")
    try:
        conn.execute(f"PRAGMA synchronous = {sync}")
    except BaseException:
        conn.close()
        raise
    return conn


def prepare_file(conn: sqlite3.Connection, path: Path) -> None:
    """Check that a file belongs to latchwork, switch it to WAL mode, and create its tables if they do not exist.

    Several processes may do this at once. A process that loses the race gets "database is locked" and must call it
    again.

    Raises:
        ConnectFailed: The file is a database of another application, has a newer format, or has an unknown trigger or
            view. Or the file system does not support shared memory.
    """
    with _transaction(conn, "BEGIN"):  # one state of the file: another process may be making its tables
        _check_owner(conn, path)
    conn.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect before anything is stored only
    (mode,) = conn.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConnectFailed(f"{path} is on a file system without shared memory (mode {mode}); put it on a local disk")
    with _transaction(conn, "BEGIN IMMEDIATE"):
        if _check_owner(conn, path) == 0:
            create_tables(conn)


@contextmanager
def _transaction(conn: sqlite3.Connection, begin: str) -> Iterator[None]:
    conn.execute(begin)
    try:
        yield
        conn.execute("COMMIT")
    finally:
        if conn.in_transaction:
            conn.execute("ROLLBACK")


def create_tables(conn: sqlite3.Connection) -> None:
    """Create all tables. Runs inside the caller's transaction if there is one."""
    for statement in _TABLES.split(";"):
        conn.execute(statement)


def check_path(path: Path) -> None:
    """Check that a database file can be opened at a path.

    Raises:
        ConnectFailed: The directory does not exist, or the path is not a regular file.
        PermissionDenied: The account cannot write the file or its directory.
    """
    directory, file = _mode(path.parent), _mode(path)
    if not stat.S_ISDIR(directory):
        raise ConnectFailed(f"directory {path.parent} of store file {path.name} does not exist; create it first")
    if file and not stat.S_ISREG(file):
        raise ConnectFailed(f"{path} is not a regular file; name a file in the URL")
    if file and not _may(path, os.R_OK | os.W_OK):
        why = explain_write_failure(path) or "change its mode"
        raise PermissionDenied(f"store file {path} is not readable and writable for this account: {why}")
    if not _may(path.parent, os.W_OK | os.X_OK):
        raise PermissionDenied(f"directory {path.parent} is not writable for this account; the store adds files there")


def _mode(path: Path) -> int:
    """Return the file type and permissions of a path, or 0 if nothing exists there."""
    try:
        return path.stat().st_mode
    except PermissionError as error:
        raise PermissionDenied(
            f"{path} cannot be reached by this account; change the mode of its directories"
        ) from error
    except OSError:
        return 0


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _check_owner(conn: sqlite3.Connection, path: Path) -> int:
    """Return the format version of a database file, or 0 if it is empty.

    Raises:
        ConnectFailed: The database belongs to another application, or has a newer format.
    """
    (version,) = conn.execute("PRAGMA user_version").fetchone()
    (application,) = conn.execute("PRAGMA application_id").fetchone()
    (tables,) = conn.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise ConnectFailed(f"{path} is a database of another application; name another file in the URL")
    if version > FORMAT_VERSION:
        raise ConnectFailed(
            f"{path} has format {version}, newer than {FORMAT_VERSION}, the newest known here; upgrade latchwork"
        )
    added = conn.execute("SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone()
    if added:  # it could change what is written, or run without end inside a call
        raise ConnectFailed(
            f"store file {path} has a {added[0]} {added[1]!r}, which latchwork never creates; "
            "drop it with sqlite3, restore the file or name another one"
        )
    return int(version)
