"""No stale ``At`` ever passes: each test loses one of the races that docs/design/zookeeper.md lists, on purpose."""

from __future__ import annotations

import random
import threading
import time

import pytest

from latchwork.backends.zookeeper.layout import Version
from latchwork.errors import Conflict, SessionLost
from latchwork.types import Absent, At, Create, Delete, Exists, Put, SessionAlive


def result(future):
    return future.result(15)


def put(backend, key, value=b"v", session=None):
    return result(backend.commit([], [Put(key, value, session)])).entries[0]


def delete(backend, key):
    return result(backend.commit([], [Delete(key)])).deleted


def get(backend, key):
    return result(backend.get(key, stale_ok=False))


def open_session(backend, ttl_s=5.0):
    return result(backend.open_session(ttl_s, lambda: None))


def refused(backend, stale, key="k"):
    with pytest.raises(Conflict) as caught:
        result(backend.commit([At(stale)], [Put(key, b"stale")]))
    assert caught.value.failed == (At(stale),)


@pytest.mark.parametrize("writes", [0, 1, 3])
def test_at_refuses_a_key_recreated_by_the_same_store_with_the_same_data_version(backend, writes):
    stale = put(backend, "k")
    for _ in range(writes):
        stale = put(backend, "k")
    delete(backend, "k")
    for _ in range(writes + 1):
        fresh = put(backend, "k")
    assert fresh.version.data == stale.version.data  # what fools check()
    refused(backend, stale)


def test_at_refuses_a_key_recreated_by_another_store_that_this_one_knows_nothing_of(backend, other):
    stale = get_after_put = put(backend, "k")
    delete(other, "k")
    assert put(other, "k").version.data == get_after_put.version.data
    refused(backend, stale)


def test_at_refuses_a_session_bound_key_recreated_by_the_same_session(backend):
    session = open_session(backend)
    stale = put(backend, "k", session=session)
    delete(backend, "k")
    put(backend, "k", session=session)
    refused(backend, stale)


def test_at_refuses_a_session_bound_key_recreated_by_the_next_session(backend, other):
    session = open_session(backend)
    stale = put(backend, "k", session=session)
    result(session.close())
    again = open_session(other)
    assert put(other, "k", session=again).version.data == stale.version.data
    refused(backend, stale)


def test_at_refuses_a_key_that_became_session_bound_and_one_that_ceased_to_be(backend):
    session = open_session(backend)
    stale = put(backend, "k")
    bound = put(backend, "k", session=session)
    assert bound.version.data == stale.version.data
    assert bound.owner == session.id
    assert bound.created == stale.created
    refused(backend, stale)
    delete(backend, "k")
    put(backend, "k")
    refused(backend, bound)


def test_at_refuses_after_the_key_was_an_implied_parent_in_between(backend):
    stale = put(backend, "k", b"")
    delete(backend, "k")
    put(backend, "k/child")
    put(backend, "k", b"")
    refused(backend, stale)


def test_at_of_a_stale_read_is_decided_by_a_fresh_one(backend, other):
    put(backend, "k")
    stale = result(backend.get("k", stale_ok=True))
    assert result(backend.commit([At(stale)], [Put("k", b"next")])).entries[0].value == b"next"
    delete(other, "k")
    put(other, "k")
    refused(backend, stale)


def test_what_is_remembered_of_a_key_is_no_verdict(backend, other):
    put(backend, "absent", b"1")
    put(backend, "created", b"1")
    for key in ("absent", "created"):
        result(other.commit([], [Delete(key)]))
    done = result(backend.commit([Absent("absent")], [Create("created", b"2")]))
    assert [entry.key for entry in done.entries] == ["created"]


def test_at_holds_while_others_delete_in_the_same_bucket(backend, other):
    """A deletion elsewhere makes the guard fail; that is answered by reading again, never by a Conflict."""
    entry = put(backend, "k")
    same_bucket = next(
        f"n{n}" for n in range(10_000) if backend._layout.guard_path(f"n{n}") == backend._layout.guard_path("k")
    )
    for _ in range(20):
        put(other, same_bucket)
        delete(other, same_bucket)
        entry = result(backend.commit([At(entry)], [Put("k", b"again")])).entries[0]
        assert get(other, "k").version == entry.version


def test_versions_of_a_settled_write_still_check(backend):
    """An entry whose dataVersion was lost with the reply is compared by a fresh read."""
    entry = put(backend, "k")
    known = entry.version
    resolved = At.of("k", Version(known.mzxid, -1, -1, known.created, None, born=False))
    assert result(backend.commit([resolved], [Put("k", b"2")])).entries[0].created == entry.created


