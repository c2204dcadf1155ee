"""A pool of SQLite connections for threads."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TypeVar

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import Closed, Unavailable

T = TypeVar("T")

#: Opens a connection before a deadline.
Opener = Callable[[float], sqlite3.Connection]


class _ConnectionRequest:
    """A request of a thread to use a connection. It may still be waiting."""

    def __init__(self) -> None:
        self.granted: Signal | None = None  # for one that waits


class ConnectionPool:
    """A pool of SQLite connections, each used by one thread at a time. Waiting threads are served in order, except that
    urgent ones are served first. Thread-safe.
    """

    def __init__(self, opener: Opener, limit: int, location: str) -> None:
        self._opener = opener
        self._limit = limit
        self._location = location
        self._lock = mutex()
        self._closed = False
        self._open: list[sqlite3.Connection] = []
        self._queue: dict[_ConnectionRequest, None] = {}
        self._lent: dict[_ConnectionRequest, sqlite3.Connection | None] = {}  # None: to be opened
        self._all_returned: Signal | None = None  # while a fork is near: set once nothing is in use
        _pools.add(self)

    def use(self, work: Callable[[sqlite3.Connection], T], deadline: float, *, is_urgent: bool = False) -> T:
        """Wait for a connection, call ``work`` with it, and return the result.

        Afterwards an open transaction is rolled back, and a broken connection is closed.

        Args:
            work: Called with the connection.
            deadline: Local clock time at which the wait ends.
            is_urgent: Whether to be served before all threads that wait already.
        Raises:
            Unavailable: All connections were in use until the deadline.
            Closed: The pool is closed.
        """
        request = _ConnectionRequest()
        try:
            return work(self._take(request, deadline, is_urgent=is_urgent))
        finally:
            try:
                self._return_connection(request)
            except BaseException:  # an interrupt: a connection that stays in a transaction would lock the file
                self._return_connection(request)
                raise

    def _take(self, request: _ConnectionRequest, deadline: float, *, is_urgent: bool) -> sqlite3.Connection:
        with self._lock:
            self._refuse_closed("")
            if is_urgent:
                self._queue = {request: None, **self._queue}
            else:
                self._queue[request] = None
            self._assign_connections()
            if request not in self._lent:
                request.granted = Signal()
        if request.granted is not None:
            SYSTEM_CLOCK.wait(request.granted, deadline - SYSTEM_CLOCK.now())
        with self._lock:
            if request not in self._lent:
                self._refuse_closed(" while this call waited")
                raise Unavailable(f"{self._location} was in use by other threads for the whole timeout; try again")
            conn = self._lent[request]
        return conn or self._connect(request, deadline)

    def _return_connection(self, request: _ConnectionRequest) -> None:
        """Return a connection to the pool, or stop waiting for one. Idempotent."""
        conn = self._lent.get(request)
        if conn is not None and (fails_to_roll_back(conn) or self._closed):
            self._drop(conn)
        with self._lock:
            self._queue.pop(request, None)
            self._lent.pop(request, None)
            if self._all_returned is not None and not self._lent:
                self._all_returned.set()
            self._assign_connections()

    def close(self) -> None:
        """Close idle connections now. A connection in use is closed when it is returned."""
        with self._lock:
            self._closed = True
            idle = self._idle()
            self._wake(self._queue)
        for conn in idle:
            self._drop(conn)

    def pause_for_fork(self, deadline: float) -> None:
        """Lend no more connections, and wait until all are returned or the deadline has passed.

        Called before a fork.
        """
        with self._lock:
            all_returned = self._all_returned = Signal()
            if not self._lent:
                all_returned.set()
        SYSTEM_CLOCK.wait(all_returned, max(0.0, deadline - SYSTEM_CLOCK.now()))

    def resume_after_fork(self) -> None:
        """Lend connections again. Called in the parent process after a fork."""
        with self._lock:
            self._all_returned = None
            self._assign_connections()

    def abandon(self) -> list[sqlite3.Connection]:
        """Close the pool in a forked child, and return the inherited connections. The child must neither use nor close
        them.
        """
        self._lock = mutex()
        self._all_returned = None
        self._closed = True
        inherited, self._open = self._open, []
        return inherited

    def _idle(self) -> list[sqlite3.Connection]:
        used = list(self._lent.values())
        return [conn for conn in self._open if not any(conn is other for other in used)]

    def _assign_connections(self) -> None:
        """Assign available connections to waiting threads. The caller holds the mutex."""
        while self._queue and not self._closed and self._all_returned is None:
            request = next(iter(self._queue))
            if request not in self._lent:
                idle = self._idle()
                if not idle and len(self._lent) >= self._limit:
                    break
                self._lent[request] = idle[-1] if idle else None
            del self._queue[request]
        self._wake(self._lent)

    @staticmethod
    def _wake(requests: Iterable[_ConnectionRequest]) -> None:
        for request in requests:
            if request.granted is not None:
                request.granted.set()

    def _refuse_closed(self, when: str) -> None:
        if self._closed:
            raise Closed(f"{self._location} was closed{when}; connect again")

    def _connect(self, request: _ConnectionRequest, deadline: float) -> sqlite3.Connection:
        conn = self._opener(deadline)
        with self._lock:
            self._open.append(conn)
            self._lent[request] = conn
        return conn

    def _drop(self, conn: sqlite3.Connection) -> None:
        with self._lock:
            self._open = [other for other in self._open if other is not conn]
        conn.close()


def fails_to_roll_back(conn: sqlite3.Connection) -> bool:
    """Roll back an open transaction. Return True if the rollback failed."""
    if not conn.in_transaction:
        return False
    try:
        conn.execute("ROLLBACK")
    except sqlite3.Error:
        return True
    return False


_pools: weakref.WeakSet[ConnectionPool] = weakref.WeakSet()
_inherited_connections: list[sqlite3.Connection] = []
_fork_lock = threading.Lock()
#: Seconds that a fork waits at most for calls of other threads, which may wait for another process.
_FORK_WAIT_S = 0.5


def _pause_all_pools() -> None:
    """Pause all pools before a fork. The child process would otherwise inherit locked mutexes of SQLite."""
    _fork_lock.acquire()
    deadline = SYSTEM_CLOCK.now() + _FORK_WAIT_S
    for pool in list(_pools):
        pool.pause_for_fork(deadline)


def _resume_all_pools() -> None:
    for pool in list(_pools):
        pool.resume_after_fork()
    _fork_lock.release()


def _forget_parents_connections() -> None:
    global _fork_lock  # noqa: PLW0603 - that of the parent is held
    _fork_lock = threading.Lock()
    for pool in list(_pools):
        _inherited_connections.extend(pool.abandon())
    _pools.clear()


os.register_at_fork(
    before=_pause_all_pools, after_in_parent=_resume_all_pools, after_in_child=_forget_parents_connections
)
