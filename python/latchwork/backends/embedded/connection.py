"""Connections to a SQLite database, and transactions that end within a time limit.

Threads share the connections of a pool, and no lock is held during I/O. One connection writes, so threads of one
process queue fairly and only processes compete for the file's lock. Errors of sqlite3 are translated here.
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
from latchwork.backends.embedded.pool import Pool
from latchwork.backends.space import SpaceNotice
from latchwork.backends.url import StoreURL
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import ConnectFailed, LatchworkError, OutcomeUnknown, PermissionDenied, StoreFull, Unavailable

_log = logging.getLogger(__name__)

T = TypeVar("T")
#: A transaction: gets the connection, returns the result; what it raises rolls it back.
Work = Callable[[sqlite3.Connection], T]

_MAX_READERS = 8
_REMEDY = ", or give file_mode= if that is meant"
_FIRST_PAUSE_S = 0.0003
_LONGEST_PAUSE_S = 0.004
#: Seconds that a look for changes waits while this process forks.
_PROBE_S = 5.0
_never = Signal()
#: How often to look for space to give back, and what is too much: of the log, and of free pages in the file.
_COMMITS_PER_TIDY = 32
_LONG_LOG_BYTES = 8_000_000
_FREE_PAGES, _FREE_PART = 256, 1 / 4
#: Pages that one look gives back, and milliseconds for which it waits for readers: what a write may take longer.
_FREED_PAGES, _READERS_MS = 250, 30


class Database:
    """Transactions on a database in a file or in memory. Thread-safe."""

    def __init__(self, where: str, readers: Pool, writer: Pool) -> None:
        self.where = where
        self._readers = readers
        self._writer = writer
        self._space = SpaceNotice(where, self.has_space)

    def read(self, work: Work[T], limit_s: float) -> T:
        """Run a function that reads the newest committed state of the database, and return its result.

        The function sees one consistent state. It may be called more than once.

        Raises:
            Unavailable: Not possible within the limit.
        """
        deadline = SYSTEM_CLOCK.now() + limit_s
        self.check()
        try:
            return self._readers.use(
                lambda conn: retry_while_locked(lambda: _read(conn, work), deadline, self.where), deadline
            )
        except sqlite3.Error as error:
            raise translate(error, self.where) from error

    def write(self, work: Work[T], limit_s: float) -> T:
        """Run a function in an exclusive write transaction, commit, and return its result.

        Raises:
            Unavailable: Other writers held the lock for the whole limit. Nothing was applied.
            StoreFull: The disk is full. Nothing was applied.
            OutcomeUnknown: The disk failed during the commit.
        """
        deadline = SYSTEM_CLOCK.now() + limit_s

        def commit(conn: sqlite3.Connection) -> T:
            retry_while_locked(lambda: conn.execute("BEGIN IMMEDIATE"), deadline, self.where)
            self.check()
            result = work(conn)
            self._commit(conn)
            self.compact(conn)
            return result

        try:
            result = self._writer.use(commit, deadline)
        except sqlite3.Error as error:
            ours = translate(error, self.where)
            if isinstance(ours, StoreFull):
                self._space.record_refusal(ours)
            raise ours from error
        self._space.record_write()
        return result

    def has_space(self) -> bool:
        """Return whether the disk has space for a write of usual size."""
        return True

    def check(self) -> None:
        """Raise an error if the database was replaced by another one."""

    def compact(self, conn: sqlite3.Connection) -> None:
        """Return free space to the system from time to time.

        Called after a transaction with the connection that writes.
        """

    def close(self) -> None:
        """Close the connections. Those in use are closed when they are returned."""
        self._readers.close()
        self._writer.close()

    def _commit(self, conn: sqlite3.Connection) -> None:
        try:
            conn.execute("COMMIT")
        except sqlite3.Error as error:
            if "I/O" not in str(error):
                raise
            raise OutcomeUnknown(
                f"{self.where} failed while committing ({error}); read back, then check its disk"
            ) from error


class FileDatabase(Database):
    """A database in a file that other processes share."""

    def __init__(self, url: StoreURL) -> None:
        """Open the file, and create it and its tables if they do not exist.

        Raises:
            ConnectFailed: No directory, not a database, a newer format, or locked for the whole timeout.
            PermissionDenied: This user cannot write there.
        """
        path = self.path = Path(url.path or "").absolute()
        layout.check_path(path)
        where = f"store file {path}"
        mode = url.options.get("file_mode")
        try:
            make_file(path, "store file", None if mode is None else int(mode, 8), remedy=_REMEDY)
        except OSError as error:
            raise ConnectFailed(f"{where} cannot be made: {error}; name another in the URL") from error

        open_file = partial(layout.open_file, path, url.options.get("sync", "normal"))

        def opener(deadline: float) -> sqlite3.Connection:
            return _opened(open_file, deadline, where)

        super().__init__(where, Pool(opener, _MAX_READERS, where), Pool(opener, 1, where))
        self._probes = Pool(opener, 1, where)  # the version that its connection tells is compared with its own
        self._version = -1
        self._commits = 0
        self._identity = (0, 0)
        try:
            self._prepare(url.connect_timeout_s)
        except BaseException:
            self.close()
            raise

    def changed(self) -> bool:
        """Return whether any process has committed since the last call. For one thread."""
        self.check()
        try:
            (version,) = self._probes.use(
                lambda conn: conn.execute("PRAGMA data_version").fetchone(), SYSTEM_CLOCK.now() + _PROBE_S
            )
        except sqlite3.Error as error:
            if is_busy(error):
                return True
            raise translate(error, self.where) from error
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
            raise Unavailable(f"{self.where} was deleted or replaced while in use; close this store and connect again")

    def has_space(self) -> bool:
        """Return whether the disk has space for a write of usual size."""
        return not explain_write_failure(self.path)

    def compact(self, conn: sqlite3.Connection) -> None:
        """Truncate a long write-ahead log, and shorten a file that is mostly free, a little after every few
        transactions.

        SQLite truncates its log only when there are no readers, which under a steady load never happens.
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
            _log.debug("%s was not tidied: %s", self.where, error)
        finally:
            conn.execute("PRAGMA busy_timeout = 0")

    def close(self) -> None:
        """Close the connections. Those in use are closed when they are returned."""
        super().close()
        self._probes.close()

    def _prepare(self, connect_timeout_s: float) -> None:
        deadline = SYSTEM_CLOCK.now() + connect_timeout_s
        try:
            self._writer.use(
                lambda conn: retry_while_locked(lambda: layout.prepare_file(conn, self.path), deadline, self.where),
                deadline,
            )
        except sqlite3.Error as error:
            raise as_connect_failure(translate(error, self.where)) from error
        except Unavailable as error:
            raise as_connect_failure(error) from error.__cause__
        found = self.path.stat()
        self._identity = (found.st_dev, found.st_ino)


