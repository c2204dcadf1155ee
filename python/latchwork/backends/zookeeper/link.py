"""kazoo's connection loop with our own sending and receiving: the only file that knows kazoo's insides.

kazoo does the handshake, authentication, pings and reconnecting. Requests wait in our outbox (``connection.py``), not
in kazoo's queue: what has not been sent survives a reconnect and is never failed as if it had been. Several requests
share a system call in both directions. Replies end their futures on the connection's thread; kazoo's queue threads are
not started.

While nothing is in flight, whoever asks sends: to wake the connection's thread for that is a good part of what a small
request costs. Sending, and the turn between sending and the end of a connection, is under one lock, which is only ever
tried for by those who ask; they never wait, for it or for the network. Not with TLS, whose sockets are no place for two
threads.
"""

from __future__ import annotations

import contextlib
import logging
import random
import select
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped, KazooException, SessionClosedRequireSaslError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import AUTH_XID, CLOSE_RESPONSE, PING_XID, WATCH_XID, ConnectionHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from latchwork.backends.zookeeper.wire import CLOSE, EVENT_HEAD, INT, REPLY_HEAD, REQUEST_HEAD, Reply, parse_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from latchwork.clock import Clock

_RECEIVE_BYTES = 262_144
_BATCH_BYTES = 65_536
_MAX_XID = 2_147_483_647
#: A lost SYN is repeated by the kernel only after 1, 3, 7 s: trying anew is sooner back.
_TCP_CONNECT_S, _TLS_CONNECT_S = 0.75, 3.0
#: A server that is just starting may swallow a handshake; kazoo would wait a whole session timeout for the answer.
_HANDSHAKE_S = 0.4

#: kazoo warns of every reconnect; we recover by ourselves and say so in our own words.
_kazoo_log = logging.getLogger("latchwork.backends.zookeeper.kazoo")
_kazoo_log.setLevel(logging.ERROR)
_kazoo_log.addFilter(lambda record: record.levelno >= logging.INFO)  # below, it writes out the password it sends


class Sent(Protocol):
    """A request on its way: what the connection loop needs to know of it."""

    kind: int
    payload: bytes
    sent_at: float

    def answer(self, reply: Reply) -> None:
        """Take the server's reply."""
        ...

    def set_exception(self, exception: BaseException | None) -> None:
        """Take the end of the connection; kazoo calls it so."""
        ...


class LinkOwner(Protocol):
    """Told by the link, on its own thread."""

    def take(self, most_bytes: int) -> Sequence[Sent]:
        """The next requests to send."""
        ...

    def came_up(self, *, granted_s: float, sent_at: float, session_id: int) -> None:
        """A session is established or regained; nothing has been sent yet."""
        ...

    def went_down(self) -> None:
        """The connection broke; the session may go on."""
        ...

    def expired(self) -> bool:
        """The server ended the session. True: stop; False: open a new one."""
        ...

    def ended(self) -> None:
        """The thread is about to end."""
        ...

    def event(self, kind: int, path: str) -> None:
        """A watch fired."""
        ...


