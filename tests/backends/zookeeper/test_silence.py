"""What ends with a session or a store, and servers that take requests but answer nothing."""

from __future__ import annotations

import time

import pytest

from latchwork.backends.timer import Timer
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import Closed, OutcomeUnknown, SessionLost, Unavailable
from latchwork.types import Delete, Put


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


def test_whoever_is_told_that_a_session_closed_cannot_write_through_it_any_more(connect, proxy, backend, wait_until):
    cut_off = connect(proxy.endpoint)
    result(cut_off.commit([], [Put("plain", b"before")]))
    session = result(cut_off.open_session(6.0, lambda: None))
    result(cut_off.commit([], [Put("bound", b"0", session)]))  # known from now on: the next one is written unread
    proxy.refuse.set()
    proxy.cut()
    wait_until(lambda: not session.connection.is_connected)
    again = []

    def write_again(_future):
        again.append(cut_off.commit([], [Put("bound", b"2", session), Put("plain", b"late")]))

    cut_off.commit([], [Put("bound", b"1", session)]).add_done_callback(write_again)
    ended = session.close()
    proxy.refuse.clear()
    result(ended)
    with pytest.raises(SessionLost):
        result(again[0])
    assert get(backend, "plain").value == b"before"


def test_a_write_that_was_cut_off_is_not_sent_again_once_its_session_was_closed(connect, proxy, backend, wait_until):
    cut_off = connect(proxy.endpoint)
    result(cut_off.commit([], [Put("plain", b"before")]))  # both known: what is in flight below is the write itself
    session = result(cut_off.open_session(6.0, lambda: None))
    result(cut_off.commit([], [Put("bound", b"1", session)]))
    proxy.drop_requests.set()
    sent = cut_off.commit([], [Put("bound", b"2", session), Put("plain", b"late")])
    wait_until(lambda: session.connection._kazoo.oldest_sent_at() is not None)
    proxy.refuse.set()
    proxy.cut()
    wait_until(lambda: not session.connection.is_connected)
    ended = session.close()
    proxy.drop_requests.clear()
    proxy.refuse.clear()
    with pytest.raises((SessionLost, OutcomeUnknown)):
        result(sent)
    result(ended)
    assert get(backend, "plain").value == b"before"


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


def test_a_session_outlives_a_server_that_answers_nothing_to_its_renewals(connect, between):
    store = connect(",".join(way.endpoint for way in between))
    session = result(store.open_session(4.0, lambda: None))
    result(store.commit([], [Put("bound", b"1", session)]))
    port = session.connection._kazoo.loop._socket.getpeername()[1]
    (used,) = [way for way in between if way.endpoint.endswith(f":{port}")]
    used.drop_answers.set()
    used.drop_requests.set()
    begun = time.monotonic()
    renewals = []
    while not any(each.done() and each.exception() is None for each in renewals):
        assert time.monotonic() - begun < session.ttl_s, "no renewal went through within the TTL"
        renewals.append(session.renew())
        time.sleep(session.renew_every_s)
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


def test_a_tree_that_was_deleted_in_part_is_not_called_unchanged(connect, monkeypatch):
    store = connect()
    for future in [store.commit([], [Put(f"t/{number:03d}", b"")]) for number in range(150)]:
        result(future)
    commit = store._writer.commit
    deleting = []

    def second_batch_fails(task, checks, ops):
        if isinstance(ops[0], Delete):
            deleting.append(len(ops))
        if len(deleting) == 2:
            raise Unavailable("no server answered")
        return (yield from commit(task, checks, ops))

    monkeypatch.setattr(store._writer, "commit", second_batch_fails)
    with pytest.raises(OutcomeUnknown, match="100 of 150 keys were deleted"):
        result(store.delete_tree("t"))
    assert deleting == [100, 50]
    assert len(result(store.list("t", recursive=True, limit=None, start_after=None))) == 50
