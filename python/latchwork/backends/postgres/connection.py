"""A connection to PostgreSQL whose calls have deadlines. The thread that uses it drives libpq in pipeline mode.

The cursors of psycopg have no deadline for an answer, and take longer than the server for a small request. So this
module uses the libpq that psycopg wraps, ``psycopg.pq``. Every statement is a separate transaction unless it begins
one.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from latchwork.backends.postgres import errors
from latchwork.backends.postgres.errors import ConnectionBroken, NoAnswer, ServerError
from latchwork.backends.url import StoreURL, join_hosts
from latchwork.clock import Clock
from latchwork.errors import ConnectFailed

_log = logging.getLogger(__name__)

Row = tuple["bytes | None", ...]
#: What a statement came to: its rows, or the server's error.
Answer = list[Row] | ServerError

_BINARY = pq.Format.BINARY
_READ, _WRITE = select.POLLIN, select.POLLOUT
_SHORTEST_TRY_S = 0.2


@dataclass(frozen=True, slots=True)
class Query:
    """The text of a statement that is prepared once per connection. Its rows are in binary format.

    Attributes:
        name: Unique name of the prepared statement.
        sql: Text with the parameters $1, $2, ...
        binary: Numbers of the parameters that are sent in binary format. The others are text.
    """

    name: bytes
    sql: bytes
    binary: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Statement:
    """A query with its encoded parameters. None is NULL."""

    query: Query
    params: tuple[bytes | None, ...] = ()


class Connector:
    """Opens connections to the server of a cluster that takes writes. Thread-safe.

    Attributes:
        is_pooled: Whether there is a connection pooler such as PgBouncer, so that each statement may run in a different
            session of the server.
    """

    def __init__(self, url: StoreURL, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._hosts = list(url.hosts)
        self.is_pooled = False

    @property
    def server_name(self) -> str:
        """The hosts of the server, for messages."""
        return f"PostgreSQL at {join_hosts(self._url.hosts)}"

    def open(self, deadline: float) -> PostgresConnection:
        """Connect to the first host that takes writes. The host that did so last time is tried first.

        Raises:
            ConnectionBroken: No host took writes before the deadline, or the server allows no more connections.
            LatchworkError: The server refused the account or the database.
        """
        reasons: list[str] = []
        are_timeouts = True
        hosts = list(self._hosts)
        for at, host in enumerate(hosts):
            left_s = deadline - self._clock.now()
            if at and left_s <= 0:
                break
            until = self._clock.now() + max(left_s / (len(hosts) - at), min(_SHORTEST_TRY_S, left_s))
            try:
                connection = self._open_one(host, until)
            except ConnectionBroken as error:
                reasons.append(str(error))
                are_timeouts = are_timeouts and isinstance(error, NoAnswer)
            else:
                self._hosts = [host, *(other for other in hosts if other != host)]
                return connection
        raise (NoAnswer if are_timeouts else ConnectionBroken)("; ".join(reasons) or "no time was left to connect")

    def _open_one(self, host: tuple[str, int], deadline: float) -> PostgresConnection:
        while True:
            connection = PostgresConnection(self._clock)
            try:
                connection.connect(self._conninfo(host), deadline)
            except ServerError as error:
                connection.close()
                if not self.is_pooled and errors.is_refused_parameter(error):
                    self.is_pooled = True
                    continue
                raise errors.convert_connect_error(error, self.server_name) from error
            except BaseException:
                connection.close()
                raise
            self.is_pooled = self.is_pooled or connection.detect_pooler(deadline)
            connection.is_pooled = self.is_pooled
            return connection

    def _conninfo(self, host: tuple[str, int]) -> bytes:
        url, options = self._url, self._url.options
        settings = {"statement_timeout": f"{max(1, int(url.call_timeout_s * 1000))}"}
        if "synchronous_commit" in options:
            if self.is_pooled:
                raise ConnectFailed(
                    f"{self.server_name} is behind a pooler that refuses synchronous_commit; set it with ALTER ROLE "
                    "instead"
                )
            settings["synchronous_commit"] = options["synchronous_commit"]
        given: dict[str, str | int | None] = {
            "host": host[0],
            "port": host[1],
            "dbname": url.path,
            "user": url.user,
            "password": url.password,
            "application_name": "latchwork",
            "client_encoding": "UTF8",
            "sslmode": options.get("sslmode") or ("verify-full" if "tls_ca" in options else None),
            "sslrootcert": options.get("tls_ca"),
            "sslcert": options.get("tls_cert"),
            "sslkey": options.get("tls_key"),
            "target_session_attrs": "read-write",
            "options": None if self.is_pooled else " ".join(f"-c {name}={value}" for name, value in settings.items()),
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        }
        return make_conninfo("", **given).encode()


class PostgresConnection:
    """A connection that one thread uses at a time. It cannot be used after a failure."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pg: pq.abc.PGconn | None = None
        self._prepared: set[bytes] = set()
        self._generation = 0  # part of the names of prepared statements
        self._owed = 0  # statements with pending answers that will be ignored
        self._poll = select.poll()
        self.is_pooled = False

    @property
    def fileno(self) -> int:
        """Return the file descriptor of the socket, so that a thread can wait for several."""
        return self._raw.socket

    @property
    def _raw(self) -> pq.abc.PGconn:
        if self._pg is None:
            raise ConnectionBroken("the connection was closed")
        return self._pg

    def connect(self, conninfo: bytes, deadline: float) -> None:
        """Open the connection.

        Raises:
            ConnectionBroken: The server did not answer before the deadline, or the connection ended.
            ServerError: The server refused the connection.
        """
        pg = self._pg = pq.PGconn.connect_start(conninfo)
        while True:
            if pg.status == pq.ConnStatus.BAD:
                raise errors.parse_connect_error(_message(pg))
            status = pg.connect_poll()
            if status == pq.PollingStatus.OK:
                break
            if status == pq.PollingStatus.FAILED:
                raise errors.parse_connect_error(_message(pg))
            event = _READ if status == pq.PollingStatus.READING else _WRITE
            poll = select.poll()  # the socket is another one for each address of the host
            poll.register(pg.socket, event)
            if not poll.poll(self._left_ms(deadline)):
                raise NoAnswer("no answer in time")
        pg.nonblocking = 1
        pg.enter_pipeline_mode()
        self._poll.register(pg.socket, _READ)

    def detect_pooler(self, deadline: float) -> bool:
        """Return whether there is a connection pooler between this client and the server.

        It is detected because statements are then executed by another server process than the one that was connected.
        """
        (answer,) = self.run([Statement(_PID)], deadline)
        if isinstance(answer, ServerError):
            raise ConnectionBroken(str(answer))
        return decode_number(answer[0][0]) != self._raw.backend_pid

    def run(self, statements: Sequence[Statement], deadline: float, *, unanswered: int = 0) -> list[Answer]:
        """Send statements, wait for their answers, and return the answers in order.

        They are sent together, except behind a connection pooler.

        Args:
            statements: Each is a separate transaction. An error of one does not prevent the others from being executed.
            deadline: Local clock time.
            unanswered: The number of statements at the end whose answers are ignored and not waited for.
        Raises:
            ConnectionBroken: The connection was lost or the deadline passed. The statements may or may not have been
                executed.
        """
        if not self.is_pooled:
            return self._run_together(statements, deadline, unanswered)
        # PgBouncer 1.18 counts a server as free after the first of several answers. If this client leaves then, the
        # next client of that server receives the others. So there is never more than one statement without an answer.
        answers = [answer for each in statements for answer in self._run_together([each], deadline, 0)]
        return answers[: len(statements) - unanswered]

    def take_notifications(self) -> list[bytes]:
        """Return the payloads of the notifications that have arrived from the server, and remove them.

        Raises:
            ConnectionBroken: The connection was lost.
        """
        pg = self._raw
        try:
            pg.consume_input()
            while self._owed and not pg.is_busy():  # libpq reads no notification after an answer that was not fetched
                result = pg.get_result()
                self._owed -= result is not None and result.status == pq.ExecStatus.PIPELINE_SYNC
            found = []
            while (notify := pg.notifies()) is not None:
                found.append(notify.extra)
        except psycopg.Error as error:
            raise ConnectionBroken(_line(str(error)) or "the connection ended") from error
        return found

    def is_readable(self) -> bool:
        """Return whether the server has sent data. On an idle connection this means that the connection was lost."""
        return self._owed == 0 and any(event & ~_WRITE for _, event in self._poll.poll(0))

    def close(self) -> None:
        """Close the connection. Idempotent."""
        pg, self._pg = self._pg, None
        if pg is not None:
            pg.finish()

    # Private.

    def _run_together(self, statements: Sequence[Statement], deadline: float, unanswered: int) -> list[Answer]:
        pg = self._raw
        try:
            for statement in statements:
                self._send(pg, statement)
            dropped, self._owed = self._owed, 0
            answers = list(self._receive(pg, dropped + len(statements) - unanswered, deadline))[dropped:]
            self._owed = unanswered
        except psycopg.Error as error:
            raise ConnectionBroken(_line(str(error)) or "the connection ended") from error
        return answers

    def _send(self, pg: pq.abc.PGconn, statement: Statement) -> None:
        query = statement.query
        formats = [_BINARY if at in query.binary else pq.Format.TEXT for at in range(len(statement.params))]
        params: list[Any] = list(statement.params)
        if self.is_pooled:
            pg.send_query_params(query.sql, params, None, formats, _BINARY)
        else:
            name = b"%s_%d" % (query.name, self._generation)
            if name not in self._prepared:
                pg.send_prepare(name, query.sql)
                self._prepared.add(name)
            pg.send_query_prepared(name, params, formats, _BINARY)
        pg.pipeline_sync()

    def _receive(self, pg: pq.abc.PGconn, count: int, deadline: float) -> Iterator[Answer]:
        answer: Answer = []
        has_to_flush = pg.flush() == 1
        while count:
            while pg.is_busy() or has_to_flush:
                has_to_flush = self._wait_for_socket(pg, deadline, flush=has_to_flush)
            result = pg.get_result()
            if result is None:
                continue
            status = result.status
            if status == pq.ExecStatus.TUPLES_OK:
                answer = _rows(result)
            elif status == pq.ExecStatus.PIPELINE_SYNC:
                yield answer
                answer = []
                count -= 1
            elif status == pq.ExecStatus.FATAL_ERROR:
                answer = errors.parse_result_error(result)
                self._generation += 1  # it is not known whether the failed one was prepared, and twice is an error
                if pg.status == pq.ConnStatus.BAD:
                    raise ConnectionBroken(str(answer))

    def _wait_for_socket(self, pg: pq.abc.PGconn, deadline: float, *, flush: bool) -> bool:
        """Wait until the socket is readable. With ``flush``, a writable socket also ends the wait.

        Args:
            pg: The connection.
            deadline: Local clock time.
            flush: Whether some data have not been sent yet.
        Returns:
            Whether some data have still not been sent.
        """
        self._poll.modify(pg.socket, _READ | _WRITE if flush else _READ)
        ready = self._poll.poll(self._left_ms(deadline))
        if not ready:
            raise NoAnswer("no answer in time")
        if ready[0][1] & ~_WRITE:
            pg.consume_input()
        return flush and pg.flush() == 1

    def _left_ms(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock.now()) * 1000


