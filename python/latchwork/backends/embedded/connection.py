"""Connections to a SQLite database, and transactions that end within a time limit.

Threads share the connections of a pool, and no mutex is held during I/O. Only one connection writes, so the threads of
a process wait in order, renewals of sessions first, and only processes compete for the lock of the file. Errors of
sqlite3 are converted here.
"""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from latchwork._base.event import Signal
from latchwork._base.files import explain_write_failure, make_file
from latchwork.backends.embedded import layout
from latchwork.backends.embedded.pool import ConnectionPool
from latchwork.backends.out_of_space import OutOfSpaceLog
from latchwork.backends.url import StoreURL
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import ConnectFailed, LatchworkError, OutcomeUnknown, PermissionDenied, StoreFull, Unavailable

_log = logging.getLogger(__name__)

T = TypeVar("T")
#: A function that runs in a transaction. It gets the connection and returns the result. An error rolls back.
Work = Callable[[sqlite3.Connection], T]

_MAX_READERS = 8
_REMEDY = ", or give file_mode= if that is meant"
_FIRST_PAUSE_S = 0.0003
_LONGEST_PAUSE_S = 0.004
#: Seconds that a look for changes waits while this process forks.
_PROBE_S = 5.0
_never = Signal()
#: The transactions between two attempts to return free space, and the limits for the log and for free pages.
_COMMITS_PER_TIDY = 32
_LONG_LOG_BYTES = 8_000_000
_FREE_PAGES, _FREE_PART = 256, 1 / 4
#: The pages that one attempt returns, and the milliseconds for which it waits for readers, which delays a write.
_FREED_PAGES, _READERS_MS = 250, 30


class Database:
    """A database in a file or in memory, with transactions that end within a time limit. Thread-safe."""

    def __init__(self, location: str, readers: ConnectionPool, writer: ConnectionPool) -> None:
        self.location = location
        self._readers = readers
        self._writer = writer
        self._space = OutOfSpaceLog(location, self.has_space)

    def read(self, work: Work[T], limit_s: float) -> T:
        """Run a function in a read transaction on the newest committed state, and return its result.

        Args:
            work: Called with the connection. It may be called more than once.
            limit_s: Seconds to wait.
        Raises:
            Unavailable: The transaction was not possible within the limit.
        """
        deadline = SYSTEM_CLOCK.now() + limit_s
        self.check()
        try:
            return self._readers.use(
                lambda conn: retry_while_locked(lambda: _read(conn, work), deadline, self.location), deadline
            )
        except sqlite3.Error as error:
            raise translate_error(error, self.location) from error

    def write(self, work: Work[T], limit_s: float, *, is_urgent: bool = False) -> T:
        """Run a function in an exclusive write transaction, commit it, and return the result of the function.

        Args:
            work: Called with the connection.
            limit_s: Seconds to wait for other writers.
            is_urgent: Whether to write before the other threads of this process that wait.
        Raises:
            Unavailable: Other writers held the lock for the whole limit. Nothing was applied.
            StoreFull: The disk is full. Nothing was applied.
            OutcomeUnknown: The disk failed during the commit.
        """
        deadline = SYSTEM_CLOCK.now() + limit_s

        def commit(conn: sqlite3.Connection) -> T:
            retry_while_locked(lambda: conn.execute("BEGIN IMMEDIATE"), deadline, self.location)
            self.check()
            result = work(conn)
            self._commit(conn)
            self.compact(conn)
            return result

        try:
            result = self._writer.use(commit, deadline, is_urgent=is_urgent)
        except sqlite3.Error as error:
            converted = translate_error(error, self.location)
            if isinstance(converted, StoreFull):
                self._space.record_refusal(converted)
            raise converted from error
        self._space.record_write()
        return result

    def has_space(self) -> bool:
        """Return whether the disk has enough space for a write of typical size."""
        return True

    def check(self) -> None:
        """Raise an error if the database file was deleted or replaced."""

    def compact(self, conn: sqlite3.Connection) -> None:
        """Return free space to the file system. It is called after each transaction, but does this only now and
        then.
        """

    def close(self) -> None:
        """Close all connections. A connection in use is closed when it is returned."""
        self._readers.close()
        self._writer.close()

    def _commit(self, conn: sqlite3.Connection) -> None:
        try:
            conn.execute("COMMIT")
        except sqlite3.Error as error:
            if "I/O" not in str(error):
                raise
            raise OutcomeUnknown(
                f"{self.location} failed while committing ({error}); read back, then check its disk"
            ) from error


