"""The proxy and the test network do to connections what they say, and undo it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import pytest

from latchwork_testkit.network import Network
from latchwork_testkit.proxy import Proxy
from latchwork_testkit.servers import EtcdCluster, ServerFailed, ZooKeeperEnsemble
from patience import eventually

SOON_S = 10.0
A_MOMENT_S = 0.2
ELECTION_S = 40.0

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


class Echo:
    """A server that sends back what it gets, and keeps it."""

    def __init__(self):
        self.got = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(1000):
                self.got += data
                connection.sendall(data)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes its thread
        self._listener.close()


@pytest.fixture
def echo():
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo):
    with Proxy(echo.endpoint) as between:
        yield between


@pytest.fixture
def dial(proxy):
    opened = []

    def connect():
        host, _, port = proxy.endpoint.partition(":")
        opened.append(socket.create_connection((host, int(port)), timeout=SOON_S))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def hears(connection, timeout_s=SOON_S):
    connection.settimeout(timeout_s)
    try:
        return connection.recv(1000)
    except TimeoutError:
        return None
    except OSError:
        return b""


def test_proxy_passes_everything_in_order(dial):
    connection = dial()
    sent = os.urandom(400_000)
    threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
    got = b""
    while len(got) < len(sent):
        got += hears(connection)
    assert got == sent


def test_cut_ends_present_connections_and_serves_new_ones(proxy, dial):
    old = dial()
    old.sendall(b"1")
    assert hears(old) == b"1"
    proxy.cut()
    assert hears(old) == b""
    new = dial()
    new.sendall(b"2")
    assert hears(new) == b"2"


def test_refusing_proxy_is_connection_refused_until_it_accepts_again(proxy, dial):
    old = dial()
    old.sendall(b"1")
    assert hears(old) == b"1"
    proxy.refuse()
    assert hears(old) == b""
    with pytest.raises(ConnectionRefusedError):
        dial()
    proxy.accept()
    new = dial()
    new.sendall(b"2")
    assert hears(new) == b"2"


def test_held_requests_do_not_arrive_before_release(proxy, dial, echo):
    connection = dial()
    connection.sendall(b"1")
    assert hears(connection) == b"1"
    proxy.hold("requests")
    connection.sendall(b"2")
    assert hears(connection, A_MOMENT_S) is None
    assert echo.got == b"1"
    proxy.release()
    assert hears(connection) == b"2"


def test_held_answers_leave_requests_alone(proxy, dial, echo):
    connection = dial()
    connection.sendall(b"1")
    assert hears(connection) == b"1"
    proxy.hold("answers")
    connection.sendall(b"2")
    eventually(lambda: echo.got == b"12")
    assert hears(connection, A_MOMENT_S) is None
    proxy.release()
    assert hears(connection) == b"2"


def test_black_hole_holds_new_connections_too_unless_only_the_present_ones_are_meant(proxy, dial):
    old = dial()
    old.sendall(b"1")
    assert hears(old) == b"1"
    proxy.hold(open_only=True)
    new = dial()
    new.sendall(b"2")
    assert hears(new) == b"2"
    proxy.hold()
    newest = dial()
    newest.sendall(b"3")
    assert hears(newest, A_MOMENT_S) is None
    proxy.release()
    assert hears(newest) == b"3"


def test_what_was_held_lands_late_though_its_client_has_gone(proxy, dial, echo):
    connection = dial()
    connection.sendall(b"1")
    assert hears(connection) == b"1"
    proxy.hold("requests")
    connection.sendall(b"late")
    time.sleep(A_MOMENT_S)
    connection.close()
    assert echo.got == b"1"
    proxy.release()
    eventually(lambda: echo.got == b"1late")


def test_clients_can_be_cut_off_without_the_server_noticing(proxy, dial, echo):
    connection = dial()
    connection.sendall(b"1")
    assert hears(connection) == b"1"
    proxy.hold("requests")
    connection.sendall(b"late")
    time.sleep(A_MOMENT_S)
    proxy.cut_clients()
    assert hears(connection) == b""
    proxy.release()
    eventually(lambda: echo.got == b"1late")


def test_delay_keeps_the_order_and_takes_its_time(proxy, dial):
    connection = dial()
    proxy.delay(A_MOMENT_S, "answers")
    started = time.monotonic()
    connection.sendall(b"1")
    connection.sendall(b"2")
    got = hears(connection)
    assert time.monotonic() - started >= A_MOMENT_S
    while len(got) < 2:
        got += hears(connection)
    assert got == b"12"


def test_proxy_of_an_absent_server_ends_the_connection(dial, echo):
    echo.close()
    with contextlib.suppress(ConnectionResetError):
        assert hears(dial()) == b""


def test_closed_proxy_leaves_no_thread_and_no_port(echo):
    proxy = Proxy(echo.endpoint)
    before = threading.active_count()
    proxy.close()
    proxy.close()
    assert threading.active_count() == before - 1
    host, _, port = proxy.endpoint.partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


@pytest.mark.slow
@pytest.mark.parametrize("network", [pytest.param(True, marks=needs_root, id="namespaces"), "proxies"])
@pytest.mark.parametrize("make", [EtcdCluster, ZooKeeperEnsemble])
def test_isolated_leader_is_replaced_while_tests_still_reach_it_and_joins_again_when_healed(make, network):
    with make(3, network=network) as group:
        old = group.leader()
        group.network.isolate(group.members.index(old))
        eventually(lambda: any(member.is_leader() for member in group.members if member is not old), ELECTION_S)
        host, _, port = old.endpoint.partition(":")
        socket.create_connection((host, int(port)), timeout=SOON_S).close()
        group.network.heal()
        eventually(lambda: not old.is_leader() and old._is_ready(), ELECTION_S)


@needs_root
def test_network_leaves_nothing_behind():
    with Network(2) as network:
        spaces = [command[-1] for command in map(network.command_prefix, range(2))]
        network.cut(0, 1)
    assert not any(os.path.exists(f"/run/netns/{space}") for space in spaces)  # noqa: PTH110


def test_group_on_one_host_has_no_network():
    with pytest.raises(ServerFailed, match="network=True"):
        _ = EtcdCluster(3).network
