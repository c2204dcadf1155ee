"""A TCP proxy that disturbs the connections through it: cuts, one-way cuts, black holes, delays, refusals.

    with Proxy(server.endpoint) as proxy:
        store = latchwork.connect(f"etcd://{proxy.endpoint}/test")
        proxy.hold("answers")       # a one-way cut: requests arrive, and no answer returns
        proxy.release()

Held data is not lost: as in a network that drops packets, it arrives on `release`, perhaps long after the client has
disconnected. A write can arrive late that way. Dropped data never arrives, and its connection ends on `release`.
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

__all__ = ["Proxy", "Way"]

Way = Literal["requests", "answers", "both"]
T = TypeVar("T")

_CHUNK = 65_536
_STEP_TIMEOUT_S = 10.0
_BIND_ATTEMPTS = 20
_LOOK_AGAIN_S = 0.02
_LINGER_S = 3.0


class Proxy:
    """A proxy between clients and one server, with its own thread. Thread-safe.

    Args:
        target: `host:port` of the server, which need not listen yet.
        address: Host and port to listen on. None reserves a port of 127.0.0.1.
        patience_s: Seconds for which a new connection waits until the server listens. Then it ends.
    """

    def __init__(self, target: str, *, address: tuple[str, int] | None = None, patience_s: float = 0.0) -> None:
        self._patience_s = patience_s
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._reservation: PortReservation | None = reserve_port() if address is None else None
        self._host, self._port = address or (HOST, self._reservation.port if self._reservation else 0)
        self._pairs: set[_ProxiedConnection] = set()
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
        """Number of bytes that arrived while they were held, so far. A test can check that its fault affected some."""
        return self._held_bytes

    @property
    def late_bytes(self) -> int:
        """Number of bytes that reached the server after `cut_clients` had ended their connection for the client."""
        return self._late_bytes

    def cut(self) -> int:
        """End the open connections for both sides, and return their number. New ones are accepted."""
        return self._run_on_loop(self._cut)

    def refuse(self, *, new_only: bool = False) -> None:
        """Refuse new connections until `accept`. Also end the open ones, unless `new_only`."""
        self._await(self._refuse(new_only=new_only))

    def accept(self) -> None:
        """Accept new connections again after `refuse`."""
        self._await(self._listen())

    def hold(self, way: Way = "both", *, present_only: bool = False) -> int:
        """Hold all data sent from now on, until `release`. One direction is a one-way cut, both are a black hole.

        Args:
            way: Direction to hold.
            present_only: Whether connections that are opened later pass.
        Returns:
            The number of open connections.
        """
        return self._run_on_loop(lambda: self._hold(_ways(way), present_only=present_only))

    def drop(self, way: Way = "both") -> int:
        """Drop all data sent from now on, also on new connections, until `release`. Return the number of open
        connections.
        """
        return self._run_on_loop(lambda: self._drop(_ways(way)))

    def release(self) -> None:
        """Forward all held data and everything later. Connections that lost data end."""
        self._run_on_loop(self._release)

    def cut_clients(self) -> None:
        """End the open connections for the clients only. The server does not notice while requests are held."""
        self._run_on_loop(self._cut_clients)

    def delay(self, seconds: float, way: Way = "both") -> None:
        """Delay all data sent from now on by these seconds, in order; 0 ends the delay."""
        self._run_on_loop(lambda: self._delay_s.update(dict.fromkeys(_ways(way), seconds)))

    def close(self) -> None:
        """End every connection and stop listening. Held data is lost. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._await(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STEP_TIMEOUT_S)
        if self._reservation is not None:
            self._reservation.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Proxy {self.endpoint} -> {self._target[0]}:{self._target[1]}, {len(self._pairs)} connections>"

    # On the loop's thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _run_on_loop(self, step: Callable[[], T]) -> T:
        """Run a function on the loop and wait for its result."""

        async def run() -> T:
            return step()

        return self._await(run())

    def _await(self, steps: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(steps, self._loop).result(_STEP_TIMEOUT_S)

    async def _listen(self) -> None:
        for attempt in range(_BIND_ATTEMPTS):
            if self._server is not None:
                return
            try:
                self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_CHUNK)
            except OSError:  # a connection that was refused may hold the port for a moment
                if attempt == _BIND_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0.05)

    async def _refuse(self, *, new_only: bool = False) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if not new_only:
            self._cut()
        await asyncio.sleep(0)

    async def _finish(self) -> None:
        """Let every connection end by itself, because asyncio logs a cancelled connection handler as an error."""
        await self._refuse()
        self._delay_s = dict.fromkeys(self._delay_s, 0.0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=1.0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        deadline = self._loop.time() + self._patience_s
        while True:
            try:
                far_reader, far_writer = await asyncio.open_connection(*self._target_of(writer), limit=_CHUNK)
                break
            except OSError:
                if self._loop.time() >= deadline:
                    writer.transport.abort()
                    return
                await asyncio.sleep(_LOOK_AGAIN_S)
        pair = _ProxiedConnection(writer, far_writer)
        for way, held in self._held.items():
            pair.gate(way, held=held)
        self._pairs.add(pair)
        try:
            await asyncio.gather(
                self._pump(pair, "requests", reader, far_writer), self._pump(pair, "answers", far_reader, writer)
            )
        finally:
            pair.abort()
            self._pairs.discard(pair)

    def _target_of(self, near: asyncio.StreamWriter) -> tuple[str, int]:  # noqa: ARG002 - for those who tell them apart
        """Return the host and port that a client's connection leads to."""
        return self._target

    def _rewrite_first_chunk(self, chunk: bytes) -> bytes:
        """Return what to send to the server instead of a client's first chunk."""
        return chunk

    async def _pump(
        self, pair: _ProxiedConnection, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read one direction of a connection, and send each chunk when it is due and not held."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.ensure_future(self._send(pair, way, queue, writer))
        chunk, is_first = b"x", way == "requests"
        while chunk:
            try:
                chunk = await reader.read(_CHUNK)
            except OSError:
                chunk = b""
            if is_first:
                chunk, is_first = self._rewrite_first_chunk(chunk), False
            if not pair.gates[way].is_set():
                self._held_bytes += len(chunk)
            queue.put_nowait((self._loop.time() + self._delay_s[way], chunk))
        await sender

    async def _send(
        self,
        pair: _ProxiedConnection,
        way: str,
        queue: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
    ) -> None:
        while True:
            due, chunk = await queue.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            await pair.gates[way].wait()
            if pair.has_client_left and not chunk:
                await pair.linger()
            if chunk and way in self._dropped:
                pair.has_dropped = True
                continue
            with contextlib.suppress(OSError, RuntimeError):
                if writer.is_closing():
                    pass  # that side has gone
                elif chunk:
                    writer.write(chunk)
                    await writer.drain()
                    self._late_bytes += len(chunk) if pair.has_client_left and way == "requests" else 0
                elif writer.can_write_eof():
                    writer.write_eof()
            if not chunk:
                return

    def _hold(self, ways: tuple[str, ...], *, present_only: bool) -> int:
        for way in ways:
            self._held[way] = self._held[way] or not present_only
            for pair in self._pairs:
                pair.gates[way].clear()
        return len(self._pairs)

    def _drop(self, ways: tuple[str, ...]) -> int:
        self._dropped.update(ways)
        return len(self._pairs)

    def _release(self) -> None:
        self._dropped.clear()
        for pair in [pair for pair in self._pairs if pair.has_dropped]:
            pair.abort()
        for way in self._held:
            self._held[way] = False
            for pair in self._pairs:
                pair.gates[way].set()

    def _cut(self) -> int:
        for pair in list(self._pairs):
            pair.abort()
        return len(self._pairs)

    def _cut_clients(self) -> None:
        for pair in self._pairs:
            pair.has_client_left = True
            pair.near.transport.abort()


class _ProxiedConnection:
    """A connection of a client and the connection to the server that continues it."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.near, self.far = near, far
        self.has_dropped = False
        self.has_client_left = False  # by the client, of which the server shall know nothing
        self._over = asyncio.Event()
        self.gates: dict[str, asyncio.Event] = {}

    def gate(self, way: str, *, held: bool) -> None:
        self.gates[way] = asyncio.Event()
        if not held:
            self.gates[way].set()

    async def linger(self) -> None:
        """Give the server time for data that arrived late. If the connection ended immediately, the server would cancel
        the request.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), _LINGER_S)

    def abort(self) -> None:
        self._over.set()
        for end in (self.near, self.far):
            end.transport.abort()
        for gate in self.gates.values():
            gate.set()


def _ways(way: Way) -> tuple[str, ...]:
    return ("requests", "answers") if way == "both" else (way,)
