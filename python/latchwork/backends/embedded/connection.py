"""Connections to one SQLite database, and transactions on it that end within a time limit.

Threads take a connection out of a pool, use it alone and put it back: no lock is held during I/O. One connection of
the pool writes, so that threads of one process queue up fairly and only processes compete for the file's lock.
No error of sqlite3 leaves this file.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from latchwork.backends.embedded import layout
from latchwork.backends.embedded.errors import as_connect_failure, is_busy, translate
from latchwork.backends.url import StoreURL
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import Closed, OutcomeUnknown, Unavailable

T = TypeVar("T")
#: A transaction: gets the connection, returns the result; what it raises rolls it back.
Work = Callable[[sqlite3.Connection], T]

_MAX_READERS = 8
_FIRST_PAUSE_S = 0.0003
_LONGEST_PAUSE_S = 0.004
_POLLS_PER_CHECK = 32


class _Turn:
    def __init__(self) -> None:
        self.come = threading.Event()
        self.granted = False
        self.conn: sqlite3.Connection | None = None


class Pool:
    """Connections that one thread at a time uses, given out in the order of asking. Safe to share between threads."""

    def __init__(self, opener: Callable[[], sqlite3.Connection], limit: int, where: str) -> None:
        self._opener = opener
        self._where = where
        self._left = limit
        self._idle: list[sqlite3.Connection] = []
        self._open: set[sqlite3.Connection] = set()
        self._queue: deque[_Turn] = deque()
        self._lock = threading.Lock()
        self._closed = False
        _pools.add(self)

    def take(self, deadline: float) -> sqlite3.Connection:
        """An idle or a new connection.

        Raises:
            Unavailable: every connection was in use until the deadline.
            Closed: the pool is closed.
        """
        with self._lock:
            if self._closed:
                raise Closed(f"{self._where} was closed; connect again")
            if self._idle:  # then nobody is in the queue
                return self._idle.pop()
            turn = _Turn()
            self._queue.append(turn)
            self._grant()
        if not turn.come.is_set():
            SYSTEM_CLOCK.wait(turn.come, deadline - SYSTEM_CLOCK.now())
        with self._lock:
            if not turn.granted:
                if self._closed:
                    raise Closed(f"{self._where} was closed while this call waited; connect again")
                self._queue.remove(turn)
                raise Unavailable(f"{self._where} was in use by other threads until the time was over; try again")
        return turn.conn or self._connect(deadline)

    def give(self, conn: sqlite3.Connection, *, broken: bool = False) -> None:
        """Put a connection back; a broken one is closed."""
        with self._lock:
            kept = not self._closed and not broken
            if kept:
                self._idle.append(conn)
                self._grant()
        if not kept:
            self._drop(conn)

    def close(self) -> None:
        """Close the idle connections now, those in use when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for turn in self._queue:
                turn.come.set()
            self._queue.clear()
        for conn in idle:
            self._drop(conn)

    def abandon(self) -> list[sqlite3.Connection]:
        """In a forked child: the connections are the parent's; they must be neither used nor closed here."""
        self._lock = threading.Lock()
        self._closed = True
        self._idle = []
        return list(self._open)

    def _grant(self) -> None:
        """Serve the queue while there is something to give; the lock is held."""
        while self._queue and (self._idle or self._left) and not self._closed:
            turn = self._queue.popleft()
            if self._idle:
                turn.conn = self._idle.pop()
            else:
                self._left -= 1
            turn.granted = True
            turn.come.set()

    def _connect(self, deadline: float) -> sqlite3.Connection:
        try:
            conn = patiently(self._opener, deadline, self._where)
        except BaseException as error:
            self._drop(None)
            if isinstance(error, sqlite3.Error):
                raise translate(error, self._where) from error
            raise
        self._open.add(conn)
        return conn

    def _drop(self, conn: sqlite3.Connection | None) -> None:
        if conn is not None:
            conn.close()
        with self._lock:
            self._open.discard(conn)
            self._left += 1
            self._grant()


