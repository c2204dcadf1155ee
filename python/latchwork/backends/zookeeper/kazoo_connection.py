"""The kazoo client of a connection: its start and end, its session and its threads.

kazoo makes the handshake, authenticates, sends pings and reconnects. Its queue threads are not started. Only this
module and ``loop`` use kazoo's internals.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from latchwork.backends.zookeeper.loop import KazooListener, KazooLoop, Request
from latchwork.backends.zookeeper.timing import Timing
from latchwork.clock import Clock

_log = logging.getLogger(__name__)

#: kazoo warns of every reconnect; we recover by ourselves and say so in our own words.
_kazoo_log = logging.getLogger("latchwork.backends.zookeeper.kazoo")
_kazoo_log.setLevel(logging.ERROR)
_kazoo_log.addFilter(lambda record: record.levelno >= logging.INFO)  # below, it writes out the password it sends


#: Flag for a send that does not wait for buffer space.
_NOW: int = getattr(socket, "MSG_DONTWAIT", 0)


class KazooConnection:
    """A kazoo client with one thread, which has one ZooKeeper session at a time.

    Args:
        hosts: The servers, which are tried in random order.
        ttl_s: The session timeout to request.
        options: Options of kazoo: ``auth_data``, ``sasl_options``, ``use_ssl``, ``ca``, ``certfile``, ``keyfile``.
        owner: Receives the events of the link.
        clock: The local clock.
        name: The name of the thread.
        timing: The timeouts for connecting.

    Attributes:
        loop: The connection loop. It knows why the last attempt to connect failed.
    """

    def __init__(
        self,
        hosts: Sequence[tuple[str, int]],
        ttl_s: float,
        *,
        options: dict[str, Any],
        owner: KazooListener,
        clock: Clock,
        name: str,
        timing: Timing,
    ) -> None:
        handler = _Handler(name, timing, clock)
        self._client = _Client(
            hosts=",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts),
            timeout=ttl_s,
            handler=handler,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=0.25, sleep_func=handler.sleep_func),
            logger=_kazoo_log,
            **options,
        )
        self.loop = KazooLoop(self._client, owner, clock, options.get("sasl_options"), timing)
        self._client.on_trouble = self.loop.disallow_other_senders
        self._client._connection = self.loop  # noqa: SLF001 - kazoo has no other way to replace it
        self._client.add_listener(self._on_state)
        self._owner = owner

    def start(self) -> None:
        """Connect in the background, and reconnect whenever the connection is lost."""
        self._client.start_async()

    def flush(self) -> None:
        """Send the waiting requests, in the calling thread if no request is in flight."""
        if not self.loop.send_now():
            self.wake()

    def wake(self) -> None:
        """Wake the connection's thread, which sends the waiting requests."""
        with contextlib.suppress(OSError, AttributeError):  # closed: no thread is left to wake; or full: it is awake
            self.loop._write_sock.send(b"\0", _NOW)  # noqa: SLF001

    def stop(self) -> None:
        """End the thread without closing the ZooKeeper session. Does not wait."""
        self._client._stopped.set()  # noqa: SLF001
        self.loop.disconnect()
        self.wake()

    def disconnect(self) -> None:
        """Close the connection. Another one is opened at once."""
        self.loop.disconnect()

    def ask_server(self, word: bytes, within_s: float) -> str:
        """Send a four-letter command to the connected server, on a separate connection. Blocks.

        Args:
            word: The command, such as ``srvr``.
            within_s: Seconds to wait for the answer.
        Returns:
            The answer, or "" if there was none.
        """
        client = self._client
        try:
            with contextlib.closing(
                client.handler.create_connection(
                    self.loop.server,
                    hostname=self.loop.server[0],
                    timeout=within_s,
                    use_ssl=client.use_ssl,
                    ca=client.ca,
                    certfile=client.certfile,
                    keyfile=client.keyfile,
                    verify_certs=client.verify_certs,
                )
            ) as asking:
                asking.settimeout(within_s)
                asking.sendall(word)
                return b"".join(iter(partial(asking.recv, 4096), b"")).decode(errors="replace")
        except OSError as error:  # not there any more, or silent
            _log.debug("the ZooKeeper server does not answer %r: %s", word, error)
            return ""

    def oldest_sent_at(self) -> float | None:
        """Return the time at which the oldest unanswered request was sent on this connection. None if all are
        answered.
        """
        try:
            sent: Request = self._client._pending[0][0]  # noqa: SLF001
        except IndexError:
            return None
        return sent.sent_at

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended and its resources are released. Return False after the timeout."""
        thread = self.loop.thread
        if thread is None or thread is threading.current_thread():
            return thread is None
        thread.join(timeout_s)
        if thread.is_alive():
            return False
        self._client.handler.stop()
        self._client._stopped.set()  # noqa: SLF001
        self.loop.close()
        return True

    def set_requested_ttl(self, ttl_s: float) -> None:
        """Set the session timeout that later handshakes request."""
        self._client._session_timeout = int(ttl_s * 1000)  # noqa: SLF001

    def _on_state(self, state: KazooState) -> None:
        if state == KazooState.SUSPENDED:
            self._owner.on_disconnected()
        elif state == KazooState.LOST and self._client.client_state == KeeperState.EXPIRED_SESSION:  # noqa: SIM102
            if self._owner.on_session_expired():
                self._client._stopped.set()  # noqa: SLF001 - the loop sees it before it would connect again


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """The threading and socket functions for kazoo: named threads, no threads for callbacks, early timeouts."""

    def __init__(self, name: str, timing: Timing, clock: Clock) -> None:
        super().__init__()
        self._name = name
        self._timing = timing
        self._clock = clock

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def spawn(self, func: Callable[..., None], *args: object, **kwargs: object) -> threading.Thread:
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name=self._name, daemon=True)
        thread.start()
        return thread

    def create_connection(self, *args: object, **kwargs: Any) -> socket.socket:
        limit_s, begun = self._timing.connect_s, self._clock.now()
        self._timing.phase = "the TLS connection" if kwargs.get("use_ssl") else "the TCP connection"
        kwargs["timeout"] = limit_s
        try:
            connection: socket.socket = super().create_connection(*args, **kwargs)
        except BaseException:
            if self._clock.now() - begun >= limit_s / 2:
                self._timing.record_late_connect()
            raise
        self._timing.record_connected(self._clock.now() - begun)
        return connection

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait for sockets like kazoo's own handler, but for any number of sockets and without a new selector for each
        wait.
        """
        poll = select.poll()
        by_number: dict[int, Any] = {}
        for sockets, mask in ((readers, select.POLLIN), (writers, select.POLLOUT)):
            for each in sockets:
                by_number[each.fileno()] = each
                poll.register(each, mask)
        ready = [by_number[number] for number, _ in poll.poll(None if timeout is None else max(0.0, timeout) * 1000)]
        return [each for each in ready if each in readers], [each for each in ready if each in writers], []


class _Client(KazooClient):  # type: ignore[misc]
    """A kazoo client that uses ``KazooLoop`` as its connection loop."""

    on_trouble: Callable[[], None]

    def _session_callback(self, state: KeeperState) -> None:
        if state not in {KeeperState.CONNECTED, KeeperState.CONNECTED_RO}:
            self.on_trouble()  # before the calls in flight are notified
        super()._session_callback(state)
