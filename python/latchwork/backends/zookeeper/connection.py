"""A ZooKeeper session that answers with futures: deadlines, the outbox, and writes with known outcomes.

Every request ends by its deadline. Requests that were not sent when a connection broke wait for the next one. A
linearizable read follows a check-only multi on the same connection. Each write sets a znode of this session, the
*evidence*, to its own number. After a lost reply, the next connection of the session starts with a check-only multi
(everything that the old connection sent is now applied or refused) and a read of the evidence:

    evidence == number   it was applied, at the evidence's mzxid
    evidence <  number   it was not and cannot be any more: it is sent again, in its old order
    evidence >  number   a later one was applied; this one is left unknown

docs/design/zookeeper.md has the whole protocol.
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
from latchwork.backends.futures import Outcome
from latchwork.backends.timer import Timer
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.errors import EvidenceGone, NoReply
from latchwork.backends.zookeeper.link import Link
from latchwork.backends.zookeeper.loop import Request
from latchwork.backends.zookeeper.timing import Timing
from latchwork.backends.zookeeper.wire import CLOSE, GET_DATA, MULTI, OK, Reply
from latchwork.clock import Clock

_log = logging.getLogger(__name__)

_NUMBER = struct.Struct("!q")
#: Goes through the leader's pipeline like a write; whatever it answers, what follows on the connection is not stale.
_BARRIER = wire.multi([wire.check("/")])
_SWEEP_S = 0.1


class Listener(Protocol):
    """Receives the events of a connection, in its thread. Its methods must not block."""

    def on_up(self) -> None:
        """Called when a connection was established and nothing has been sent on it."""
        ...

    def on_event(self, kind: int, path: str) -> None:
        """Called for each event of a watch. ``on_event_batch_end`` follows after the events that arrived together."""
        ...

    def on_event_batch_end(self) -> None: ...  # noqa: D102 - see above

    def on_expired(self) -> bool:
        """Called when the ZooKeeper session has ended. Return True to stop, or False to continue with a new session."""
        ...


@dataclass(frozen=True)
class Settings:
    """The settings that all connections of a store share."""

    hosts: tuple[tuple[str, int], ...]
    options: dict[str, Any] = field(repr=False)
    call_timeout_s: float
    clock: Clock
    timer: Timer
    timing: Timing


class Connection:
    """A ZooKeeper session, or several one after the other, with its thread. Thread-safe.

    Attributes:
        up: Whether it is connected, as far as is known.
        over: Whether it was closed or ended by the server: nothing will be sent any more.
        first_up: Ends when there is a session, or with ``NoReply`` if there never is one.
    """

    def __init__(self, settings: Settings, ttl_s: float, listener: Listener, name: str) -> None:
        self._settings = settings
        self._clock = settings.clock
        self._listener = listener
        self._lock = mutex()
        self._outbox: deque[Request] = deque()
        self._outstanding: list[Request] = []
        self._unsettled: list[Request] = []
        self._settling: deque[Request] = deque()
        self._barrier: Request | None = None
        self._woken = self._sweeping = self.over = self._discards = False
        self._number = self._epoch = 0
        self.up = False
        self.evidence: str | None = None
        self.ttl_s, self.zk_session, self.opened_at = ttl_s, 0, 0.0
        self.first_up: Future[None] = Outcome()
        self._link = Link(
            settings.hosts,
            ttl_s,
            options=settings.options,
            owner=self,
            clock=settings.clock,
            name=name,
            timing=settings.timing,
        )
        self.ask_server, self.event_batch_end = self._link.ask_server, listener.on_event_batch_end

    # Asking.

    def start(self) -> None:
        """Connect in the background. ``first_up`` completes when the connection is established."""
        self._link.start()

    @property
    def trouble(self) -> str:
        """Why the last attempt to connect failed. Empty if none failed."""
        return self._link.loop.trouble

    @property
    def was_refused(self) -> bool:
        """Whether the last attempt to connect failed at the authentication."""
        return self._link.loop.was_refused

    def deadline(self) -> float:
        """Return the deadline of a call that starts now."""
        return self._clock.now() + self._settings.call_timeout_s

    def call(self, kind: int, payload: bytes, deadline: float | None = None) -> Request:
        """Send a request, and return it as a future of its reply."""
        call = Request(kind, payload, deadline or self.deadline())
        self._submit(call)
        return call

    def read(self, kind: int, payload: bytes, deadline: float | None = None) -> Request:
        """Send a read after a barrier, a request that a quorum answers.

        The reply is linearizable if ``linearizable`` is true.
        """
        call = Request(kind, payload, deadline or self.deadline())
        self._submit(call, barrier=True)
        return call

    def send_barrier(self, deadline: float | None = None) -> Request:
        """Send a barrier alone.

        It is answered by a quorum, after all events of transactions that were committed before.
        """
        return self.call(MULTI, _BARRIER, deadline)

    def write(self, parts: list[bytes], deadline: float, then: Request | None = None) -> Request:
        """Send a transaction that also records the number of the write, and optionally a second request directly after
        it.

        Raises:
            EvidenceGone: The znode for the number does not exist; see ``prepare``.
        """
        evidence = self.evidence
        if evidence is None:
            raise EvidenceGone
        call = Request(MULTI, b"", deadline)
        call.hold = self._hold
        self._submit(call, head=(b"".join(parts), evidence), then=then)
        return call

    def is_late(self, deadline: float) -> bool:
        """Return whether the deadline has passed."""
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
                over = self.over
                if not over:
                    wake, sweep = not self._woken, not self._sweeping
                    self._woken = self._sweeping = True
                    if head is not None:
                        self._stamp(call, *head)
                    if barrier:
                        call.barrier = self._share_barrier(call.deadline)
                    asked = [call] if then is None else [call, then]
                    self._outbox.extend(asked)
                    self._outstanding.extend(asked)
                    self.over = last
        finally:  # also after an interrupt: other calls rely on both
            if sweep:
                self._settings.timer.call_later(_SWEEP_S, self._sweep)
            if wake:
                self._link.flush()
        if over:
            call.set_exception(NoReply(sent=False, over=True))

    def _stamp(self, call: Request, head: bytes, evidence: str) -> None:
        self._number += 1
        call.number, call.evidence = self._number, evidence
        call.payload = wire.multi([head, wire.set_data(evidence, _NUMBER.pack(self._number))])

    def _share_barrier(self, deadline: float) -> Request:
        """Return the barrier that is shared by all reads until it is sent."""
        barrier = self._barrier
        if barrier is None or barrier.epoch or barrier.done():
            barrier = Request(MULTI, _BARRIER, deadline)
            self._outbox.append(barrier)
            self._outstanding.append(barrier)
            self._barrier = barrier  # last: others wait for it
        return barrier

    # Ending.

    def finish(self, deadline: float, *, discard: bool) -> Request:
        """End the ZooKeeper session as soon as a server can be reached. No requests are accepted afterwards.

        With ``discard``, requests that were not sent fail with ``NoReply`` now.
        """
        close = Request(CLOSE, b"", deadline)
        self._submit(close, last=True)  # first: a caller that hears of a discarded call can ask for nothing more
        unsent: list[Request] = []
        with self._lock:
            if discard:
                unsent = [call for call in self._outbox if call.kind != CLOSE]
                self._outbox = deque(call for call in self._outbox if call.kind == CLOSE)
                self._discards = True
        for waiting in unsent:
            waiting.set_exception(NoReply(sent=False, over=True))
        return close

    def abandon(self) -> None:
        """Close the connection without informing the server, where the session expires."""
        with self._lock:
            self.over = True
        self._link.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended. Return False if it has not ended in time."""
        return self._link.join(timeout_s)

    # Called by the link, on its thread.

    def take(self, most_bytes: int) -> Sequence[Request]:
        """Return the next requests to send, and mark them as sent.

        While the outcome of a write is unknown, only requests that find it out are returned. Otherwise a later write
        could overtake an earlier one that is sent again.
        """
        batch: list[Request] = []
        size = 0
        now = self._clock.now()
        with self._lock:
            self._woken = False
            waiting = self._settling if self._unsettled else self._outbox
            while waiting and size < most_bytes:
                call = waiting[0]
                if not call.done():
                    call.epoch, call.sent_at = self._epoch, now
                    batch.append(call)
                    size += len(call.payload) + 12
                waiting.popleft()
            again = self._woken = bool(waiting)
        if again:
            self._link.wake()
        return batch

    def on_connected(self, *, granted_s: float, sent_at: float, session_id: int) -> None:
        """Find out the outcome of writes without a reply first.

        Then let the listener send requests, then send all others.
        """
        self._link.ask_for(granted_s)
        for call in self._take_unsent():
            call.set_exception(ConnectionLoss("a thread was interrupted before it had sent this"))
        with self._lock:
            self._epoch += 1
            self.up = True
            self._barrier = None
            if session_id != self.zk_session:
                self.zk_session, self.opened_at, self.ttl_s = session_id, sent_at, granted_s
            settle = self._settle_calls() if self._unsettled else []
            self._settling = deque(settle)
            self._outstanding.extend(settle)
        for call in settle[1:]:
            call.add_done_callback(self._settle)
        self._listener.on_up()
        with contextlib.suppress(InvalidStateError):
            self.first_up.set_result(None)
        self._link.wake()

    def _take_unsent(self) -> list[Request]:
        """Return requests that were taken on an earlier connection but never sent, because their sender was
        interrupted.
        """
        with self._lock:
            kept = {id(call) for calls in (self._outbox, self._unsettled, self._settling) for call in calls}
            return [call for call in self._outstanding if call.epoch and id(call) not in kept and not call.done()]

    def on_disconnected(self) -> None:
        """Do nothing, because writes without a reply are kept already."""
        self.up = False

    def expired(self) -> bool:
        """Fail the writes whose outcome is unknown, because the session that owned their number has ended."""
        with self._lock:
            self.up = False
            self.evidence = None
            unsettled, self._unsettled = self._unsettled, []
        stop = self._listener.on_expired()
        with self._lock:
            stop = self.over = self.over or stop
        for call in unsettled:
            call.set_exception(NoReply(sent=True, over=True))
        if stop:
            self._fail_unsent()
        return stop

    def ended(self) -> None:
        """Handle the end of the connection's thread."""
        with self._lock:
            self.up = False
            self.over = True
            unsettled, self._unsettled = self._unsettled, []
        for call in unsettled:
            call.set_exception(NoReply(sent=True, over=True))
        self._fail_unsent()
        with contextlib.suppress(InvalidStateError):
            self.first_up.set_exception(NoReply(sent=False, over=True))

    def event(self, kind: int, path: str) -> None:
        """Pass an event of a watch to the listener."""
        self._listener.on_event(kind, path)

    def _fail_unsent(self) -> None:
        with self._lock:
            unsent = list(self._outbox)
            self._outbox.clear()
        for call in unsent:
            call.set_exception(NoReply(sent=call.epoch > 0, over=True))

    # Settling.

    def _hold(self, call: Request) -> bool:
        """Keep a write without a reply until the next connection.

        Return False if its outcome can no longer be found out.
        """
        with self._lock:
            if self.over or self.evidence != call.evidence or call.done():
                return False
            self._unsettled.append(call)
            return True

    def _settle_calls(self) -> list[Request]:
        deadline = max(call.deadline for call in self._unsettled)
        read = Request(GET_DATA, wire.encode_path_request(self.evidence or "/"), deadline)
        read.barrier = Request(MULTI, _BARRIER, deadline)
        return [read.barrier, read]

    def _settle(self, read: Future[Reply]) -> None:
        assert isinstance(read, Request)
        if read.exception() is not None or not read.linearizable:
            return  # cut again: the next connection asks again
        reply = read.result()
        found = wire.parse_data(reply.body)[0] if reply.error == OK else None
        reached = _NUMBER.unpack(found.data)[0] if found is not None and found.data else 0
        with self._lock:
            if self.evidence is None or read.payload != wire.encode_path_request(self.evidence):
                found = None
            unsettled, self._unsettled = self._unsettled, []
            again = [call for call in unsettled if found is not None and call.number > reached and not call.done()]
            for call in again:
                call.epoch = 0  # as if it had never been sent
            discarded = again if self._discards else []
            self._outbox.extendleft(reversed([] if self._discards else again))
        for call in discarded:
            call.set_exception(NoReply(sent=False, over=True))
        for call in unsettled:
            if found is not None and call.number == reached:
                call.answer(Reply(OK, found.stat.mzxid, b"", settled=True))
            elif found is None or call.number < reached:
                call.set_exception(NoReply(sent=True, over=False))
        self._link.wake()

    # Deadlines.

    def _leave_unresponsive_server(self, now: float) -> None:
        """Connect to another server if this one has not answered for a long time.

        kazoo detects this with pings, but sends none while requests are sent. Renewals would therefore keep the client
        on a frozen server until the session is lost.
        """
        oldest = self._link.oldest_sent_at()
        if self.up and oldest is not None and now - oldest > self._settings.timing.max_silence_s(self.ttl_s):
            _log.info("a ZooKeeper server has not answered for %.1f s; reconnecting", now - oldest)
            self._link.cut()

    def _sweep(self) -> None:
        now = self._clock.now()
        self._leave_unresponsive_server(now)
        late: list[Request] = []
        with self._lock:
            self._outstanding = [call for call in self._outstanding if not call.done()]
            late = [call for call in self._outstanding if call.deadline <= now]
            again = self._sweeping = bool(self._outstanding)
            cuts = [(call, NoReply(sent=call.epoch > 0, over=False)) for call in late]
            if late:
                doomed = set(map(id, late))
                self._outbox = deque(call for call in self._outbox if id(call) not in doomed)
                self._unsettled = [call for call in self._unsettled if id(call) not in doomed]
                self._woken = True
        for call, cut in cuts:
            call.set_exception(cut)
        if cuts:
            self._link.wake()
        if again:
            self._settings.timer.call_later(_SWEEP_S, self._sweep)
