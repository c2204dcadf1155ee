"""A network that cuts, holds back and delays."""

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


def written(store, key, value):
    """Write until it works."""
    try:
        return store.put(key, value)
    except LatchworkError:
        return None


def test_every_call_ends_in_time_while_the_server_is_silent(near, way):
    near.put("k", b"before")
    way.hold()
    for call in (lambda: near.get("k"), lambda: near.put("k", b"v"), lambda: near.list("")):
        began = time.monotonic()
        with pytest.raises((Unavailable, OutcomeUnknown)):
            call()
        assert time.monotonic() - began < CALL_TIMEOUT_S + 2.0


def test_a_write_that_was_reported_as_not_applied_is_never_applied(near, store, way):
    refused = []
    for number in range(30):
        key = f"writes/{number}"
        if number % 3 == 0:
            way.cut()
        try:
            near.create(key, b"v")
        except Unavailable:
            refused.append(key)
        except OutcomeUnknown:
            pass
        else:
            assert store.get(key) is not None
    way.release()
    time.sleep(1.0)
    assert [key for key in refused if store.get(key) is not None] == []


def test_a_write_whose_answer_was_lost_is_known_before_the_next_one(near, store, way):
    near.put("k", b"0")
    way.hold("answers")
    with pytest.raises((OutcomeUnknown, Unavailable)):
        near.put("k", b"1")
    way.cut()
    way.release()
    eventually(lambda: written(near, "k", b"2"))
    time.sleep(1.0)
    assert store.get("k").value == b"2"


def test_a_watch_goes_on_after_a_cut_without_missing_the_state(near, store, way):
    with near.mirror("w") as mirror:
        store.put("w/before", b"v")
        mirror.wait_until(lambda state: "w/before" in state, timeout_s=BACK_S)
        way.refuse()
        store.put("w/meanwhile", b"v")
        store.delete("w/before")
        way.accept()
        mirror.wait_until(lambda state: set(state) == {"w/meanwhile"}, timeout_s=BACK_S)


def test_a_session_survives_a_short_cut(near, store, way):
    near.put("bound", b"v", session=near.session)
    way.cut()
    eventually(lambda: written(near, "after", b"v"))
    assert near.session.state == "active"
    assert store.get("bound").owner == near.session.id


def test_a_session_that_is_cut_off_for_its_ttl_is_lost_here_before_its_keys_disappear(near, store, way):
    session = near.session
    near.put("bound", b"v", session=session)
    way.hold()
    assert session.lost.wait(session.ttl_s + 2.0)
    eventually(lambda: store.get("bound") is None, 4 * session.ttl_s)
    way.release()
    with pytest.raises(SessionLost):
        near.put("bound", b"late", session=session)
    assert store.get("bound") is None
