"""How many answers a call waits for one after the other, measured through a proxy that delays each: they stay few."""

from __future__ import annotations

import time

import pytest

import latchwork
from backends_table import SERVERS
from latchwork.primitives import LeaderLatch, Lock
from latchwork_testkit.proxy import Proxy

DELAY_S = 0.25
pytestmark = [pytest.mark.serial, pytest.mark.threads]


@pytest.fixture(params=[name for name in SERVERS if name in {"etcd35", "zookeeper"}])
def far(request):
    """A store with a session and some keys, and a function that counts the round trips of a call."""
    server = request.getfixturevalue(request.param)
    with Proxy(server.endpoint) as proxy:
        url = server.url(f"trips-{time.time_ns()}").replace(server.endpoint, proxy.endpoint)
        with latchwork.connect(url) as store:
            assert store.session.remaining_s() > 0.0
            for number in range(9):
                store.put(f"tree/{number % 3}/{number}/leaf", b"")

            def trips(call):
                """The fewest of three tries: on a busy machine some take longer."""
                found = []
                for _ in range(3):
                    proxy.delay(DELAY_S, "answers")
                    begun = time.monotonic()
                    call()
                    found.append((time.monotonic() - begun) / DELAY_S)
                    proxy.delay(0.0, "answers")
                return round(min(found))

            yield store, trips, request.param


def test_a_whole_tree_is_read_in_one_round_trip_a_level(far):
    store, trips, name = far
    found = trips(lambda: store.list("tree", recursive=True))
    assert found <= (1 if name == "etcd35" else 4), found  # the names, then three levels below them


def test_one_level_is_read_in_two_round_trips(far):
    store, trips, _ = far
    assert trips(lambda: store.list("tree/0/0")) <= 2


def test_many_keys_are_read_in_one_round_trip_and_names_in_two(far):
    store, trips, _ = far
    assert trips(lambda: store.get_many(["tree/0/0/leaf", "tree/1/1/leaf", "missing"])) <= 1
    assert trips(lambda: store.children("tree/0/0")) <= 2


def test_a_free_latch_and_a_free_lock_take_one_round_trip(far):
    store, trips, _ = far

    def lead():
        latch = LeaderLatch(store, "latch", node_id="a")
        latch.start()
        latch.wait(timeout_s=30)
        ends.append(latch)

    def lock():
        held = Lock(store, f"lock{len(ends)}")
        held.acquire()
        ends.append(held)

    ends = []
    assert trips(lock) <= 1
    assert trips(lambda: (lead(), ends.pop().close())) <= 2


def test_a_latch_that_leaves_already_is_waited_for_and_not_deleted_twice(far):
    store, trips, _ = far
    latches = [LeaderLatch(store, f"latch{number}", node_id="a") for number in range(3)]
    for latch in latches:
        latch.start()
        latch.wait(timeout_s=30)

    def end():
        latches[-1].close_in_background()
        latches.pop().close()

    assert trips(end) <= 1
