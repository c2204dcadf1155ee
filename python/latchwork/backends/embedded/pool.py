"""Connections that threads take turns with.

A turn is in the queue, has a connection, or neither, and each change of that is one step, so that a thread that is
interrupted between any two of them leaves nothing behind: its block ends with ``give``, which can be begun again.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress

from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import Closed, ReentrantCall, Unavailable
from latchwork.interrupts import Event, Mutex

#: Opens a connection before a deadline.
Opener = Callable[[float], sqlite3.Connection]


class Turn:
    """One use of a connection, by one thread: ``with Finally(turn.give): conn = turn.take(deadline)``."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.thread = threading.get_ident()
        self.come: Event | None = None  # for one that waits

    def take(self, deadline: float) -> sqlite3.Connection:
        """An idle or a new connection; the same one again until it is given back.

        Raises:
            Unavailable: every connection was in use until the deadline.
            ReentrantCall: this thread itself uses the last one.
            Closed: the pool is closed.
        """
        return self._pool.take(self, deadline)

    def give(self) -> None:
        """Put the connection back, rolled back; a broken one is closed. Leaves the queue. Again is fine."""
        self._pool.give(self)


class Pool:
    """Connections that one thread at a time uses, given out in the order of asking. Safe to share between threads."""

    def __init__(self, opener: Opener, limit: int, where: str) -> None:
        self._opener = opener
        self._limit = limit
        self._where = where
        self._lock = Mutex()
        self._closed = False
        self._open: list[sqlite3.Connection] = []
        self._queue: dict[Turn, None] = {}
        self._lent: dict[Turn, sqlite3.Connection | None] = {}  # None: to be opened
        self._rests: threading.Event | None = None  # while a fork is near: set once nothing is in use
        _pools.add(self)

    def turn(self) -> Turn:
        """The use of a connection, not begun."""
        return Turn(self)

    def take(self, turn: Turn, deadline: float) -> sqlite3.Connection:
        """For ``Turn.take``."""
        with self._lock:
            self._refuse_closed("")
            if turn not in self._lent:
                self._refuse_own(turn)
                self._queue[turn] = None
                self._serve()
            if turn not in self._lent:
                turn.come = Event()
        if turn.come is not None:
            SYSTEM_CLOCK.wait(turn.come, deadline - SYSTEM_CLOCK.now())
        with self._lock:
            if turn not in self._lent:
                self._refuse_closed(" while this call waited")
                raise Unavailable(f"{self._where} was in use by other threads until the time was over; try again")
            conn = self._lent[turn]
        return conn or self._connect(turn, deadline)

    def give(self, turn: Turn) -> None:
        """For ``Turn.give``."""
        conn = self._lent.get(turn)
        if conn is not None and (still_open(conn) or self._closed):
            self._drop(conn)
        with self._lock:
            self._queue.pop(turn, None)
            self._lent.pop(turn, None)
            if self._rests is not None and not self._lent:
                self._rests.set()
            self._serve()

    def close(self) -> None:
        """Close the idle connections now, those in use when they come back."""
        with self._lock:
            self._closed = True
            idle = self._idle()
            self._wake(self._queue)
        for conn in idle:
            self._drop(conn)

    def rest(self, deadline: float) -> None:
        """Before a fork: give nothing out, and wait until all has come back, or the deadline."""
        with self._lock:
            rests = self._rests = threading.Event()
            if not self._lent:
                rests.set()
        SYSTEM_CLOCK.wait(rests, max(0.0, deadline - SYSTEM_CLOCK.now()))

    def go_on(self) -> None:
        """After a fork, in the parent."""
        with self._lock:
            self._rests = None
            self._serve()

    def abandon(self) -> list[sqlite3.Connection]:
        """In a forked child: the connections are the parent's; they must be neither used nor closed here."""
        self._lock = Mutex()
        self._rests = None
        self._closed = True
        mine, self._open = self._open, []
        return mine

    def _idle(self) -> list[sqlite3.Connection]:
        used = list(self._lent.values())
        return [conn for conn in self._open if not any(conn is other for other in used)]

    def _serve(self) -> None:
        """Serve the queue while there is something to give; the mutex is held. Goes on where an interrupt ended it."""
        while self._queue and not self._closed and self._rests is None:
            turn = next(iter(self._queue))
            if turn not in self._lent:
                idle = self._idle()
                if not idle and len(self._lent) >= self._limit:
                    break
                self._lent[turn] = idle[-1] if idle else None
            del self._queue[turn]
        self._wake(self._lent)

    @staticmethod
    def _wake(turns: Iterable[Turn]) -> None:
        for turn in turns:
            if turn.come is not None:
                turn.come.set()

    def _refuse_closed(self, when: str) -> None:
        if self._closed:
            raise Closed(f"{self._where} was closed{when}; connect again")

    def _refuse_own(self, turn: Turn) -> None:
        """A signal handler cannot wait for what its own thread has, or waits for, and gives back only after it."""
        ours = any(other.thread == turn.thread for other in (*self._lent, *self._queue))
        if ours and len(self._lent) >= self._limit:
            raise ReentrantCall(
                f"{self._where} is in a call of this very thread; a signal handler cannot make another one: set a flag "
                "there, and call when the thread has returned"
            )

    def _connect(self, turn: Turn, deadline: float) -> sqlite3.Connection:
        conn = self._opener(deadline)
        with self._lock:
            self._open.append(conn)
            self._lent[turn] = conn
        return conn

    def _drop(self, conn: sqlite3.Connection) -> None:
        with self._lock:
            self._open = [other for other in self._open if other is not conn]
        conn.close()


def still_open(conn: sqlite3.Connection) -> bool:
    """Roll back what is open; True if even that failed."""
    if not conn.in_transaction:
        return False
    try:
        conn.execute("ROLLBACK")
    except sqlite3.Error:
        return True
    return False


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_of_the_parent: list[sqlite3.Connection] = []
_forks = threading.Lock()
#: Seconds that a fork waits at most for calls of other threads, which may wait for another process.
_REST_S = 0.5


def _rest() -> None:
    """Let no thread be inside of SQLite at a fork: mutexes of its own would be held for ever in the child."""
    _forks.acquire()
    deadline = SYSTEM_CLOCK.now() + _REST_S
    for pool in list(_pools):
        with suppress(ReentrantCall):  # forked by a signal handler that came in the middle of it
            pool.rest(deadline)


def _go_on() -> None:
    for pool in list(_pools):
        with suppress(ReentrantCall):
            pool.go_on()
    _forks.release()


def _forget_parents_connections() -> None:
    global _forks  # noqa: PLW0603 - that of the parent is held
    _forks = threading.Lock()
    for pool in list(_pools):
        _of_the_parent.extend(pool.abandon())
    _pools.clear()


os.register_at_fork(before=_rest, after_in_parent=_go_on, after_in_child=_forget_parents_connections)
