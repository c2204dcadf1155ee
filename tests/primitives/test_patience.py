"""Waits that begin while the server is away: as long as they may, and no longer. The same at every primitive."""

from __future__ import annotations

import uuid

import pytest

import latchwork
from latchwork.errors import Closed, Unavailable
from latchwork.primitives import (
    Barrier,
    DoubleBarrier,
    Election,
    Lock,
    Once,
    Queue,
    RateLimiter,
    ReadWriteLock,
    Semaphore,
)
from latchwork.testing.faults import Fault, FaultyStore

WAITS = {
    "Lock": (Lock, lambda one, s: one.acquire(s)),
    "ReadWriteLock": (lambda store, name: ReadWriteLock(store, name).write, lambda one, s: one.acquire(s)),
    "Semaphore": (lambda store, name: Semaphore(store, name, leases=1), lambda one, s: one.acquire(s)),
    "Election": (lambda store, name: Election(store, name, node_id="n"), lambda one, s: one.campaign(timeout_s=s)),
    "Barrier": (lambda store, name: Barrier(store, name, parties=1, member_id="m"), lambda one, s: one.wait(s)),
    "DoubleBarrier": (
        lambda store, name: DoubleBarrier(store, name, parties=1, member_id="m"),
        lambda one, s: one.enter(s),
    ),
    "Queue": (Queue, lambda one, s: one.put(b"1", timeout_s=s)),
    "Once": (Once, lambda one, s: one.run(lambda _work: b"", timeout_s=s)),
    "RateLimiter": (
        lambda store, name: RateLimiter(store, name, permits=1, interval_s=60),
        lambda one, s: one.acquire(timeout_s=s),
    ),
}


@pytest.fixture
def faulty():
    """A store whose first sessions cannot be opened: so many of them, or none at all."""
    opened = []

    def make(times):
        fault = Fault("fail", op="open_session", times=times)
        opened.append(FaultyStore(latchwork.connect(f"memory://away-{uuid.uuid4().hex}/test"), [fault]))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_that_begins_while_the_server_is_away_goes_on_when_it_is_back(faulty, name):
    make, wait = WAITS[name]
    store = faulty(3)
    one = make(store, "a")
    wait(one, 60.0)
    assert len([call for call in store.calls if call.op == "open_session"]) == 4
    one.close()


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_that_ends_while_the_server_is_away_says_so(faulty, name):
    make, wait = WAITS[name]
    one = make(faulty(None), "a")
    for timeout_s in (0, 0.1):
        with pytest.raises(Unavailable):
            wait(one, timeout_s)
    one.close()


@pytest.mark.parametrize("name", WAITS)
def test_closing_ends_a_wait_for_the_server(faulty, name, in_thread, eventually):
    make, wait = WAITS[name]
    store = faulty(None)
    one = make(store, "a")
    waiting = in_thread(lambda: wait(one, None))
    eventually(lambda: len(store.calls) > 1)
    one.close()
    with pytest.raises(Closed):
        waiting.outcome()