class Link:
    """One kazoo client: one ZooKeeper session at a time, one thread.

    Args:
        hosts: tried in random order.
        ttl_s: session timeout to ask for.
        options: ``auth_data``, ``sasl_options``, ``use_ssl``, ``ca``, ``certfile``, ``keyfile`` for kazoo.
        owner: takes what happens.
        clock: stamps the handshakes.
        name: of the thread.
    """

    def __init__(
        self,
        hosts: Sequence[tuple[str, int]],
        ttl_s: float,
        *,
        options: dict[str, Any],
        owner: LinkOwner,
        clock: Clock,
        name: str,
    ) -> None:
        handler = _Handler(name, _TLS_CONNECT_S if options.get("use_ssl") else _TCP_CONNECT_S)
        self._client = _Client(
            hosts=",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts),
            timeout=ttl_s,
            handler=handler,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=0.25, sleep_func=handler.sleep_func),
            logger=_kazoo_log,
            **options,
        )
        self._loop = _Loop(self._client, owner, clock, options.get("sasl_options"))
        self._client.on_trouble = self._loop.close_to_others
        self._client._connection = self._loop  # noqa: SLF001 - kazoo has no other way to replace it
        self._client.add_listener(self._on_state)
        self._owner = owner

    def start(self) -> None:
        """Connect, and keep connected, in the background."""
        self._client.start_async()

    def flush(self) -> None:
        """Have what waits in the outbox sent: at once, when nothing is in flight."""
        if not self._loop.send_now():
            self.wake()

    def wake(self) -> None:
        """Have the loop look into the outbox."""
        with contextlib.suppress(OSError, AttributeError):  # closed: nobody is left to wake
            self._loop._write_sock.send(b"\0")  # noqa: SLF001

    def stop(self) -> None:
        """End the thread without telling the server; does not wait."""
        self._client._stopped.set()  # noqa: SLF001
        self._loop.cut()
        self.wake()

    def cut(self) -> None:
        """Break the connection; another is made at once."""
        self._loop.cut()

    @property
    def trouble(self) -> str:
        """Why the last attempt to connect failed; empty if none did."""
        return self._loop.trouble

    @property
    def was_refused(self) -> bool:
        """The last attempt to connect ended at the account."""
        return self._loop.was_refused

    def oldest_sent_at(self) -> float | None:
        """When the oldest request without an answer was sent on this connection; None if there is none."""
        try:
            sent: Sent = self._client._pending[0][0]  # noqa: SLF001
        except IndexError:
            return None
        return sent.sent_at

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread; True when it is gone, and everything it used is closed."""
        thread = self._loop.thread
        if thread is None or thread is threading.current_thread():
            return thread is None
        thread.join(timeout_s)
        if thread.is_alive():
            return False
        self._client.handler.stop()
        self._client._stopped.set()  # noqa: SLF001
        self._loop.close()
        return True

    def ask_for(self, ttl_s: float) -> None:
        """Session timeout for the next handshakes."""
        self._client._session_timeout = int(ttl_s * 1000)  # noqa: SLF001

    def _on_state(self, state: KazooState) -> None:
        if state == KazooState.SUSPENDED:
            self._owner.went_down()
        elif state == KazooState.LOST and self._client.client_state == KeeperState.EXPIRED_SESSION:  # noqa: SIM102
            if self._owner.expired():
                self._client._stopped.set()  # noqa: SLF001 - the loop sees it before it would connect again


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Threads with a name, and none for callbacks; connects that give up early."""

    def __init__(self, name: str, connect_s: float) -> None:
        super().__init__()
        self._name = name
        self._connect_s = connect_s

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def spawn(self, func: Callable[..., None], *args: object, **kwargs: object) -> threading.Thread:
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name=self._name, daemon=True)
        thread.start()
        return thread

    def create_connection(self, *args: object, **kwargs: Any) -> socket.socket:
        kwargs["timeout"] = min(kwargs.get("timeout") or self._connect_s, self._connect_s)
        connection: socket.socket = super().create_connection(*args, **kwargs)
        return connection

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """As kazoo's, for sockets of any number, without building a selector for every wait."""
        poll = select.poll()
        by_number: dict[int, Any] = {}
        for sockets, mask in ((readers, select.POLLIN), (writers, select.POLLOUT)):
            for each in sockets:
                by_number[each.fileno()] = each
                poll.register(each, mask)
        ready = [by_number[number] for number, _ in poll.poll(None if timeout is None else max(0.0, timeout) * 1000)]
        return [each for each in ready if each in readers], [each for each in ready if each in writers], []


class _Client(KazooClient):  # type: ignore[misc]
    on_trouble: Callable[[], None]

    def _session_callback(self, state: KeeperState) -> None:
        if state not in {KeeperState.CONNECTED, KeeperState.CONNECTED_RO}:
            self.on_trouble()  # before what is in flight is told
        super()._session_callback(state)