def retry_while_locked(call: Callable[[], T], deadline: float, where: str) -> T:
    """Repeat a call as long as another process holds the lock of the database, and return its result.

    Args:
        call: The call.
        deadline: Local clock time at which to stop.
        where: The database, for messages.
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
                    f"{where} was locked by another process for the whole timeout; "
                    "look for a stopped process that has it open"
                ) from error
        SYSTEM_CLOCK.wait(_never, min(left_s, pause_s * random.uniform(0.3, 1.0)))
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)


def _opened(opener: Callable[[], sqlite3.Connection], deadline: float, where: str) -> sqlite3.Connection:
    try:
        return retry_while_locked(opener, deadline, where)
    except sqlite3.Error as error:
        raise translate(error, where) from error


def open_memory_database(name: str) -> Database:
    """Create an empty database in memory, with one connection for reads and writes."""
    where = f"store memory://{name}"
    pool = Pool(lambda _deadline: layout.open_memory(), 1, where)
    return Database(where, pool, pool)


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


def translate(error: sqlite3.Error, where: str) -> LatchworkError:
    """Convert an SQLite error, which ended a call before its commit, to one of latchwork's errors."""
    text = str(error)  # codes are known to Python 3.11 and newer only; the texts have been stable for decades
    if is_busy(error):
        return Unavailable(f"{where} was locked by another process; try again")
    if "full" in text:
        return StoreFull(f"{where} cannot grow ({text}); free space on its disk")
    if "readonly" in text or "read-only" in text:
        return PermissionDenied(f"{where} is read-only for this account ({text}); change its mode or that of its disk")
    if "not a database" in text or "malformed" in text:
        return ConnectFailed(
            f"{where} is no SQLite database or a damaged one ({text}); restore it or name another file"
        )
    if "unable to open" in text:
        return ConnectFailed(f"{where} cannot be opened ({text}); check its directory and the limit on open files")
    return Unavailable(f"{where} failed ({text}); check its disk")


def as_connect_failure(error: Exception) -> Exception:
    """Convert an error that prevented connecting: ``Unavailable`` becomes ``ConnectFailed``."""
    return ConnectFailed(str(error)) if type(error) is Unavailable else error
