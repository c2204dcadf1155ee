"""The backend of a ``FaultyStore``. It passes calls on to another backend, or applies the faults of a plan to them."""

from __future__ import annotations

import builtins
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from latchwork.backends.base import (
    Backend,
    BackendSession,
    BackendWatch,
    ProvesCurrent,
    Touchable,
    WatchCallback,
    WatchEvent,
)
from latchwork.backends.capabilities import Capabilities
from latchwork.backends.futures import FutureGenerator, completed, failed, run_generator, then
from latchwork.backends.timer import Timer
from latchwork.clock import Clock
from latchwork.errors import Closed, OutcomeUnknown, SessionLost, Unavailable
from latchwork.store.watch import WatchedState
from latchwork.testing._faulty.plan import Fault
from latchwork.types import Committed, Create, Delete, Entry, HasId, Op, OrderedKey, Put, SessionAlive, SimpleCheck

P = ParamSpec("P")
T = TypeVar("T")
NextFault = Callable[[str, tuple[str, ...]], Fault | None]

_log = logging.getLogger(__name__)
_NAMES = {Put: "put", Create: "create", Delete: "delete"}
_CLOSE_TIMEOUT_S = 10.0
Later = Callable[[float, Callable[[], None]], None]


def _with_read_faults(
    read: Callable[Concatenate[Backend, P], Future[T]],
) -> Callable[Concatenate[FaultyBackend, P], Future[T]]:
    """Wrap a read method of the backend, so that each call may get a fault of the plan."""
    name = read.__name__

    @wraps(read)
    def call(self: FaultyBackend, /, *args: P.args, **options: P.kwargs) -> Future[T]:
        keys = (args[0],) if isinstance(args[0], str) else tuple(cast("Sequence[str]", args[0]))
        return self._call(name, keys, lambda: self._read_from_source(name, *args, **options))

    return call


