"""One database: opened by a URL, made or upgraded, and its transactions. Nothing here knows what rows mean.

Writers of one process come one after the other, in the order of their arrival: SQLite's own wait is not fair.
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
from latchwork.spi import make_file, mutex, trouble_of

_log = logging.getLogger(__name__)

#: Seconds that a writer of another process may keep SQLite.
_BUSY_S = 10.0
#: Seconds that our own writers may keep us waiting.
_WRITE_S = 60.0
#: A statement, and a transaction whose process was frozen, end after so many milliseconds: a takeover waits for them.
_POSTGRES = " ".join(
    f"-c {setting}"
    for setting in (
        "statement_timeout=5000",
        "idle_in_transaction_session_timeout=3000",
        "default_transaction_isolation=read\\ committed",
    )
)


#: A server whose machine has gone, or a network that drops all, is noticed within some ten seconds and not in hours:
#: the limits of the server's own end nothing then.
_ALIVE = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
#: So many connections of a process stay open, and so many more are opened at a time: as many as a node has shards, and
#: more for pages and what goes on beside them.
_KEPT, _MORE = 20, 20
#: A connection that was not used for so many seconds is tried before it is used: each try is a round trip.
_IDLE_S = 2.0
#: What PostgreSQL says of a write where only reads are allowed: a standby, or a server that was made read-only.
_READ_ONLY = "25006"
#: The first version of SQLite that says what it wrote, and reads what it is told to read first.
_SQLITE = (3, 35, 0)


class DatabaseUnavailable(Unavailable):
    """The database cannot be reached, is locked, full or read-only; the message has its own words."""


class Database:
    """A database of workflows. Safe to share between threads; not across a fork.

    Args:
        url: ``sqlite:///path`` or ``postgresql+psycopg://user@host/name``; ``sqlite://`` is one in memory, for tests.
    Raises:
        LatchworkError: the URL, or the library for it, is none that can be used.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except sa.exc.ArgumentError:
            raise LatchworkError(
                "the database URL is malformed; write sqlite:///flows.db or postgresql+psycopg://…"
            ) from None
        if parsed.get_backend_name() not in {"sqlite", "postgresql"}:
            raise LatchworkError(
                f"databases of {parsed.get_backend_name()} are not supported; use sqlite or postgresql"
            )
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self._file = parsed.database if self.is_sqlite and parsed.database not in {None, "", ":memory:"} else None
        self._writes = FairLock()
        self._in_use: dict[Any, float] = {}
        try:
            self.engine = _sqlite(parsed, self._file) if self.is_sqlite else _postgres(parsed, self._in_use)
            self._asked = self.engine if self.is_sqlite else _postgres(parsed, self._in_use, poolclass=sa.pool.NullPool)
        except ModuleNotFoundError as error:
            raise LatchworkError(
                f'PostgreSQL needs {error.name}; run: pip install "latchwork[workflows-postgres]"'
            ) from None
        self.url = parsed.render_as_string(hide_password=True)

    def close(self) -> None:
        """Close its connections. Twice is fine."""
        self._asked.dispose()
        self.engine.dispose()

    def cut(self, older_than_s: float = 0.0) -> int:
        """Break connections whose transaction goes on for so long; how many. Who waits there finds the database away.

        PostgreSQL ends each statement in time, but its answer may never come: through a proxy or a firewall that hangs.
        From any thread.
        """
        now = time.monotonic()
        return sum(_shut(each) for each, since in list(self._in_use.items()) if now - since >= older_than_s)

    def ask(self) -> None:
        """Have the database answer. By a connection of its own on PostgreSQL: all others may be in use.

        Raises:
            DatabaseUnavailable: it does not.
        """
        with _told(self.url), self._asked.connect() as connection:
            connection.exec_driver_sql("SELECT 1")

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that only reads; of one moment on SQLite, of one moment for each statement on PostgreSQL.

        Raises:
            DatabaseUnavailable: it cannot be reached.
        """
        with _told(self.url, self._file), self.engine.connect() as connection:
            if self.is_sqlite:
                connection.exec_driver_sql("BEGIN")
            yield connection
            connection.rollback()

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that writes: committed at the end of the block, undone if that raises.

        Raises:
            DatabaseUnavailable: it cannot be reached. If that happens while it commits, nobody knows whether it has.
        """
        if not self.is_sqlite:
            with _told(self.url), self.engine.begin() as connection:
                yield connection
            return
        if not self._writes.acquire(_WRITE_S):
            raise DatabaseUnavailable(
                f"database {self.url}: other threads kept it for {_WRITE_S:.0f} s; look at its disk"
            )
        try:
            with _told(self.url, self._file), self.engine.connect() as connection:
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
            raise DatabaseUnavailable(f"database {url}: the file cannot be made: {error.strerror or error}") from error
    options: dict[str, Any] = {"poolclass": sa.pool.StaticPool} if file is None else {}
    engine = sa.create_engine(
        url, connect_args={"timeout": _BUSY_S, "check_same_thread": False, "isolation_level": None}, **options
    )

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        if file is not None:
            if connection.execute("PRAGMA page_count").fetchone()[0] == 0:  # to set it later would wait for writers
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # see ``retention.give_back``
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")

    return engine


def _postgres(url: sa.URL, in_use: dict[Any, float], **pool: Any) -> sa.Engine:
    """Its engine; ``in_use`` has the connections that somebody has in hand, and since when."""
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


def _shut(connection: Any) -> bool:
    """End what a connection of psycopg reads and writes; False: it is closed by now."""
    try:
        number = connection.fileno()
        with socket.socket(fileno=os.dup(number)) as line:
            if connection.closed or connection.fileno() != number:
                return False  # the number may have been another's when it was copied
            line.shutdown(socket.SHUT_RDWR)
    except Exception:  # of the driver, or of the system: it is closed
        return False
    return True


@contextmanager
def _told(url: str, file: str | None = None) -> Iterator[None]:
    """Errors of the connection and of the disk as ours; those of a statement stay what they are."""
    try:
        yield
    except sa.exc.TimeoutError as error:
        raise DatabaseUnavailable(f"database {url}: all connections of this process are in use: {error}") from error
    except sa.exc.OperationalError as error:
        why = "" if file is None else trouble_of(Path(file))
        raise DatabaseUnavailable(f"database {url}: {str(error.orig).strip()}{why and f'; {why}'}") from error
    except sa.exc.DBAPIError as error:
        if error.connection_invalidated:
            raise DatabaseUnavailable(f"database {url}: the connection was lost: {str(error.orig).strip()}") from error
        if getattr(error.orig, "sqlstate", None) == _READ_ONLY:
            raise DatabaseUnavailable(f"database {url}: {str(error.orig).strip()}") from error
        raise


class FairLock:
    """A lock that passes in the order in which it was asked for. Safe to share; not re-entrant."""

    def __init__(self) -> None:
        self._mutex = mutex()
        self._held = False
        self._line: deque[threading.Event] = deque()

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Wait for it; False if the time, in seconds, is over before."""
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
            self._leave(turn)
            raise
        return not self._leave(turn, keep=True)

    def _leave(self, turn: threading.Event, *, keep: bool = False) -> bool:
        """Out of the line; False if it was ours by then, and is kept if that is wanted."""
        with self._mutex:
            if turn in self._line:
                self._line.remove(turn)
                return True
        if not keep:
            self.release()
        return False

    def release(self) -> None:
        """Pass it to whoever has waited longest."""
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
