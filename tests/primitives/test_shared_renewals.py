"""Owners of locks that name a session: they write nothing while it is alive, and end with it."""

from __future__ import annotations

import time
from concurrent.futures import Future

import pytest

from latchwork.backends.base import RenewsWithCommit
from latchwork.backends.futures import failed
from latchwork.errors import Conflict, Unavailable
from latchwork.primitives import LockKeeper
from latchwork.primitives.leased.protocol import OwnerRecord, session_grace_s
from latchwork.testing.faults import FaultyStore
from latchwork.types import Change, Put
from through_loop import system_of

#: Whole seconds, which every server grants as they are.
TTL_S = 2.0
#: So long that what is promised, TTL + 2 s, is less than waiting for another TTL.
LONG_TTL_S = 4.0
OWNER = "owners/{}".format
ALIVE = "owners/alive/{}".format


@pytest.fixture
def connect(connect):
    """Open a client, and give the namespace in which locks have their keys."""
    return lambda *args, **options: system_of(connect(*args, **options), "locks")


@pytest.fixture
def store(store):
    """The namespace in which locks have their keys."""
    return system_of(store, "locks")


@pytest.fixture
def shared(connect):
    """Make a keeper with a session of its store. Both are closed after the test."""
    made = []

    def make(store=None, *, ttl_s=TTL_S, session_ttl_s=None):
        store = store or connect()
        session = store.open_session(session_ttl_s or ttl_s)
        keeper = LockKeeper(store, ttl_s=ttl_s, owner_label="shared", session=lambda: session)
        made.append((keeper, store))
        keeper.start()
        return keeper, session

    yield make
    for keeper, store in made:
        keeper.close()
        store.close()


@pytest.fixture
def cut(connect):
    """A client that can be cut off; back before the test ends."""
    with FaultyStore(connect()) as store:
        yield store
        store.reconnect()


def record(store, keeper):
    return OwnerRecord.decode(store.get(OWNER(keeper.owner_id)).value)


def test_who_comes_to_look_after_the_death_of_a_holder_waits_for_no_ttl_of_its_own(holder, keepers):
    """Counted from its own first look it would be 0.8 TTL and 1.05 TTL, behind what is promised: TTL + 2 s."""
    held = holder("shared lock", "orders", ttl_s=LONG_TTL_S)
    assert "token" in held.hear()
    held.process.kill()
    died = time.monotonic()
    time.sleep(0.8 * LONG_TTL_S)
    keepers("newcomer", ttl_s=LONG_TTL_S).acquire("orders", 4 * LONG_TTL_S)
    assert time.monotonic() - died < LONG_TTL_S + 2.0


def test_who_comes_after_the_end_of_the_holders_session_has_the_lock_within_the_grace(shared, keepers, cut):
    keeper, session = shared(cut)
    held = keeper.acquire("orders", 10.0)
    cut.cut_off()  # it cannot say that it goes on without its session
    cut.expire_session(session)
    begun = time.monotonic()
    taken = keepers("newcomer").acquire("orders", 3 * TTL_S)
    assert time.monotonic() - begun < TTL_S / 2 + session_grace_s(TTL_S)
    assert taken.fence.token > held.fence.token


def test_a_lock_survives_the_end_of_its_session_while_its_process_lives(shared, keepers, store, eventually):
    keeper, session = shared()
    held = keeper.acquire("orders", 10.0)
    assert record(store, keeper).session == session.id
    waiting = keepers("waiting")
    session.close()
    eventually(lambda: record(store, keeper).session == "")
    assert store.get(ALIVE(keeper.owner_id)) is None
    assert waiting.try_acquire("orders") is None
    time.sleep(1.5 * TTL_S)  # renewed by itself from then on
    assert held.is_held
    assert waiting.try_acquire("orders") is None
    store.commit([held.fence], [Put("written", b"1")])


def test_an_liveness_key_that_somebody_removes_costs_no_lock(shared, keepers, store, eventually):
    keeper, session = shared()
    held = keeper.acquire("orders", 10.0)
    waiting = keepers("waiting")
    store.delete(ALIVE(keeper.owner_id))
    eventually(lambda: record(store, keeper).session == "")
    assert session.state == "active"
    time.sleep(2 * session_grace_s(TTL_S))
    assert held.is_held
    assert waiting.try_acquire("orders") is None


