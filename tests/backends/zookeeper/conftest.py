"""ZooKeeper's own stage: backends on a shared server, a raw kazoo client beside them, a proxy that loses answers."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient

from latchwork.backends.url import open_backend, parse_url
from latchwork.clock import SYSTEM_CLOCK
from patience import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from latchwork.backends.zookeeper.backend import ZooKeeperBackend
    from latchwork_testkit.servers import ZooKeeperServer

WAIT_S = 10.0


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[..., object]:
    return eventually


@pytest.fixture
def root() -> str:
    return f"zk-{uuid.uuid4().hex}"


@pytest.fixture
def connect(zookeeper: ZooKeeperServer, root: str) -> Iterator[Callable[..., ZooKeeperBackend]]:
    """Open one more backend of this test's root, on the shared server unless another endpoint is given."""
    opened = []

    def connect_one(endpoint: str | None = None, **options: object) -> ZooKeeperBackend:
        url = parse_url(f"zk://{endpoint or zookeeper.endpoint}/{root}", options)
        backend = open_backend(url, SYSTEM_CLOCK)
        opened.append(backend)
        return backend

    yield connect_one
    for backend in opened:
        backend.close()


@pytest.fixture
def backend(connect: Callable[..., ZooKeeperBackend]) -> ZooKeeperBackend:
    return connect()


@pytest.fixture
def other(connect: Callable[..., ZooKeeperBackend], backend: ZooKeeperBackend) -> ZooKeeperBackend:
    """A second store of the same root."""
    return connect()


@pytest.fixture
def raw(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """A plain kazoo client of the shared server."""
    client = KazooClient(zookeeper.endpoint)
    client.start()
    yield client
    client.stop()
    client.close()


class Proxy:
    """Between one client and the server; can lose the answers, or everything, and cut connections."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.drop_answers = threading.Event()
        self.drop_requests = threading.Event()
        self.refuse = threading.Event()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """End all connections."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.refuse.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(WAIT_S)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.refuse.is_set():
                near.close()
                continue
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            self._pairs.append((near, far))
            for source, sink, answers in ((near, far, False), (far, near, True)):
                thread = threading.Thread(target=self._copy, args=(source, sink, answers), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _copy(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            drop = self.drop_answers if answers else self.drop_requests
            while chunk := source.recv(65536):
                if not drop.is_set():
                    sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(zookeeper: ZooKeeperServer) -> Iterator[Proxy]:
    between = Proxy(zookeeper.endpoint)
    yield between
    between.close()


@pytest.fixture
def between(zookeeper: ZooKeeperServer) -> Iterator[list[Proxy]]:
    """Two ways to the same server, each of which can fall silent."""
    ways = [Proxy(zookeeper.endpoint), Proxy(zookeeper.endpoint)]
    yield ways
    for way in ways:
        way.close()


@pytest.fixture
def sweeps_soon(monkeypatch):
    """Stores remove the parents that they have emptied at once, not after a minute."""
    monkeypatch.setattr("latchwork.backends.zookeeper.backend._SWEEP_S", 0.2)
