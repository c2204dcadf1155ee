"""Backends on real etcd servers without the store layer above them, a raw client, and a network to hurt."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid

import grpc
import pytest
from etcd3 import etcdrpc as pb

from latchwork.backends.url import open_backend, parse_url
from latchwork.clock import SYSTEM_CLOCK


class Collector:
    """A sink that keeps its events, and the state that they add up to."""

    def __init__(self):
        self.events = []
        self.state = {}
        self._changed = threading.Condition()

    def __call__(self, event):
        with self._changed:
            self.events.append(event)
            if hasattr(event, "entries"):
                self.state = {entry.key: entry for entry in event.entries}
            for change in getattr(event, "changes", ()):
                if change.entry is None:
                    self.state.pop(change.key, None)
                else:
                    self.state[change.key] = change.entry
            self._changed.notify_all()

    def values(self):
        return {key: entry.value for key, entry in self.state.items()}

    def wait_until(self, predicate, timeout_s=8.0):
        with self._changed:
            assert self._changed.wait_for(lambda: predicate(self), timeout_s), f"after {self.events[-5:]}"


class Raw:
    """The generated stubs on a plain channel: what others see."""

    def __init__(self, server):
        self.channel = grpc.insecure_channel(f"ipv4:{server.endpoint}")
        self.kv = pb.KVStub(self.channel)
        self.lease = pb.LeaseStub(self.channel)

    def values(self, prefix):
        end = prefix[:-1] + bytes([prefix[-1] + 1])
        answer = self.kv.Range(pb.RangeRequest(key=prefix, range_end=end), timeout=5)
        return {kv.key: kv.value for kv in answer.kvs}

    def put(self, key, value):
        return self.kv.Put(pb.PutRequest(key=key, value=value), timeout=5).header.revision

    def compact(self):
        revision = self.kv.Range(pb.RangeRequest(key=b"x"), timeout=5).header.revision
        self.kv.Compact(pb.CompactionRequest(revision=revision, physical=True), timeout=5)


class Proxy:
    """A TCP proxy to one server whose connections can be held, cut on the client's side only, or refused.

    What a held connection has already sent reaches the server when it is released, also long after the client has
    gone: that is a write delayed in the network.
    """

    def __init__(self, target):
        host, _, port = target.partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._pairs = []
        self._gates = {}
        self.refusing = False
        self._closed = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def hold(self, *, to_server):
        """Keep back what the present connections send from now on, in one direction."""
        with self._lock:
            for pair in self._pairs:
                self._gates[pair, to_server].clear()

    def release(self):
        """Pass on everything that was held back."""
        for gate in list(self._gates.values()):
            gate.set()

    def cut_clients(self):
        """End the present connections for the clients; the server does not notice."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for client, _ in pairs:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._closed = True
        self.refusing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client, server in list({pair for pair, _ in self._gates}):
            for end in (client, server):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self.release()
        for thread in self._threads:
            thread.join(5)

    def _accept(self):
        while not self._closed:
            try:
                client, _ = self._listener.accept()
                if self.refusing:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
            except OSError:
                continue
            pair = (client, server)
            with self._lock:
                self._pairs.append(pair)
                for to_server, source, sink in ((True, client, server), (False, server, client)):
                    gate = self._gates[pair, to_server] = threading.Event()
                    gate.set()
                    thread = threading.Thread(target=self._pump, args=(source, sink, gate, to_server), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _pump(self, source, sink, gate, to_server):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                gate.wait()
                sink.sendall(data)
        if to_server:
            gate.wait()  # a held server side stays open after its client has gone
            return
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


def eventually(predicate, timeout_s=8.0):
    """Wait until something is true; it is asked every 20 ms."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


@pytest.fixture(name="eventually")
def _eventually():
    return eventually


@pytest.fixture(name="collector")
def _collector():
    return Collector


@pytest.fixture(params=["etcd34", "etcd35"])
def server(request):
    """Each shared server in turn; leave it running and unhurt."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def root():
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def opened():
    """Opens backends by URL, and closes them after the test."""
    backends = []

    def connect(url, clock=SYSTEM_CLOCK, **overrides):
        backends.append(open_backend(parse_url(url, overrides), clock))
        return backends[-1]

    yield connect
    for backend in backends:
        backend.close()


@pytest.fixture
def backend(server, root, opened):
    return opened(server.url(root))


@pytest.fixture
def raw(server):
    client = Raw(server)
    yield client
    client.channel.close()


@pytest.fixture
def raw_client():
    """Makes raw clients of servers that a test started itself."""
    clients = []

    def connect(server):
        clients.append(Raw(server))
        return clients[-1]

    yield connect
    for client in clients:
        client.channel.close()


@pytest.fixture
def proxied():
    """Makes proxies, closed after the test."""
    proxies = []

    def start(server):
        proxies.append(Proxy(server.endpoint))
        return proxies[-1]

    yield start
    for proxy in proxies:
        proxy.close()
