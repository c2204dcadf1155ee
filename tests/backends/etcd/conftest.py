"""Backends on real etcd servers without the store layer above them, a raw client, and a network to hurt."""

from __future__ import annotations

import threading
import uuid

import grpc
import pytest

from backends_table import ETCD
from latchwork.backends.etcd.backend import EtcdBackend
from latchwork.backends.url import parse_url
from latchwork.clock import SYSTEM_CLOCK
from latchwork_testkit.etcd_rpc import Stub, pb
from latchwork_testkit.proxy import Proxy
from patience import eventually


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
        self.kv = Stub(self.channel, "KV")
        self.lease = Stub(self.channel, "Lease")

    def values(self, prefix):
        end = prefix[:-1] + bytes([prefix[-1] + 1])
        answer = self.kv.Range(pb.RangeRequest(key=prefix, range_end=end), timeout=5)
        return {kv.key: kv.value for kv in answer.kvs}

    def put(self, key, value):
        return self.kv.Put(pb.PutRequest(key=key, value=value), timeout=5).header.revision

    def compact(self):
        revision = self.kv.Range(pb.RangeRequest(key=b"x"), timeout=5).header.revision
        self.kv.Compact(pb.CompactionRequest(revision=revision, physical=True), timeout=5)


@pytest.fixture(name="eventually")
def _eventually():
    return eventually


@pytest.fixture(name="collector")
def _collector():
    return Collector


@pytest.fixture(params=ETCD)
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
        backends.append(EtcdBackend.connect(parse_url(url, overrides), clock))
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
