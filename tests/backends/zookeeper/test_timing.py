"""How long a server may take follows from the round trips that were measured, and from the timeout for connecting."""

from __future__ import annotations

import time

import pytest

from latchwork.backends.url import open_backend, parse_url
from latchwork.backends.zookeeper.timing import Timing
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import ConnectFailed
from latchwork_testkit.proxy import Proxy


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
