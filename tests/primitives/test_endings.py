"""A session or store that is closed under a hold: the hold ends at once, and who depends on it hears it at once."""

from __future__ import annotations

import threading

import pytest

from latchwork.errors import LockLost, NotLeader
from latchwork.primitives import Election, LeaderLatch, Lock, Queue, ReadWriteLock, Semaphore, WorkQueue

#: Much less than the TTL of the sessions, after which everybody would hear of it in any case.
SOON_S = 8.0
TTL_S = 60.0


def lock(store, session):
    held = Lock(store, "lock", session=session)
    held.acquire(30.0)
    return held


def read_side(store, session):
    held = ReadWriteLock(store, "shared", session=session).read
    held.acquire(30.0)
    return held


def write_side(store, session):
    held = ReadWriteLock(store, "exclusive", session=session).write
    held.acquire(30.0)
    return held


def semaphore(store, session):
    held = Semaphore(store, "semaphore", leases=1, session=session)
    held.acquire(30.0)
    return held


def term(store, session):
    return Election(store, "election", node_id="n", session=session).campaign(timeout_s=30.0)


def claim(store, session):
    queue = Queue(store, "queue", session=session)
    queue.put(b"x")
    return queue.take(30.0)


def backlog_claim(store, session):
    backlog = WorkQueue(store, "backlog", session=session)
    backlog.put("any", "s", "1", b"x")
    return backlog.try_take(["any"])[0]


HOLDS = [lock, read_side, write_side, semaphore, term, claim, backlog_claim]


@pytest.fixture(params=["session", "store"])
def end(request):
    """Closes either the session or its store."""
    return lambda store, session: (session if request.param == "session" else store).close()


@pytest.mark.parametrize("hold", HOLDS)
def test_a_hold_is_lost_at_once_when_its_session_or_store_is_closed(connect, hold, end):
    store = connect()
    session = store.open_session(TTL_S)
    held = hold(store, session)
    told = threading.Event()
    held.on_lost(told.set)
    lost = held.lost
    with held.guard_work() as work:
        end(store, session)
        assert work.stopped.is_set()
        assert lost.is_set()
        assert held.remaining_s() == 0.0
        assert told.wait(SOON_S)
        with pytest.raises((LockLost, NotLeader)):
            work.raise_if_stopped()


def test_a_latch_is_revoked_at_once_when_its_session_or_store_is_closed(connect, end):
    store = connect()
    session = store.open_session(TTL_S)
    told = threading.Event()
    with LeaderLatch(store, "latch", node_id="n", session=session) as latch:
        latch.wait(30.0)
        latch.on_revoked(told.set)
        with latch.guard_work() as work:
            end(store, session)
            assert work.stopped.is_set()
            assert not latch.is_leader
            assert told.wait(SOON_S)


@pytest.mark.parametrize("hold", HOLDS)
def test_a_hold_that_was_given_back_is_not_lost_when_its_session_is_closed_later(connect, hold):
    store = connect()
    session = store.open_session(TTL_S)
    held = hold(store, session)
    told = []
    held.on_lost(lambda: told.append("lost"))
    lost = held.lost
    end_it = {term: "resign", claim: "ack"}.get(hold, "release")
    getattr(held, end_it)()
    session.close()
    other = store.open_session(TTL_S)
    heard = threading.Event()
    other.on_lost(heard.set, or_closed=True)
    other.close()
    assert heard.wait(SOON_S)
    assert not lost.is_set()
    assert told == []


def test_work_is_told_at_once_although_a_listener_of_another_hold_is_slow(connect):
    store = connect()
    session = store.open_session(TTL_S)
    first, second = lock(store, session), semaphore(store, session)
    go_on = threading.Event()
    first.on_lost(lambda: go_on.wait(30.0))
    with second.guard_work() as work:
        session.mark_ended()
        assert work.stopped.wait(SOON_S)
        assert second.lost.wait(SOON_S)
    go_on.set()


def test_listeners_hear_of_a_close_only_if_they_asked_for_that(connect):
    session = connect().open_session(TTL_S)
    told, heard = [], threading.Event()
    session.on_lost(lambda: told.append("lost"))
    session.on_lost(lambda: told.append("either"), or_closed=True)
    session.on_lost(lambda: told.append("cancelled"), or_closed=True)()
    session.on_lost(heard.set, or_closed=True)
    session.close()
    assert heard.wait(SOON_S)
    assert told == ["either"]
    late = threading.Event()
    session.on_lost(late.set, or_closed=True)
    assert late.wait(SOON_S)


@pytest.mark.parametrize("ask", [lambda work: work.stopped.wait(SOON_S), lambda work: work.wait(SOON_S)])
def test_work_without_a_with_fires_once_it_is_asked(connect, ask):
    store = connect()
    session = store.open_session(TTL_S)
    held = lock(store, session)
    work = held.guard_work(margin_s=1_000.0)  # more than is left at any time
    assert ask(work)


@pytest.mark.threads
def test_work_without_a_with_hears_of_a_release_and_its_thread_ends_with_the_hold(connect, in_thread):
    held = lock(store := connect(), store.open_session(TTL_S))
    work = held.guard_work()
    waiting = in_thread(lambda: work.wait(30.0))
    assert not work.stopped.wait(0.05)
    before = [thread for thread in threading.enumerate() if thread.name.startswith("latchwork-work")]
    assert len(before) == 1
    held.release()
    assert waiting.outcome()
    before[0].join(SOON_S)
    assert not before[0].is_alive()
