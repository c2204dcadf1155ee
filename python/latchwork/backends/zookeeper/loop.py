"""The requests of a connection, and kazoo's connection loop with our own sending and receiving.

Requests wait in the outbox of ``connection`` and not in kazoo's queue, so that unsent requests survive a reconnect.
Several requests share a system call in both directions. The connection's thread completes the futures of the requests.

If no request is in flight, the calling thread sends, because waking the connection's thread takes a large part of the
time of a small request. One lock protects sending and the end of a connection. A calling thread only tries to take it
and never waits. An interrupt in the middle closes the connection, because it is unknown how much was sent. With TLS
only the connection's thread sends, because two threads must not use such a socket.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import InvalidStateError
from typing import Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    KazooException,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.protocol.connection import AUTH_XID, CLOSE_RESPONSE, PING_XID, WATCH_XID, ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from latchwork._base.interrupts import mutex
from latchwork.backends.futures import LightFuture
from latchwork.backends.zookeeper.errors import NoReply
from latchwork.backends.zookeeper.timing import Timing
from latchwork.backends.zookeeper.wire import CLOSE, EVENT_HEAD, INT, REPLY_HEAD, REQUEST_HEAD, Reply, parse_text
from latchwork.clock import Clock

_RECEIVE_BYTES = 262_144
_BATCH_BYTES = 65_536
_MAX_XID = 2_147_483_647


class KazooListener(Protocol):
    """The callbacks of a kazoo connection, which run in its thread."""

    def take_requests(self, max_bytes: int) -> Sequence[Request]:
        """Return the next requests to send, of at most ``max_bytes`` in total."""
        ...

    def on_connected(self, *, granted_s: float, sent_at: float, session_id: int) -> None:
        """Called when a session was opened or resumed, before anything is sent.

        Args:
            granted_s: The session timeout that the server granted.
            sent_at: Local clock time at which the handshake was sent.
            session_id: ID of the ZooKeeper session.
        """
        ...

    def on_disconnected(self) -> None:
        """Called when the connection was lost. The session may continue."""
        ...

    def on_session_expired(self) -> bool:
        """Called when the session has ended. Return True to stop, or False to open a new session."""
        ...

    def on_thread_ended(self) -> None:
        """Called when the thread has ended."""
        ...

    def on_event(self, kind: int, path: str) -> None:
        """Called for each watch event, with ZooKeeper's event type and the path of the znode."""
        ...

    def on_event_batch_end(self) -> None:
        """Called after the watch events that arrived together."""
        ...


