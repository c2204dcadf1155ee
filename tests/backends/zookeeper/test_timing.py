"""How long a server may take follows from the round trips that were measured, and from the timeout for connecting."""

from __future__ import annotations

import time

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

import latchwork
from latchwork.backends.url import open_backend, parse_url
from latchwork.backends.zookeeper.loop import KazooLoop
from latchwork.backends.zookeeper.timing import Timing
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import ConnectFailed
from latchwork_testkit.proxy import Proxy
from patience import eventually


def test_a_connection_gets_as_much_time_as_the_one_before_needed():
    timing = Timing(10.0, servers=1, tls=False)
    assert timing.connect_s == 0.75
    timing.record_late_connect()
    assert timing.connect_s == 1.5
    timing.record_connected(0.8)
    assert timing.connect_s == pytest.approx(4.0)
    assert timing.handshake_s == pytest.approx(4.0)
    timing.record_connected(0.001)
    assert timing.connect_s == 0.75


def test_a_handshake_keeps_the_longer_limit_while_its_answers_need_it():
    timing = Timing(10.0, servers=1, tls=False)
    timing.record_connected(0.001)
    timing.record_late_answer()
    timing.record_answered(0.6)
    assert timing.handshake_s == 0.8
    timing.record_answered(0.3)
    assert timing.handshake_s == 0.4


def test_a_packet_that_was_lost_while_connecting_does_not_count_as_a_long_round_trip():
    timing = Timing(10.0, servers=1, tls=False)
    timing.record_connected(1.3)
    timing.record_answered(0.3)
    assert timing.handshake_s == pytest.approx(1.5)


def test_no_attempt_to_connect_is_longer_than_all_of_them_together():
    timing = Timing(1.0, servers=1, tls=False)
    for _ in range(10):
        assert timing.connect_s <= 1.0
        timing.record_late_connect()


def test_a_server_that_was_away_is_tried_with_the_shortest_limit_again():
    timing = Timing(10.0, servers=1, tls=False)
    limits = []
    for _ in range(6):
        limits.append(timing.connect_s)
        timing.record_late_connect()
    assert limits == [0.75, 1.5, 3.0] * 2


@pytest.mark.parametrize(
    ("servers", "round_trip_s", "ttl_s", "silence_s"),
    [
        (3, 0.001, 4.0, 1.0),
        (1, 0.001, 4.0, 1.6),
        (3, 0.3, 4.0, 2.1),
        (1, 0.6, 4.0, 2.4),
        (1, 0.3, 10.0, 4.0),
        (3, 0.0, 1.0, 0.4),
    ],
)
def test_silence_is_borne_longer_with_one_server_and_with_long_round_trips(servers, round_trip_s, ttl_s, silence_s):
    timing = Timing(10.0, servers=servers, tls=False)
    timing.record_connected(round_trip_s)
    assert timing.max_silence_s(ttl_s) == pytest.approx(silence_s)


def test_a_connection_to_the_only_server_survives_a_silence_of_a_third_of_the_ttl(zookeeper, root):
    with Proxy(zookeeper.endpoint) as proxy:
        backend = open_backend(parse_url(f"zk://{proxy.endpoint}/{root}", {}), SYSTEM_CLOCK)
        try:
            session = backend.open_session(4.0, lambda: None).result(15)
            connections = session.connection._epoch
            proxy.hold("answers")
            renewal = session.renew()
            time.sleep(1.35)
            proxy.release()
            renewal.result(5)
            assert session.connection._epoch == connections
        finally:
            backend.close()


@pytest.mark.parametrize("delay_s", [0.3, 0.8])
def test_a_server_whose_handshake_takes_long_is_reached(zookeeper, root, delay_s):
    with Proxy(zookeeper.endpoint) as proxy:
        proxy.delay(delay_s, "answers")
        backend = open_backend(parse_url(f"zk://{proxy.endpoint}/{root}", {}), SYSTEM_CLOCK)
        assert backend.get("key", stale_ok=False).result(15) is None
        backend.close()


def test_an_error_names_the_phase_of_connecting_that_took_too_long(zookeeper, root):
    with Proxy(zookeeper.endpoint) as proxy:
        proxy.drop("answers")
        with pytest.raises(ConnectFailed, match="the handshake of ZooKeeper"):
            open_backend(parse_url(f"zk://{proxy.endpoint}/{root}", {"connect_timeout_s": 1.5}), SYSTEM_CLOCK)


def test_a_reconnect_through_a_near_proxy_to_a_far_server_needs_one_handshake(zookeeper, root, monkeypatch):
    """The proxy accepts at once, so the time to connect does not tell how far the server is."""
    invoked = []
    invoke = KazooLoop._invoke

    def counted(loop, timeout, request, xid=None):
        invoked.append(request)
        return invoke(loop, timeout, request, xid)

    monkeypatch.setattr(KazooLoop, "_invoke", counted)
    with Proxy(zookeeper.endpoint) as proxy:
        proxy.delay(0.6, "answers")
        backend = open_backend(parse_url(f"zk://{proxy.endpoint}/{root}", {}), SYSTEM_CLOCK)
        try:
            assert len(invoked) >= 2, "the first answer came too late"
            for _ in range(2):
                invoked.clear()
                proxy.cut()
                backend.get("x", stale_ok=False).result(15)
                assert len(invoked) == 1
        finally:
            backend.close()


def test_a_session_that_was_resumed_counts_from_the_handshake(zookeeper, root):
    """Usually a renewal counts only a quarter of the TTL later."""
    with Proxy(zookeeper.endpoint) as proxy, latchwork.connect(f"zk://{proxy.endpoint}/{root}") as store:
        session = store.open_session(10.0)
        eventually(lambda: session.remaining_s() < 7.4, 10.0)
        proxy.hold("answers")
        eventually(lambda: session._backend.connection._kazoo.oldest_sent_at() is not None, 10.0)
        proxy.cut()  # the renewal fails, and is repeated soon
        proxy.release()
        eventually(lambda: session.remaining_s() > 8.5, 5.0)


def test_the_time_for_a_connection_is_no_part_of_the_time_of_its_session(zookeeper, root, monkeypatch):
    """A lost SYN costs a second, and the server counts from the handshake."""
    create = SequentialThreadingHandler.create_connection

    def slowly(*arguments, **options):
        time.sleep(0.5)
        return create(*arguments, **options)

    monkeypatch.setattr(SequentialThreadingHandler, "create_connection", slowly)
    backend = open_backend(parse_url(f"zk://{zookeeper.endpoint}/{root}", {}), SYSTEM_CLOCK)
    try:
        began = SYSTEM_CLOCK.now()
        session = backend.open_session(4.0, lambda: None).result(15)
        assert session.opened_at >= began + 0.5
    finally:
        backend.close()
