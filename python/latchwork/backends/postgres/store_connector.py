"""Connections of one store to its server."""

from __future__ import annotations

from collections.abc import Callable

from latchwork._base.event import Signal
from latchwork.backends.postgres import errors
from latchwork.backends.postgres.connection import Connector, PostgresConnection
from latchwork.backends.postgres.errors import ConnectionBroken
from latchwork.backends.postgres.schema import Schema
from latchwork.backends.url import StoreURL
from latchwork.clock import Clock
from latchwork.errors import Closed, ConnectFailed

RETRY_S = 0.05


class StoreConnector:
    """Opens connections to the server and the root of one store. Thread-safe.

    Attributes:
        connect_timeout_s, call_timeout_s: Options of the store's URL.
        closing: A signal that is set when the store is closed.
    """

    def __init__(self, url: StoreURL, clock: Clock) -> None:
        self._url = url
        self._connector = Connector(url, clock)
        self.clock = clock
        self.connect_timeout_s = url.connect_timeout_s
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
        limit_s = self.connect_timeout_s
        try:
            return self.retry_until(self.clock.now() + limit_s, self.connect)
        except ConnectionBroken as error:
            raise ConnectFailed(
                f"{self.server_name} did not answer within {limit_s:g} s ({error}); check that it runs and takes "
                "writes, and the host, the port and the TLS options (sslmode, tls_ca, tls_cert, tls_key)"
            ) from error

    def connect(self, deadline: float) -> PostgresConnection:
        """Try once to open a connection and to prepare it for the root of this store.

        Raises:
            ConnectionBroken: It was not open before the deadline (local clock time).
            LatchworkError: The server refused the account or the schema.
        """
        connection = self._connector.open(deadline)
        try:
            self.root = self.schema.prepare_connection(connection, self._url.root, self.server_name, deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def retry_until(self, deadline: float, connect: Callable[[float], PostgresConnection]) -> PostgresConnection:
        """Try to connect until the deadline, with short pauses.

        Args:
            deadline: Local clock time.
            connect: Opens a connection before a deadline.
        Raises:
            ConnectionBroken: No connection could be opened in time.
            Closed: The store was closed.
            LatchworkError: The server refused the account or the schema.
        """
        reason: Exception | None = None
        while True:
            try:
                return connect(deadline)
            except ConnectionBroken as error:
                reason = errors.choose_informative_error(reason, error)
            if self.clock.now() + RETRY_S >= deadline:
                raise reason from None
            if self.clock.wait(self.closing, RETRY_S):
                raise Closed(f"the store on {self.server_name} was closed; connect again")
