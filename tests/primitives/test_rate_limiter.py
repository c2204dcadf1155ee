"""Permits per interval, on every backend."""

from __future__ import annotations

import time

import pytest

from latchwork.errors import Closed, LatchworkError, SessionLost, WaitTimeout
from latchwork.primitives import RateLimiter
from latchwork.primitives.numbers.rate_limiter import PermitAges, Permits
from primitives.lost_answers import lose_answer

TTL_S = 1.0


@pytest.fixture
def limiter(connect):
    """Make one with a client of its own; closed after the test."""
    made = []

    def make(permits=2, interval_s=0.5, name="mail", *, slack_s=2.0, store=None, **options):
        store = store or connect()
        one = RateLimiter(store, name, permits=permits, interval_s=interval_s, slack_s=slack_s, **options)
        made.append(one)
        return one

    yield make
    for each in made:
        each.close()


def test_so_many_are_given_at_once_and_no_more(limiter):
    mine, other = limiter(3, 60.0), limiter(3, 60.0)
    mine.acquire()
    mine.acquire(2)
    for each in (mine, other):
        with pytest.raises(WaitTimeout, match="rate limiter 'mail' had no permit for us in time"):
            each.acquire(timeout_s=0.0)
    assert mine.issued() == 3


def test_no_more_than_the_limit_return_in_any_interval_of_several_clients(limiter, in_thread):
    interval_s, limit, returned = 0.3, 2, []

    def work(mine):
        for _ in range(2):
            mine.acquire(timeout_s=60.0)
            returned.append(time.monotonic())

    slack_s = 0.5  # ends of waits are judged where they return, the busy machine may delay the note of it
    clients = [limiter(limit, interval_s, slack_s=slack_s) for _ in range(3)]
    for each in [in_thread(lambda mine=mine: work(mine)) for mine in clients]:
        each.outcome(90.0)
    returned.sort()
    assert len(returned) == 6
    for early, late in zip(returned, returned[limit:], strict=False):
        assert late - early >= interval_s * 0.9


def test_a_client_whose_first_look_finds_permits_given_waits_as_if_they_were_new(limiter):
    limiter(1, 0.4, slack_s=0.6).acquire()
    time.sleep(0.2)
    began = time.monotonic()
    limiter(1, 0.4, slack_s=0.6).acquire(timeout_s=60.0)
    assert time.monotonic() - began >= 0.99


def test_those_who_wait_are_served_in_the_order_in_which_they_came(limiter, in_thread, eventually):
    first = limiter(1, 0.1, slack_s=0.9)
    first.acquire()
    served, waiting = [], []
    for number in range(2):
        mine = limiter(1, 0.1, slack_s=0.9)
        waiting.append(in_thread(lambda mine=mine, number=number: (mine.acquire(), served.append(number))))
        eventually(lambda number=number: len(first.waiters()) == number + 1 or served)
    for each in waiting:
        each.outcome(60.0)
    assert served == [0, 1]
    assert first.waiters() == []


def test_a_timeout_leaves_nothing_in_the_queue(limiter):
    mine = limiter(1, 60.0)
    mine.acquire()
    with pytest.raises(WaitTimeout):
        mine.acquire(timeout_s=0.2)
    assert mine.waiters() == []
    assert mine.issued() == 1


def test_a_permit_whose_answer_comes_late_is_not_used(limiter, connect, monkeypatch):
    store = connect()
    mine = limiter(2, 60.0, slack_s=0.1, store=store)
    commit, calls = store.commit, []

    def slow(checks, ops):
        done = commit(checks, ops)
        calls.append(ops)
        if len(calls) == 1:
            time.sleep(0.2)
        return done

    monkeypatch.setattr(store, "commit", slow)
    mine.acquire(timeout_s=20.0)
    assert len(calls) >= 2
    assert mine.issued() >= 2


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_wastes_a_permit_and_gives_none_for_nothing(limiter, connect, monkeypatch, applied):
    store = connect()
    mine = limiter(3, 60.0, store=store)
    lose_answer(store, monkeypatch, applied=applied)
    mine.acquire(timeout_s=20.0)
    assert mine.issued() == (2 if applied else 1)


def test_two_that_see_the_same_free_permit_do_not_both_get_it(limiter, connect, monkeypatch):
    store = connect()
    mine, other = limiter(1, 60.0, store=store), limiter(1, 60.0)
    commit = store.commit

    def late(checks, ops):
        monkeypatch.setattr(store, "commit", commit)
        other.acquire(timeout_s=20.0)
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", late)
    with pytest.raises(WaitTimeout):
        mine.acquire(timeout_s=0.0)
    assert mine.issued() == 1


def test_another_rate_than_the_stored_one_is_refused(limiter):
    limiter(2, 60.0).acquire()
    with pytest.raises(LatchworkError, match=r"gives 2 per 60 s, with slack 2 s; create it with these values"):
        limiter(3, 60.0).acquire()


def test_losing_the_session_or_closing_ends_a_wait(limiter, connect, in_thread, eventually):
    store = connect(session_ttl_s=TTL_S)
    first, losing, closing = limiter(1, 60.0), limiter(1, 60.0, store=store), limiter(1, 60.0)
    first.acquire()
    waiting = [in_thread(losing.acquire), in_thread(closing.acquire)]
    eventually(lambda: len(first.waiters()) == 2)
    store.session.mark_ended()
    closing.close()
    with pytest.raises(SessionLost):
        waiting[0].outcome()
    with pytest.raises(Closed, match="rate limiter 'mail' was closed"):
        waiting[1].outcome()


def test_bad_numbers_are_refused_before_any_io():
    for options in ({"permits": 0, "interval_s": 1.0}, {"permits": 1, "interval_s": 0.0}):
        with pytest.raises(ValueError, match="must be"):
            RateLimiter(None, "mail", **options)
    with pytest.raises(ValueError, match="can give 1 to 2 permits at once, not 3"):
        RateLimiter(None, "mail", permits=2, interval_s=1.0).acquire(3)


# What one node knows of the age of permits: by itself, in numbers.


def permits(given, limit=2):
    return Permits(limit, 10.0, 1.0, given)


def test_a_window_gives_as_many_as_the_limit_and_then_waits_for_the_oldest():
    window = PermitAges()
    window.record(permits(0), 1, 100.0)
    assert window.get_wait_s(2, 100.0) == 0.0
    window.record(permits(1), 1, 100.0)
    window.record(permits(2), 1, 104.0)
    assert window.get_wait_s(1, 105.0) == pytest.approx(100.0 + 11.011 - 105.0)
    assert window.get_wait_s(2, 105.0) == pytest.approx(104.0 + 11.011 - 105.0)
    assert window.get_wait_s(1, 111.1) == 0.0


def test_a_window_takes_permits_that_it_did_not_see_given_for_new():
    window = PermitAges()
    window.record(permits(50), 1, 100.0)
    assert window.get_wait_s(1, 100.0) == pytest.approx(11.011)


def test_old_news_change_nothing_in_a_window():
    window = PermitAges()
    window.record(permits(2), 1, 100.0)
    window.record(permits(1), 1, 105.0)
    assert window.get_wait_s(2, 105.0) == pytest.approx(100.0 + 11.011 - 105.0)


def test_a_limiter_that_was_made_anew_gives_nothing_for_an_interval():
    window = PermitAges()
    window.record(permits(2), 1, 100.0)
    window.record(permits(0), 7, 101.0)
    assert window.get_wait_s(1, 101.0) == pytest.approx(11.011)
    assert window.get_wait_s(2, 112.1) == 0.0
