"""A database: opened by URL, and its transactions. Independent of the meaning of the rows.

Writers of one process take turns in the order of arrival, because the wait of SQLite is not fair.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import make_url

from latchwork.errors import LatchworkError, Unavailable
from latchwork.spi import explain_write_failure, make_file, mutex

_log = logging.getLogger(__name__)

#: Seconds to wait while a writer of another process locks SQLite.
_BUSY_S = 10.0
#: Seconds to wait for other writers of this process.
_WRITE_S = 60.0
#: Timeouts in milliseconds for statements and for transactions of frozen processes: a takeover waits for them.
_POSTGRES = " ".join(
    f"-c {setting}"
    for setting in (
        "statement_timeout=5000",
        "idle_in_transaction_session_timeout=3000",
        "default_transaction_isolation=read\\ committed",
    )
)


#: Detect a lost server or network within about ten seconds instead of hours. The timeouts of the server do not help
#: in this case.
_ALIVE = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
#: The size of the connection pool, and of its overflow: enough for the shards of a node, its pages and background
#: work.
_KEPT, _MORE = 20, 20
#: A connection that was idle for so many seconds is pinged before use. Each ping costs a round trip.
_IDLE_S = 2.0
#: The SQLSTATE of PostgreSQL for a write on a standby or read-only server.
_READ_ONLY = "25006"
#: The first version of SQLite that supports RETURNING.
_SQLITE = (3, 35, 0)


class DatabaseUnavailable(Unavailable):
    """The database cannot be reached, is locked, full or read-only. The message includes its error."""


class Database:
    """A database of workflows. Thread-safe. Cannot be used after a fork.

    Args:
        url: ``sqlite:///path`` or ``postgresql://user@host/name``. ``sqlite://`` is an in-memory database for
            tests.
    Raises:
        LatchworkError: The URL is invalid or not supported, or the driver is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except sa.exc.ArgumentError:
            raise LatchworkError("the database URL is malformed; write sqlite:///flows.db or postgresql://…") from None
        if parsed.get_backend_name() not in {"sqlite", "postgresql"}:
            raise LatchworkError(
                f"databases of {parsed.get_backend_name()} are not supported; use sqlite or postgresql"
            )
        if parsed.drivername == "postgresql":  # by default SQLAlchemy would take psycopg 2
            parsed = parsed.set(drivername="postgresql+psycopg")
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self._file = parsed.database if self.is_sqlite and parsed.database not in {None, "", ":memory:"} else None
        self._writes = FairLock()
        self._in_use: dict[Any, float] = {}
        try:
            self.engine = (
                _sqlite(parsed, self._file) if self.is_sqlite else _create_postgres_engine(parsed, self._in_use)
            )
            self._asked = (
                self.engine
                if self.is_sqlite
                else _create_postgres_engine(parsed, self._in_use, poolclass=sa.pool.NullPool)
            )
        except ModuleNotFoundError as error:
            raise LatchworkError(
                f'PostgreSQL needs {error.name}; run: pip install "latchwork[workflows-postgres]"'
            ) from None
        self.url = parsed.render_as_string(hide_password=True)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._asked.dispose()
        self.engine.dispose()

    def break_connections(self, older_than_s: float = 0.0) -> int:
        """Break database connections that have been in use for too long, so that their threads get
        ``DatabaseUnavailable``.

        PostgreSQL limits the time of each statement, but its answer may never arrive through a hanging proxy or
        firewall. Thread-safe.

        Args:
            older_than_s: The least number of seconds in use.
        Returns:
            The number of broken connections.
        """
        now = time.monotonic()
        return sum(_shut_down_socket(each) for each, since in list(self._in_use.items()) if now - since >= older_than_s)

    def ping(self) -> None:
        """Check that the database answers a query.

        On PostgreSQL this opens an extra connection, because all pooled connections may be in use.

        Raises:
            DatabaseUnavailable: The database does not answer.
        """
        with _convert_errors(self.url), self._asked.connect() as connection:
            connection.exec_driver_sql("SELECT 1")

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Open a read-only transaction: one snapshot on SQLite, one snapshot per statement on PostgreSQL.

        Raises:
            DatabaseUnavailable: The database cannot be reached.
        """
        with _convert_errors(self.url, self._file), self.engine.connect() as connection:
            if self.is_sqlite:
                connection.exec_driver_sql("BEGIN")
            yield connection
            connection.rollback()

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Open a write transaction. It commits at the end of the block, or rolls back if the block raises.

        Raises:
            DatabaseUnavailable: The database cannot be reached. If the commit raises this, it is unknown whether the
                transaction was committed.
        """
        if not self.is_sqlite:
            with _convert_errors(self.url), self.engine.begin() as connection:
                yield connection
            return
        if not self._writes.acquire(_WRITE_S):
            raise DatabaseUnavailable(
                f"database {self.url}: other threads have locked it for {_WRITE_S:.0f} s; look at its disk"
            )
        try:
            with _convert_errors(self.url, self._file), self.engine.connect() as connection:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                yield connection
                connection.commit()
        finally:
            self._writes.release()


