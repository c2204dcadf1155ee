"""The proxy does to connections what the fault injector counts on."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from history.proxy import Proxy

WAIT_S = 10.0


@pytest.fixture
def echo():
    """A server that sends everything back, and keeps what it got."""
    listener = socket.create_server(("127.0.0.1", 0))
    got, arrived = [], threading.Condition()

    def serve(connection):
        with connection, contextlib.suppress(OSError):
            while chunk := connection.recv(1000):
                with arrived:
                    got.append(chunk)
                    arrived.notify_all()
                connection.sendall(chunk)

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()

    def wait_for(data):
        with arrived:
            assert arrived.wait_for(lambda: data in b"".join(got), WAIT_S), got

    yield f"127.0.0.1:{listener.getsockname()[1]}", wait_for
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(WAIT_S)


@pytest.fixture
def proxy(echo):
    between = Proxy([echo[0], echo[0]])
    yield between
    between.close()


def connect(proxy, link=0):
    host, _, port = proxy.endpoints[link].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def test_the_proxy_passes_both_ways(proxy):
    with connect(proxy) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"


def test_a_cut_ends_the_connections_of_that_link_only(proxy):
    with connect(proxy) as client, connect(proxy, 1) as other:
        for each in (client, other):
            each.sendall(b"x")
            each.recv(1)
        assert proxy.cut([0]) == 2
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
        other.sendall(b"still")
        assert other.recv(100) == b"still"


def test_what_was_held_back_is_delivered_after_its_sender_has_gone(proxy, echo):
    with connect(proxy) as client:
        client.sendall(b"x")
        client.recv(1)
        assert proxy.hold([0], "up") == 1
        client.sendall(b"late")
    with connect(proxy) as newer:
        newer.sendall(b"newer")  # a new connection is not held
        assert newer.recv(100) == b"newer"
        proxy.heal([0])
        echo[1](b"late")


def test_what_was_dropped_never_arrives_and_its_connection_ends_with_the_fault(proxy, echo):
    with connect(proxy) as client:
        client.sendall(b"x")
        client.recv(1)
        proxy.drop([0], "down")
        client.sendall(b"asked")
        echo[1](b"asked")  # the request went through, its answer does not
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(WAIT_S)
        proxy.heal([0])
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    with connect(proxy) as client:
        client.sendall(b"again")
        assert client.recv(100) == b"again"
