"""One connection to PostgreSQL, with deadlines: libpq in pipeline mode, driven by the thread that uses it.

psycopg's own cursors have no deadline for an answer, and cost more than the server takes for a small request. So this
uses the libpq that psycopg wraps, ``psycopg.pq``. Every statement is a transaction of its own unless it begins one.
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
    """A statement that is prepared once per connection. Its rows come in binary form.

    Attributes:
        name: unique.
        sql: with the parameters $1, $2, ...
        binary: numbers of the parameters that are bytes; the others are text.
    """

    name: bytes
    sql: bytes
    binary: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Statement:
    """A query with its parameters, as they are sent; None is null."""

    query: Query
    params: tuple[bytes | None, ...] = ()


class Connector:
    """Opens connections to the server that takes writes. Safe to share between threads.

    Attributes:
        pooled: a pooler such as PgBouncer stands between: statements may run in different sessions of the server.
    """

    def __init__(self, url: StoreURL, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._hosts = list(url.hosts)
        self.pooled = False

    @property
    def where(self) -> str:
        """The server, for messages."""
        return f"PostgreSQL at {join_hosts(self._url.hosts)}"

    def open(self, deadline: float) -> Connection:
        """Connect to the first host that takes writes; the last one that did is tried first.

        Raises:
            ConnectionBroken: none did before the deadline, or the server has no room for a connection.
            LatchworkError: the server refused the account or the database.
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

    def _open_one(self, host: tuple[str, int], deadline: float) -> Connection:
        while True:
            connection = Connection(self._clock)
            try:
                connection.connect(self._conninfo(host), deadline)
            except ServerError as error:
                connection.close()
                if not self.pooled and errors.is_refused_parameter(error):
                    self.pooled = True
                    continue
                raise errors.as_connect_failure(error, self.where) from error
            except BaseException:
                connection.close()
                raise
            self.pooled = self.pooled or connection.is_pooled(deadline)
            connection.pooled = self.pooled
            return connection

    def _conninfo(self, host: tuple[str, int]) -> bytes:
        url, options = self._url, self._url.options
        settings = {"statement_timeout": f"{max(1, int(url.call_timeout_s * 1000))}"}
        if "synchronous_commit" in options:
            if self.pooled:
                raise ConnectFailed(
                    f"{self.where} is behind a pooler that refuses synchronous_commit; set it with ALTER ROLE instead"
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
            "options": None if self.pooled else " ".join(f"-c {name}={value}" for name, value in settings.items()),
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        }
        return make_conninfo("", **given).encode()


