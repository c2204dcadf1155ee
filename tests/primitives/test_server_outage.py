"""What an owner notices when its server stops answering, on servers of the test's own."""

from __future__ import annotations

import time

import pytest

import latchwork
from backends_table import BY_NAME, SERVERS
from latchwork.errors import LockLost, NotLeader, OutcomeUnknown, Unavailable, WaitTimeout
from latchwork.primitives import LeaderLatch, LockKeeper, PersistentLock

TTL_S = 1.0


@pytest.fixture(params=SERVERS)
def server(request):
    with BY_NAME[request.param].launch() as started:
        yield started


@pytest.fixture
def store(server):
    with latchwork.connect(server.url("outage", session_ttl_s=TTL_S, call_timeout_s=2.0)) as opened:
        yield opened


def test_an_outage_longer_than_the_ttl_is_told_in_time_and_ends_by_itself(server, store, eventually):
    with LockKeeper(store, ttl_s=TTL_S) as keeper, LeaderLatch(store, "leader", node_id="n1") as latch:
        failed, lost, revoked = [], [], []
        keeper.on_renewal_failed(lambda error, remaining_s: failed.append((error, remaining_s)))
        keeper.on_lost(lambda names: lost.append((names, time.monotonic())))
        latch.on_revoked(lambda: revoked.append(time.monotonic()))
        held = keeper.acquire("job/1", 10.0)
        token = held.fence.token
        granted_s = latch.wait(10.0) and store.session.ttl_s
        paused_at = time.monotonic()
        server.pause()
        try:
            eventually(lambda: lost, 2.0 * TTL_S)
            assert lost[0][0] == ("job/1",)
            assert lost[0][1] - paused_at < TTL_S + 0.3
            assert held.lost.is_set()
            assert not held.is_held
            eventually(lambda: not latch.is_leader, granted_s + 0.3)
            eventually(lambda: revoked, granted_s + 3.0)
            with pytest.raises(NotLeader):
                _ = latch.fence
            with pytest.raises((Unavailable, OutcomeUnknown, WaitTimeout)):
                keeper.acquire("job/2", 0.1)
            eventually(lambda: failed, 5.0)
        finally:
            server.resume()
        again = keeper.acquire("job/1", 15.0)
        assert again.fence.token > token
        with pytest.raises(LockLost):
            held.release()
        latch.wait(15.0)
        assert len(lost) == 1


def test_an_outage_shorter_than_the_ttl_costs_nothing(server, store):
    with LeaderLatch(store, "leader", node_id="n1") as latch, LockKeeper(store, ttl_s=3.0) as keeper:
        revoked, lost = [], []
        latch.on_revoked(lambda: revoked.append(1))
        keeper.on_lost(lost.append)
        held = keeper.acquire("job/1", 10.0)
        latch.wait(10.0)
        server.pause()
        time.sleep(0.3)
        server.resume()
        time.sleep(0.7)
        assert latch.is_leader
        assert held.is_held
        assert not revoked
        assert not lost


def test_a_server_that_restarts_gives_the_lock_back_to_its_holder(server, store):
    lock = PersistentLock(store, "orders", ttl_s=6.0)
    try:
        lock.acquire(10.0)
        server.kill()
        server.restart()
        time.sleep(3.0)
        assert lock.is_held
        assert lock.remaining_s() > 2.0
        store.commit([lock.fence], [])
        lock.release()
        assert lock.acquire(5.0)
    finally:
        lock.close()
