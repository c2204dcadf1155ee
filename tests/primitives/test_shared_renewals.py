"""Owners of locks that share the renewals of a session: its end says that they are over, and one write renews both."""

from __future__ import annotations

import time
from concurrent.futures import Future

import pytest
from msgspec.structs import replace

from latchwork.backends.base import RenewsWithCommit
from latchwork.errors import Conflict
from latchwork.primitives import LockKeeper
from latchwork.primitives.leased.protocol import OwnerRecord, grace_s
from latchwork.testing.faults import FaultyStore
from latchwork.types import Change, Put
from through_loop import system_of

#: Whole seconds, which every server grants as they are.
TTL_S = 2.0
#: So long that what is promised, TTL + 2 s, is less than waiting for another TTL.
LONG_TTL_S = 4.0
OWNER = "owners/{}".format
ALIVE = "owners/{}/alive".format


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
    """Make a keeper that shares the renewals of a session of its store; both closed after the test."""
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
    assert time.monotonic() - begun < TTL_S / 2 + grace_s(TTL_S)
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


def test_a_sign_that_somebody_removes_costs_no_lock(shared, keepers, store, eventually):
    keeper, session = shared()
    held = keeper.acquire("orders", 10.0)
    waiting = keepers("waiting")
    store.delete(ALIVE(keeper.owner_id))
    eventually(lambda: record(store, keeper).session == "")
    assert session.state == "active"
    time.sleep(2 * grace_s(TTL_S))
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
    assert held.remaining_s() <= grace_s(TTL_S)
    eventually(lambda: not held.is_held, TTL_S)
    assert held.lost.wait(TTL_S)
    assert other.acquire("orders", 3 * TTL_S).is_held


def test_a_session_shorter_than_the_locks_is_not_shared(shared, store):
    keeper, _session = shared(session_ttl_s=TTL_S / 2)
    keeper.acquire("orders", 10.0)
    assert record(store, keeper).session == ""


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


def test_closing_removes_owner_and_sign(shared, store):
    keeper, _session = shared()
    keeper.acquire("orders", 10.0)
    owner = keeper.owner_id
    assert store.get(ALIVE(owner)) is not None
    keeper.close()
    assert store.get(OWNER(owner)) is None
    assert store.get(ALIVE(owner)) is None


def test_a_takeover_is_refused_while_the_sign_is_there(shared, keepers, store):
    """A late watch shows no sign yet: the transaction looks itself."""
    keeper, _session = shared()
    held = keeper.acquire("orders", 10.0)
    other = keepers("other")
    time.sleep(0.2)
    table = other._table
    table.record_changes([Change(ALIVE(keeper.owner_id), None)])
    time.sleep(1.2 * grace_s(TTL_S))
    assert other.try_acquire("orders") is None
    assert held.is_held
    store.commit([held.fence], [Put("written", b"1")])


@pytest.mark.threads
def test_a_renewal_by_the_session_is_refused_once_the_owner_goes_on_without_it(shared, store, eventually):
    """One that was held up on its way lands late: it must not put the owner's fate back into that session's hands."""
    keeper, session = shared()
    keeper.acquire("orders", 10.0)
    store.delete(ALIVE(keeper.owner_id))
    eventually(lambda: record(store, keeper).session == "")
    with pytest.raises(Conflict):
        keeper._table.renew(keeper.owner_id, replace(keeper._record, session=session.id), session).result(10)
    assert record(store, keeper).session == ""


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
    time.sleep(2 * grace_s(TTL_S))
    assert other.try_acquire("job/2") is None, "it runs out by its TTL"


def test_the_fence_of_who_was_taken_over_is_refused(shared, keepers, cut, store):
    keeper, session = shared(cut)
    held = keeper.acquire("orders", 10.0)
    cut.cut_off()
    cut.expire_session(session)
    keepers("other").acquire("orders", 3 * TTL_S)
    with pytest.raises(Conflict):
        store.commit([held.fence], [Put("written", b"late")])