def test_locks_left_to_run_out_outlive_the_session_that_ends_right_after(shared, keepers, store):
    keeper, session = shared()
    keeper.acquire("orders", 10.0)
    owner = keeper.owner_id
    keeper.close(release=False)
    session.close()
    left, other = time.monotonic(), keepers("other")
    assert OwnerRecord.decode(store.get(OWNER(owner)).value).session == ""
    other.acquire("orders", 4 * TTL_S)
    assert time.monotonic() - left > 0.9 * TTL_S


def test_a_holder_knows_of_the_end_of_its_session_before_another_has_its_lock(shared, keepers, cut, eventually):
    keeper, session = shared(cut)
    held = keeper.acquire("orders", 10.0)
    other = keepers("other")
    cut.cut_off()
    session.close()
    assert held.remaining_s() <= session_grace_s(TTL_S)
    eventually(lambda: not held.is_held, TTL_S)
    assert held.lost.wait(TTL_S)
    assert other.acquire("orders", 3 * TTL_S).is_held


def test_a_session_shorter_than_the_locks_is_not_shared(shared, store):
    keeper, _session = shared(session_ttl_s=TTL_S / 2)
    keeper.acquire("orders", 10.0)
    assert record(store, keeper).session == ""


def test_an_owner_is_not_rewritten_while_its_session_lives(shared, keepers, store):
    keeper, _session = shared()
    held, other = keeper.acquire("orders", 10.0), keepers("other")
    before = store.get(OWNER(keeper.owner_id))
    time.sleep(2.5 * TTL_S)
    assert store.get(OWNER(keeper.owner_id)) == before
    assert held.is_held
    assert other.try_acquire("orders") is None
    assert other.sweep() == (0, 0)


def test_an_owner_is_renewed_by_the_transaction_that_renews_its_session(shared, monkeypatch):
    keeper, session = shared()
    keeper.acquire("orders", 10.0)
    renewed = []
    renew = session._backend.renew

    def counted() -> Future[float]:
        renewed.append(time.monotonic())
        return renew()

    time.sleep(0.1)
    monkeypatch.setattr(session._renewer, "_send", counted)
    time.sleep(1.5 * TTL_S)
    assert session.state == "active"
    if isinstance(session._backend, RenewsWithCommit):  # else a renewal costs no transaction of the root
        assert len(renewed) <= 1, "those of the owner are enough"


def test_closing_removes_owner_and_liveness_key(shared, store):
    keeper, _session = shared()
    keeper.acquire("orders", 10.0)
    owner = keeper.owner_id
    assert store.get(ALIVE(owner)) is not None
    keeper.close()
    assert store.get(OWNER(owner)) is None
    assert store.get(ALIVE(owner)) is None


def test_a_takeover_is_refused_while_the_liveness_key_exists(shared, keepers, store):
    """A late watch shows no liveness key yet, so the transaction checks it."""
    keeper, _session = shared()
    held = keeper.acquire("orders", 10.0)
    other = keepers("other")
    time.sleep(0.2)
    table = other._table
    table.record_changes([Change(ALIVE(keeper.owner_id), None)])
    time.sleep(1.2 * session_grace_s(TTL_S))
    assert other.try_acquire("orders") is None
    assert held.is_held
    store.commit([held.fence], [Put("written", b"1")])


def test_a_sweep_is_refused_while_the_liveness_key_exists(shared, keepers, store, monkeypatch, eventually):
    """A listing that is no snapshot may miss a liveness key, so the transaction checks it."""
    keeper, _session = shared()
    keeper.acquire("orders", 10.0).release()  # a sweep reads the owners of held locks again
    owner, other = keeper.owner_id, keepers("other")
    listed = other._store.list

    def list_without_liveness_keys(prefix, **options):
        return [entry for entry in listed(prefix, **options) if not entry.key.startswith("owners/alive/")]

    other.start()
    eventually(
        lambda: other._table.find_observed_owner(owner) is not None
    )  # from then on, the watch shows no liveness key again
    monkeypatch.setattr(other._store, "list", list_without_liveness_keys)
    other.sweep()
    assert other._table.find_observed_owner(owner).missing_since is not None
    time.sleep(session_grace_s(TTL_S) + 1.1 * TTL_S)
    assert other.sweep() == (0, 0)
    assert store.get(OWNER(owner)) is not None


