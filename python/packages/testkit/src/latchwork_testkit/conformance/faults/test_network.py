"""Network faults: connections that are cut, held and refused."""

from __future__ import annotations

import time

import pytest

from latchwork.errors import LatchworkError, OutcomeUnknown, SessionLost, Unavailable

CALL_TIMEOUT_S = 3.0
BACK_S = 15.0


def eventually(condition, timeout_s=BACK_S):
    until = time.monotonic() + timeout_s
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.02)
    assert found


def put_or_none(store, key, value):
    """Put a value and return the entry, or None if the store reports an error."""
    try:
        return store.put(key, value)
    except LatchworkError:
        return None


def test_every_call_ends_in_time_while_the_server_is_silent(proxied_store, proxy):
    proxied_store.put("k", b"before")
    proxy.hold()
    for call in (lambda: proxied_store.get("k"), lambda: proxied_store.put("k", b"v"), lambda: proxied_store.list("")):
        began = time.monotonic()
        with pytest.raises((Unavailable, OutcomeUnknown)):
            call()
        assert time.monotonic() - began < CALL_TIMEOUT_S + 2.0


def test_a_write_that_was_reported_as_not_applied_is_never_applied(proxied_store, store, proxy):
    refused = []
    for number in range(30):
        key = f"writes/{number}"
        if number % 3 == 0:
            proxy.cut()
        try:
            proxied_store.create(key, b"v")
        except Unavailable:
            refused.append(key)
        except OutcomeUnknown:
            pass
        else:
            assert store.get(key) is not None
    proxy.release()
    time.sleep(1.0)
    assert [key for key in refused if store.get(key) is not None] == []


def test_a_write_whose_answer_was_lost_is_known_before_the_next_one(proxied_store, store, proxy):
    proxied_store.put("k", b"0")
    proxy.hold("answers")
    with pytest.raises((OutcomeUnknown, Unavailable)):
        proxied_store.put("k", b"1")
    proxy.cut()
    proxy.release()
    eventually(lambda: put_or_none(proxied_store, "k", b"2"))
    time.sleep(1.0)
    assert store.get("k").value == b"2"


def test_a_watch_continues_after_a_cut_and_reports_the_current_state(proxied_store, store, proxy):
    with proxied_store.mirror("w") as mirror:
        store.put("w/before", b"v")
        mirror.wait_until(lambda state: "w/before" in state, timeout_s=BACK_S)
        proxy.refuse()
        store.put("w/meanwhile", b"v")
        store.delete("w/before")
        proxy.accept()
        mirror.wait_until(lambda state: set(state) == {"w/meanwhile"}, timeout_s=BACK_S)


def test_a_session_survives_a_short_cut(proxied_store, store, proxy):
    proxied_store.put("bound", b"v", session=proxied_store.session)
    proxy.cut()
    eventually(lambda: put_or_none(proxied_store, "after", b"v"))
    assert proxied_store.session.state == "active"
    assert store.get("bound").owner == proxied_store.session.id


def test_a_session_that_is_cut_off_for_its_ttl_is_lost_here_before_its_keys_disappear(proxied_store, store, proxy):
    session = proxied_store.session
    proxied_store.put("bound", b"v", session=session)
    proxy.hold()
    assert session.lost.wait(session.ttl_s + 2.0)
    eventually(lambda: store.get("bound") is None, 4 * session.ttl_s)
    proxy.release()
    with pytest.raises(SessionLost):
        proxied_store.put("bound", b"late", session=session)
    assert store.get("bound") is None
