"""A ZooKeeper session whose requests return futures. It enforces deadlines and finds out the outcome of lost writes.

Every request ends by its deadline. A request that was not sent when a connection was lost waits for the next one. A
linearizable read follows a check-only multi on the same connection, the barrier. Each write also sets the znode of this
session called its *write counter* to the number of the write. After a lost reply, the next connection of the session
starts with a check-only multi, after which everything that the old connection sent was either applied or refused. Then
it reads the write counter:

    counter == number    the write was applied, at the mzxid of the counter
    counter <  number    the write was not applied and never will be: it is sent again, in the old order
    counter >  number    a later write was applied: the outcome of this one stays unknown

docs/design/zookeeper.md describes the whole protocol.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Protocol

from kazoo.exceptions import ConnectionLoss

from latchwork._base.interrupts import mutex
from latchwork.backends.futures import LightFuture
from latchwork.backends.timer import Timer
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.errors import NoReply, WriteCounterMissing
from latchwork.backends.zookeeper.kazoo_connection import KazooConnection
from latchwork.backends.zookeeper.loop import Request
from latchwork.backends.zookeeper.timing import Timing
from latchwork.backends.zookeeper.wire import CLOSE, GET_DATA, MULTI, OK, Reply
from latchwork.clock import Clock

_log = logging.getLogger(__name__)

_NUMBER = struct.Struct("!q")
#: Goes through the leader's pipeline like a write; whatever it answers, what follows on the connection is not stale.
_BARRIER = wire.encode_multi([wire.encode_check("/")])
_SWEEP_S = 0.1


class Listener(Protocol):
    """The callbacks of a connection, which run in its thread and must not block."""

    def on_connected(self) -> None:
        """Called when a connection was established, before anything is sent on it."""
        ...

    def on_event(self, kind: int, path: str) -> None:
        """Called for each watch event, with ZooKeeper's event type and the path. ``on_event_batch_end`` is called after
        the events that arrived together.
        """
        ...

    def on_event_batch_end(self) -> None: ...  # noqa: D102 - see above

    def on_expired(self) -> bool:
        """Called when the ZooKeeper session has ended. Return True to stop, or False to continue with a new session."""
        ...


@dataclass(frozen=True)
class ConnectionSettings:
    """The settings that all ZooKeeper connections of a store share."""

    hosts: tuple[tuple[str, int], ...]
    options: dict[str, Any] = field(repr=False)
    call_timeout_s: float
    clock: Clock
    timer: Timer
    timing: Timing


class ZooKeeperConnection:
    """A ZooKeeper session and the thread of its connection. It may be replaced by a new session. Thread-safe.

    Attributes:
        is_connected: Whether there is a connection, as far as is known.
        has_ended: Whether the session was closed, or expired without a replacement. Nothing will be sent any more.
        first_connected: A future that completes when the first connection is established. It fails with ``NoReply`` if
            that never happens.
    """

    def __init__(self, settings: ConnectionSettings, ttl_s: float, listener: Listener, name: str) -> None:
        self._settings = settings
        self._clock = settings.clock
        self._listener = listener
        self._lock = mutex()
        self._outbox: deque[Request] = deque()
        self._outstanding: list[Request] = []
        self._unknown_writes: list[Request] = []
        self._outcome_requests: deque[Request] = deque()
        self._barrier: Request | None = None
        self._woken = self._sweeping = self.has_ended = self._discards = False
        self._number = self._epoch = 0
        self.is_connected = False
        self.counter_path: str | None = None
        self.ttl_s, self.zk_session, self.opened_at, self.handshake_at = ttl_s, 0, 0.0, 0.0
        self.first_connected: Future[None] = LightFuture()
        self._kazoo = KazooConnection(
            settings.hosts,
            ttl_s,
            options=settings.options,
            owner=self,
            clock=settings.clock,
            name=name,
            timing=settings.timing,
        )
        self.ask_server, self.on_event_batch_end = self._kazoo.ask_server, listener.on_event_batch_end

    # Asking.

    def start(self) -> None:
        """Connect in the background. ``first_connected`` completes when the connection is established."""
        self._kazoo.start()

    @property
    def last_connect_error(self) -> str:
        """The reason why the last attempt to connect failed. Empty if none failed."""
        return self._kazoo.loop.last_connect_error

    @property
    def was_authentication_refused(self) -> bool:
        """Whether the last attempt to connect failed because of the authentication."""
        return self._kazoo.loop.was_authentication_refused

    def deadline(self) -> float:
        """Return the deadline of a call that starts now, as local clock time."""
        return self._clock.now() + self._settings.call_timeout_s

    def call(self, kind: int, payload: bytes, deadline: float | None = None) -> Request:
        """Send a request, and return it. It is a future of the reply.

        Args:
            kind: ZooKeeper's request type.
            payload: The encoded request.
            deadline: Local clock time. None is the deadline of a call that starts now.
        """
        call = Request(kind, payload, deadline or self.deadline())
        self._submit(call)
        return call

    def read(self, kind: int, payload: bytes, deadline: float | None = None) -> Request:
        """Send a barrier, which is a request that a quorum of servers answers, and then a read. Return the read as a
        future.

        The reply is linearizable if ``linearizable`` of the request is true. The arguments are those of ``call``.
        """
        call = Request(kind, payload, deadline or self.deadline())
        self._submit(call, barrier=True)
        return call

    def send_barrier(self, deadline: float | None = None) -> Request:
        """Send only a barrier, and return it as a future.

        A quorum of servers answers it, and all watch events of earlier transactions arrive before its reply.
        """
        return self.call(MULTI, _BARRIER, deadline)

    def write(self, parts: list[bytes], deadline: float, then: Request | None = None) -> Request:
        """Send a transaction and number it: it also stores the number of this write in the write counter. Return it as
        a future.

        Args:
            parts: The encoded operations of the transaction.
            deadline: Local clock time.
            then: A second request, which is sent directly after the transaction.

        Raises:
            WriteCounterMissing: The znode of the write counter does not exist. Call ``create_write_counter`` first.
        """
        counter_path = self.counter_path
        if counter_path is None:
            raise WriteCounterMissing
        call = Request(MULTI, b"", deadline)
        call.hold = self._hold
        self._submit(call, head=(b"".join(parts), counter_path), then=then)
        return call

    def has_passed(self, deadline: float) -> bool:
        """Return whether a deadline has passed."""
        return self._clock.now() >= deadline

    def _submit(
        self,
        call: Request,
        *,
        barrier: bool = False,
        head: tuple[bytes, str] | None = None,
        then: Request | None = None,
        last: bool = False,
    ) -> None:
        wake = sweep = False
        try:
            with self._lock:
                over = self.has_ended
                if not over:
                    wake, sweep = not self._woken, not self._sweeping
                    self._woken = self._sweeping = True
                    if head is not None:
                        self._number_write(call, *head)
                    if barrier:
                        call.barrier = self._share_barrier(call.deadline)
                    asked = [call] if then is None else [call, then]
                    self._outbox.extend(asked)
                    self._outstanding.extend(asked)
                    self.has_ended = last
        finally:  # also after an interrupt: other calls rely on both
            if sweep:
                self._settings.timer.call_later(_SWEEP_S, self._sweep)
            if wake:
                self._kazoo.flush()
        if over:
            call.set_exception(NoReply(sent=False, has_ended=True))

    def _number_write(self, call: Request, head: bytes, counter_path: str) -> None:
        self._number += 1
        call.number, call.counter_path = self._number, counter_path
        call.payload = wire.encode_multi([head, wire.encode_set_data(counter_path, _NUMBER.pack(self._number))])

    def _share_barrier(self, deadline: float) -> Request:
        """Return the barrier that all reads share until it is sent."""
        barrier = self._barrier
        if barrier is None or barrier.epoch or barrier.done():
            barrier = Request(MULTI, _BARRIER, deadline)
            self._outbox.append(barrier)
            self._outstanding.append(barrier)
            self._barrier = barrier  # last: others wait for it
        return barrier

    # Ending.

    def close_session(self, deadline: float, *, discard: bool) -> Request:
        """Close the ZooKeeper session when a server can be reached. Later requests are refused.

        Args:
            deadline: Local clock time after which not to try any more.
            discard: Fail the requests that were not sent with ``NoReply`` now.
        """
        close = Request(CLOSE, b"", deadline)
        self._submit(close, last=True)  # first, so that no call follows the discarded ones
        unsent: list[Request] = []
        with self._lock:
            if discard:
                unsent = [call for call in self._outbox if call.kind != CLOSE]
                self._outbox = deque(call for call in self._outbox if call.kind == CLOSE)
                self._discards = True
        for waiting in unsent:
            waiting.set_exception(NoReply(sent=False, has_ended=True))
        return close

    def abandon(self) -> None:
        """Close the connection without closing the ZooKeeper session, which expires on the server."""
        with self._lock:
            self.has_ended = True
        self._kazoo.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended. Return False after the timeout."""
        return self._kazoo.join(timeout_s)

    # Called by the link, on its thread.

    def take_requests(self, max_bytes: int) -> Sequence[Request]:
        """Return the next requests to send, and mark them as sent.

        While the outcome of a write is unknown, only the requests that find it out are returned. Otherwise a later
        write could overtake an earlier one that is sent again.

        Args:
            max_bytes: Maximum total size of the requests.
        """
        batch: list[Request] = []
        size = 0
        now = self._clock.now()
        with self._lock:
            self._woken = False
            waiting = self._outcome_requests if self._unknown_writes else self._outbox
            while waiting and size < max_bytes:
                call = waiting[0]
                if not call.done():
                    call.epoch, call.sent_at = self._epoch, now
                    batch.append(call)
                    size += len(call.payload) + 12
                waiting.popleft()
            again = self._woken = bool(waiting)
        if again:
            self._kazoo.wake()
        return batch

    def on_connected(self, *, granted_s: float, sent_at: float, session_id: int) -> None:
        """Handle a new connection. First find out whether the writes without a reply were applied.

        Then the listener may send requests, and after it all others.

        Args:
            granted_s: The session timeout that the server granted.
            sent_at: Local clock time at which the handshake was sent.
            session_id: ID of the ZooKeeper session.
        """
        self._kazoo.set_requested_ttl(granted_s)
        for call in self._take_unsent():
            call.set_exception(ConnectionLoss("a thread was interrupted before it had sent this"))
        with self._lock:
            self._epoch += 1
            self.is_connected = True
            self._barrier = None
            self.handshake_at = sent_at
            if session_id != self.zk_session:
                self.zk_session, self.opened_at, self.ttl_s = session_id, sent_at, granted_s
            settle = self._make_outcome_requests() if self._unknown_writes else []
            self._outcome_requests = deque(settle)
            self._outstanding.extend(settle)
        for call in settle[1:]:
            call.add_done_callback(self._resolve_unknown_writes)
        self._listener.on_connected()
        with contextlib.suppress(InvalidStateError):
            self.first_connected.set_result(None)
        self._kazoo.wake()

    def _take_unsent(self) -> list[Request]:
        """Return requests that were taken on an earlier connection but not sent, because the sending thread was
        interrupted.
        """
        with self._lock:
            kept = {
                id(call) for calls in (self._outbox, self._unknown_writes, self._outcome_requests) for call in calls
            }
            return [call for call in self._outstanding if call.epoch and id(call) not in kept and not call.done()]

    def on_disconnected(self) -> None:
        """Record that the connection was lost. Writes without a reply are already recorded."""
        self.is_connected = False

    def on_session_expired(self) -> bool:
        """Fail the writes whose outcome is unknown, because the write counter was deleted with its session.

        Returns:
            Whether the thread must stop.
        """
        with self._lock:
            self.is_connected = False
            self.counter_path = None
            unsettled, self._unknown_writes = self._unknown_writes, []
        stop = self._listener.on_expired()
        with self._lock:
            stop = self.has_ended = self.has_ended or stop
        for call in unsettled:
            call.set_exception(NoReply(sent=True, has_ended=True))
        if stop:
            self._fail_unsent()
        return stop

    def on_thread_ended(self) -> None:
        """Fail all requests, because the connection's thread has ended."""
        with self._lock:
            self.is_connected = False
            self.has_ended = True
            unsettled, self._unknown_writes = self._unknown_writes, []
        for call in unsettled:
            call.set_exception(NoReply(sent=True, has_ended=True))
        self._fail_unsent()
        with contextlib.suppress(InvalidStateError):
            self.first_connected.set_exception(NoReply(sent=False, has_ended=True))

    def on_event(self, kind: int, path: str) -> None:
        """Pass a watch event to the listener."""
        self._listener.on_event(kind, path)

    def _fail_unsent(self) -> None:
        with self._lock:
            unsent = list(self._outbox)
            self._outbox.clear()
        for call in unsent:
            call.set_exception(NoReply(sent=call.epoch > 0, has_ended=True))

    # Settling.

    def _hold(self, call: Request) -> bool:
        """Keep a write without a reply until the next connection finds out whether it was applied.

        Returns:
            False if that can no longer be found out.
        """
        with self._lock:
            if self.has_ended or self.counter_path != call.counter_path or call.done():
                return False
            self._unknown_writes.append(call)
            return True

    def _make_outcome_requests(self) -> list[Request]:
        deadline = max(call.deadline for call in self._unknown_writes)
        read = Request(GET_DATA, wire.encode_path_request(self.counter_path or "/"), deadline)
        read.barrier = Request(MULTI, _BARRIER, deadline)
        return [read.barrier, read]

    def _resolve_unknown_writes(self, read: Future[Reply]) -> None:
        assert isinstance(read, Request)
        if read.exception() is not None or not read.linearizable:
            return  # cut again: the next connection asks again
        reply = read.result()
        found = wire.parse_data(reply.body)[0] if reply.error == OK else None
        reached = _NUMBER.unpack(found.data)[0] if found is not None and found.data else 0
        with self._lock:
            if self.counter_path is None or read.payload != wire.encode_path_request(self.counter_path):
                found = None
            unsettled, self._unknown_writes = self._unknown_writes, []
            again = [call for call in unsettled if found is not None and call.number > reached and not call.done()]
            for call in again:
                call.epoch = 0  # as if it had never been sent
            discarded = again if self._discards else []
            self._outbox.extendleft(reversed([] if self._discards else again))
        for call in discarded:
            call.set_exception(NoReply(sent=False, has_ended=True))
        for call in unsettled:
            if found is not None and call.number == reached:
                call.answer(Reply(OK, found.stat.mzxid, b"", resolved=True))
            elif found is None or call.number < reached:
                call.set_exception(NoReply(sent=True, has_ended=False))
        self._kazoo.wake()

    # Deadlines.

    def _leave_unresponsive_server(self, now: float) -> None:
        """Disconnect from a server that has not answered for a long time. Another one is connected automatically.

        kazoo detects this with pings, but sends none while requests are sent. Renewals would therefore keep the client
        on a frozen server until the session is lost.
        """
        oldest = self._kazoo.oldest_sent_at()
        if self.is_connected and oldest is not None and now - oldest > self._settings.timing.max_silence_s(self.ttl_s):
            _log.info("a ZooKeeper server has not answered for %.1f s; reconnecting", now - oldest)
            self._kazoo.disconnect()

    def _sweep(self) -> None:
        now = self._clock.now()
        self._leave_unresponsive_server(now)
        late: list[Request] = []
        with self._lock:
            self._outstanding = [call for call in self._outstanding if not call.done()]
            late = [call for call in self._outstanding if call.deadline <= now]
            again = self._sweeping = bool(self._outstanding)
            cuts = [(call, NoReply(sent=call.epoch > 0, has_ended=False)) for call in late]
            if late:
                doomed = set(map(id, late))
                self._outbox = deque(call for call in self._outbox if id(call) not in doomed)
                self._unknown_writes = [call for call in self._unknown_writes if id(call) not in doomed]
                self._woken = True
        for call, cut in cuts:
            call.set_exception(cut)
        if cuts:
            self._kazoo.wake()
        if again:
            self._settings.timer.call_later(_SWEEP_S, self._sweep)
