"""Connections of one store to its server, and queues of calls that each use one connection."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future
from typing import Any

from latchwork._base.event import Signal
from latchwork._base.interrupts import condition, mutex
from latchwork.backends.futures import LightFuture, reject
from latchwork.backends.postgres import errors
from latchwork.backends.postgres.connection import Connector, PostgresConnection
from latchwork.backends.postgres.errors import ConnectionBroken
from latchwork.backends.postgres.opener import ConnectionOpener, retry_until
from latchwork.backends.postgres.schema import Schema
from latchwork.backends.url import StoreURL
from latchwork.clock import Clock
from latchwork.errors import Closed, ConnectFailed, LatchworkError

_log = logging.getLogger(__name__)


class StoreConnector:
    """Opens connections to the server and the root of one store. Thread-safe.

    Attributes:
        closing: A signal that is set when the store is closed.
    """

    def __init__(self, url: StoreURL, clock: Clock) -> None:
        self._url = url
        self._connector = Connector(url, clock)
        self.clock = clock
        self.call_timeout_s = url.call_timeout_s
        self.schema = Schema(url.options.get("schema", "latchwork"))
        self.root = 0
        self.closing = Signal()

    @property
    def is_pooled(self) -> bool:
        """Whether there is a connection pooler, so that this store has no session of the server to itself."""
        return self._connector.is_pooled

    @property
    def server_name(self) -> str:
        """The hosts of the server, for messages."""
        return self._connector.server_name

    @property
    def channel_name(self) -> str:
        """The name of the PostgreSQL channel through which the clients of this root notify each other."""
        return f"{self.schema.name}_{self.root}"

    def connect_first(self) -> PostgresConnection:
        """Open the first connection of the store.

        Raises:
            ConnectFailed: No server that takes writes answered within ``connect_timeout_s``.
        """
        limit_s = self._url.connect_timeout_s
        try:
            return retry_until(self.clock.now() + limit_s, self._connect, self.clock, self.closing, self.server_name)
        except ConnectionBroken as error:
            raise ConnectFailed(
                f"{self.server_name} did not answer within {limit_s:g} s ({error}); check that it runs and takes "
                "writes, and the host, the port and the TLS options (sslmode, tls_ca, tls_cert, tls_key)"
            ) from error

    def create_opener(self, name: str) -> ConnectionOpener:
        """Return an object that opens further connections, for one thread at a time.

        Args:
            name: The name of the thread that uses the connections.
        """
        limit_s = self._url.connect_timeout_s
        return ConnectionOpener(
            self._connect,
            self.clock,
            self.closing,
            server_name=self.server_name,
            name=f"{name}-connect",
            first_limit_s=min(self.call_timeout_s / 2, limit_s),
            limit_s=limit_s,
        )

    def _connect(self, deadline: float) -> PostgresConnection:
        """Open a connection and prepare it for the root of this store."""
        connection = self._connector.open(deadline)
        try:
            self.root = self.schema.prepare_connection(connection, self._url.root, self.server_name, deadline)
        except BaseException:
            connection.close()
            raise
        return connection


class PostgresCall:
    """A call of a store, with a deadline and a future.

    Attributes:
        what: Description of the call with its key, for messages.
        deadline: Local clock time.
        future: The future that is returned to the caller.
    """

    def __init__(self, what: str, deadline: float) -> None:
        self.what = what
        self.deadline = deadline
        self.future: Future[Any] = LightFuture()

    def timeout_error(self, reason: Exception | None) -> LatchworkError:
        """Return the error for a call that was not completed in time.

        Args:
            reason: The error of the last attempt, or None.
        """
        return errors.unavailable_error(reason or ConnectionBroken("other calls took all the time"), self.what)


class CallQueue(ABC):
    """A queue of calls that use one connection, one after the other or several at once. Thread-safe.

    A call runs in the caller's thread, or in a separate thread that is started when a call first has to wait.
    """

    def __init__(self, connector: StoreConnector, name: str, connection: PostgresConnection | None = None) -> None:
        self._connector = connector
        self._opener = connector.create_opener(name)
        self._connection = connection
        self._name = name
        self._turn = mutex()  # held by the thread that uses the connection
        self._mutex = mutex()  # guards what follows
        self._changed = condition(self._mutex)
        self._queue: deque[PostgresCall] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_used(self) -> bool:
        """Whether the connection is open or a call is waiting for it."""
        return self._connection is not None or bool(self._queue)

    @abstractmethod
    def _make_calls(self, calls: list[PostgresCall]) -> None:
        """Make these calls and complete their futures. The caller has exclusive use of the connection."""

    def submit(self, call: PostgresCall) -> Future[Any]:
        """Queue a call for the separate thread, and return its future."""
        with self._mutex:
            if self._closed:
                reject(call.future, self._refusal())
                return call.future
            self._queue.append(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()
        return call.future

    def call_now(self, call: PostgresCall) -> Future[Any]:
        """Make a call in this thread, or add it to the queue if other calls come first. Return its future."""
        if self._queue or not self._turn.acquire(blocking=False):
            return self.submit(call)
        try:
            if self._closed:
                reject(call.future, self._refusal())
            else:
                self._make_calls([call])
        finally:
            self._turn.release()
        return call.future

    def close(self, deadline: float) -> None:
        """Refuse further calls, stop the thread and close the connection. Idempotent.

        Args:
            deadline: Local clock time until which to wait for calls in progress.
        """
        with self._mutex:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - self._connector.clock.now()))
        if self._turn.acquire(timeout=max(0.0, deadline - self._connector.clock.now())):
            self._disconnect()
            self._opener.close(deadline)
            self._turn.release()
        else:
            _log.warning("%s was still waiting for an answer when it was closed", self._name)

    def _fail_late_calls(self, calls: list[PostgresCall], reason: Exception | None) -> list[PostgresCall]:
        """Fail the calls whose deadline has passed. Return the calls that are not complete.

        Args:
            calls: The calls.
            reason: The error of the last attempt, or None.
        """
        now = self._connector.clock.now()
        for call in calls:
            if call.deadline <= now:
                reject(call.future, call.timeout_error(reason))
        return [call for call in calls if not call.future.done()]

    def _refusal(self) -> Closed:
        return Closed(f"the store on {self._connector.server_name} was closed; connect again")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self, deadline: float) -> PostgresConnection:
        """Return the open connection, or open a new one.

        Raises:
            LatchworkError: See ``ConnectionOpener.open``.
        """
        if self._connection is not None and self._connection.is_readable():
            self._disconnect()  # the server has ended it
        if self._connection is None:
            self._connection = self._opener.open(deadline)
        return self._connection

    def _run(self) -> None:
        while True:
            with self._mutex:
                while not self._queue and not self._closed:
                    self._connector.clock.wait_condition(self._changed)
                if not self._queue:
                    return
            with self._turn:
                with self._mutex:
                    calls = self._take_next_calls()
                if calls:
                    self._make_calls(calls)

    def _take_next_calls(self) -> list[PostgresCall]:
        """Remove and return the calls that are made together next. The caller holds the mutex."""
        count = min(len(self._queue), 100)
        return [self._queue.popleft() for _ in range(count)]
