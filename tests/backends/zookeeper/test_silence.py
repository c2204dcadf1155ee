"""What ends with a session or a store, and servers that take requests but answer nothing."""

from __future__ import annotations

import time

import pytest

from latchwork.backends.timer import Timer
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import Closed, LatchworkError, OutcomeUnknown, SessionLost
from latchwork.types import Put


def result(future):
    return future.result(15)


def get(backend, key):
    return result(backend.get(key, stale_ok=False))


def test_what_waited_for_a_connection_never_lands_once_its_session_was_closed(connect, proxy, backend):
    """Otherwise the session's last words would be: the old write, then the end."""
    cut_off = connect(proxy.endpoint)
    result(cut_off.commit([], [Put("plain", b"before")]))
    session = result(cut_off.open_session(6.0, lambda: None))
    result(cut_off.commit([], [Put("bound", b"1", session)]))
    proxy.refuse.set()
    proxy.cut()
    waiting = cut_off.commit([], [Put("bound", b"2", session), Put("plain", b"late")])
    ended = session.close()
    with pytest.raises(SessionLost):
        result(waiting)
    proxy.refuse.clear()
    result(ended)
    assert get(backend, "plain").value == b"before"
    assert get(backend, "bound") is None


def test_a_write_that_was_cut_off_is_not_sent_again_once_its_session_was_closed(connect, proxy, backend, wait_until):
    cut_off = connect(proxy.endpoint)
    session = result(cut_off.open_session(6.0, lambda: None))
    result(cut_off.commit([], [Put("bound", b"1", session)]))
    proxy.drop_requests.set()
    sent = cut_off.commit([], [Put("bound", b"2", session), Put("plain", b"late")])
    wait_until(lambda: session.connection._link.oldest_sent_at() is not None)
    proxy.refuse.set()
    proxy.cut()
    wait_until(lambda: not session.connection.up)
    ended = session.close()
    proxy.drop_requests.clear()
    proxy.refuse.clear()
    with pytest.raises((SessionLost, OutcomeUnknown)):
        result(sent)
    result(ended)
    assert get(backend, "plain") is None


def test_a_server_that_answers_nothing_is_left_while_requests_go_out(connect, between):
    """Our own renewals keep the connection busy, so that kazoo's ping would never see it."""
    store = connect(",".join(way.endpoint for way in between), session_ttl_s=4, call_timeout_s=8)
    events = []
    watch = store.watch("k", events.append)
    result(store.commit([], [Put("k", b"1")]))
    (used,) = [way for way in between if way._pairs]
    used.drop_answers.set()
    begun = time.monotonic()
    assert get(store, "k").value == b"1"
    assert time.monotonic() - begun < 4.0
    watch.close()


def test_a_session_outlives_a_server_that_answers_nothing(connect, between):
    store = connect(",".join(way.endpoint for way in between))
    session = result(store.open_session(4.0, lambda: None))
    result(store.commit([], [Put("bound", b"1", session)]))
    for way in between:
        way.drop_answers.set()
    time.sleep(0.2)
    between[0].drop_answers.clear()
    deadline = time.monotonic() + 4.0
    while True:
        try:
            result(session.renew())
        except LatchworkError:
            assert time.monotonic() < deadline
        else:
            break
    assert get(store, "bound").owner == session.id


def test_a_pause_ends_with_an_error_when_its_timer_is_closed_before_or_after():
    timer = Timer(SYSTEM_CLOCK, "latchwork-test-timer")
    before = timer.after(60.0)
    timer.close()
    for future in (before, timer.after(60.0)):
        assert isinstance(future.exception(1), Closed)


def test_no_future_is_left_over_when_a_store_closes_amid_conflicts(connect):
    stores = [connect(), connect()]
    futures = []
    for number in range(300):
        for store in stores:
            futures.append(store.commit([], [Put("hot", b"%d" % number), Put(f"k/{number % 3}", b"")]))
            futures.append(store.delete_tree("k"))
    for store in stores:
        store.close()
    for future in futures:
        future.exception(15)