class FaultyBackend(Backend):
    """A backend that passes calls on to another one, or applies the faults of a plan to them. Thread-safe."""

    def __init__(
        self,
        inner: Backend,
        clock: Clock,
        next_fault: NextFault,
        *,
        call_timeout_s: float,
        close_inner: Callable[[], None],
        lag_s: float | None,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._next_fault = next_fault
        self._call_timeout_s = call_timeout_s
        self._close_inner = close_inner
        self._lock = threading.Lock()
        self._timer: Timer | None = None
        self._sessions: dict[str, FaultySession] = {}
        self._ended: set[str] = set()
        self._watches: list[FaultyWatch] = []
        self._cut: object | None = None
        self._closed = False
        self._replica = StaleReplica(lag_s, self.call_later) if lag_s is not None else None
        if self._replica is not None:
            self._replica.follow(inner)

    @property
    def capabilities(self) -> Capabilities:
        """The features and limits of the wrapped backend."""
        return self._inner.capabilities

    # What the store calls

    get = _with_read_faults(Backend.get)
    get_many = _with_read_faults(Backend.get_many)
    list = _with_read_faults(Backend.list)
    children = _with_read_faults(Backend.children)

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """Commit a transaction, unless a fault prevents it."""
        keys = [check.session_id if isinstance(check, SessionAlive) else check.key for check in checks]
        name = _NAMES[type(ops[0])] if len(ops) == 1 and not checks else "commit"
        used = {op.session.id for op in ops if not isinstance(op, Delete) and op.session is not None}
        every = (*[op.key for op in ops], *keys)
        send = partial(self._unless_ended, used, lambda: self._inner.commit(checks, ops))
        return self._call(name, every, send, writes=bool(ops))

    def create_sequential(self, key: str, value: bytes, session: HasId | None) -> Future[Entry]:
        """Create a key with an increasing number as suffix, unless a fault prevents it."""
        used = {session.id} if session is not None else set()
        send = partial(self._unless_ended, used, lambda: self._inner.create_sequential(key, value, session))
        return self._call("create", (key,), send, writes=True)

    def create_ordered_key(
        self, key_prefix: str, unique_suffix: str, value: bytes, session: HasId | None
    ) -> Future[OrderedKey]:
        """Create a key and read the keys of the same kind that were created earlier, unless a fault prevents it.

        Args:
            key_prefix: Beginning of the keys of this kind.
            unique_suffix: End of the new key, which no other key has.
            value: Value of the key.
            session: Session that the key is bound to; None for no session.
        """
        used = {session.id} if session is not None else set()
        send = partial(
            self._unless_ended, used, lambda: self._inner.create_ordered_key(key_prefix, unique_suffix, value, session)
        )
        return self._call("create", (key_prefix,), send, writes=True)

    def delete_tree(self, prefix: str) -> Future[int]:
        """Delete a key and all keys below it, unless a fault prevents it.

        Args:
            prefix: The key.
        """
        return self._call("delete_tree", (prefix,), lambda: self._inner.delete_tree(prefix), writes=True)

    def open_session(self, ttl_s: float, on_gone: Callable[[], None]) -> Future[BackendSession]:
        """Open a session of the wrapped backend. It expires if it is not renewed through this backend.

        Args:
            ttl_s: TTL of the session in seconds.
            on_gone: Called when the session has ended on the server.
        """
        opening = self._call("open_session", (), lambda: self._inner.open_session(ttl_s, on_gone))
        return then(opening, self._opened)

    def watch(
        self,
        prefix: str,
        callback: WatchCallback,
        *,
        single_key: bool = False,
        siblings: bool = False,
        heartbeats: bool = True,
    ) -> FaultyWatch:
        """Watch the keys below a prefix. Faults can delay and break the watch."""
        watch = FaultyWatch(self, prefix, callback, single_key=single_key, siblings=siblings, heartbeats=heartbeats)
        with self._lock:
            self._watches.append(watch)
            silent = self._cut is not None
        if not silent:
            watch.open()
        return watch

    def close(self) -> None:
        """Close everything that was opened through this backend, and the wrapped store."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            timer, watches = self._timer, list(self._watches)
        for watch in watches:
            watch.close()
        if self._replica is not None:
            self._replica.close()
        if timer is not None:
            timer.close()
        self._close_inner()

    # What a test does

    def cut_off(self) -> None:
        """Block all calls and events, as if the server were unreachable.

        If this lasts longer than the TTL of a session, the session expires.
        """
        with self._lock:
            if self._cut is not None:
                return
            self._cut = cut = object()
            watches, sessions = list(self._watches), list(self._sessions.values())
        for watch in watches:
            watch.silence()
        for session in sessions:
            self.call_later(session.ttl_s, partial(self._expire_unrenewed, session, cut))

    def reconnect(self) -> None:
        """Stop blocking calls and events."""
        with self._lock:
            self._cut = None
            watches = list(self._watches)
        for watch in watches:
            watch.open()

    def cut_watches(self, pause_s: float) -> None:
        """Break all watches, and start them again later.

        Args:
            pause_s: Seconds until they start again.
        """
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.interrupt(pause_s)

    def expire(self, session_id: str | None) -> Future[None]:
        """End sessions as if they had expired on the server. The client is not notified.

        Args:
            session_id: ID of the session to end; None ends all sessions.
        """
        with self._lock:
            found = [session for session in self._sessions.values() if session_id in {None, session.id}]

        def steps() -> FutureGenerator[None]:
            for session in found:
                yield session.expire()

        return run_generator(steps())

    # For sessions and watches

    def renew(self, session: BackendSession) -> Future[float]:
        """Renew a session, unless a fault prevents it."""
        return self._call("renew", (session.id,), session.renew)

    def touch(self, session: BackendSession) -> Future[float]:
        """Send the request of ``Touchable.touch`` for a session, unless a fault of ``renew`` prevents it.

        Returns:
            A future of the local clock time at which the request was sent.
        """
        return self._call("renew", (session.id,), session.touch if isinstance(session, Touchable) else session.renew)

    def end(self, session: BackendSession) -> Future[None]:
        """End a session. The server applies none of its later writes.

        If a fault loses the request, the session expires later.
        """
        with self._lock:
            self._ended.add(session.id)
            self._sessions.pop(session.id, None)
        ending = self._call("close_session", (session.id,), session.close)
        ending.add_done_callback(partial(self._expire_unless_closed, session))
        return ending

    def open_watch(self, prefix: str, callback: WatchCallback, **how: bool) -> BackendWatch | None:
        """Open a watch of the wrapped backend. Return None if this backend is closed or cut off."""
        if self._closed or self._cut is not None:
            return None
        return self._inner.watch(prefix, callback, **how)

    def forget(self, watch: FaultyWatch) -> None:
        """Remove a closed watch from the list of open watches."""
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)

    def fault_for_event(self, prefix: str) -> Fault | None:
        """Return the fault that the plan has for an event of a watch, or None."""
        fault = self._next_fault("event", (prefix,))
        if fault is not None:
            _log.info("fault: the watch of %r: %s", prefix, fault.kind)
        return fault

    def call_later(self, delay_s: float, call: Callable[[], object]) -> None:
        """Call a function after a delay, unless the backend is closed earlier."""
        self._timer_for_use().call_later(delay_s, call)

    # Faults

    def _read_from_source(self, read: str, *args: Any, **options: Any) -> Future[Any]:
        """Read from the server, or from its stale replica if the call allows that.

        Args:
            read: Name of the read method of a backend.
            args: Arguments of the method.
            options: Keyword arguments of the method.
        """
        lags = options.get("stale_ok") and self._replica is not None and self._replica.is_ready
        answer: Future[Any] = getattr(self._replica if lags else self._inner, read)(*args, **options)
        return answer

    def _timer_for_use(self) -> Timer:
        with self._lock:
            if self._timer is None:
                self._timer = Timer(self._clock, "latchwork-faults")
                if self._closed:
                    self._timer.close()
            return self._timer

    def _expire_unrenewed(self, session: FaultySession, cut: object) -> None:
        """End a session that has not been renewed. The wrapped backend would keep it alive, as ZooKeeper's client does.

        Args:
            session: The session.
            cut: The interruption of the connection during which it was not renewed; nothing happens if it has ended.
        """
        if self._cut is cut:
            session.expire()

    def _expire_unless_closed(self, session: BackendSession, ending: Future[None]) -> None:
        if ending.cancelled() or ending.exception() is not None:
            self.call_later(session.ttl_s, session.close)

    def _opened(self, session: BackendSession) -> BackendSession:
        wrapped = FaultySession(self, session)
        with self._lock:
            self._sessions[session.id] = wrapped
        return wrapped

    def _unless_ended(self, sessions: set[str], send: Callable[[], Future[T]]) -> Future[T]:
        """Send a write, unless one of its sessions was closed meanwhile.

        Args:
            sessions: IDs of the sessions to which the write binds keys.
            send: Sends the write.
        """
        over = sorted(sessions & self._ended)
        if over:
            return failed(
                SessionLost(f"session {over[0]} has ended; stop the work that it protected and open a new session")
            )
        return send()

    def _call(
        self, op: str, keys: tuple[str, ...], send: Callable[[], Future[T]], *, writes: bool = False
    ) -> Future[T]:
        if self._closed:
            return failed(Closed("the store was closed; connect again"))
        fault = self._next_fault(op, keys)
        what = f"{op} of {keys[0]!r}" if keys else op
        if self._cut is not None:
            return failed(Unavailable(f"{what}: the server cannot be reached (the store is cut off); try again"))
        if fault is None:
            return send()
        _log.info("fault: %s: %s", what, fault.kind)
        return self._suffer(fault, what, send, writes=writes)

    def _suffer(self, fault: Fault, what: str, send: Callable[[], Future[T]], *, writes: bool) -> Future[T]:
        kind = fault.kind
        if kind == "fail":
            return failed(Unavailable(f"{what}: the server could not serve it; try again"))
        if kind == "cut_before":
            return failed(_cut(what, writes=writes))
        if kind == "cut_after":
            return run_generator(self._answer_lost(send(), _cut(what, writes=writes)))
        if kind == "land_late":
            if writes:
                self.call_later(fault.delay_s, send)  # the answer is not awaited
            return failed(_cut(what, writes=writes))
        if kind == "drop":
            return self._call_after(self._call_timeout_s, lambda: failed(_cut(what, writes=writes)))
        if kind == "slow_request":
            return self._call_after(min(fault.delay_s, self._call_timeout_s), send)
        if kind == "slow_answer":
            answer = send()
            return self._call_after(min(fault.delay_s, self._call_timeout_s), lambda: answer)
        return run_generator(self._after_expiry(send))

    def _after_expiry(self, send: Callable[[], Future[T]]) -> FutureGenerator[T]:
        yield self.expire(None)
        answer: T = yield send()
        return answer

    def _answer_lost(self, sent: Future[T], error: Exception) -> FutureGenerator[T]:
        try:
            yield sent
        except Exception as refused:
            raise error from refused
        raise error

    def _call_after(self, delay_s: float, call: Callable[[], Future[T]]) -> Future[T]:
        """Make a call after a delay, and return a future of its result."""

        def steps() -> FutureGenerator[T]:
            yield self._timer_for_use().after(delay_s)
            answer: T = yield call()
            return answer

        return run_generator(steps())


class FaultySession:
    """A session of the wrapped backend whose requests may have faults."""

    def __init__(self, backend: FaultyBackend, inner: BackendSession) -> None:
        self._backend = backend
        self._inner = inner
        self.id = inner.id
        self.ttl_s = inner.ttl_s
        self.opened_at = inner.opened_at
        self.token = inner.token
        self.renew_every_s = inner.renew_every_s
        self.confirm_gap_s = inner.confirm_gap_s
        self.touch_after_s = inner.touch_after_s if isinstance(inner, Touchable) else ()

    @property
    def resumed_at(self) -> float:
        """The local clock time at which the last request to open or resume the session was sent."""
        return self._inner.resumed_at if isinstance(self._inner, Touchable) else self.opened_at

    def renew(self) -> Future[float]:
        """Renew the session, unless a fault prevents it."""
        return self._backend.renew(self._inner)

    def touch(self) -> Future[float]:
        """Send the cheap request of ``Touchable.touch``, unless a fault prevents it.

        Only called if the wrapped session is ``Touchable``.
        """
        return self._backend.touch(self._inner)

    def close(self) -> Future[None]:
        """End the session, unless a fault prevents it."""
        return self._backend.end(self._inner)

    def expire(self) -> Future[None]:
        """End the session as if it had expired on the server. The client is not notified."""
        return self._inner.close()


def _cut(what: str, *, writes: bool) -> Exception:
    if writes:
        return OutcomeUnknown(f"{what}: the connection broke; it may have been applied, or may be yet")
    return Unavailable(f"{what}: the connection broke; try again")


class FaultyWatch:
    """A watch that can be silent, late or broken. Delivers events in order, one at a time."""

    def __init__(self, backend: FaultyBackend, prefix: str, callback: WatchCallback, **how: bool) -> None:
        self._backend = backend
        self._prefix = prefix
        self._callback = callback
        self._how = how
        self._state = threading.Condition()
        self._inner: BackendWatch | None = None
        self._opening = 0  # how often it was opened; events of earlier openings are dropped
        self._queue: deque[WatchEvent] = deque()
        self._held = False
        self._teller: int | None = None
        self._closed = False

    def open(self) -> None:
        """Start the watch, or start it again. Its first event contains the whole state."""
        self.silence()
        with self._state:
            if self._closed:
                return
            opening = self._opening
        inner = self._backend.open_watch(self._prefix, lambda event: self._receive(opening, event), **self._how)
        with self._state:
            current = self._opening == opening and not self._closed
            if current:
                self._inner = inner
        if not current and inner is not None:
            inner.close()

    def prove_current(self) -> None:
        """Ask the wrapped watch to confirm that its state is up to date, if it does so only on request.

        See ``ProvesCurrent``.
        """
        inner: object = self._inner
        if isinstance(inner, ProvesCurrent):
            inner.prove_current()

    def silence(self) -> None:
        """Deliver nothing until the watch is opened again."""
        with self._state:
            self._opening += 1
            self._queue.clear()
            self._held = False
            inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()

    def interrupt(self, pause_s: float) -> None:
        """Interrupt the watch, and open it again later. Changes in between are delivered as one state.

        Args:
            pause_s: Seconds for which nothing is delivered.
        """
        self.silence()
        self._backend.call_later(pause_s, self.open)

    def close(self) -> None:
        """Stop the watch. Nothing is delivered afterwards."""
        with self._state:
            self._closed = True
        self.silence()
        self._backend.forget(self)
        with self._state:
            self._state.wait_for(lambda: self._teller in {None, threading.get_ident()}, _CLOSE_TIMEOUT_S)

    def _receive(self, opening: int, event: WatchEvent) -> None:
        with self._state:
            if opening != self._opening or self._closed:
                return
            self._queue.append(event)
        fault = self._backend.fault_for_event(self._prefix)
        if fault is not None:
            with self._state:
                self._held = True
            if fault.kind == "cut_watch":
                self._backend.call_later(0.0, lambda: self._cut(opening, fault.delay_s))
            else:
                self._backend.call_later(fault.delay_s, lambda: self._release(opening))
        self._pump()

    def _cut(self, opening: int, pause_s: float) -> None:
        with self._state:
            if opening != self._opening:
                return
        self.interrupt(pause_s)

    def _release(self, opening: int) -> None:
        with self._state:
            if opening != self._opening:
                return
            self._held = False
        self._pump()

    def _pump(self) -> None:
        """Deliver the queued events, unless another thread is doing so."""
        while True:
            with self._state:
                if self._teller is not None or self._held or self._closed or not self._queue:
                    return
                self._teller = threading.get_ident()
                event = self._queue.popleft()
            try:
                self._callback(event)
            finally:
                with self._state:
                    self._teller = None
                    self._state.notify_all()


class StaleReplica:
    """A copy of all keys that lags behind the server. Its state never goes back. Thread-safe.

    Args:
        lag_s: Seconds after which a reported change is visible here.
        later: Calls a function after a delay, one at a time, in the order of their times.
    """

    def __init__(self, lag_s: float, later: Later) -> None:
        self._lag_s = lag_s
        self._later = later
        self._lock = threading.Lock()
        self._tracker = WatchedState(keep_values=True)
        self._inner: BackendWatch | None = None

    def follow(self, backend: Backend) -> None:
        """Start to copy the keys of a backend."""
        self._inner = backend.watch("", lambda event: self._later(self._lag_s, lambda: self._take(event)))

    def close(self) -> None:
        """Stop copying keys."""
        if self._inner is not None:
            self._inner.close()

    @property
    def is_ready(self) -> bool:
        """Whether the replica has received the first state."""
        return self._tracker.ready

    def get(self, key: str, *, stale_ok: bool) -> Future[Entry | None]:  # noqa: ARG002 - it is stale in any case
        """Read a key: from the replica if the read may be stale, otherwise from the backend.

        Args:
            key: The key.
            stale_ok: Whether the read may be stale.
        """
        with self._lock:
            return completed(self._tracker.known.get(key))

    def get_many(self, keys: Sequence[str], *, stale_ok: bool) -> Future[builtins.list[Entry | None]]:  # noqa: ARG002
        """Read several keys from the replica, all from the same state."""
        with self._lock:
            return completed([self._tracker.known.get(key) for key in keys])

    def list(
        self,
        prefix: str,
        *,
        recursive: bool,
        limit: int | None,
        start_after: str | None,
        stale_ok: bool,  # noqa: ARG002
    ) -> Future[builtins.list[Entry]]:
        """List entries of the replica, all from the same state."""
        below = f"{prefix}/" if prefix else ""
        with self._lock:
            found = [
                self._tracker.known[key]
                for key in sorted(self._tracker.known)
                if key.startswith(below)
                and (recursive or "/" not in key[len(below) :])
                and (start_after is None or key > start_after)
            ]
        return completed(found[:limit])

    def children(self, prefix: str, *, stale_ok: bool) -> Future[builtins.list[str]]:  # noqa: ARG002
        """List the names directly below a key of the replica, all from the same state."""
        below = f"{prefix}/" if prefix else ""
        with self._lock:
            known = [key for key in self._tracker.known if key.startswith(below)]
        return completed(sorted({key[len(below) :].partition("/")[0] for key in known}))

    def _take(self, event: WatchEvent) -> None:
        with self._lock:
            self._tracker.apply_event(event)
