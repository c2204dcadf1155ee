"""Queues of calls that each use one connection."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future
from typing import Any

from latchwork._base.interrupts import condition, mutex
from latchwork.backends.futures import LightFuture, reject
from latchwork.backends.postgres import errors
from latchwork.backends.postgres.connection import PostgresConnection
from latchwork.backends.postgres.errors import ConnectionBroken
from latchwork.backends.postgres.opener import ConnectionOpener
from latchwork.backends.postgres.store_connector import StoreConnector
from latchwork.errors import Closed, LatchworkError

_log = logging.getLogger(__name__)


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
        self._opener = ConnectionOpener(connector, name)
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