class KazooLoop(ConnectionHandler):  # type: ignore[misc]
    """The loop of a connection's thread, which ``KazooConnection`` starts. Any thread may call ``send_now`` and
    ``disconnect``.

    Attributes:
        server: The address and port of the server that was tried last.
        last_connect_error: The reason why the last attempt to connect failed. Empty if none failed.
        was_authentication_refused: Whether that attempt failed because of the authentication.
    """

    def __init__(
        self, client: KazooClient, owner: KazooListener, clock: Clock, sasl: dict[str, str] | None, timing: Timing
    ) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=client.logger, sasl_options=sasl)  # noqa: SLF001
        self._owner = owner
        self._clock = clock
        self._unread = bytearray()
        self._sending = mutex()  # held while requests are taken from the outbox and sent
        self._is_open = False  # to threads that are not the connection's; changes with the lock held
        self._is_torn = False  # a thread began to send on this connection, and was interrupted
        self._unsent = bytearray()  # what such a thread could not send without waiting
        self._arrivals = select.poll()
        self._xid = 0
        self._has_events = False
        self._timing = timing
        self._handshake_at = 0.0
        self.last_connect_error = ""
        self.was_authentication_refused = False
        self.server = ("", 0)

    @property
    def thread(self) -> threading.Thread | None:
        """The thread of the connection. None before it is started."""
        routine: threading.Thread | None = self._connection_routine
        return routine

    def disconnect(self) -> None:
        """Close the connection. May be called in any thread."""
        with contextlib.suppress(OSError, AttributeError):
            self._socket.shutdown(2)

    def zk_loop(self) -> None:
        """Run the connection loop until the connection is stopped."""
        try:
            super().zk_loop()
        finally:
            self._owner.on_thread_ended()

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        """Return all addresses of all hosts in random order. A host name that cannot be resolved is skipped.

        kazoo's own method does not catch the error for a name that does not fit into a DNS message. That would end the
        thread, even if there are other servers.
        """
        found: list[tuple[str, str, int]] = []
        for host, port in self.client.hosts:
            try:
                infos = socket.getaddrinfo(host, port, 0, 0, socket.IPPROTO_TCP)
            except (OSError, ValueError) as error:
                self.last_connect_error = f"the name {host!r} leads to no address: {' '.join(str(error).split())}"
                continue
            found += [(host, str(info[4][0]), int(info[4][1])) for info in infos]
        random.shuffle(found)
        return found

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: KazooRetry) -> object:
        """Try to connect to one server. An unexpected error ends the attempt, but not the thread."""
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        except KazooException:
            raise
        except Exception as error:  # kazoo has logged it, with its traceback
            self.last_connect_error = f"{type(error).__name__}: {' '.join(str(error).split())}"
            if self.client._state != KeeperState.CONNECTING:  # noqa: SLF001
                self.client._session_callback(KeeperState.CONNECTING)  # noqa: SLF001
            return None

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        self._unread.clear()
        self.server = (hostip, port)
        try:
            read_ms, connect_ms = super()._connect(host, hostip, port)
        except Exception as error:
            why = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
            self.last_connect_error = f"{self._timing.phase}: {why}"
            self.was_authentication_refused = isinstance(error, (AuthFailedError, SessionClosedRequireSaslError))
            if self.was_authentication_refused:
                # A server that dies now looks the same, so retry as after any broken connection.
                raise ConnectionDropped(f"SASL was refused or cut off: {self.last_connect_error}") from error
            raise
        session_id = self.client._session_id or 0  # noqa: SLF001
        self._owner.on_connected(
            granted_s=round(read_ms * 1.5) / 1000, sent_at=self._handshake_at, session_id=session_id
        )
        arrivals = select.poll()
        arrivals.register(self._socket, select.POLLIN)
        with self._sending:
            self._arrivals = arrivals
            self._is_torn = False
            self._is_open = not self.client.use_ssl
        return read_ms, connect_ms

    def _invoke(self, timeout: float, request: object, xid: int | None = None) -> object:
        """Send a step of the handshake and wait for its answer. Repeat it with a longer timeout if the server is
        slow.
        """
        sent_at = self._clock.now()
        if isinstance(request, Connect):
            self._handshake_at = sent_at
        try:
            self._timing.phase = "the handshake of ZooKeeper"
            answer: object = super()._invoke(min(timeout, self._timing.handshake_s), request, xid)
        except self.handler.timeout_exception:
            self._timing.record_late_answer()
            raise
        self._timing.record_answered(self._clock.now() - sent_at)
        return answer

    def disallow_other_senders(self) -> None:
        """Let only the connection's thread send, until the next connection is established."""
        with self._sending:
            self._is_open = False
            self._unsent.clear()

    def send_now(self) -> bool:
        """Send the waiting requests in the calling thread. Return False if the connection's thread must send them.

        If no request is in flight, readable data are an event or the end of the connection. They are handled first, so
        that nothing is sent on a closed connection.
        """
        if self.client._pending or self._sending.locked():  # noqa: SLF001
            return False
        with self._sending:
            if not self._is_open or self._is_torn or self._unsent or self._arrivals.poll(0):
                return False
            self._is_torn = True
            try:
                self._send_some()
            except BaseException:  # an interrupt: the connection's thread sees the cut, and fails what is in flight
                self.disconnect()
                raise
            self._is_torn = False
            return not self._unsent

    def _send_some(self) -> None:
        """Send as much as is possible without waiting. The caller holds the lock."""
        batch = self._take_batch()
        sent = 0
        try:
            sent = self._socket.send(batch) if batch else 0
        except BlockingIOError:
            pass
        except OSError:  # broken: the connection's thread sees that as well, and fails what is in flight
            sent = len(batch)
        self._unsent += batch[sent:]

    def _take_batch(self) -> bytearray:
        """Return the encoded waiting requests, which count as in flight from now on. The caller holds the lock."""
        batch = bytearray()
        for sent in self._owner.take_requests(_BATCH_BYTES):
            self._xid = self._xid % _MAX_XID + 1
            batch += REQUEST_HEAD.pack(len(sent.payload) + 8, self._xid, sent.kind)
            batch += sent.payload
            self.client._pending.append((sent, sent, self._xid))  # noqa: SLF001
        return batch

    def _send_request(self, _read_timeout: float, connect_timeout: float) -> None:
        self._read_sock.recv(4096)
        with self._sending:
            self._send_rest(connect_timeout)
            batch = self._take_batch()
            if batch:
                self._write(batch, connect_timeout)

    def _send_ping(self, connect_timeout: float) -> None:
        with self._sending:
            self._send_rest(connect_timeout)
            super()._send_ping(connect_timeout)

    def _send_rest(self, connect_timeout: float) -> None:
        if self._is_torn:
            raise ConnectionDropped("a thread was interrupted while sending; reconnecting")
        rest, self._unsent = self._unsent, bytearray()
        if rest:
            self._write(rest, connect_timeout)

    def _read_socket(self, _read_timeout: float) -> object:
        self._receive()
        unread = self._unread
        at, end = 0, len(unread)
        try:
            while end - at >= 4:
                (size,) = INT.unpack_from(unread, at)
                if end - at - 4 < size:
                    break
                frame = bytes(unread[at + 4 : at + 4 + size])
                at += 4 + size
                if self._take_frame(frame) == CLOSE_RESPONSE:
                    return CLOSE_RESPONSE
        finally:
            del unread[:at]
        if self._has_events:
            self._has_events = False
            self._owner.on_event_batch_end()
        return None

    def _receive(self) -> None:
        """Read the available data, including data that TLS has buffered."""
        with self._socket_error_handling():
            while True:
                try:
                    chunk = self._socket.recv(_RECEIVE_BYTES)
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    return
                if not chunk:
                    raise ConnectionDropped("the server closed the connection")
                self._unread += chunk
                if not (hasattr(self._socket, "pending") and self._socket.pending()):
                    return

    def _take_frame(self, frame: bytes) -> object:
        xid, zxid, error = REPLY_HEAD.unpack_from(frame, 0)
        if xid == PING_XID:
            self.ping_outstanding.clear()
        elif xid == WATCH_XID:
            kind, _ = EVENT_HEAD.unpack_from(frame, 16)
            self._has_events = True
            self._owner.on_event(kind, parse_text(frame, 24)[0])
        elif xid != AUTH_XID:
            return self._take_reply(xid, Reply(error, zxid, frame[16:]))
        return None

    def _take_reply(self, xid: int, reply: Reply) -> object:
        client = self.client
        if not client._pending or client._pending[0][2] != xid:  # noqa: SLF001
            raise ConnectionDropped("the server answered out of order")
        sent = client._pending.popleft()[0]  # noqa: SLF001
        if reply.zxid > 0:
            client.last_zxid = reply.zxid
        sent.answer(reply)
        return CLOSE_RESPONSE if sent.kind == CLOSE else None


