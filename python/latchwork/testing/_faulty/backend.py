"""The backend under a ``FaultyStore``: passes calls on, or lets the faults of the plan hit them. See ``faults``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from latchwork.backends.base import Backend, BackendSession, BackendWatch, Capability, Sink, Touches
from latchwork.backends.futures import Steps, drive, failed, then
from latchwork.backends.timer import Timer
from latchwork.clock import Clock
from latchwork.errors import Closed, OutcomeUnknown, SessionLost, Unavailable
from latchwork.testing._faulty.plan import Fault
from latchwork.testing._faulty.replica import StaleReplica
from latchwork.testing._faulty.watch import FaultyWatch
from latchwork.types import Committed, Create, Delete, Entry, HasId, Op, Ordered, Put, SessionAlive, SimpleCheck

P = ParamSpec("P")
T = TypeVar("T")
Decide = Callable[[str, tuple[str, ...]], Fault | None]

_log = logging.getLogger(__name__)
_NAMES = {Put: "put", Create: "create", Delete: "delete"}


def _reading(read: Callable[Concatenate[Backend, P], Future[T]]) -> Callable[Concatenate[FaultyBackend, P], Future[T]]:
    """The method of a faulty backend that reads; its first argument is a key, a prefix, or several keys."""
    name = read.__name__

    @wraps(read)
    def call(self: FaultyBackend, /, *args: P.args, **options: P.kwargs) -> Future[T]:
        keys = (args[0],) if isinstance(args[0], str) else tuple(cast("Sequence[str]", args[0]))
        return self._call(name, keys, lambda: self._ask(name, *args, **options))

    return call


class FaultyBackend(Backend):
    """A backend around another one. Safe to share between threads."""

    def __init__(
        self,
        inner: Backend,
        clock: Clock,
        decide: Decide,
        *,
        call_timeout_s: float,
        close_inner: Callable[[], None],
        lag_s: float | None,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._decide = decide
        self._call_timeout_s = call_timeout_s
        self._close_inner = close_inner
        self._lock = threading.Lock()
        self._timer: Timer | None = None
        self._sessions: dict[str, FaultySession] = {}
        self._ended: set[str] = set()
        self._watches: list[FaultyWatch] = []
        self._cut: object | None = None
        self._closed = False
        self._replica = StaleReplica(lag_s, self.later) if lag_s is not None else None
        if self._replica is not None:
            self._replica.follow(inner)

    @property
    def capabilities(self) -> Capability:
        """Those of the backend inside."""
        return self._inner.capabilities

    # What the store calls

    get = _reading(Backend.get)
    get_many = _reading(Backend.get_many)
    list = _reading(Backend.list)
    children = _reading(Backend.children)

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """See ``Backend.commit``."""
        keys = [check.session_id if isinstance(check, SessionAlive) else check.key for check in checks]
        name = _NAMES[type(ops[0])] if len(ops) == 1 and not checks else "commit"
        used = {op.session.id for op in ops if not isinstance(op, Delete) and op.session is not None}
        every = (*[op.key for op in ops], *keys)
        send = partial(self._unless_ended, used, lambda: self._inner.commit(checks, ops))
        return self._call(name, every, send, writes=bool(ops))

    def create_sequential(self, key: str, value: bytes, session: HasId | None) -> Future[Entry]:
        """See ``Backend.create_sequential``."""
        used = {session.id} if session is not None else set()
        send = partial(self._unless_ended, used, lambda: self._inner.create_sequential(key, value, session))
        return self._call("create", (key,), send, writes=True)

    def create_ordered(self, stem: str, unique: str, value: bytes, session: HasId | None) -> Future[Ordered]:
        """See ``Backend.create_ordered``."""
        used = {session.id} if session is not None else set()
        send = partial(self._unless_ended, used, lambda: self._inner.create_ordered(stem, unique, value, session))
        return self._call("create", (stem,), send, writes=True)

    def delete_tree(self, prefix: str) -> Future[int]:
        """See ``Backend.delete_tree``."""
        return self._call("delete_tree", (prefix,), lambda: self._inner.delete_tree(prefix), writes=True)

    def open_session(self, ttl_s: float, on_gone: Callable[[], None]) -> Future[BackendSession]:
        """See ``Backend.open_session``. A session that nobody heard of runs out by itself."""
        opening = self._call("open_session", (), lambda: self._inner.open_session(ttl_s, on_gone))
        return then(opening, self._opened)

    def watch(
        self, prefix: str, sink: Sink, *, leaf: bool = False, beside: bool = False, beats: bool = True
    ) -> FaultyWatch:
        """See ``Backend.watch``."""
        watch = FaultyWatch(self, prefix, sink, leaf=leaf, beside=beside, beats=beats)
        with self._lock:
            self._watches.append(watch)
            silent = self._cut is not None
        if not silent:
            watch.open()
        return watch

    def close(self) -> None:
        """End what was opened through it, and the wrapped store."""
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
        """No call gets through from now on, and no event; a session that is not heard of for its TTL ends."""
        with self._lock:
            if self._cut is not None:
                return
            self._cut = cut = object()
            watches, sessions = list(self._watches), list(self._sessions.values())
        for watch in watches:
            watch.silence()
        for session in sessions:
            self.later(session.ttl_s, partial(self._run_out, session, cut))

    def reconnect(self) -> None:
        """Calls and events get through again."""
        with self._lock:
            self._cut = None
            watches = list(self._watches)
        for watch in watches:
            watch.open()

    def cut_watches(self, silent_s: float) -> None:
        """Break every watch off, and have it begin anew later."""
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.break_off(silent_s)

    def expire(self, session_id: str | None) -> Future[None]:
        """End one session, or all, as the server would; the sessions are not notified."""
        with self._lock:
            found = [session for session in self._sessions.values() if session_id in {None, session.id}]

        def steps() -> Steps[None]:
            for session in found:
                yield session.expire()

        return drive(steps())

    # For sessions and watches

    def renew(self, session: BackendSession) -> Future[float]:
        """Pass a renewal on."""
        return self._call("renew", (session.id,), session.renew)

    def touch(self, session: BackendSession) -> Future[float]:
        """Pass a touch on."""
        return self._call("renew", (session.id,), session.touch if isinstance(session, Touches) else session.renew)

    def end(self, session: BackendSession) -> Future[None]:
        """Pass the end of a session on. Nothing asked of it lands from here on; what is not told ends with its TTL."""
        with self._lock:
            self._ended.add(session.id)
            self._sessions.pop(session.id, None)
        ending = self._call("close_session", (session.id,), session.close)
        ending.add_done_callback(partial(self._run_out_unless, session))
        return ending

    def open_watch(self, prefix: str, sink: Sink, **how: bool) -> BackendWatch | None:
        """A watch of the backend inside; None once this one is closed, or cut off."""
        if self._closed or self._cut is not None:
            return None
        return self._inner.watch(prefix, sink, **how)

    def forget(self, watch: FaultyWatch) -> None:
        """A watch was closed."""
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)

    def event(self, prefix: str) -> Fault | None:
        """What the plan says about an event of a watch."""
        fault = self._decide("event", (prefix,))
        if fault is not None:
            _log.info("fault: the watch of %r: %s", prefix, fault.kind)
        return fault

    def later(self, delay_s: float, call: Callable[[], object]) -> None:
        """Do something after a delay, unless closed before."""
        self._timer_for_use().call_later(delay_s, call)

    # Faults

    def _ask(self, read: str, *args: Any, **options: Any) -> Future[Any]:
        """Make a read that gets through."""
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

    def _run_out(self, session: FaultySession, cut: object) -> None:
        """End a session that the backend inside keeps alive by itself, as ZooKeeper's client does."""
        if self._cut is cut:
            session.expire()

    def _run_out_unless(self, session: BackendSession, ending: Future[None]) -> None:
        if ending.cancelled() or ending.exception() is not None:
            self.later(session.ttl_s, session.close)

    def _opened(self, session: BackendSession) -> BackendSession:
        wrapped = FaultySession(self, session)
        with self._lock:
            self._sessions[session.id] = wrapped
        return wrapped

    def _unless_ended(self, sessions: set[str], send: Callable[[], Future[T]]) -> Future[T]:
        """A write that lands late must not land in a session that was closed meanwhile."""
        over = sorted(sessions & self._ended)
        if over:
            return failed(SessionLost(f"session {over[0]} has ended; stop what it protected and use a new session"))
        return send()

    def _call(
        self, op: str, keys: tuple[str, ...], send: Callable[[], Future[T]], *, writes: bool = False
    ) -> Future[T]:
        if self._closed:
            return failed(Closed("the store was closed; connect again"))
        fault = self._decide(op, keys)
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
            return drive(self._answer_lost(send(), _cut(what, writes=writes)))
        if kind == "land_late":
            if writes:
                self.later(fault.delay_s, send)  # nobody waits for the answer
            return failed(_cut(what, writes=writes))
        if kind == "drop":
            return self._after(self._call_timeout_s, lambda: failed(_cut(what, writes=writes)))
        if kind == "slow_request":
            return self._after(min(fault.delay_s, self._call_timeout_s), send)
        if kind == "slow_answer":
            answer = send()
            return self._after(min(fault.delay_s, self._call_timeout_s), lambda: answer)
        return drive(self._after_expiry(send))

    def _after_expiry(self, send: Callable[[], Future[T]]) -> Steps[T]:
        yield self.expire(None)
        answer: T = yield send()
        return answer

    def _answer_lost(self, sent: Future[T], error: Exception) -> Steps[T]:
        try:
            yield sent
        except Exception as refused:
            raise error from refused
        raise error

    def _after(self, delay_s: float, call: Callable[[], Future[T]]) -> Future[T]:
        """Make the call after a delay."""

        def steps() -> Steps[T]:
            yield self._timer_for_use().after(delay_s)
            answer: T = yield call()
            return answer

        return drive(steps())


class FaultySession:
    """A session of the backend inside, whose renewals meet with faults."""

    def __init__(self, backend: FaultyBackend, inner: BackendSession) -> None:
        self._backend = backend
        self._inner = inner
        self.id = inner.id
        self.ttl_s = inner.ttl_s
        self.opened_at = inner.opened_at
        self.token = inner.token
        self.renew_every_s = inner.renew_every_s
        self.confirm_gap_s = inner.confirm_gap_s
        self.touch_after_s = inner.touch_after_s if isinstance(inner, Touches) else ()

    def renew(self) -> Future[float]:
        """See ``BackendSession.renew``."""
        return self._backend.renew(self._inner)

    def touch(self) -> Future[float]:
        """See ``Touches``; nothing asks for it where there is nothing to touch."""
        return self._backend.touch(self._inner)

    def close(self) -> Future[None]:
        """See ``BackendSession.close``."""
        return self._backend.end(self._inner)

    def expire(self) -> Future[None]:
        """The server ends it."""
        return self._inner.close()


def _cut(what: str, *, writes: bool) -> Exception:
    if writes:
        return OutcomeUnknown(f"{what}: the connection broke; it may have been applied, or may be yet")
    return Unavailable(f"{what}: the connection broke; try again")
