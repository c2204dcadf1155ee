"""The proxy does to connections what tests of faults count on."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from latchwork_testkit.proxy import Proxy
from patience import eventually

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
    with Proxy(echo[0]) as between:
        yield between


def connect(proxy):
    host, _, port = proxy.endpoint.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def connected(proxy):
    """A connection that has gone through to the server."""
    client = connect(proxy)
    client.sendall(b"x")
    assert client.recv(1) == b"x"
    return client


def ends(client):
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def is_silent(client):
    client.settimeout(0.3)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(WAIT_S)
    return False


def test_the_proxy_passes_both_ways(proxy):
    with connect(proxy) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"


def test_a_cut_ends_the_connections_and_counts_them(proxy):
    with connected(proxy) as one, connected(proxy) as other:
        assert proxy.cut() == 2
        assert ends(one)
        assert ends(other)


def test_a_new_connection_is_served_after_a_cut(proxy):
    proxy.cut()
    connected(proxy).close()


def test_what_was_held_back_is_delivered_after_its_sender_has_gone(proxy, echo):
    with connected(proxy) as client:
        assert proxy.hold("requests", open_only=True) == 1
        client.sendall(b"late")
    with connected(proxy):  # a new connection is not held
        proxy.release()
        echo[1](b"late")


def test_what_is_held_back_on_new_connections_too_arrives_on_release(proxy):
    proxy.hold("answers")
    with connect(proxy) as client:
        client.sendall(b"asked")
        assert is_silent(client)
        proxy.release()
        assert client.recv(100) == b"asked"


def test_requests_that_are_held_reach_the_server_though_the_client_was_cut(proxy, echo):
    with connected(proxy) as client:
        proxy.hold("requests")
        client.sendall(b"late")
        assert is_silent(client)
        proxy.cut_clients()
        assert ends(client)
    proxy.release()
    echo[1](b"late")


def test_what_was_dropped_never_arrives_and_its_connection_ends_with_the_fault(proxy, echo):
    with connected(proxy) as client:
        assert proxy.drop("answers") == 1
        client.sendall(b"asked")
        echo[1](b"asked")  # the request went through, its answer does not
        assert is_silent(client)
        proxy.release()
        assert ends(client)
    connected(proxy).close()


def test_a_connection_that_lost_nothing_survives_the_release(proxy):
    with connected(proxy) as client:
        proxy.drop()
        proxy.release()
        client.sendall(b"still")
        assert client.recv(100) == b"still"


def test_a_refused_connection_is_served_again_after_accept(proxy):
    with connected(proxy) as client:
        proxy.refuse()
        assert ends(client)
    with pytest.raises(ConnectionError):
        connect(proxy).recv(1)
    proxy.accept()
    connected(proxy).close()


def test_a_delay_keeps_the_order(proxy):
    with connected(proxy) as client:
        proxy.delay(0.2, "answers")
        client.sendall(b"one ")
        proxy.delay(0, "answers")
        client.sendall(b"two")
        got = b""
        while len(got) < 7:
            got += client.recv(100)
        assert got == b"one two"


def test_what_is_held_back_and_what_arrives_late_is_counted(echo, proxy):
    _, wait_for = echo
    with connect(proxy) as connection:
        connection.sendall(b"now")
        wait_for(b"now")
        assert (proxy.held_bytes, proxy.late_bytes) == (0, 0)
        proxy.hold("requests")
        connection.sendall(b"later")
        eventually(lambda: proxy.held_bytes == len(b"later"))
        proxy.cut_clients()
        assert proxy.late_bytes == 0
        proxy.release()
        wait_for(b"later")
        eventually(lambda: proxy.late_bytes == len(b"later"))