def _sqlite(url: sa.URL, file: str | None) -> sa.Engine:
    library: Any = sqlite.dialect.import_dbapi()
    if library.sqlite_version_info < _SQLITE:
        raise LatchworkError(
            f"the SQLite of this Python is {library.sqlite_version}, and workflows need 3.35; use a Python with a "
            "newer one, or PostgreSQL"
        )
    if file is not None:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        try:
            make_file(Path(file), "database file")
        except OSError as error:
            raise DatabaseUnavailable(
                f"database {url}: the file cannot be created: {error.strerror or error}"
            ) from error
    options: dict[str, Any] = {"poolclass": sa.pool.StaticPool} if file is None else {}
    engine = sa.create_engine(
        url, connect_args={"timeout": _BUSY_S, "check_same_thread": False, "isolation_level": None}, **options
    )

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        if file is not None:
            if connection.execute("PRAGMA page_count").fetchone()[0] == 0:  # setting it later would wait for writers
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # see ``retention.shrink_database``
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")

    return engine


def _create_postgres_engine(url: sa.URL, in_use: dict[Any, float], **pool: Any) -> sa.Engine:
    """Create the engine for PostgreSQL.

    Args:
        url: The URL of the database.
        in_use: Filled by the engine: each connection that is in use, with the time since when.
        pool: Options of the connection pool.
    """
    pool = pool or {"pool_size": _KEPT, "max_overflow": _MORE}
    engine = sa.create_engine(url, connect_args={"options": _POSTGRES, "connect_timeout": 5, **_ALIVE}, **pool)

    @sa.event.listens_for(engine, "checkin")
    def note(connection: Any, record: Any) -> None:
        in_use.pop(connection, None)
        record.info["used_at"] = time.monotonic()

    @sa.event.listens_for(engine, "close")
    @sa.event.listens_for(engine, "close_detached")
    def forget(connection: Any, *_: object) -> None:
        in_use.pop(connection, None)

    @sa.event.listens_for(engine, "checkout")
    def check(connection: Any, record: Any, _: object) -> None:
        in_use[connection] = time.monotonic()
        used_at = record.info.get("used_at")
        if used_at is None or time.monotonic() - used_at < _IDLE_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise sa.exc.InvalidatePoolError("the server has closed it") from error

    return engine


def _shut_down_socket(connection: Any) -> bool:
    """Shut down the socket of a psycopg connection. Return False if the connection is closed already."""
    try:
        number = connection.fileno()
        with socket.socket(fileno=os.dup(number)) as line:
            if connection.closed or connection.fileno() != number:
                return False  # the descriptor may have been reused before it was copied
            line.shutdown(socket.SHUT_RDWR)
    except Exception:  # error of the driver or the system: it is closed
        return False
    return True


@contextmanager
def _convert_errors(url: str, file: str | None = None) -> Iterator[None]:
    """Convert errors of the connection and of the disk to ``DatabaseUnavailable``. Other errors pass unchanged."""
    try:
        yield
    except sa.exc.TimeoutError as error:
        raise DatabaseUnavailable(f"database {url}: all connections of this process are in use: {error}") from error
    except sa.exc.OperationalError as error:
        why = "" if file is None else explain_write_failure(Path(file))
        raise DatabaseUnavailable(f"database {url}: {str(error.orig).strip()}{why and f'; {why}'}") from error
    except sa.exc.DBAPIError as error:
        if error.connection_invalidated:
            raise DatabaseUnavailable(f"database {url}: the connection was lost: {str(error.orig).strip()}") from error
        if getattr(error.orig, "sqlstate", None) == _READ_ONLY:
            raise DatabaseUnavailable(f"database {url}: {str(error.orig).strip()}") from error
        raise


class FairLock:
    """A first-in, first-out lock. Thread-safe, not reentrant."""

    def __init__(self) -> None:
        self._mutex = mutex()
        self._held = False
        self._line: deque[threading.Event] = deque()

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Wait for the lock.

        Args:
            timeout_s: Seconds to wait. None: forever.
        Returns:
            False if the time has elapsed.
        """
        turn = threading.Event()
        with self._mutex:
            if not self._held:
                self._held = True
                return True
            self._line.append(turn)
        try:
            if turn.wait(timeout_s):
                return True
        except BaseException:
            self._stop_waiting(turn)
            raise
        return not self._stop_waiting(turn, keep=True)

    def _stop_waiting(self, turn: threading.Event, *, keep: bool = False) -> bool:
        """Leave the queue of waiting threads after a timeout or an error.

        Args:
            turn: The event of this thread.
            keep: Keep the lock if it was passed to this thread meanwhile. Otherwise release it.
        Returns:
            False if the lock was passed to this thread meanwhile.
        """
        with self._mutex:
            if turn in self._line:
                self._line.remove(turn)
                return True
        if not keep:
            self.release()
        return False

    def release(self) -> None:
        """Release the lock, and pass it to the thread that has waited longest."""
        with self._mutex:
            if self._line:
                self._line.popleft().set()
            else:
                self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