class FileDatabase(Database):
    """A database in a file that other processes can open, too."""

    def __init__(self, url: StoreURL) -> None:
        """Open the file, and create it and its tables if they do not exist.

        Raises:
            ConnectFailed: The directory does not exist, the file is not a database or has a newer format, or it was
                locked for the whole timeout.
            PermissionDenied: The account cannot write the file or its directory.
        """
        path = self.path = Path(url.path or "").absolute()
        layout.check_path(path)
        location = f"store file {path}"
        mode = url.options.get("file_mode")
        try:
            make_file(path, "store file", None if mode is None else int(mode, 8), remedy=_REMEDY)
        except OSError as error:
            raise ConnectFailed(f"{location} cannot be created: {error}; name another file in the URL") from error

        open_file = partial(layout.open_file_connection, path, url.options.get("sync", "normal"))

        def opener(deadline: float) -> sqlite3.Connection:
            return _opened(open_file, deadline, location)

        super().__init__(location, ConnectionPool(opener, _MAX_READERS, location), ConnectionPool(opener, 1, location))
        self._probes = ConnectionPool(opener, 1, location)  # its connection reports changes of the data version
        self._version = -1
        self._commits = 0
        self._identity = (0, 0)
        try:
            self._prepare(url.connect_timeout_s)
        except BaseException:
            self.close()
            raise

    def has_new_commits(self) -> bool:
        """Return whether any process has committed a transaction since the last call. Only for one thread."""
        self.check()
        try:
            (version,) = self._probes.use(
                lambda conn: conn.execute("PRAGMA data_version").fetchone(), SYSTEM_CLOCK.now() + _PROBE_S
            )
        except sqlite3.Error as error:
            if is_busy(error):
                return True
            raise translate_error(error, self.location) from error
        before, self._version = self._version, version
        return bool(before != version)

    def check(self) -> None:
        """Raise an error if the file was deleted or replaced, because other processes would then use another file."""
        try:
            found = self.path.stat()
            same = (found.st_dev, found.st_ino) == self._identity
        except OSError:
            same = False
        if not same:
            raise Unavailable(
                f"{self.location} was deleted or replaced while in use; close this store and connect again"
            )

    def has_space(self) -> bool:
        """Return whether the disk has enough space for a write of typical size."""
        return not explain_write_failure(self.path)

    def compact(self, conn: sqlite3.Connection) -> None:
        """After every few transactions, truncate a long write-ahead log and shrink a file that is mostly free.

        SQLite truncates its log only while there are no readers, which never happens under a steady load.
        """
        self._commits += 1
        if self._commits % _COMMITS_PER_TIDY:
            return
        try:
            if self.path.with_name(f"{self.path.name}-wal").stat().st_size > _LONG_LOG_BYTES:
                conn.execute(f"PRAGMA busy_timeout = {_READERS_MS}")
                conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            (pages,) = conn.execute("PRAGMA page_count").fetchone()
            (free,) = conn.execute("PRAGMA freelist_count").fetchone()
            if free > max(_FREE_PAGES, pages * _FREE_PART):
                conn.executescript(f"PRAGMA incremental_vacuum({_FREED_PAGES})")  # execute would free one page
        except (OSError, sqlite3.Error) as error:  # the next time, then
            _log.debug("%s was not compacted: %s", self.location, error)
        finally:
            conn.execute("PRAGMA busy_timeout = 0")

    def close(self) -> None:
        """Close all connections. A connection in use is closed when it is returned."""
        super().close()
        self._probes.close()

    def _prepare(self, connect_timeout_s: float) -> None:
        deadline = SYSTEM_CLOCK.now() + connect_timeout_s
        try:
            self._writer.use(
                lambda conn: retry_while_locked(lambda: layout.prepare_file(conn, self.path), deadline, self.location),
                deadline,
            )
        except sqlite3.Error as error:
            raise convert_connect_error(translate_error(error, self.location)) from error
        except Unavailable as error:
            raise convert_connect_error(error) from error.__cause__
        found = self.path.stat()
        self._identity = (found.st_dev, found.st_ino)


def retry_while_locked(call: Callable[[], T], deadline: float, location: str) -> T:
    """Repeat a call while another process holds the lock of the database, and return its result.

    Args:
        call: The function to call.
        deadline: Local clock time after which it is not called again.
        location: Description of the database for messages.
    Raises:
        Unavailable: Another process still held the lock at the deadline.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            left_s = deadline - SYSTEM_CLOCK.now()
            if not is_busy(error):
                raise
            if left_s <= 0:
                raise Unavailable(
                    f"{location} was locked by another process for the whole timeout; "
                    "look for a stopped process that has it open"
                ) from error
        SYSTEM_CLOCK.wait(_never, min(left_s, pause_s * random.uniform(0.3, 1.0)))
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)


def _opened(opener: Callable[[], sqlite3.Connection], deadline: float, location: str) -> sqlite3.Connection:
    try:
        return retry_while_locked(opener, deadline, location)
    except sqlite3.Error as error:
        raise translate_error(error, location) from error


def open_memory_database(name: str) -> Database:
    """Create an empty in-memory database, with one connection for reads and writes."""
    location = f"store memory://{name}"
    pool = ConnectionPool(lambda _deadline: layout.open_memory_connection(), 1, location)
    return Database(location, pool, pool)


def _read(conn: sqlite3.Connection, work: Work[T]) -> T:
    conn.execute("BEGIN")
    try:
        return work(conn)
    finally:
        if conn.in_transaction:
            conn.execute("ROLLBACK")


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether a call failed because another connection held the lock, so that a retry may succeed."""
    return "locked" in str(error)


def translate_error(error: sqlite3.Error, location: str) -> LatchworkError:
    """Convert an SQLite error that ended a transaction before its commit to one of latchwork's errors.

    Args:
        error: The error.
        location: Description of the database for the message.
    """
    text = str(error)  # codes are known to Python 3.11 and newer only; the texts have been stable for decades
    if is_busy(error):
        return Unavailable(f"{location} was locked by another process; try again")
    if "full" in text:
        return StoreFull(f"{location} cannot grow ({text}); free space on its disk")
    if "readonly" in text or "read-only" in text:
        return PermissionDenied(
            f"{location} is read-only for this account ({text}); change its mode or that of its disk"
        )
    if "not a database" in text or "malformed" in text:
        return ConnectFailed(
            f"{location} is no SQLite database or a damaged one ({text}); restore it or name another file"
        )
    if "unable to open" in text:
        return ConnectFailed(f"{location} cannot be opened ({text}); check its directory and the limit on open files")
    return Unavailable(f"{location} failed ({text}); check its disk")


def convert_connect_error(error: Exception) -> Exception:
    """Return the error to raise when opening a database has failed: ``ConnectFailed`` instead of ``Unavailable``.

    Args:
        error: The error. It is returned unchanged unless it is ``Unavailable``.
    """
    return ConnectFailed(str(error)) if type(error) is Unavailable else error