class Connection:
    """One connection. One thread at a time uses it; one that has failed is of no more use."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pg: pq.abc.PGconn | None = None
        self._prepared: set[bytes] = set()
        self._generation = 0  # part of the names of prepared statements
        self._owed = 0  # statements whose answers nobody waits for, which have not come yet
        self._poll = select.poll()
        self.pooled = False

    @property
    def fileno(self) -> int:
        """The socket, for those who wait for several things."""
        return self._raw.socket

    @property
    def _raw(self) -> pq.abc.PGconn:
        if self._pg is None:
            raise ConnectionBroken("the connection was closed")
        return self._pg

    def connect(self, conninfo: bytes, deadline: float) -> None:
        """Open it.

        Raises:
            ConnectionBroken: no answer before the deadline, or the connection broke.
            ServerError: the server refused it.
        """
        pg = self._pg = pq.PGconn.connect_start(conninfo)
        while True:
            if pg.status == pq.ConnStatus.BAD:
                raise errors.of_connecting(_message(pg))
            status = pg.connect_poll()
            if status == pq.PollingStatus.OK:
                break
            if status == pq.PollingStatus.FAILED:
                raise errors.of_connecting(_message(pg))
            event = _READ if status == pq.PollingStatus.READING else _WRITE
            poll = select.poll()  # the socket is another one for each address of the host
            poll.register(pg.socket, event)
            if not poll.poll(self._left_ms(deadline)):
                raise NoAnswer("no answer in time")
        pg.nonblocking = 1
        pg.enter_pipeline_mode()
        self._poll.register(pg.socket, _READ)

    def is_pooled(self, deadline: float) -> bool:
        """Whether the process that serves it is another one than the connection was opened by."""
        (answer,) = self.run([Statement(_PID)], deadline)
        if isinstance(answer, ServerError):
            raise ConnectionBroken(str(answer))
        return number(answer[0][0]) != self._raw.backend_pid

    def run(self, statements: Sequence[Statement], deadline: float, *, owe: int = 0) -> list[Answer]:
        """Send the statements at once, and wait for their answers, which come in order.

        Args:
            statements: each a transaction of its own; an error of one does not keep the others from being run.
            deadline: local clock time.
            owe: so many at the end are sent, too, and their answers dropped when they come.
        Raises:
            ConnectionBroken: the connection ended, or the deadline passed: whether they were run is unknown.
        """
        pg = self._raw
        try:
            for statement in statements:
                self._send(pg, statement)
            dropped, self._owed = self._owed, 0
            answers = list(self._receive(pg, dropped + len(statements) - owe, deadline))[dropped:]
            self._owed = owe
        except psycopg.Error as error:
            raise ConnectionBroken(_line(str(error)) or "the connection ended") from error
        return answers

    def notified(self) -> list[bytes]:
        """Take what came from the server unasked: the payloads of notifications.

        Raises:
            ConnectionBroken: the connection ended.
        """
        pg = self._raw
        try:
            pg.consume_input()
            while self._owed and not pg.is_busy():  # libpq reads no notification behind an answer that nobody took
                result = pg.get_result()
                self._owed -= result is not None and result.status == pq.ExecStatus.PIPELINE_SYNC
            found = []
            while (notify := pg.notifies()) is not None:
                found.append(notify.extra)
        except psycopg.Error as error:
            raise ConnectionBroken(_line(str(error)) or "the connection ended") from error
        return found

    def is_readable(self) -> bool:
        """Whether the server has sent something: on an idle connection without answers owed, its end."""
        return self._owed == 0 and any(event & ~_WRITE for _, event in self._poll.poll(0))

    def close(self) -> None:
        """Close it. Idempotent."""
        pg, self._pg = self._pg, None
        if pg is not None:
            pg.finish()

    # Private.

    def _send(self, pg: pq.abc.PGconn, statement: Statement) -> None:
        query = statement.query
        formats = [_BINARY if at in query.binary else pq.Format.TEXT for at in range(len(statement.params))]
        params: list[Any] = list(statement.params)
        if self.pooled:
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
                has_to_flush = self._exchange(pg, deadline, flush=has_to_flush)
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
                answer = errors.of_result(result)
                self._generation += 1  # it is not known whether the failed one was prepared, and twice is an error
                if pg.status == pq.ConnStatus.BAD:
                    raise ConnectionBroken(str(answer))

    def _exchange(self, pg: pq.abc.PGconn, deadline: float, *, flush: bool) -> bool:
        """Wait until the socket can be read, or written if something is left to send; whether something is left."""
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


def number(data: bytes | None) -> int:
    """A number of the server."""
    assert data is not None
    return int.from_bytes(data, "big", signed=True)


def text_array(values: Sequence[str | None]) -> bytes:
    """An array of texts, as a parameter."""
    return ("{" + ",".join("NULL" if value is None else _quoted(value) for value in values) + "}").encode()


def number_array(values: Sequence[int]) -> bytes:
    """An array of numbers, as a parameter."""
    return ("{" + ",".join(map(str, values)) + "}").encode()


def as_text(value: str) -> bytes:
    """A text, as a parameter: what the server cannot store is replaced, and so equals nothing that is stored."""
    return value.replace("\0", "\ufffd").encode(errors="replace")


def _quoted(value: str) -> str:
    if not value.isascii() or "\0" in value:
        value = as_text(value).decode()
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _rows(result: pq.abc.PGresult) -> list[Row]:
    get, columns = result.get_value, range(result.nfields)
    return [tuple(get(row, column) for column in columns) for row in range(result.ntuples)]


def _message(pg: pq.abc.PGconn) -> str:
    return _line(pg.error_message.decode(errors="replace"))


def _line(text: str) -> str:
    return " ".join(text.split())[:400]
