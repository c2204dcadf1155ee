"""A TCP proxy that disturbs the connections through it: it cuts, holds, drops, delays and refuses them.

    with Proxy(server.endpoint) as proxy:
        store = latchwork.connect(f"etcd://{proxy.endpoint}/test")
        proxy.hold("answers")       # a one-way cut: requests arrive, and no answer returns
        proxy.release()

Held data is not lost. As in a network that drops packets and sends them again, it arrives on `release`, perhaps long
after the client has disconnected. A write can arrive late in this way. Dropped data never arrives, and its connection
ends on `release`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from latchwork_testkit.ports import HOST, PortReservation, reserve_port

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Direction", "Proxy"]

Direction = Literal["requests", "answers", "both"]
T = TypeVar("T")

_CHUNK = 65_536
_STEP_TIMEOUT_S = 10.0
_BIND_ATTEMPTS = 20
_CONNECT_RETRY_S = 0.02
_LINGER_S = 3.0


class Proxy:
    """A proxy between clients and one server, with its own thread. Thread-safe.

    Args:
        target: `host:port` of the server, which need not be listening yet.
        address: Host and port to listen on. None reserves a port of 127.0.0.1.
        patience_s: Seconds for which a new connection waits for the server to listen, before the proxy closes it.
    """

    def __init__(self, target: str, *, address: tuple[str, int] | None = None, patience_s: float = 0.0) -> None:
        self._patience_s = patience_s
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._reservation: PortReservation | None = reserve_port() if address is None else None
        self._host, self._port = address or (HOST, self._reservation.port if self._reservation else 0)
        self._connections: set[_ProxiedConnection] = set()
        self._held: dict[str, bool] = {"requests": False, "answers": False}
        self._dropped: set[str] = set()
        self._delay_s: dict[str, float] = {"requests": 0.0, "answers": 0.0}
        self._held_bytes = self._late_bytes = 0
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self._port}", daemon=True)
        self._closed = False
        self._thread.start()
        self._await(self._listen())

    @property
    def endpoint(self) -> str:
        """`host:port` for clients. It never changes."""
        return f"{self._host}:{self._port}"

    @property
    def held_bytes(self) -> int:
        """Number of bytes that were held so far. It shows a test whether its fault had an effect."""
        return self._held_bytes

    @property
    def late_bytes(self) -> int:
        """Number of bytes that reached the server after `cut_clients` had disconnected their client."""
        return self._late_bytes

    def cut(self) -> int:
        """Close all open connections on both sides. New connections are accepted.

        Returns:
            The number of connections that were closed.
        """
        return self._run_on_loop(self._cut_now)

    def refuse(self, *, new_only: bool = False) -> None:
        """Refuse new connections until `accept` is called, and close the open ones.

        Args:
            new_only: Keep the open connections.
        """
        self._await(self._refuse(new_only=new_only))

    def accept(self) -> None:
        """Accept new connections again after `refuse`."""
        self._await(self._listen())

    def hold(self, direction: Direction = "both", *, open_only: bool = False) -> int:
        """Hold all data in one or both directions until `release` is called.

        Holding one direction is a one-way cut. Holding both is a black hole.

        Args:
            direction: "requests" to the server, "answers" to the clients, or "both".
            open_only: Hold only the connections that are open now. Later ones pass.
        Returns:
            The number of open connections.
        """
        return self._run_on_loop(lambda: self._hold(_directions(direction), open_only=open_only))

    def drop(self, direction: Direction = "both") -> int:
        """Drop all data in one or both directions until `release` is called, also of new connections.

        Args:
            direction: "requests" to the server, "answers" to the clients, or "both".
        Returns:
            The number of open connections.
        """
        return self._run_on_loop(lambda: self._drop(_directions(direction)))

    def release(self) -> None:
        """Forward all held data and let later data pass. Connections whose data was dropped are closed."""
        self._run_on_loop(self._release)

    def cut_clients(self) -> None:
        """Close the client side of all open connections. The server does not notice this while requests are held."""
        self._run_on_loop(self._cut_clients)

    def delay(self, seconds: float, direction: Direction = "both") -> None:
        """Delay all data in this direction. 0 seconds ends the delay.

        Args:
            seconds: Delay of each chunk of data, in seconds. The order is kept.
            direction: "requests" to the server, "answers" to the clients, or "both".
        """
        self._run_on_loop(lambda: self._delay_s.update(dict.fromkeys(_directions(direction), seconds)))

    def close(self) -> None:
        """Close all connections and stop listening. Held data is lost. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._await(self._end_connections())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STEP_TIMEOUT_S)
        if self._reservation is not None:
            self._reservation.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Proxy {self.endpoint} -> {self._target[0]}:{self._target[1]}, {len(self._connections)} connections>"

    # On the loop's thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _run_on_loop(self, function: Callable[[], T]) -> T:
        """Run a function in the proxy's event loop and return its result."""

        async def run() -> T:
            return function()

        return self._await(run())

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_STEP_TIMEOUT_S)

    async def _listen(self) -> None:
        for attempt in range(_BIND_ATTEMPTS):
            if self._server is not None:
                return
            try:
                self._server = await asyncio.start_server(self._serve_connection, self._host, self._port, limit=_CHUNK)
            except OSError:  # a refused connection may still hold the port
                if attempt == _BIND_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0.05)

    async def _refuse(self, *, new_only: bool = False) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if not new_only:
            self._cut_now()
        await asyncio.sleep(0)

    async def _end_connections(self) -> None:
        """Close all connections and wait for their handlers. A handler that is canceled instead would be logged as an
        error.
        """
        await self._refuse()
        self._delay_s = dict.fromkeys(self._delay_s, 0.0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=1.0)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        deadline = self._loop.time() + self._patience_s
        while True:
            try:
                far_reader, far_writer = await asyncio.open_connection(*self._target_of(writer), limit=_CHUNK)
                break
            except OSError:
                if self._loop.time() >= deadline:
                    writer.transport.abort()
                    return
                await asyncio.sleep(_CONNECT_RETRY_S)
        connection = _ProxiedConnection(writer, far_writer)
        for direction, held in self._held.items():
            connection.add_gate(direction, held=held)
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._pump(connection, "requests", reader, far_writer),
                self._pump(connection, "answers", far_reader, writer),
            )
        finally:
            connection.abort()
            self._connections.discard(connection)

    def _target_of(self, client: asyncio.StreamWriter) -> tuple[str, int]:  # noqa: ARG002 - used by subclasses
        """Return the host and port of the server to which a client's connection is forwarded."""
        return self._target

    def _rewrite_first_chunk(self, chunk: bytes) -> bytes:
        """Return the data to send to the server instead of a client's first chunk."""
        return chunk

    async def _pump(
        self, connection: _ProxiedConnection, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read one direction of a connection, and queue each chunk with the time at which it may be sent.

        Args:
            connection: The connection.
            direction: "requests" or "answers".
            reader: Where the data comes from.
            writer: Where the data goes to.
        """
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.ensure_future(self._send(connection, direction, queue, writer))
        chunk, is_first = b"x", direction == "requests"
        while chunk:
            try:
                chunk = await reader.read(_CHUNK)
            except OSError:
                chunk = b""
            if is_first:
                chunk, is_first = self._rewrite_first_chunk(chunk), False
            if not connection.gates[direction].is_set():
                self._held_bytes += len(chunk)
            queue.put_nowait((self._loop.time() + self._delay_s[direction], chunk))
        await sender

    async def _send(
        self,
        connection: _ProxiedConnection,
        direction: str,
        queue: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
    ) -> None:
        while True:
            due, chunk = await queue.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            await connection.gates[direction].wait()
            if connection.is_client_disconnected and not chunk:
                await connection.wait_for_late_data()
            if chunk and direction in self._dropped:
                connection.has_dropped_data = True
                continue
            with contextlib.suppress(OSError, RuntimeError):
                if writer.is_closing():
                    pass  # that end has closed
                elif chunk:
                    writer.write(chunk)
                    await writer.drain()
                    self._late_bytes += (
                        len(chunk) if connection.is_client_disconnected and direction == "requests" else 0
                    )
                elif writer.can_write_eof():
                    writer.write_eof()
            if not chunk:
                return

    def _hold(self, directions: tuple[str, ...], *, open_only: bool) -> int:
        for direction in directions:
            self._held[direction] = self._held[direction] or not open_only
            for connection in self._connections:
                connection.gates[direction].clear()
        return len(self._connections)

    def _drop(self, directions: tuple[str, ...]) -> int:
        self._dropped.update(directions)
        return len(self._connections)

    def _release(self) -> None:
        self._dropped.clear()
        for connection in [connection for connection in self._connections if connection.has_dropped_data]:
            connection.abort()
        for direction in self._held:
            self._held[direction] = False
            for connection in self._connections:
                connection.gates[direction].set()

    def _cut_now(self) -> int:
        for connection in list(self._connections):
            connection.abort()
        return len(self._connections)

    def _cut_clients(self) -> None:
        for connection in self._connections:
            connection.is_client_disconnected = True
            connection.client.transport.abort()


class _ProxiedConnection:
    """A client's connection, and the connection to the server that carries its data."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.has_dropped_data = False
        self.is_client_disconnected = False  # the server must not notice
        self._ended = asyncio.Event()
        self.gates: dict[str, asyncio.Event] = {}

    def add_gate(self, direction: str, *, held: bool) -> None:
        self.gates[direction] = asyncio.Event()
        if not held:
            self.gates[direction].set()

    async def wait_for_late_data(self) -> None:
        """Wait some seconds before closing the connection to the server.

        If it were closed immediately, the server would cancel the requests that arrived late.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _LINGER_S)

    def abort(self) -> None:
        self._ended.set()
        for end in (self.client, self.server):
            end.transport.abort()
        for gate in self.gates.values():
            gate.set()


def _directions(direction: Direction) -> tuple[str, ...]:
    return ("requests", "answers") if direction == "both" else (direction,)
