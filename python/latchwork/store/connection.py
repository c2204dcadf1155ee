"""The connection, sessions and watches that a store and its namespaces share, and the order in which they are
closed.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Protocol

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.backends.base import Backend, with_defaults
from latchwork.backends.futures import completed, then
from latchwork.backends.url import MAX_DURATION_S
from latchwork.clock import Clock
from latchwork.errors import Closed, LatchworkError
from latchwork.store.call_timeouts import CallTimeouts
from latchwork.store.dispatch import Dispatcher
from latchwork.store.driving.cleanup import CleanupThread
from latchwork.store.forks import ForkGuard
from latchwork.store.observe.calls import NOBODY, StoreObserver, observed
from latchwork.store.observers import Observers
from latchwork.store.owner import StoreOwner
from latchwork.store.session import Session
from latchwork.store.watch import WatchReceiver

_log = logging.getLogger(__name__)


#: Seconds that a close waits for the last cleanup call, whose connection has been closed.
_CLEANUP_TIMEOUT_S = 2.0


class SharedObject(Protocol):
    """An object that is created once per store and closed with it."""

    def close(self) -> None:
        """Close the object. May be called from any thread. Idempotent."""


class StoreConnection:
    """The state that a store and its namespaces share: the backend, the sessions and the watches. Thread-safe."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        url: str,
        *,
        session_ttl_s: float,
        call_timeout_s: float,
        given_session_ttl_s: float | None = None,
        observers: Observers[StoreObserver] = NOBODY,
        again: Callable[[], StoreConnection] | None = None,
    ) -> None:
        self.backend = with_defaults(backend) if observers.is_empty else observed(with_defaults(backend), observers)
        self._observers = observers
        self.for_blocking_calls = self.backend.for_blocking_calls
        self.for_event_loop = self.backend.for_event_loop
        self.clock = clock
        self.url = url
        self.session_ttl_s = session_ttl_s
        self.given_session_ttl_s = given_session_ttl_s
        self.call_timeout_s = call_timeout_s
        self.timeouts = CallTimeouts(url, clock, call_timeout_s)
        self._again = again
        self._home = ForkGuard(f"the store {url}", made="opened", remedy="connect again in the child: store.reopen()")
        self._is_ending = False
        self._closed = False
        self._has_closed = False
        self.dispatcher = Dispatcher(backend.capabilities.name)
        self.cleanup = CleanupThread(clock, f"latchwork-cleanup-{backend.capabilities.name}")
        self._lock = mutex()
        self._opening = mutex()
        self._primary: Session | None = None
        self._opened: Future[Session] | None = None
        self._sessions: dict[Session, None] = {}  # in the order of opening and closing
        self._feeds: dict[WatchReceiver, None] = {}
        self._shared: dict[Hashable, SharedObject] = {}
        #: The owner of the core; None for a core that no store owns.
        self.owner: weakref.ref[StoreOwner] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` has completed without an error."""
        return self._has_closed

    def ensure_usable(self) -> None:
        """Check that the store can be used.

        Raises:
            Closed: The store was closed.
            ForkedProcess: This process is a fork of the one that opened it.
        """
        if self._closed:
            raise Closed(f"the store {self.url} was closed; connect again")
        if self._home.is_foreign:
            raise self._home.error()

    def reconnect(self) -> StoreConnection:
        """Open a new connection with the same settings. Return the new shared state."""
        if self._again is None:
            raise LatchworkError(
                f"the store {self.url} was created from parts of another store; create another store the same way"
            )
        return self._again()

    def get_primary_session(self) -> Session:
        """Return the default session of the store. Open a new one if the last one was lost or closed."""
        with self._opening:  # one opener; the lock that guards the fields is not held during I/O
            session = self._primary
            if session is None or session.has_ended:
                session = self._primary = self.open_session(self.session_ttl_s)
            return session

    def find_open_primary_session(self) -> Session | None:
        """Return the default session of the store if it is open. Return None otherwise, without opening one."""
        self.ensure_usable()
        session = self._primary
        return None if session is None or session.has_ended else session

    def primary_session_future(self) -> Future[Session]:
        """Return a future of the default session of the store. If it must be opened, concurrent callers share one
        thread for that.
        """
        session = self._primary
        if session is not None and not session.has_ended:
            return completed(session)
        with self._lock:
            opening = self._opened
            if opening is None or opening.done():
                opening = self._opened = self.dispatcher.submit(self.get_primary_session)
        return then(opening, lambda opened: opened)

    def open_session(self, ttl_s: float) -> Session:
        """Open a separate session, which is closed with the store.

        Args:
            ttl_s: TTL of the session in seconds.
        """
        if not 0 < ttl_s <= MAX_DURATION_S:
            raise ValueError(f"ttl_s must be more than 0 and at most {MAX_DURATION_S:,.0f} seconds, not {ttl_s!r}")
        self.ensure_usable()
        opened: list[Session] = []
        gone = Signal()

        def on_gone() -> None:
            gone.set()
            for session in opened:
                session.mark_ended()

        handle = self.timeouts.wait_for_read(self.backend.open_session(ttl_s, on_gone), "opening a session")
        session = Session(handle, self.clock, self._forget_session, self.owner)
        with self._lock:
            self._sessions[session] = None
        try:
            session.start()
            self._announce(session, opened, gone, ttl_s)
        except BaseException:
            session.close()
            raise
        if self._closed:
            session.close()
            self.ensure_usable()
        return session

    def _announce(self, session: Session, opened: list[Session], gone: Signal, ttl_s: float) -> None:
        opened.append(session)
        if gone.is_set():
            session.mark_ended()
        self._observers.notify("opened", session)
        if session.ttl_s > ttl_s * 1.001:
            _log.warning("session %s: requested a TTL of %.3g s, granted %.3g s", session.id, ttl_s, session.ttl_s)
        elif session.ttl_s < ttl_s * 0.999:
            _log.warning(
                "session %s: asked for a ttl of %.3g s, the server grants %.3g s at most: locks and keys end sooner "
                "when the server is out of reach; raise the server's limit (maxSessionTimeout on ZooKeeper)",
                session.id,
                ttl_s,
                session.ttl_s,
            )

    def start_watch(
        self,
        feed: WatchReceiver,
        prefix: str,
        *,
        single_key: bool = False,
        siblings: bool = False,
        heartbeats: bool = False,
    ) -> None:
        """Watch an absolute prefix on behalf of a ``Watch`` or ``Mirror``, which is closed with the store.

        Args:
            feed: The watch or mirror, which receives the events.
            prefix: The absolute prefix.
            single_key: Watch a single session-bound key, and report only its deletion.
            siblings: With ``single_key``, also read the names next to the key after its deletion.
            heartbeats: Request heartbeats, which confirm that an unchanged state is up to date.
        """
        self.ensure_usable()
        with self._lock:
            self._feeds[feed] = None
        watch = self.backend.watch(prefix, feed, single_key=single_key, siblings=siblings, heartbeats=heartbeats)
        feed.attach(watch, self._forget_feed)

    def shared(self, key: Hashable, make: Callable[[], SharedObject]) -> SharedObject:
        """Return the object that is stored under this key. The first call creates it with ``make``, which must do no
        I/O.

        It is closed with the store.
        """
        self.ensure_usable()
        with self._lock:
            if self._is_ending:
                raise Closed(f"the store {self.url} is being closed; connect again")
            if key not in self._shared:
                self._shared[key] = make()
            return self._shared[key]

    def close(self) -> None:
        """Close shared objects, sessions, watches and the backend, in this order. Idempotent.

        If an interrupt ends the call, call it again to continue. A forked child closes nothing, because everything
        belongs to the parent process.
        """
        if self._home.is_foreign:
            self._closed = True
            return
        with self._lock:
            self._is_ending = True
            shared = list(self._shared.values())
        for each in shared:
            each.close()
        self.cleanup.close()  # first: leftovers are bound to the sessions
        with self._lock:
            self._closed = True
            sessions, feeds = list(self._sessions), list(self._feeds)
        for session in sessions:
            session.close()
        for feed in feeds:
            feed.close()
        self.dispatcher.close()
        try:
            self.backend.close()
        finally:
            self.cleanup.join(_CLEANUP_TIMEOUT_S)
            self.dispatcher.close_callback_queues()  # after the last calls, which also have callbacks
        self._has_closed = True

    def _forget_session(self, session: Session) -> None:
        with self._lock:
            self._sessions.pop(session, None)

    def _forget_feed(self, feed: WatchReceiver) -> None:
        with self._lock:
            self._feeds.pop(feed, None)
