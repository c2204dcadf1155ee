"""Opening of connections in a separate thread, which may take longer than the call that needs one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from latchwork._base.event import Signal
from latchwork.backends.futures import LightFuture, reject, resolve
from latchwork.backends.postgres import errors
from latchwork.backends.postgres.connection import PostgresConnection
from latchwork.backends.postgres.errors import ConnectionBroken, NoAnswer
from latchwork.clock import Clock
from latchwork.errors import Closed

_log = logging.getLogger(__name__)

RETRY_S = 0.05


class ConnectionOpener:
    """Opens connections for one thread at a time, which waits for them until its deadline.

    An attempt to connect goes on after that deadline, and the next call gets its connection. After an attempt without
    an answer, the next one may take twice as long. If all attempts ended with their calls, a server that needs longer
    than ``call_timeout_s`` for a new connection could not be reached, and would spend its time on attempts that are
    given up.

    Args:
        connect: Opens a connection before a deadline.
        clock: The local clock.
        closing: A signal that is set when the store is closed.
        server_name: The hosts of the server, for messages.
        name: The name of the thread.
        first_limit_s: The longest time of the first attempt, in seconds.
        limit_s: The longest time of any attempt, in seconds.
    """

    def __init__(
        self,
        connect: Callable[[float], PostgresConnection],
        clock: Clock,
        closing: Signal,
        *,
        server_name: str,
        name: str,
        first_limit_s: float,
        limit_s: float,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._closing = closing
        self._server_name = server_name
        self._name = name
        self._first_limit_s = first_limit_s
        self._limit_s = limit_s
        self._next_limit_s = first_limit_s
        self._attempt: Future[PostgresConnection] | None = None
        self._thread: threading.Thread | None = None

    def open(self, deadline: float) -> PostgresConnection:
        """Open a connection. Retry until the deadline.

        Raises:
            ConnectionBroken: No connection was open in time.
            Closed: The store was closed.
            LatchworkError: The server refused the account or the schema.
        """
        return retry_until(deadline, self._wait_for_attempt, self._clock, self._closing, self._server_name)

    def close(self, deadline: float) -> None:
        """Close a connection that no call has taken, and wait for the thread until the deadline."""
        attempt, self._attempt = self._attempt, None
        if attempt is None or self._thread is None:
            return
        attempt.add_done_callback(_close_connection)
        self._thread.join(max(0.0, deadline - self._clock.now()))
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
            error = attempt.exception(max(0.0, deadline - self._clock.now()))
        except TimeoutError:
            raise NoAnswer("no answer in time") from None
        self._attempt = None
        if error is None:
            self._next_limit_s = self._first_limit_s
        elif isinstance(error, NoAnswer):
            self._next_limit_s = min(2 * self._next_limit_s, self._limit_s)
        return attempt.result()

    def _run(self, attempt: Future[PostgresConnection]) -> None:
        try:
            connection = self._connect(self._clock.now() + self._next_limit_s)
        except BaseException as error:
            reject(attempt, error)
        else:
            resolve(attempt, connection)


def retry_until(
    deadline: float,
    connect: Callable[[float], PostgresConnection],
    clock: Clock,
    closing: Signal,
    server_name: str,
) -> PostgresConnection:
    """Try to connect until the deadline, with short pauses.

    Args:
        deadline: Local clock time.
        connect: Opens a connection before a deadline.
        clock: The local clock.
        closing: A signal that is set when the store is closed.
        server_name: The hosts of the server, for messages.
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
        if clock.now() + RETRY_S >= deadline:
            raise reason from None
        if clock.wait(closing, RETRY_S):
            raise Closed(f"the store on {server_name} was closed; connect again")


def _close_connection(attempt: Future[PostgresConnection]) -> None:
    if attempt.exception() is None:
        attempt.result().close()
