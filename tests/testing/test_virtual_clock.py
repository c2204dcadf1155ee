"""A clock that stands still until a test moves it."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

import latchwork
from latchwork.clock import Signal
from latchwork.primitives import LeaderLatch, PersistentLock
from latchwork.testing import FaultyStore, VirtualClock

names = itertools.count()


@pytest.fixture
def clock():
    return VirtualClock(settle_s=5.0)


@pytest.fixture
def url():
    return f"memory://virtual-{next(names)}"


@pytest.fixture
def start():
    """Start a thread that is joined in the end."""
    threads = []

    def begin(fn):
        thread = threading.Thread(target=fn)
        threads.append(thread)
        thread.start()
        return thread

    yield begin
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_time_stands_still_until_it_is_moved(clock):
    before = clock.now()
    time.sleep(0.01)
    assert clock.now() == before
    clock.advance(60)
    assert clock.now() == before + 60


def test_it_never_goes_back(clock):
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1)


def test_a_wait_ends_when_its_time_has_come_and_not_before(clock, start):
    outcome = []
    start(lambda: outcome.append(clock.wait(Signal(), 10)))
    clock.advance(9.9)
    assert outcome == []
    assert clock.waiting == 1
    clock.advance(0.2)
    assert outcome == [False]
    assert clock.waiting == 0


def test_a_wait_ends_at_once_when_its_event_is_set(clock, start):
    event, outcome = Signal(), []
    start(lambda: outcome.append(clock.wait(event)))
    clock.advance(1000)
    assert outcome == []
    event.set()
    clock.settle()
    assert outcome == [True]


def test_a_set_event_or_a_time_that_is_over_is_not_waited_for(clock):
    event = Signal()
    assert not clock.wait(event, 0)
    event.set()
    assert clock.wait(event)
    condition = threading.Condition()
    with condition:
        assert not clock.wait_condition(condition, 0)


def test_a_wait_on_a_condition_ends_by_notify_or_by_time(clock, start):
    condition, outcome = threading.Condition(), []

    def wait():
        with condition:
            outcome.append(clock.wait_condition(condition, 5))

    start(wait)
    clock.settle()
    with condition:
        condition.notify()
    clock.settle()
    assert outcome == [True]
    start(wait)
    clock.advance(5)
    assert outcome == [True, False]


def test_threads_wake_in_the_order_of_their_deadlines_each_at_its_time(clock, start):
    woken = []

    def sleeper(seconds):
        clock.wait(Signal(), seconds)
        woken.append((seconds, clock.now() - began))
        clock.wait(Signal(), 1)
        woken.append((seconds, clock.now() - began))

    began = clock.now()
    for seconds in (3, 1, 2.5):
        start(lambda seconds=seconds: sleeper(seconds))
    clock.advance(10)
    assert woken == [(1, 1), (1, 2), (2.5, 2.5), (3, 3), (2.5, 3.5), (3, 4)]


def test_a_wait_of_next_to_nothing_lets_time_go_on(clock, start):
    start(lambda: clock.wait(Signal(), 1e-18))
    clock.settle()
    assert clock.waiting == 1
    clock.advance(0.001)
    assert clock.waiting == 0


def test_the_next_deadline_can_be_asked_for(clock, start):
    assert clock.next_s() is None
    start(lambda: clock.wait(Signal(), 7))
    clock.settle()
    assert clock.next_s() == 7
    clock.advance(7)


def test_a_session_lives_by_it_and_is_renewed_as_it_moves(clock, url):
    with latchwork.connect(url, clock=clock, session_ttl_s=10) as store:
        session = store.session
        clock.advance(300)
        assert session.state == "active"
        assert session.remaining_s() > 7


def test_a_session_that_cannot_be_renewed_is_lost_and_its_keys_vanish(clock, url):
    with (
        latchwork.connect(url, clock=clock) as other,
        FaultyStore(latchwork.connect(url, clock=clock, session_ttl_s=10)) as store,
    ):
        store.put("alive/me", b"", session=store.session)
        session = store.session
        store.cut_off()
        clock.advance(7)
        assert session.state == "suspect"
        assert other.get("alive/me") is not None
        clock.advance(3.1)
        assert session.state == "lost"
        clock.advance(1)
        assert other.get("alive/me") is None


def test_a_leader_that_is_cut_off_stops_before_the_next_one_leads(clock, url):
    with (
        latchwork.connect(url, clock=clock) as other,
        FaultyStore(latchwork.connect(url, clock=clock, session_ttl_s=10)) as store,
        LeaderLatch(store, "leader", node_id="a") as first,
    ):
        first.wait(10)
        with LeaderLatch(other, "leader", node_id="b") as second:
            store.cut_off()
            for _ in range(30):
                clock.advance(0.5)
                assert not (first.is_leader and second.is_leader)
            assert second.is_leader
            store.reconnect()


def test_a_persistent_lock_can_be_lost_on_purpose(clock, url):
    with (
        latchwork.connect(url, clock=clock) as other,
        FaultyStore(latchwork.connect(url, clock=clock)) as store,
    ):
        lock = PersistentLock(store, "report", ttl_s=10)
        fence = lock.acquire()
        store.cut_off()
        clock.advance(11)
        assert not lock.is_held
        store.reconnect()
        taken = PersistentLock(other, "report", ttl_s=10)
        waiting = threading.Thread(target=taken.acquire, name="latchwork-waiting")
        waiting.start()
        while waiting.is_alive():  # in steps: a lock that is acquired early is renewed in between
            clock.advance(1)
            waiting.join(0.05)
        assert taken.is_held
        with pytest.raises(latchwork.Conflict):
            store.commit([fence], [latchwork.Put("result", b"late")])
        taken.close()
        lock.close()
