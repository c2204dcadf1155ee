"""Locks that a restarted process has again at once, by the id of its earlier owner, on every backend."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from latchwork.errors import Conflict, InvalidKey, LockLost, OutcomeUnknown, Unavailable
from latchwork.primitives import PersistentLock
from latchwork.primitives.leased.protocol import FREE, LockRecord, LockWrite, plan_adoption
from latchwork.types import At, Entry, Exists, Put
from through_loop import system_of

#: So long that nothing here waits for it: what is had is had by adoption.
TTL_S = 60.0


@pytest.fixture
def connect(connect):
    """Open a client, and give the namespace in which locks have their keys."""
    return lambda *args, **options: system_of(connect(*args, **options), "locks")


@pytest.fixture
def store(store):
    """The namespace in which locks have their keys."""
    return system_of(store, "locks")


def dead(keepers, names, *, ttl_s=TTL_S):
    """An earlier life that left its locks to run out: its owner id, and its holds by name."""
    earlier = keepers("node-1", ttl_s=ttl_s)
    held = earlier.try_acquire_many(names)
    owner_id = earlier.owner_id
    earlier.close(release=False)
    return owner_id, held


def test_a_restarted_process_has_its_locks_again_at_once(keepers):
    names = [f"job/{number}" for number in range(250)]
    owner_id, before = dead(keepers, names)
    keeper = keepers("node-1")
    began = time.monotonic()
    held = keeper.adopt(owner_id)
    assert sorted(held) == sorted(names) == sorted(keeper.held())
    assert time.monotonic() - began < TTL_S / 2
    assert all(held[name].fence.token > before[name].fence.token for name in names)
    assert {state.holder.owner_id for state in keeper.holders()} == {keeper.owner_id}


def test_the_fences_of_the_earlier_life_are_refused(keepers, store):
    owner_id, before = dead(keepers, ["job/1"])
    keeper = keepers()
    held = keeper.adopt(owner_id)["job/1"]
    store.commit([held.fence], [Put("written", b"by the new life")])
    with pytest.raises(Conflict):
        store.commit([before["job/1"].fence], [Put("written", b"by the old one")])


def test_the_id_of_an_earlier_life_is_found_by_its_label(keepers):
    owner_id, _ = dead(keepers, ["job/1", "job/2"])
    keeper = keepers("node-1")
    mine = {state.holder.owner_id for state in keeper.holders() if state.holder.label == "node-1"}
    assert mine == {owner_id}
    assert keeper.adopt(mine.pop()).keys() == {"job/1", "job/2"}


def test_an_earlier_life_that_still_runs_is_told_that_its_locks_are_lost(keepers, eventually):
    earlier, lost = keepers("node-1"), []
    earlier.on_lost(lost.append)
    held = earlier.acquire("job/1", 5.0)
    with held.guard_work() as work:
        assert keepers().adopt(held.owner_id).keys() == {"job/1"}
        eventually(lambda: lost)  # long before its next renewal, which is due in 20 s
        assert lost == [("job/1",)]
        assert work.is_stopped
        assert not held.is_held


def test_an_earlier_life_whose_watch_is_silent_is_told_by_its_next_renewal(keepers, connect, monkeypatch, eventually):
    store, lost = connect(), []
    mirror = store.mirror
    monkeypatch.setattr(
        store, "mirror", lambda prefix, **options: mirror(f"{prefix}-never-shown", **options)
    )  # it follows nothing
    earlier = keepers("node-1", ttl_s=1.0, store=store)
    earlier.on_lost(lost.append)
    owner_id = earlier.acquire("job/1", 5.0).owner_id
    assert keepers().adopt(owner_id).keys() == {"job/1"}
    eventually(lambda: lost)
    assert f"owners/{owner_id}" not in [owner.key for owner in store.list("owners")]


def test_only_the_locks_that_are_named_are_adopted(keepers):
    owner_id, _ = dead(keepers, ["job/1", "job/2"])
    first, second = keepers(), keepers()
    assert first.adopt(owner_id, ["job/1", "job/9"]).keys() == {"job/1"}
    assert second.state("job/2").holder.owner_id == owner_id
    assert second.adopt(owner_id).keys() == {"job/2"}


def test_a_lock_that_another_took_meanwhile_is_not_adopted(keepers, connect, monkeypatch):
    owner_id, _ = dead(keepers, ["job/1", "job/2"])
    other = keepers()
    other.acquire("job/0", 5.0)
    store = connect()
    keeper = keepers(store=store)
    listed = store.list

    def list_then_lose(prefix, **options):
        found = listed(prefix, **options)
        if prefix == "locks":
            other._store.delete(f"owners/{owner_id}")
            assert other.acquire("job/1", 30.0).is_held
        return found

    monkeypatch.setattr(store, "list", list_then_lose)
    assert keeper.adopt(owner_id).keys() == {"job/2"}
    assert other.held().keys() == {"job/0", "job/1"}
    assert keeper.state("job/1").holder.owner_id == other.owner_id


def test_two_that_adopt_at_once_share_no_lock(keepers):
    names = [f"job/{number}" for number in range(200)]
    owner_id, _ = dead(keepers, names)
    heirs, got = [keepers(), keepers()], []
    threads = [threading.Thread(target=lambda heir=heir: got.append(heir.adopt(owner_id))) for heir in heirs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert len(got) == 2
    assert not got[0].keys() & got[1].keys()
    assert sorted([*got[0], *got[1]]) == sorted(names)


def test_an_owner_about_to_be_taken_over_lives_until_its_locks_are_adopted(keepers, connect, monkeypatch):
    rival = keepers()  # it follows the owners from here on
    owner_id, _ = dead(keepers, ["job/1"], ttl_s=1.0)
    rival.acquire("job/0", 5.0)
    store = connect()
    keeper = keepers(store=store)
    time.sleep(1.3)  # silent for more than 1.05 TTL: the rival may take it over from now on
    listed, taken = store.list, []

    def list_while_the_rival_tries(prefix, **options):
        found = listed(prefix, **options)
        if prefix == "locks":
            taken.append(rival.try_acquire("job/1"))
        return found

    monkeypatch.setattr(store, "list", list_while_the_rival_tries)
    adopted = keeper.adopt(owner_id)
    assert taken == [None]
    assert adopted.keys() == {"job/1"}


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "never applied"])
def test_an_adoption_with_a_lost_answer_goes_on(keepers, connect, monkeypatch, applied):
    owner_id, _ = dead(keepers, ["job/1"])
    store = connect()
    keeper, rival = keepers(store=store), keepers()
    commit, cuts = store.commit, []

    def cut_once(checks, ops):
        if cuts or not any(op.key == "locks/job/1" for op in ops):
            return commit(checks, ops)
        cuts.append(ops)
        if applied:
            commit(checks, ops)
        raise OutcomeUnknown("cut")

    monkeypatch.setattr(store, "commit", cut_once)
    held = keeper.adopt(owner_id)["job/1"]
    assert cuts
    store.commit([held.fence], [Put("written", b"1")])
    assert rival.try_acquire("job/1") is None
    held.release()
    assert rival.try_acquire("job/1") is not None


def test_an_adoption_without_a_server_says_so_and_can_be_called_again(keepers, connect, monkeypatch):
    owner_id, _ = dead(keepers, [f"job/{number}" for number in range(120)])
    store = connect()
    keeper = keepers(store=store)
    keeper.acquire("other", 5.0)
    commit, commits = store.commit, []

    def second_fails(checks, ops):
        commits.append(ops)
        if len(commits) == 3:  # the first prolongs, the second moves 90 locks
            raise Unavailable("cut")
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", second_fails)
    with pytest.raises(Unavailable, match="cut"):
        keeper.adopt(owner_id, timeout_s=0)
    assert len(keeper.held()) > 1
    keeper.adopt(owner_id)
    assert len(keeper.held()) == 121


def test_the_own_owner_cannot_be_adopted(keepers):
    keeper = keepers()
    keeper.acquire("job/1", 5.0)
    with pytest.raises(ValueError, match="is that of this keeper"):
        keeper.adopt(keeper.owner_id)


def test_an_owner_that_never_was_leaves_nothing_to_adopt(keepers):
    keeper = keepers()
    assert keeper.adopt("0" * 32) == {}
    with pytest.raises(InvalidKey, match="owner name"):
        keeper.adopt("a/b")


def test_a_persistent_lock_is_adopted_by_the_id_of_its_holder(connect, keepers):
    owner_id, before = dead(keepers, ["orders"])
    store = connect()
    lock = PersistentLock(store, "orders", ttl_s=TTL_S)
    assert lock.holder().owner_id == owner_id
    fence = lock.adopt(owner_id)
    assert fence.token > before["orders"].fence.token
    assert lock.is_held
    assert lock.owner_id != owner_id
    lock.release()
    assert lock.holder() is None
    lock.close()


def test_the_lock_of_a_killed_process_is_had_at_once_by_the_one_that_follows(connect, holder):
    victim = holder("lock", "orders", TTL_S)
    token = victim.hear()["token"]
    victim.send(signal.SIGKILL)
    victim.process.wait(30)
    lock = PersistentLock(connect(), "orders", ttl_s=TTL_S)
    began = time.monotonic()
    assert lock.adopt(lock.holder().owner_id, 30.0).token > token
    assert time.monotonic() - began < TTL_S / 2
    lock.close()


def test_a_persistent_lock_that_the_owner_has_no_more_is_not_adopted(connect, keepers):
    owner_id, _ = dead(keepers, ["other"])
    lock = PersistentLock(connect(), "orders", ttl_s=TTL_S)
    with pytest.raises(LockLost, match="is not held by owner"):
        lock.adopt(owner_id)
    assert not lock.is_held
    lock.close()


def test_an_adoption_checks_the_lock_and_that_we_live():
    record = LockRecord("old", "nonce").to_bytes()
    entry = Entry("locks/a", record, 7, 7, 7, None)
    decision = plan_adoption("locks/a", entry, b"mine", own_key="owners/me", owner_key="owners/old", old="owners/old")
    assert decision == LockWrite((At(entry), Exists("owners/me")), (Put("locks/a", b"mine"),))


@pytest.mark.parametrize("value", [None, FREE, b"something else"])
def test_a_lock_that_names_nobody_is_not_adopted(value):
    entry = None if value is None else Entry("locks/a", value, 7, 7, 7, None)
    decision = plan_adoption("locks/a", entry, b"mine", own_key="owners/me", owner_key="owners/", old="owners/old")
    assert not isinstance(decision, LockWrite)