def test_increments_are_never_lost_while_others_delete_and_recreate(connect):  # noqa: C901 - one story
    """Ten threads count in one key while two delete and re-create it, carrying the count: every increment survives."""
    stores = [connect() for _ in range(3)]
    put(stores[0], "n", b"0")
    put(stores[0], "total", b"0")
    deadline = time.monotonic() + 3.0
    counted = [0] * 6
    failures = []

    def count(index):
        backend = stores[index % 3]
        while time.monotonic() < deadline:
            entry = get(backend, "n")
            if entry is None:
                continue
            try:
                result(backend.commit([At(entry)], [Put("n", b"%d" % (int(entry.value) + 1))]))
            except Conflict:
                continue
            counted[index] += 1

    def recreate(index):
        backend = stores[index % 3]
        try:
            while time.monotonic() < deadline:
                entry = get(backend, "n")
                if entry is None:
                    continue
                try:
                    result(backend.commit([At(entry)], [Delete("n"), Put("carry", entry.value)]))
                except Conflict:
                    continue
                result(backend.commit([Absent("n")], [Create("n", get(backend, "carry").value)]))
                time.sleep(random.uniform(0, 0.02))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=count, args=(index,)) for index in range(6)]
    threads.append(threading.Thread(target=recreate, args=(1,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sum(counted) > 50
    assert int(get(stores[0], "n").value) == sum(counted)


def test_absent_and_create_elsewhere_exclude_each_other(connect):
    """Of "a unless b" and "b unless a" at most one ever wins, with no key of the check among the operations."""
    one, two = connect(), connect()
    for number in range(60):
        mine, theirs = f"x{number}/a", f"y{number}/b"
        first = one.commit([Absent(theirs)], [Create(mine, b"")])
        second = two.commit([Absent(mine)], [Create(theirs, b"")])
        won = [future for future in (first, second) if future.exception(15) is None]
        assert len(won) <= 1, number
        assert all(isinstance(future.exception(), (Conflict, type(None))) for future in (first, second))


def test_absent_leaves_no_trace(backend, raw, root):
    result(backend.commit([Absent("deep/below/k")], [Put("other", b"")]))
    assert not raw.exists(f"/{root}/deep")


def test_absent_below_a_session_bound_key_holds_as_long_as_that_key(backend, other):
    session = open_session(backend)
    put(backend, "bound", session=session)
    result(other.commit([Absent("bound/below")], [Put("k", b"")]))
    result(session.close())
    put(backend, "bound/below")
    with pytest.raises(Conflict):
        result(other.commit([Absent("bound/below")], [Put("k", b"")]))


def test_exists_is_not_fooled_by_an_implied_parent(backend, other):
    put(backend, "o")
    delete(other, "o")
    put(other, "o/below")
    with pytest.raises(Conflict) as caught:
        result(backend.commit([Exists("o")], [Put("k", b"")]))
    assert caught.value.failed == (Exists("o"),)


def test_exists_of_a_session_bound_key_fails_once_the_session_is_gone(backend, other):
    session = open_session(backend)
    put(backend, "o", session=session)
    get(other, "o")
    result(session.close())
    put(backend, "o/below")  # a znode is there again, without any deletion having bumped the guard
    with pytest.raises(Conflict):
        result(other.commit([Exists("o")], [Put("k", b"")]))


def test_delete_does_not_take_an_implied_parent_for_the_key_it_remembers(backend, other, raw, root):
    for _ in range(3):
        remembered = put(backend, "k")
    delete(other, "k")
    session = open_session(other)
    put(other, "k")
    put(other, "k/below", session=session)
    delete(other, "k")
    put(other, "k")
    delete(other, "k")
    result(session.close())  # what is left at k has no key, no child, and the same data version
    assert raw.get(f"/{root}/k")[1].version == remembered.version.data
    assert delete(backend, "k") == ()


def test_a_check_of_a_live_session_passes_from_any_store_and_fails_when_it_ended(backend, other):
    session = open_session(backend)
    alive = SessionAlive(session.id)
    result(other.commit([alive], [Put("k", b"")]))
    result(session.close())
    with pytest.raises(Conflict) as caught:
        result(other.commit([alive], [Put("k", b"")]))
    assert caught.value.failed == (alive,)
    with pytest.raises(SessionLost):
        put(backend, "k", session=session)


def stale_list(backend, prefix):
    return result(backend.list(prefix, recursive=False, limit=None, start_after=None, stale_ok=True))


def test_a_check_of_an_entry_of_a_stale_list_needs_no_read(backend, other, monkeypatch):
    put(backend, "mine")
    for key in ("q/a", "q/b"):
        put(other, key)
    first, second = stale_list(backend, "q")
    monkeypatch.setattr(
        "latchwork.backends.zookeeper.writing.writes.read_states", lambda *_args, **_options: pytest.fail("it was read")
    )
    assert result(backend.commit([At(first), At(second)], [Put("q/a", b"new")])).entries[0].value == b"new"


def test_at_refuses_a_key_of_a_stale_list_that_was_recreated_with_the_same_data_version(backend, other):
    put(other, "q/a")
    (stale,) = stale_list(backend, "q")
    delete(other, "q/a")
    assert put(other, "q/a").version.data == stale.version.data
    refused(backend, stale, "q/a")
