"""Pings: never more of them than etcd allows, and a server that has fallen silent is noticed all the same."""

from __future__ import annotations

import pytest

from latchwork.backends.etcd import channel
from latchwork_testkit.proxy import Proxy

#: gRPC pings once a second at most, whatever it is told. etcd closes a connection at the third ping without a call.
PING_S = 0.5


@pytest.fixture
def server(etcd35):
    """One version will do: nothing of this is the server's."""
    return etcd35


@pytest.fixture
def proxy(server):
    with Proxy(server.endpoint) as between:
        yield between


@pytest.fixture
def often(monkeypatch):
    """Let channels ping often; takes other options of theirs too."""

    def change(**options):
        changed = {**dict(channel._OPTIONS), "grpc.keepalive_time_ms": int(PING_S * 1000)}
        changed |= {f"grpc.{name}": value for name, value in options.items()}
        monkeypatch.setattr(channel, "_OPTIONS", tuple(changed.items()))

    return change


def connections(proxy):
    return list(proxy._connections)


def test_a_store_that_is_idle_for_long_keeps_its_connection(etcd35, root, opened, often, eventually):
    with Proxy(etcd35.endpoint) as proxy, Proxy(etcd35.endpoint) as beside:
        often()
        backend = opened(f"etcd://{proxy.endpoint}/{root}")
        often(keepalive_permit_without_calls=1)
        control = opened(f"etcd://{beside.endpoint}/{root}")
        before, other = connections(proxy), connections(beside)
        # The server must not allow such pings: if it did, this would prove nothing.
        eventually(lambda: connections(beside) != other, 40.0)
        assert control.get("k", stale_ok=False).result(5) is None
        assert backend.get("k", stale_ok=False).result(5) is None
        assert connections(proxy) == before


def test_a_watch_notices_a_silent_connection_by_its_pings(proxy, root, opened, often, collector):
    often()
    backend = opened(f"etcd://{proxy.endpoint}/{root}")
    seen = collector()
    backend.watch("k", seen)
    seen.wait_until(lambda it: it.events)
    before = connections(proxy)
    proxy.hold(open_only=True)  # new connections pass: only who gives up the old one gets on
    count = len(seen.events)
    seen.wait_until(lambda it: len(it.events) > count, 20.0)
    assert connections(proxy) != before