class Request(LightFuture[Reply]):
    """A request, which is also the future of its reply.

    Args:
        kind: ZooKeeper's request type.
        payload: The encoded request.
        deadline: Local clock time.
    """

    def __init__(self, kind: int, payload: bytes, deadline: float, number: int = 0) -> None:
        super().__init__()
        self.kind = kind
        self.payload = payload
        self.deadline = deadline
        self.number = number  # of a write that sets the write counter; else 0
        self.counter_path = ""
        self.epoch = 0  # of the connection it was sent on last; 0: never sent
        self.sent_at = 0.0
        self.barrier: Request | None = None
        self.hold: Callable[[Request], bool] | None = None

    def answer(self, reply: Reply) -> None:
        """Complete the request with its reply. Does nothing if it has already failed."""
        with contextlib.suppress(InvalidStateError):
            self.set_result(reply)

    def set_exception(self, exception: BaseException | None) -> None:
        """Fail the request, because the connection has ended.

        A write may be kept instead, until its outcome is found out.
        """
        if isinstance(exception, NoReply):
            end: NoReply = exception
        else:
            end = NoReply(sent=True, has_ended=isinstance(exception, SessionExpiredError))
            if not end.has_ended and self.hold is not None and self.hold(self):
                return
        with contextlib.suppress(InvalidStateError):
            super().set_exception(end)

    @property
    def linearizable(self) -> bool:
        """Whether the reply is linearizable, because the barrier before it was answered on the same connection."""
        barrier = self.barrier
        return barrier is not None and barrier.epoch == self.epoch and barrier.done() and barrier.exception() is None
