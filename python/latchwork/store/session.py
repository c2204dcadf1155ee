"""Sessions: leases that a timer renews in the background.

``lost`` is set before any other client can see the keys disappear, because the lease counts from the time at which the
last confirmed renewal was *sent*. A lost session never becomes active again. State listeners are notified of each
change in order, in a callback thread.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Literal

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.backends.base import Backend, BackendSession, RenewsWithCommit, SharesTimer, Touchable
from latchwork.backends.futures import then
from latchwork.backends.timer import RepeatedCall, Timer
from latchwork.clock import Clock
from latchwork.errors import Closed, LatchworkError, SessionLost
from latchwork.store.dispatch import CallbackThread
from latchwork.store.forks import ForkGuard, make_lost_signal
from latchwork.store.lease import Lease, Renewer
from latchwork.store.observers import add_checked_listener, add_listener, call_each, check_listener
from latchwork.store.owner import Owner, keep_with_owner, remove_callbacks
from latchwork.types import Committed, Fence, Op, SessionAlive, SimpleCheck

_log = logging.getLogger(__name__)

#: Fraction of the usual interval after which a failed renewal is retried.
_RETRY_PART = 0.25
_CLOSE_TIMEOUT_S = 2.0
SessionState = Literal["active", "suspect", "lost", "closed"]
StateListener = Callable[[SessionState], None]


class Session:
    """Binds keys to this process. The keys disappear when it is closed, or within its TTL after the process dies.

    Thread-safe. Made by ``store.session`` or ``store.open_session``. In a forked child it counts as lost, and closing
    it there does not affect the parent's session.

    Attributes:
        id: Globally unique ID, as in ``Entry.owner``.
        ttl_s: TTL in seconds, as granted by the server.
    """

    def __init__(
        self,
        backend: BackendSession,
        clock: Clock,
        on_end: Callable[[Session], None],
        owner: Owner | None = None,
    ) -> None:
        self.id = backend.id
        self.ttl_s = backend.ttl_s
        self.token = backend.token
        self._lost = Signal()
        self._backend = backend
        self._clock = clock
        self._on_end = on_end
        self._lock = mutex()
        every_s = backend.renew_every_s  # the first is sent immediately if opening took longer
        lease = Lease(
            backend.opened_at,
            backend.ttl_s,
            confirm_gap_s=backend.confirm_gap_s,
            renew_s=every_s,
            retry_s=every_s * _RETRY_PART,
            unanswered_s=min(every_s, backend.ttl_s / 8),
            touch_after_s=backend.touch_after_s if isinstance(backend, Touchable) else (),
        )
        touchable = backend if isinstance(backend, Touchable) else None
        self._renewer = Renewer(lease, clock, backend.renew, self._renewed, touchable)
        self._closed = False
        self._has_closed = False
        self._was_lost = False
        self._uncalled: list[Callable[[], None]] = []
        self._home = ForkGuard(f"session {self.id}", made="opened", remedy="connect again in the child")
        self._states = SessionStates(self.id)
        self._lost_callbacks = CallbackThread(
            f"latchwork-session-lost-{self.id[:8]}", f"an on_lost listener of session {self.id}"
        )
        self._owner = owner
        self._held = keep_with_owner(owner, self, _Callbacks())  # they may hold the store
        self._registered_late = _Callbacks()  # registered while the owner was being dropped
        self._own_timer: Timer | None = None
        self._steps: RepeatedCall | None = None
        self._loss: threading.Thread | None = None

    def start(self) -> None:
        """Start renewing the session. Called once, after the store has recorded the session."""
        backend: object = self._backend
        if isinstance(backend, SharesTimer):
            timer = backend.timer
        else:
            timer = self._own_timer = Timer(self._clock, f"latchwork-session-{self.id[:8]}")
        self._steps = RepeatedCall(timer, self._renew_if_due)
        self._steps.wake()
        _log.info("session %s opened with a ttl of %.3g s", self.id, self.ttl_s)

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.state} {self.remaining_s():.2f}s of {self.ttl_s:.3g}s>"

    @property
    def state(self) -> SessionState:
        """The state of the session.

        ``active``; ``suspect`` while renewals fail; ``lost`` permanently, or in a forked child; ``closed`` by this
        client.
        """
        if self._home.is_foreign:
            return "lost"
        with self._lock:
            if self._closed:
                return "closed"
            if self._has_expired():
                return "lost"
        every_s = self._backend.renew_every_s
        late = self._renewer.since_renewal_s() > every_s + min(1.5 * every_s, self.ttl_s / 4) + 0.05
        return "suspect" if self._renewer.is_failing or late else "active"

    @property
    def has_ended(self) -> bool:
        """Whether the session is lost or closed, or was inherited by a forked child.

        A session that has ended stays so.
        """
        return self._closed or self._home.is_foreign or self._has_expired()

    def remaining_s(self) -> float:
        """Return the seconds for which the session certainly lasts.

        The result is 0 after its end and in a forked child.
        """
        if self._home.is_foreign or self._closed or self._lost.is_set():
            return 0.0
        return self._renewer.remaining_s()

    @property
    def ends_at(self) -> float:
        """The local clock time at which the session expires without another renewal, or at which it ended."""
        return -math.inf if self._home.is_foreign else self._renewer.expires_at

    @property
    def lost(self) -> Signal:
        """A signal that is set when the session is lost, but not when it is closed.

        It is also set in a forked child.
        """
        return make_lost_signal() if self._home.is_foreign else self._lost

    @property
    def fence(self) -> Fence:
        """Return a fence for transactions that must fail if the session has ended on the server.

        Raises:
            ForkedProcess: The session was opened by the parent of this process.
        """
        if self._home.is_foreign:
            raise self._home.error()
        return Fence(self.token, (SessionAlive(self.id),))

    def on_lost(self, fn: Callable[[], None], *, or_closed: bool = False) -> Callable[[], None]:
        """Call ``fn`` once in a callback thread when the session is lost, or at once if it is already lost.

        Listeners of one session are called in the order of their registration. An error in one does not stop the
        others.

        Args:
            fn: Takes no arguments; its result is ignored.
            or_closed: Also call it when this client closes the session.
        Returns:
            A function that removes the listener; it may be called at any time.
        Raises:
            TypeError: ``fn`` is not a plain function.
            ForkedProcess: The session was opened by this process's parent.
        """
        if self._home.is_foreign:
            raise self._home.error()
        check_listener(fn)
        with self._lock:
            if not (self._lost.is_set() or (self._closed and or_closed)):
                return add_checked_listener(
                    (self._held() or self._registered_late).listeners, _WhenClosed(fn) if or_closed else fn
                )
            self._lost_callbacks.add([fn])
        self._start_callbacks()
        return lambda: None

    def on_state(self, fn: StateListener) -> Callable[[], None]:
        """Call ``fn(state)`` after each later change of the state, in order, in a callback thread.

        The state is ``suspect`` while renewals fail, ``active`` when they succeed again, and ``lost`` or ``closed`` at
        the end. A state that is shorter than a renewal may be skipped. Do not rely on it for safety: use a fence.

        Returns:
            A function that removes the listener; it may be called at any time.
        """
        return self._states.add_listener(fn)

    def on_end(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn`` once when the session is lost or closed, in the thread that ends it. If it has already ended,
        call it now.

        Intended for waking waiting threads: ``fn`` must not block, call the store, or raise.

        Returns:
            A function that removes the listener, at any time.
        Raises:
            TypeError: ``fn`` is a coroutine function, or cannot be called.
            ForkedProcess: The session was opened by the parent of this process.
        """
        if self._home.is_foreign:
            raise self._home.error()
        check_listener(fn)
        with self._lock:
            if not (self._closed or self._lost.is_set()):
                return add_checked_listener((self._held() or self._registered_late).end_listeners, fn)
        fn()
        return lambda: None

    def ensure_usable(self) -> None:
        """Check that the session has not ended.

        Raises:
            SessionLost: The session was lost, or has just expired.
            Closed: This client closed the session.
            ForkedProcess: The session was opened by the parent of this process.
        """
        if self._home.is_foreign:
            raise self._home.error()
        if self._closed:
            raise Closed(f"session {self.id} was closed; open another with store.open_session()")
        if self._lost.is_set() or self._renewer.remaining_s() <= 0.0:
            msg = f"session {self.id} is lost: no renewal was confirmed for {self.ttl_s:.3g} s; open another"
            raise SessionLost(msg)

    def commit(self, backend: Backend, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """Commit a transaction that binds keys to this session. It also renews the session if the backend supports
        that.

        Args:
            backend: The backend that commits.
            checks: The checks.
            ops: The operations.
        """
        handle = self._backend
        if not isinstance(handle, RenewsWithCommit):
            return backend.commit(checks, ops)
        sent_at = self._clock.now()

        def mark_renewed(done: Committed) -> Committed:
            self._renewer.record_other_renewal(sent_at)
            return done

        return then(handle.commit(checks, ops), mark_renewed)

    def close(self) -> None:
        """End the session. Its keys are deleted at once if the server is reachable.

        Idempotent. If an interrupt ends the call, call it again to continue.
        """
        if self._home.is_foreign:
            return
        with self._lock:
            if self._has_closed:
                return
            if not self._closed:
                self._was_lost = self._lost.is_set()
                self._renewer.end()
                listeners, self._uncalled = self._take_callbacks()
                self._lost_callbacks.add(_list_close_listeners(listeners))
                self._closed = True
        self._states.set_state("closed")
        while self._uncalled:
            self._call_end_listeners([self._uncalled.pop()])
        self._start_callbacks()
        if not self._was_lost:
            self._end()
            _log.info("session %s closed", self.id)
        self._has_closed = True
        self._close_timer()
        if self._loss is not None and self._loss is not threading.current_thread():
            self._loss.join(_CLOSE_TIMEOUT_S)

    def mark_ended(self) -> None:
        """Record that the session has ended on the server. May be called in any thread."""
        self._renewer.end()
        self._wake()

    def _call_end_listeners(self, end_listeners: list[Callable[[], None]]) -> None:
        call_each(end_listeners, _log, "session %s: a wake-up listener raised; please report this", self.id)

    def hold_callbacks(self, value: _Callbacks) -> None:
        """Keep the listeners alive after the store's owner was garbage collected, and call those that are already
        due.
        """
        with self._lock:
            self._held = lambda: value
            if not (self._closed or self._lost.is_set()):
                return
            listeners, end_listeners = self._take_callbacks()
            self._lost_callbacks.add(listeners if self._lost.is_set() else _list_close_listeners(listeners))
        self._call_end_listeners(end_listeners)
        self._start_callbacks()

    def _take_callbacks(self) -> tuple[list[Callable[[], None]], list[Callable[[], None]]]:
        listeners: list[Callable[[], None]] = []
        end_listeners: list[Callable[[], None]] = []
        for each in (self._held(), self._registered_late):
            if each is not None:
                listeners += each.listeners.values()
                end_listeners += each.end_listeners.values()
                each.listeners.clear()
                each.end_listeners.clear()
        remove_callbacks(self._owner, self)
        return listeners, end_listeners

    def _has_expired(self) -> bool:
        return self._lost.is_set() or self._renewer.remaining_s() <= 0.0

    def _wake(self) -> None:
        if self._steps is not None:
            self._steps.wake()

    def _close_timer(self) -> None:
        if self._own_timer is not None:
            self._own_timer.close(_CLOSE_TIMEOUT_S)

    def _renew_if_due(self) -> float | None:
        """Send a renewal if one is due, and return the time of the next step. Must not block: the timer calls it."""
        if self._closed:
            return None
        due = self._renewer.renew_if_due()
        if due is None:
            self._record_loss()
            self._close_timer()
            return None
        self._states.set_state(self.state)
        return due[0]

    def _renewed(self, error: BaseException | None, recovered: bool) -> None:
        if isinstance(error, SessionLost):
            self._renewer.end()
        if recovered:
            _log.warning("session %s is active again", self.id)
        elif error is not None:
            _log.info("session %s: renewal failed: %s", self.id, error)
        self._wake()

    def _record_loss(self) -> None:
        """Record the loss, and do the rest in another thread, because it calls listeners and waits for the server."""
        with self._lock:
            if self._closed or self._lost.is_set():
                return
            self._lost.set()
            listeners, end_listeners = self._take_callbacks()
            self._lost_callbacks.add(listeners)  # ahead of those that are registered from now on
        self._loss = threading.Thread(
            target=self._after_loss, args=(end_listeners,), name=f"latchwork-session-{self.id[:8]}-lost", daemon=True
        )
        try:
            self._loss.start()
        except RuntimeError:  # no more threads are available, or the interpreter is exiting
            self._loss = None
            self._after_loss(end_listeners)

    def _after_loss(self, end_listeners: list[Callable[[], None]]) -> None:
        self._call_end_listeners(end_listeners)
        _log.warning("session %s is lost; stop the work that it protected", self.id)
        self._states.set_state("lost")
        self._start_callbacks()
        self._end()

    def _end(self) -> None:
        """End the session on the server, so that no write in flight that depends on it can be committed later.

        Raises an error if the server is unreachable.
        """
        try:
            self._backend.close().result(timeout=_CLOSE_TIMEOUT_S)
        except (LatchworkError, TimeoutError) as error:
            why = error if isinstance(error, LatchworkError) else f"no answer within {_CLOSE_TIMEOUT_S:g} s"
            _log.info("session %s could not be closed on the server and will expire there: %s", self.id, why)
        except Exception:
            _log.exception("session %s: closing failed", self.id)
        self._on_end(self)

    def _start_callbacks(self) -> None:
        """Call the queued listeners in a separate thread, or in this one if no thread can be started."""
        if not self._lost_callbacks.start():
            self._lost_callbacks.run()


class _Callbacks:
    """The listeners for the loss of a session, and those for its end."""

    def __init__(self) -> None:
        self.listeners: dict[object, Callable[[], None]] = {}
        self.end_listeners: dict[object, Callable[[], None]] = {}


class _WhenClosed:
    """A listener for the loss of a session that is also called when the session is closed."""

    def __init__(self, fn: Callable[[], None]) -> None:
        self._fn = fn

    def __call__(self) -> None:
        self._fn()


def _list_close_listeners(listeners: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
    return [fn for fn in listeners if isinstance(fn, _WhenClosed)]


class SessionStates:
    """The state listeners of one session, and the state that they know. Thread-safe.

    Args:
        session_id: ID of the session, for log messages.
    """

    def __init__(self, session_id: str) -> None:
        self._mutex = mutex()
        self._listeners: dict[object, StateListener] = {}
        self._last: SessionState = "active"
        self._callbacks = CallbackThread(
            f"latchwork-session-states-{session_id[:8]}", f"a state listener of session {session_id}"
        )

    def add_listener(self, fn: StateListener) -> Callable[[], None]:
        """Register a listener for state changes. Return a function that removes it, at any time."""
        with self._mutex:
            return add_listener(self._listeners, fn)

    def set_state(self, state: SessionState) -> None:
        """Set the state of the session. Notify the listeners if it has changed. Does not block."""
        with self._mutex:
            if self._last in {state, "closed"} or (self._last == "lost" and state != "closed"):
                return
            self._last = state
            self._callbacks.add([partial(fn, state) for fn in self._listeners.values()])
        self._callbacks.start()
