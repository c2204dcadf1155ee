"""Sessions of the embedded backend: an expired one is dead whether or not anybody has swept it."""

from __future__ import annotations

import sqlite3
import threading
import time

import pytest

import latchwork
from latchwork.backends.embedded.connection import Database
from latchwork.backends.embedded.sessions import MIN_TTL_S
from latchwork.errors import Closed, Conflict, SessionLost, Unavailable
from latchwork.types import Absent, Create, Put, SessionAlive


def open_session(store, ttl_s=10.0, on_gone=lambda: None):
    return store.open_session(ttl_s, on_gone).result()


def keys_of(store):
    return [entry.key for entry in store.list("", recursive=True, limit=None, start_after=None).result()]


def without_sweeps(store):
    """Stop the thread that sweeps, as if every process were busy elsewhere."""
    store._poller.close()
    return store


def test_ttl_below_the_least_is_raised(store):
    assert open_session(store, 0.001).ttl_s == MIN_TTL_S
    assert open_session(store, 3).ttl_s == 3.0


def test_sessions_have_unique_ids_and_growing_tokens(store):
    sessions = [open_session(store) for _ in range(5)]
    assert len({session.id for session in sessions}) == 5
    assert [s.token for s in sessions] == sorted({s.token for s in sessions})
    after = store.commit([], [Put("a", b"")]).result().token
    assert after > sessions[-1].token


def test_keys_of_an_expired_session_vanish_as_deletions(store, collector, eventually):
    session = open_session(store, 0.3)
    sink = collector()
    store.watch("a", sink)
    (bound,) = store.commit([], [Put("a", b"", session)]).result().entries
    eventually(lambda: [c for c in sink.changes() if c.entry is None] or "a" not in keys_of(store))
    eventually(lambda: sink.changes() and sink.changes()[-1].entry is None)
    assert store.commit([Absent("a")], [Put("b", b"")]).result().token > bound.token + 1


def test_renewing_keeps_the_keys_beyond_the_ttl(store):
    session = open_session(store, 0.4)
    store.commit([], [Put("a", b"", session)]).result()
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        session.renew().result()
        time.sleep(0.05)
    assert keys_of(store) == ["a"]


WRITERS, WRITE_S = 60, 0.02


def test_a_renewal_is_made_before_the_writes_that_wait_in_its_process(url, monkeypatch):
    """Without that, it waits for all of them, which takes longer than it may."""
    commit, ended = Database._commit, threading.Event()

    def commit_slowly(database, conn):
        time.sleep(WRITE_S)
        commit(database, conn)

    with latchwork.connect(url, session_ttl_s=3.0) as store:
        assert 2 * store.session.ttl_s / 8 < WRITERS * WRITE_S

        def write(number):
            while not ended.is_set():
                store.put(f"key/{number}", b"")

        monkeypatch.setattr(Database, "_commit", commit_slowly)
        writers = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
        for each in writers:
            each.start()
        is_lost = store.session.lost.wait(6.0)
        ended.set()
        for each in writers:
            each.join(30.0)
        assert not is_lost


def test_renewal_counts_from_its_start(opened, url, clock):
    store = opened(url, clock)
    session = open_session(store)
    before = clock.now()
    assert before <= session.renew().result() <= clock.now()


def test_renewal_whose_write_took_long_counts_from_before_it(opened, url, clock, monkeypatch):
    store = opened(url, clock)
    session = open_session(store, 60)
    write, before = store._write, clock.now()

    def slow(*arguments, **options):
        clock.clock_offset_s += 5.0
        return write(*arguments, **options)

    monkeypatch.setattr(store, "_write", slow)
    assert before <= session.renew().result() < before + 5.0


def test_expired_session_is_refused_before_anybody_sweeps_it(opened, url, clock):
    store = without_sweeps(opened(url, clock))
    session = open_session(store, 5)
    store.commit([], [Put("a", b"", session)]).result()
    clock.clock_offset_s = 5.001
    with pytest.raises(SessionLost, match=session.id):
        session.renew().result()
    with pytest.raises(SessionLost, match=session.id):
        store.commit([], [Put("b", b"", session)]).result()
    with pytest.raises(SessionLost):
        store.create_sequential("n-", b"", session).result()
    for ops in ([], [Put("b", b"")]):
        with pytest.raises(Conflict, match="has ended"):
            store.commit([SessionAlive(session.id)], ops).result()
    assert store.get("b", stale_ok=False).result() is None