class Database:
    """Transactions on one database, in a file or in memory. Safe to share between threads."""

    def __init__(self, where: str, readers: Pool, writer: Pool) -> None:
        self.where = where
        self._readers = readers
        self._writer = writer

    def read(self, work: Work[T], limit_s: float) -> T:
        """Run the work on one consistent state, the newest committed by any process. It may be run more than once.

        Raises:
            Unavailable: not possible within the limit.
        """
        deadline = SYSTEM_CLOCK.now() + limit_s
        self.check()
        conn = self._readers.take(deadline)
        try:
            return patiently(lambda: _read(conn, work), deadline, self.where)
        except sqlite3.Error as error:
            raise translate(error, self.where) from error
        finally:
            self._readers.give(conn, broken=_still_open(conn))

    def write(self, work: Work[T], limit_s: float) -> T:
        """Run the work alone among all processes, and commit.

        Raises:
            Unavailable: others wrote for the whole limit; nothing was applied.
            QuotaExceeded: the disk is full; nothing was applied.
            OutcomeUnknown: the disk failed while committing.
        """
        deadline = SYSTEM_CLOCK.now() + limit_s
        conn = self._writer.take(deadline)
        try:
            patiently(lambda: conn.execute("BEGIN IMMEDIATE"), deadline, self.where)
            self.check()
            result = work(conn)
            self._commit(conn)
            return result
        except sqlite3.Error as error:
            raise translate(error, self.where) from error
        finally:
            self._writer.give(conn, broken=_still_open(conn))

    def check(self) -> None:
        """Refuse to go on when the database is not what it was."""

    def close(self) -> None:
        """Close the connections; those in use are closed when they come back."""
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
        """Open the file, making it and its tables when they are not there.

        Raises:
            ConnectFailed: no directory, no database, a newer format, or locked for the whole timeout.
            PermissionDenied: this account cannot write there.
        """
        path = self.path = Path(url.path or "").absolute()
        layout.check_place(path)
        opener = partial(layout.open_file, path, url.options.get("sync", "normal"))
        where = f"store file {path}"
        super().__init__(where, Pool(opener, _MAX_READERS, where), Pool(opener, 1, where))
        self._probes = Pool(opener, 1, where)
        self._probe: sqlite3.Connection | None = None
        self._version = -1
        self._polls = 0
        self._identity = (0, 0)
        try:
            self._prepare(url.connect_timeout_s)
        except BaseException:
            self.close()
            raise

    def changed(self) -> bool:
        """Whether any connection of any process committed since the last call. One thread only."""
        self._polls += 1
        if self._polls % _POLLS_PER_CHECK == 0:
            self.check()
        if self._probe is None:
            self._probe = self._probes.take(SYSTEM_CLOCK.now())
        try:
            (version,) = self._probe.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error as error:
            if is_busy(error):
                return True
            raise translate(error, self.where) from error
        before, self._version = self._version, version
        return bool(before != version)

    def check(self) -> None:
        """Refuse a file that was deleted or replaced: what others read and write is elsewhere."""
        try:
            found = self.path.stat()
            same = (found.st_dev, found.st_ino) == self._identity
        except OSError:
            same = False
        if not same:
            raise Unavailable(f"{self.where} was deleted or replaced while in use; close this store and connect again")

    def close(self) -> None:
        """Close the connections; those in use are closed when they come back."""
        super().close()
        self._probes.close()
        if self._probe is not None:
            self._probes.give(self._probe)

    def _prepare(self, connect_timeout_s: float) -> None:
        deadline = SYSTEM_CLOCK.now() + connect_timeout_s
        try:
            conn = self._writer.take(deadline)
            try:
                patiently(lambda: layout.prepare_file(conn, self.path), deadline, self.where)
            finally:
                self._writer.give(conn, broken=_still_open(conn))
        except sqlite3.Error as error:
            raise as_connect_failure(translate(error, self.where)) from error
        except Unavailable as error:
            raise as_connect_failure(error) from error.__cause__
        found = self.path.stat()
        self._identity = (found.st_dev, found.st_ino)


def patiently(call: Callable[[], T], deadline: float, where: str) -> T:
    """Call again while another process is in the way.

    Raises:
        Unavailable: it still was at the deadline.
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


def memory_database(name: str) -> Database:
    """A new, empty database in memory: one connection for reads and writes."""
    where = f"store memory://{name}"
    pool = Pool(layout.open_memory, 1, where)
    return Database(where, pool, pool)


def _read(conn: sqlite3.Connection, work: Work[T]) -> T:
    conn.execute("BEGIN")
    try:
        return work(conn)
    finally:
        if conn.in_transaction:
            conn.execute("ROLLBACK")


def _still_open(conn: sqlite3.Connection) -> bool:
    """Roll back what is open; True if even that failed."""
    if not conn.in_transaction:
        return False
    try:
        conn.execute("ROLLBACK")
    except sqlite3.Error:
        return True
    return False


_never = threading.Event()
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_of_the_parent: list[sqlite3.Connection] = []


def _forget_parents_connections() -> None:
    for pool in list(_pools):
        _of_the_parent.extend(pool.abandon())
    _pools.clear()


os.register_at_fork(after_in_child=_forget_parents_connections)