_PID = Query(b"pid", b"select pg_backend_pid()")


def decode_number(data: bytes | None) -> int:
    """Decode an integer that the server has sent."""
    assert data is not None
    return int.from_bytes(data, "big", signed=True)


def encode_text_array(values: Sequence[str | None]) -> bytes:
    """Encode strings as an array parameter of a SQL statement. None is NULL."""
    return ("{" + ",".join("NULL" if value is None else _quoted(value) for value in values) + "}").encode()


def encode_number_array(values: Sequence[int]) -> bytes:
    """Encode integers as an array parameter of a SQL statement."""
    return ("{" + ",".join(map(str, values)) + "}").encode()


def encode_text(value: str) -> bytes:
    """Encode a string as a parameter of a SQL statement.

    Characters that PostgreSQL cannot store are replaced. No valid key contains them.
    """
    return value.replace("\0", "\ufffd").encode(errors="replace")


def _quoted(value: str) -> str:
    if not value.isascii() or "\0" in value:
        value = encode_text(value).decode()
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _rows(result: pq.abc.PGresult) -> list[Row]:
    get, columns = result.get_value, range(result.nfields)
    return [tuple(get(row, column) for column in columns) for row in range(result.ntuples)]


def _message(pg: pq.abc.PGconn) -> str:
    return _line(pg.error_message.decode(errors="replace"))


def _line(text: str) -> str:
    return " ".join(text.split())[:400]