def test_expired_session_stays_dead_when_the_clock_is_asked_again_earlier(opened, url, clock):
    """A renewal that judged the session before its deadline but came after a sweep must not bring it back."""
    store = without_sweeps(opened(url, clock))
    session = open_session(store, 5)
    clock.clock_offset_s = 6
    assert store.remove_ended_sessions()
    clock.clock_offset_s = 0
    with pytest.raises(SessionLost):
        session.renew().result()


def test_write_takes_over_the_key_of_an_expired_session_without_a_sweep(opened, url, clock):
    store = without_sweeps(opened(url, clock))
    session = open_session(store, 5)
    (bound,) = store.commit([], [Put("a", b"", session)]).result().entries
    clock.clock_offset_s = 5.001
    (taken,) = store.commit([Absent("a")], [Create("a", b"mine")]).result().entries
    assert taken.owner is None
    assert taken.created > bound.token


def test_session_is_alive_until_its_deadline(opened, url, clock):
    store = without_sweeps(opened(url, clock))
    session = open_session(store, 5)
    clock.clock_offset_s = 4.5
    assert store.commit([SessionAlive(session.id)], [Put("a", b"", session)]).result().token
    session.renew().result()
    clock.clock_offset_s = 9
    assert store.commit([SessionAlive(session.id)], []).result().token == 0


def test_closed_session_is_gone_at_once_and_refused(store):
    session = open_session(store)
    store.commit([], [Put("a", b"", session), Put("b", b"")]).result()
    session.close().result()
    session.close().result()
    assert keys_of(store) == ["b"]
    with pytest.raises(SessionLost):
        session.renew().result()
    with pytest.raises(SessionLost):
        store.commit([], [Put("a", b"", session)]).result()


def test_closing_the_store_ends_its_sessions(url, store, opened):
    owner = opened(url)
    owner.commit([], [Put("a", b"", open_session(owner))]).result()
    owner.close()
    assert keys_of(store) == []
    with pytest.raises(Closed):
        open_session(owner)


def test_session_closed_while_the_file_is_locked_is_refused_at_once_and_removed_later(
    sqlite_url, opened, tmp_path, eventually
):
    store, other = opened(sqlite_url, call_timeout_s=0.2), opened(sqlite_url)
    session = open_session(store)
    store.commit([], [Put("a", b"", session)]).result()
    blocker = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable):
        session.close().result()
    with pytest.raises(Conflict):
        store.commit([SessionAlive(session.id)], []).result()
    assert keys_of(other) == ["a"]
    blocker.execute("ROLLBACK")
    blocker.close()
    eventually(lambda: keys_of(other) == [])
    with pytest.raises(SessionLost):
        store.commit([], [Put("a", b"", session)]).result()


def test_renewal_waits_for_a_locked_file_only_for_a_part_of_the_ttl(sqlite_url, opened, tmp_path):
    store = opened(sqlite_url, call_timeout_s=30)
    session = open_session(store, 2)
    blocker = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    with pytest.raises(Unavailable):
        session.renew().result()
    assert time.monotonic() - started < 1.5
    blocker.close()
    session.renew().result()


def test_session_of_another_root_is_unknown_here(url, store, opened):
    session = open_session(opened(url, root="other"))
    with pytest.raises(SessionLost):
        store.commit([], [Put("a", b"", session)]).result()


def test_owner_hears_once_when_a_third_party_ends_its_session(sqlite_url, opened, tmp_path, eventually):
    store = opened(sqlite_url)
    calls = []
    session = open_session(store, 30, lambda: calls.append(1))
    third = sqlite3.connect(tmp_path / "store.db")
    third.execute("DELETE FROM sessions")
    third.commit()
    third.close()
    eventually(lambda: calls)
    store.commit([], [Put("a", b"")]).result()
    time.sleep(0.2)
    assert calls == [1]
    with pytest.raises(SessionLost):
        session.renew().result()


@pytest.mark.parametrize("change", ["boot = 'another boot'", "deadline = deadline + 1e6"])
def test_sessions_of_another_boot_are_expired(sqlite_url, opened, tmp_path, change):
    """After a reboot the clock starts again, so that an old deadline may lie far ahead."""
    owner = without_sweeps(opened(sqlite_url))
    session = open_session(owner, 100)
    owner.commit([], [Put("a", b"", session), Put("b", b"")]).result()
    third = sqlite3.connect(tmp_path / "store.db")
    third.execute(f"UPDATE sessions SET {change}")
    third.commit()
    third.close()
    with pytest.raises(SessionLost):
        session.renew().result()
    with pytest.raises(Conflict):
        owner.commit([SessionAlive(session.id)], []).result()
    assert keys_of(opened(sqlite_url)) == ["b"]