def test_a_takeover_is_refused_once_the_owner_goes_on_without_its_session(shared, keepers, store, cut, monkeypatch):
    """The owner is rewritten just before the transaction of an observer that has waited for the grace."""
    keeper, session = shared(cut)
    keeper.acquire("orders", 10.0)
    owner, other = keeper.owner_id, keepers("other")
    cut.cut_off()
    cut.expire_session(session)
    commit, renewed = other._store.commit, []

    def commit_later(checks, ops):
        if OWNER(owner) in [op.key for op in ops] and not renewed:
            renewed.append(store.put(OWNER(owner), OwnerRecord(TTL_S).to_bytes()))
        return commit(checks, ops)

    monkeypatch.setattr(other._store, "commit", commit_later)
    begun = time.monotonic()
    other.acquire("orders", 4 * TTL_S)
    assert renewed
    assert time.monotonic() - begun > TTL_S, "the TTL counts from then on"


def test_an_owner_that_lost_its_liveness_key_goes_on_although_its_watch_is_silent(
    connect, shared, keepers, monkeypatch
):
    """Another client adopts one of its locks. The next renewal of the owner keeps the others."""
    store = connect()
    mirror = store.mirror
    monkeypatch.setattr(store, "mirror", lambda prefix, **options: mirror(f"{prefix}-never-shown", **options))
    keeper, _session = shared(store)
    locks = keeper.try_acquire_many(["job/1", "job/2"])
    other = keepers("other")
    assert other.adopt(keeper.owner_id, ["job/1"]).keys() == {"job/1"}
    time.sleep(1.5 * TTL_S)
    assert other.try_acquire("job/2") is None
    assert locks["job/2"].is_held


@pytest.mark.parametrize("is_early", [True, False], ids=["waits before", "comes after"])
def test_an_liveness_key_whose_removal_no_watch_shows_blocks_no_lock(
    shared, keepers, cut, monkeypatch, in_thread, is_early
):
    keeper, session = shared(cut)
    keeper.acquire("orders", 10.0)
    key, other = ALIVE(keeper.owner_id), keepers("other", ttl_s=TTL_S)
    record, shown = other._table.record_changes, []

    def record_no_end(changes):
        shown.extend(change for change in changes if change.key == key and change.entry is None)
        return record([change for change in changes if change not in shown])

    monkeypatch.setattr(other._table, "record_changes", record_no_end)
    assert other.try_acquire("orders") is None
    waiting = in_thread(lambda: other.acquire("orders", 4 * TTL_S)) if is_early else None
    time.sleep(0.2)
    cut.cut_off()
    cut.expire_session(session)
    if waiting is not None:
        assert waiting.outcome().is_held
        return
    time.sleep(0.5)
    assert other.try_acquire("orders") is None  # it reads again, and finds no liveness key
    time.sleep(1.5 * session_grace_s(TTL_S))
    assert other.try_acquire("orders") is not None


def test_a_lost_owner_does_not_keep_its_locks_by_a_session_that_lives(shared, keepers, monkeypatch):
    """Its checks are not answered, and its holders release nothing."""
    keeper, session = shared()
    held, other = keeper.acquire("orders", 10.0), keepers("other")
    lost = Unavailable("renewals are lost on their way")
    monkeypatch.setattr(keeper._table, "renew_by_check", lambda *_owner: failed(lost))
    monkeypatch.setattr(keeper._table, "renew_and_detach", lambda *_owner: failed(lost))
    other.acquire("orders", 4 * TTL_S)
    assert not held.is_held
    assert session.state == "active"


def test_an_adopted_owner_does_not_end_with_the_session_of_its_dead_process(shared, keepers, store, cut):
    keeper, session = shared(cut)
    names = ["job/1", "job/2"]
    keeper.try_acquire_many(names)
    owner = keeper.owner_id
    cut.cut_off()
    later = keepers("later")
    assert later.adopt(owner, ["job/1"]).keys() == {"job/1"}
    assert OwnerRecord.decode(store.get(OWNER(owner)).value).session == ""
    cut.expire_session(session)
    other = keepers("other")
    time.sleep(2 * session_grace_s(TTL_S))
    assert other.try_acquire("job/2") is None, "it runs out by its TTL"


def test_the_fence_of_who_was_taken_over_is_refused(shared, keepers, cut, store):
    keeper, session = shared(cut)
    held = keeper.acquire("orders", 10.0)
    cut.cut_off()
    cut.expire_session(session)
    keepers("other").acquire("orders", 3 * TTL_S)
    with pytest.raises(Conflict):
        store.commit([held.fence], [Put("written", b"late")])