class _Loop(ConnectionHandler):  # type: ignore[misc]
    def __init__(self, client: KazooClient, owner: LinkOwner, clock: Clock, sasl: dict[str, str] | None) -> None:
        retry = client._conn_retry.copy()  # noqa: SLF001
        super().__init__(client, retry, logger=_kazoo_log, sasl_options=sasl)
        self._owner = owner
        self._clock = clock
        self._unread = bytearray()
        self._sending = threading.Lock()  # held by who takes requests from the outbox and sends them
        self._is_open = False  # to threads that are not the connection's; changes with the lock held
        self._unsent = bytearray()  # what such a thread could not send without waiting
        self._arrivals = select.poll()
        self._xid = 0
        self._patience_s = _HANDSHAKE_S
        self.trouble = ""
        self.was_refused = False

    @property
    def thread(self) -> threading.Thread | None:
        routine: threading.Thread | None = self._connection_routine
        return routine

    def cut(self) -> None:
        """Break the connection from any thread."""
        with contextlib.suppress(OSError, AttributeError):
            self._socket.shutdown(2)

    def zk_loop(self) -> None:
        try:
            super().zk_loop()
        finally:
            self._owner.ended()

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        """Every address of every host, in random order; a name that cannot even be looked up stops no other.

        kazoo's own lets pass what ``getaddrinfo`` raises for a name that no DNS message can hold: that would end the
        thread, and with it the connection, however many other servers there are.
        """
        found: list[tuple[str, str, int]] = []
        for host, port in self.client.hosts:
            try:
                infos = socket.getaddrinfo(host, port, 0, 0, socket.IPPROTO_TCP)
            except (OSError, ValueError) as error:
                self.trouble = f"the name {host!r} leads to no address: {' '.join(str(error).split())}"
                continue
            found += [(host, str(info[4][0]), int(info[4][1])) for info in infos]
        random.shuffle(found)
        return found

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: KazooRetry) -> object:
        """One server; what nobody foresaw ends the attempt, never the thread."""
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        except KazooException:
            raise
        except Exception as error:  # kazoo has logged it, with its traceback
            self.trouble = f"{type(error).__name__}: {' '.join(str(error).split())}"
            if self.client._state != KeeperState.CONNECTING:  # noqa: SLF001
                self.client._session_callback(KeeperState.CONNECTING)  # noqa: SLF001
            return None

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        self._unread.clear()
        sent_at = self._clock.now()
        try:
            read_ms, connect_ms = super()._connect(host, hostip, port)
        except Exception as error:
            self.trouble = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
            self.was_refused = isinstance(error, (AuthFailedError, SessionClosedRequireSaslError))
            if self.was_refused:
                # A server that dies at this moment looks the same: try on, as after any broken connection.
                raise ConnectionDropped(f"SASL was refused or cut off: {self.trouble}") from error
            raise
        session_id = self.client._session_id or 0  # noqa: SLF001
        self._owner.came_up(granted_s=round(read_ms * 1.5) / 1000, sent_at=sent_at, session_id=session_id)
        arrivals = select.poll()
        arrivals.register(self._socket, select.POLLIN)
        with self._sending:
            self._arrivals = arrivals
            self._is_open = not self.client.use_ssl
        return read_ms, connect_ms

    def _invoke(self, timeout: float, request: object, xid: int | None = None) -> object:
        """A step of the handshake: tried anew soon, with more patience each time, in case the server is just slow."""
        try:
            answer: object = super()._invoke(min(timeout, self._patience_s), request, xid)
        except self.handler.timeout_exception:
            self._patience_s = min(2 * self._patience_s, max(timeout, _HANDSHAKE_S))
            raise
        self._patience_s = _HANDSHAKE_S
        return answer

    def close_to_others(self) -> None:
        """Only the connection's own thread sends from now on, until the next connection is up."""
        with self._sending:
            self._is_open = False
            self._unsent.clear()

    def send_now(self) -> bool:
        """Send what waits, in the thread that asks; False when that is the connection's thread's to do.

        With nothing in flight, what has arrived is an event or the end of the connection: that comes first, so that
        nothing is sent on a connection that is known to be closed.
        """
        if self.client._pending or not self._sending.acquire(blocking=False):  # noqa: SLF001
            return False
        try:
            if not self._is_open or self._unsent or self._arrivals.poll(0):
                return False
            batch = self._next_batch()
            sent = 0
            try:
                sent = self._socket.send(batch) if batch else 0
            except BlockingIOError:
                pass
            except OSError:  # broken: the connection's thread sees that as well, and fails what is in flight
                sent = len(batch)
            self._unsent += batch[sent:]
            return not self._unsent
        finally:
            self._sending.release()

    def _next_batch(self) -> bytearray:
        """With the lock held: requests from the outbox, as bytes; from here on they are in flight."""
        batch = bytearray()
        for sent in self._owner.take(_BATCH_BYTES):
            self._xid = self._xid % _MAX_XID + 1
            batch += REQUEST_HEAD.pack(len(sent.payload) + 8, self._xid, sent.kind)
            batch += sent.payload
            self.client._pending.append((sent, sent, self._xid))  # noqa: SLF001
        return batch

    def _send_request(self, _read_timeout: float, connect_timeout: float) -> None:
        self._read_sock.recv(4096)
        with self._sending:
            self._send_rest(connect_timeout)
            batch = self._next_batch()
            if batch:
                self._write(batch, connect_timeout)

    def _send_ping(self, connect_timeout: float) -> None:
        with self._sending:
            self._send_rest(connect_timeout)
            super()._send_ping(connect_timeout)

    def _send_rest(self, connect_timeout: float) -> None:
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
        return None

    def _receive(self) -> None:
        """Read what is there, and all of it when TLS holds some back."""
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
            self._owner.event(kind, parse_text(frame, 24)[0])
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
