"""Sessions: keys that vanish, deadlines, fences."""

from __future__ import annotations

import logging
import random
import threading
import time

import pytest

import latchwork
from latchwork import At, Closed, Conflict, Delete, InvalidKey, Put, SessionLost
from latchwork.clock import SYSTEM_CLOCK


def wait_until_gone(store, key, within_s):
    """Wait until a key no longer exists, and return the seconds that this took."""
    begun = SYSTEM_CLOCK.now()
    with store.mirror(key) as mirror:
        mirror.wait_until(lambda state: key not in state, within_s)
    return SYSTEM_CLOCK.now() - begun


def test_a_session_has_an_id_a_granted_ttl_and_a_deadline(store):
    session = store.open_session(2.0)
    assert session.ttl_s >= 2.0
    assert session.state == "active"
    assert 0 < session.remaining_s() <= session.ttl_s
    assert not session.lost.is_set()
    assert store.open_session(2.0).id != session.id


def test_the_primary_session_is_one_and_opens_on_first_use(store):
    assert store.session is store.session
    store.session.close()
    assert store.session.state == "active"


def test_a_session_bound_key_names_its_owner_and_vanishes_on_close(store, other):
    session = store.open_session(5.0)
    entry = store.put("bound", b"x", session=session)
    assert entry.owner == session.id
    assert other.get("bound").owner == session.id
    assert other.list("")[0].owner == session.id
    session.close()
    assert other.get("bound") is None
    assert session.state == "closed"
    session.close()


def test_create_and_sequential_keys_can_be_bound(store, other):
    session = store.open_session(5.0)
    assert store.create("one", b"", session=session).owner == session.id
    assert store.create("q/t", b"", session=session, sequential=True).owner == session.id
    session.close()
    assert other.list("", recursive=True) == []


def test_other_keys_and_other_sessions_survive_a_close(store):
    first, second = store.open_session(5.0), store.open_session(5.0)
    store.put("first", b"", session=first)
    store.put("second", b"", session=second)
    store.put("plain", b"")
    first.close()
    assert [entry.key for entry in store.list("")] == ["plain", "second"]


def test_a_session_is_renewed_for_as_long_as_it_is_open(store, other):
    session = store.open_session(1.0)
    store.put("bound", b"", session=session)
    assert not session.lost.wait(session.ttl_s * 2.2)
    assert session.state == "active"
    assert other.get("bound") is not None


def test_put_without_a_session_keeps_the_owner(store):
    session = store.open_session(5.0)
    store.put("bound", b"1", session=session)
    again = store.put("bound", b"2")
    assert again.owner == session.id
    done = store.commit([At(again)], [Put("bound", b"3")])
    assert done.entries[0].owner == session.id
    session.close()
    assert store.get("bound") is None


def test_put_with_a_session_binds_a_plain_key(store):
    plain = store.put("k", b"1")
    session = store.open_session(5.0)
    bound = store.put("k", b"2", session=session)
    assert bound.owner == session.id
    assert bound.version != plain.version
    with pytest.raises(Conflict):
        store.commit([At(plain)], [])
    session.close()
    assert store.get("k") is None


def test_put_with_a_session_moves_a_key_from_another_session(store, other):
    first, second = store.open_session(5.0), other.open_session(5.0)
    old = store.put("k", b"1", session=first)
    new = other.put("k", b"2", session=second)
    assert new.owner == second.id
    with pytest.raises(Conflict):
        store.commit([At(old)], [])
    first.close()
    assert store.get("k").owner == second.id
    second.close()
    assert store.get("k") is None


def test_a_key_keeps_its_created_token_while_it_is_bound_rebound_and_overwritten(store, other):
    first, second = store.open_session(5.0), other.open_session(5.0)
    plain = store.put("k", b"1")
    bound = store.put("k", b"2", session=first)
    moved = other.commit([At(bound)], [Put("k", b"3", second)]).entries[0]
    written = other.put("k", b"4")
    answers = [bound, moved, written, store.get("k"), store.list("")[0], store.mirror("")["k"]]
    assert [entry.created for entry in answers] == [plain.created] * 6
    assert written.owner == second.id
    other.delete("k")
    assert store.put("k", b"5", session=first).created > written.token


