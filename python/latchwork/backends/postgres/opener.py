"""Opening of connections in a separate thread, which may take longer than the call that needs one."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

from latchwork.backends.futures import LightFuture, reject, resolve
from latchwork.backends.postgres.connection import PostgresConnection
from latchwork.backends.postgres.errors import NoAnswer
from latchwork.backends.postgres.store_connector import StoreConnector

_log = logging.getLogger(__name__)


class ConnectionOpener:
    """Opens connections for one thread at a time, which waits for them until its deadline.

    An attempt to connect continues after that deadline, and the next call gets its connection. The first attempt may
    take half of ``call_timeout_s``. After an attempt without an answer, the next one may take twice as long, up to
    ``connect_timeout_s``. If all attempts ended with their calls, a server that needs longer than ``call_timeout_s``
    for a new connection could not be reached, and would spend its time on attempts that are given up.

    Args:
        connector: Opens the connections.
        name: The name of the thread that uses them.
    """

    def __init__(self, connector: StoreConnector, name: str) -> None:
        self._connector = connector
        self._name = f"{name}-connect"
        self._first_limit_s = min(connector.call_timeout_s / 2, connector.connect_timeout_s)
        self._next_limit_s = self._first_limit_s
        self._attempt: Future[PostgresConnection] | None = None
        self._thread: threading.Thread | None = None

    def open(self, deadline: float) -> PostgresConnection:
        """Open a connection. Retry until the deadline.

        Raises:
            ConnectionBroken: No connection was open in time.
            Closed: The store was closed.
            LatchworkError: The server refused the account or the schema.
        """
        return self._connector.retry_until(deadline, self._wait_for_attempt)

    def close(self, deadline: float) -> None:
        """Close a connection that no call has taken, and wait for the thread until the deadline."""
        attempt, self._attempt = self._attempt, None
        if attempt is None or self._thread is None:
            return
        attempt.add_done_callback(_close_connection)
        self._thread.join(max(0.0, deadline - self._connector.clock.now()))
        if self._thread.is_alive():
            _log.warning("%s was still waiting for a connection when it was closed", self._name)

    def _wait_for_attempt(self, deadline: float) -> PostgresConnection:
        """Return the connection of the attempt in progress, or of a new one if there is none."""
        attempt = self._attempt
        if attempt is None:
            attempt = LightFuture()
            self._thread = threading.Thread(target=self._run, args=(attempt,), name=self._name, daemon=True)
            self._thread.start()
            self._attempt = attempt
        try:
            error = attempt.exception(max(0.0, deadline - self._connector.clock.now()))
        except TimeoutError:
            raise NoAnswer("no answer in time") from None
        self._attempt = None
        if error is None:
            self._next_limit_s = self._first_limit_s
        elif isinstance(error, NoAnswer):
            self._next_limit_s = min(2 * self._next_limit_s, self._connector.connect_timeout_s)
        return attempt.result()

    def _run(self, attempt: Future[PostgresConnection]) -> None:
        try:
            connection = self._connector.connect(self._connector.clock.now() + self._next_limit_s)
        except BaseException as error:
            reject(attempt, error)
        else:
            resolve(attempt, connection)


def _close_connection(attempt: Future[PostgresConnection]) -> None:
    if attempt.exception() is None:
        attempt.result().close()