def test_a_session_bound_key_can_be_deleted_and_created_plain_again(store):
    session = store.open_session(5.0)
    store.put("k", b"", session=session)
    store.delete("k")
    store.put("k", b"")
    session.close()
    assert store.get("k").owner is None


def test_session_bound_keys_are_leaves(store):
    session = store.open_session(5.0)
    store.put("bound", b"", session=session)
    for call in (
        lambda: store.put("bound/below", b""),
        lambda: store.create("bound/below/deep", b""),
        lambda: store.create("bound/q", b"", sequential=True),
        lambda: store.put("bound/below", b"", session=session),
        lambda: store.commit([], [Put("fine", b""), Put("bound/below", b"")]),
        lambda: store.commit([], [Put("fine/a", b""), Put("bound/below", b""), Put("fine/b", b"")]),
    ):
        with pytest.raises(InvalidKey, match="bound"):
            call()
    store.put("above/below", b"")
    with pytest.raises(InvalidKey, match="above"):
        store.put("above", b"", session=session)
    store.put("plain", b"")
    store.put("plain/below", b"")
    with pytest.raises(InvalidKey, match="plain"):
        store.put("plain", b"", session=session)
    assert [entry.key for entry in store.list("", recursive=True)] == ["above/below", "bound", "plain", "plain/below"]


def test_a_session_fence_holds_while_it_lives_and_not_after(store, other):
    session = store.open_session(5.0)
    store.commit([session.fence], [Put("work", b"1")])
    other.commit([session.fence], [Put("work", b"2")])
    fence = session.fence
    session.close()
    for client in (store, other):
        with pytest.raises(Conflict) as caught:
            client.commit([fence], [Put("work", b"3")])
        assert fence in caught.value.failed
    assert store.get("work").value == b"2"


def test_a_check_on_a_bound_key_fails_after_its_session_ended_and_another_took_the_key(store, other):
    session = other.open_session(5.0)
    old = other.put("k", b"x", session=session)
    session.close()
    store.put("k", b"x")
    with pytest.raises(Conflict):
        store.commit([At(old)], [Put("result", b"")])


def test_a_closed_session_cannot_be_used(store):
    session = store.open_session(5.0)
    session.close()
    with pytest.raises(Closed):
        store.put("k", b"", session=session)
    assert store.get("k") is None


def test_closing_the_store_ends_its_sessions_at_once(backend_url, store):
    with latchwork.connect(backend_url) as leaving:
        leaving.put("a", b"", session=leaving.session)
        leaving.put("b", b"", session=leaving.open_session(30.0))
        assert len(store.list("")) == 2
    assert store.list("") == []


def test_close_does_not_fire_lost(store):
    fired = threading.Event()
    session = store.open_session(2.0)
    session.on_lost(fired.set)
    session.close()
    assert not fired.wait(0.3)
    assert not session.lost.is_set()


def test_a_ttl_that_is_no_time_is_refused(store):
    for ttl_s in (0, -1.0):
        with pytest.raises(ValueError, match="ttl_s"):
            store.open_session(ttl_s)


@pytest.mark.parametrize("was_there", [False, True])
@pytest.mark.parametrize("below", ["k/below", "k/far/below"])
def test_a_commit_that_binds_a_key_and_writes_below_it_is_refused_at_once(store, was_there, below):
    if was_there:
        store.put("k", b"1")
    began = time.monotonic()
    with pytest.raises(InvalidKey, match=f"{below}.*below 'k'"):
        store.commit([], [Put("k", b"2", store.session), Put(below, b"")])
    assert time.monotonic() - began < 2.0  # others keep trying until the call timeout, of 10 s
    assert store.get(below) is None


def test_a_ttl_below_the_least_is_raised_with_a_warning(store, caplog):
    with caplog.at_level(logging.WARNING, logger="latchwork"):
        session = store.open_session(0.05)
    if session.ttl_s > 0.051:
        assert "requested a TTL of 0.05 s, granted" in caplog.text
    store.put("k", b"", session=session)
    assert store.get("k").owner == session.id


def test_something_that_is_no_session_is_refused(store):
    with pytest.raises(TypeError, match=r"store\.open_session"):
        store.put("k", b"", session="7f3a")


def expire(session):
    """Let the deadline of a session pass, as if no renewal were confirmed any more."""
    renewer = session._renewer
    with renewer._lock:
        renewer._lease._counted = SYSTEM_CLOCK.now() - session.ttl_s
        renewer._lease._waiting.clear()
    session._wake()


def test_a_lost_session_fires_once_frees_its_keys_and_never_comes_back(store, other):
    fired: list[str] = []
    session = store.session
    session.on_lost(lambda: fired.append("first"))
    session.on_lost(lambda: 1 / 0)
    session.on_lost(lambda: fired.append("second"))
    store.put("bound", b"", session=session)
    expire(session)
    assert session.lost.wait(2)
    assert session.state == "lost"
    assert session.remaining_s() == 0
    wait_until_gone(other, "bound", session.ttl_s + 2)
    with pytest.raises(SessionLost):
        store.put("again", b"", session=session)
    fresh = store.session
    assert fresh.id != session.id
    assert store.put("bound", b"", session=fresh).owner == fresh.id
    late = threading.Event()
    session.on_lost(late.set)
    assert late.wait(2)
    assert fired == ["first", "second"]
    assert session.state == "lost"
    assert store.get("again") is None


def test_programs_that_seed_random_alike_share_no_session_and_no_guard(backend_url):
    """Ids that decide who owns what must not come from a generator that anybody may seed."""
    opened = []
    before = random.getstate()
    try:
        for name in ("first", "second"):
            random.seed(42)  # as many a program does, and some do again and again
            store = latchwork.connect(backend_url)
            store.put(f"plain/{name}", b"")
            random.seed(42)
            opened.append((store, store.put(f"bound/{name}", b"", session=store.session)))
    finally:
        random.setstate(before)
    (first, mine), (second, theirs) = opened
    assert mine.owner != theirs.owner
    first.close()
    assert [entry.key for entry in second.list("bound")] == ["bound/second"]
    assert second.put("plain/second", b"again").value == b"again"
    second.close()


@pytest.mark.parametrize("end", ["deleted", "deleted as a tree", "ended with its session"])
@pytest.mark.parametrize("was_key", [True, False])
def test_a_key_can_be_bound_as_soon_as_nothing_is_below_it_any_more(store, other, end, was_key):
    """Parents that are implied by keys long gone are no keys."""
    if was_key:
        store.put("k", b"plain")
    session = other.open_session(5.0) if end == "ended with its session" else None
    other.put("k/b/c/d", b"", session=session)
    other.put("k/b/e", b"", session=session)
    with pytest.raises(InvalidKey, match="below"):
        store.put("k", b"", session=store.session)
    if session is not None:
        session.close()
    elif end == "deleted":
        other.delete("k/b/c/d")
        other.delete("k/b/e")
    else:
        other.delete_tree("k/b")
    assert store.put("k", b"bound", session=store.session).owner == store.session.id
    assert other.get("k").value == b"bound"


@pytest.mark.parametrize("deletion_first", [True, False])
def test_a_commit_may_free_the_place_that_it_needs_in_whatever_order_it_says_so(store, deletion_first):
    def commit(*ops):
        store.commit([], ops if deletion_first else ops[::-1])

    store.put("k", b"", session=store.session)
    commit(Delete("k"), Put("k/below", b""))
    assert [entry.key for entry in store.list("", recursive=True)] == ["k/below"]
    commit(Delete("k/below"), Put("k", b"", store.session))
    assert [entry.key for entry in store.list("", recursive=True)] == ["k"]
    store.delete("k")
    store.put("k", b"plain")
    store.put("k/below", b"")
    commit(Delete("k/below"), Put("k", b"", store.session))
    assert store.get("k").owner == store.session.id
