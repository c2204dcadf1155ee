"""One owner with many locks, on every backend."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

import latchwork
from latchwork.errors import Closed, Conflict, LockLost, OutcomeUnknown, Unavailable
from latchwork.primitives import lock_states
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.types import Put
from through_loop import system_of

TTL_S = 1.0
WRITES = ("put", "create", "create_sequential", "delete", "delete_tree", "commit")


@pytest.fixture
def connect(connect):
    """Open a client, and give the namespace in which locks have their keys."""
    return lambda *args, **options: system_of(connect(*args, **options), "locks")


@pytest.fixture
def store(store):
    """The namespace in which locks have their keys."""
    return system_of(store, "locks")


def owners(store):
    return store.list("owners")


def test_one_renewal_write_keeps_any_number_of_locks(store, keepers):
    keeper = keepers()
    names = [f"report/item-{number}" for number in range(250)]
    held = keeper.try_acquire_many(names)
    assert sorted(held) == sorted(names)
    before = store.list("locks", recursive=True)
    (owner,) = owners(store)
    time.sleep(1.5 * TTL_S)
    assert store.list("locks", recursive=True) == before
    (renewed,) = owners(store)
    assert renewed.key == owner.key
    assert renewed.version != owner.version
    assert all(lock.is_held for lock in held.values())


def test_more_locks_need_no_more_renewals(connect, keepers):
    """One write, of one key, per third of the TTL; 3 would be needed if each lock had to be written."""
    ttl_s = 3.0
    with FaultyStore(connect()) as store, keepers(store=store, ttl_s=ttl_s) as keeper:
        keeper.try_acquire_many([f"report/item-{number}" for number in range(250)])
        before, begun = len(store.calls), time.monotonic()
        time.sleep(ttl_s)
        wrote = [call for call in store.calls[before:] if call.op in WRITES]
        took_s = time.monotonic() - begun
    assert 2 <= len(wrote) <= took_s / (ttl_s / 3) + 2  # one more at the edge, one for a renewal that was answered late
    assert {key for call in wrote for key in call.keys} == {call.keys[0] for call in wrote[:1]}


@pytest.mark.slow
def test_ten_thousand_locks_are_kept_by_one_write_per_interval(keepers):
    url, ttl_s = f"memory://many-{uuid.uuid4().hex}/test", 3.0
    with FaultyStore(latchwork.connect(url)) as store, keepers(store=store, ttl_s=ttl_s) as keeper:
        held = keeper.try_acquire_many([f"item-{number}" for number in range(10_000)])
        assert len(held) == 10_000
        before, begun = len(store.calls), time.monotonic()
        time.sleep(ttl_s)
        wrote = [call for call in store.calls[before:] if call.op in WRITES]
        took_s = time.monotonic() - begun
        assert 2 <= len(wrote) <= took_s / (ttl_s / 3) + 1
        assert all(lock.is_held for lock in held.values())


def test_many_locks_are_taken_in_few_transactions(keepers, monkeypatch):
    keeper = keepers()
    keeper.acquire("warm-up", 5.0)
    commits = []
    commit = keeper._store.commit
    monkeypatch.setattr(keeper._store, "commit", lambda checks, ops: commits.append(ops) or commit(checks, ops))
    together = lambda: [ops for ops in commits if len(ops) > 1]  # noqa: E731 - one write is a renewal
    keeper.try_acquire_many([f"report/item-{number}" for number in range(270)])
    assert len(together()) == 3
    keeper.release([f"report/item-{number}" for number in range(270)])
    assert len(together()) == 6


def test_locks_that_never_were_are_taken_without_a_look(keepers, monkeypatch):
    keeper = keepers()
    keeper.acquire("warm-up", 5.0)
    looks = []
    get_many = keeper._store.get_many
    monkeypatch.setattr(keeper._store, "get_many", lambda names: looks.append(names) or get_many(names))
    names = [f"report/item-{number}" for number in range(100)]
    assert sorted(keeper.try_acquire_many(names)) == sorted(names)
    assert looks == []


def test_a_wrong_guess_that_locks_never_were_costs_one_transaction(keepers, monkeypatch):
    keeper = keepers()
    names = [f"report/item-{number}" for number in range(270)]
    keeper.try_acquire_many(names)
    keeper.release(names)
    commits = []
    commit = keeper._store.commit
    monkeypatch.setattr(keeper._store, "commit", lambda checks, ops: commits.append(ops) or commit(checks, ops))
    assert sorted(keeper.try_acquire_many(names)) == sorted(names)
    assert len([ops for ops in commits if len(ops) == 90]) == 4


def test_only_the_locks_that_can_be_had_are_taken(keepers):
    first, second = keepers(), keepers()
    first.try_acquire_many([f"job/{number}" for number in range(0, 40, 2)])
    taken = second.try_acquire_many([f"job/{number}" for number in range(40)])
    assert sorted(taken) == sorted(f"job/{number}" for number in range(1, 40, 2))


def test_a_lock_is_exclusive_among_threads_of_one_keeper(keepers):
    keeper = keepers()
    keeper.acquire("job/1", 5.0)
    assert keeper.try_acquire("job/1") is None
    assert keeper.try_acquire_many(["job/1", "job/2"]).keys() == {"job/2"}


def test_threads_of_one_keeper_take_turns(keepers):
    keeper = keepers()
    inside, overlaps = [], []

    def work():
        for _ in range(5):
            held = keeper.acquire("job/1", 30.0)
            inside.append(1)
            overlaps.extend([1] if len(inside) > 1 else [])
            inside.pop()
            held.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert not any(thread.is_alive() for thread in threads)
    assert not overlaps


def test_released_locks_can_be_taken_by_others_at_once(keepers):
    first, second = keepers(), keepers()
    names = [f"job/{number}" for number in range(120)]
    first.try_acquire_many(names)
    first.release(names[:100])
    assert len(second.try_acquire_many(names)) == 100
    assert len(first.held()) == 20


def test_releasing_what_is_not_held_releases_all_the_others(keepers):
    first, second = keepers(), keepers()
    first.try_acquire_many(["job/1", "job/2"])
    with pytest.raises(LockLost, match="job/3"):
        first.release(["job/1", "job/2", "job/3"])
    assert len(second.try_acquire_many(["job/1", "job/2"])) == 2


def test_waiters_are_told_when_their_locks_look_free(keepers, eventually):
    first, second = keepers(ttl_s=5 * TTL_S), keepers()
    names = [f"job/{number}" for number in range(300)]
    first.try_acquire_many(names)
    # A lock whose owner was not seen yet may look free for a moment: that is another story.
    eventually(lambda: second._table.find_observed_owner(first.owner_id) is not None)
    told = []
    for name in names:
        second.when_free(name, told.append)
    threads = threading.active_count()
    time.sleep(0.2)
    assert not told
    assert threading.active_count() <= threads + 2  # no thread per waiter
    first.release(names[:200])
    eventually(lambda: len(told) == 200)
    assert sorted(told) == sorted(names[:200])
    assert len(second.try_acquire_many(told)) == 200
    assert second.awaited_locks() == sorted(names[200:])


def test_waiters_of_one_job_share_one_watch(keepers, monkeypatch):
    first, second = keepers(), keepers()
    names = [f"job/{number}" for number in range(50)]
    first.try_acquire_many(names)
    opened = []
    mirror = second._store.mirror
    monkeypatch.setattr(
        second._store, "mirror", lambda prefix, **options: opened.append(prefix) or mirror(prefix, **options)
    )
    for name in names:
        second.when_free(name, lambda _name: None)
    assert opened == ["locks/job"]


def test_a_wait_that_was_cancelled_is_told_nothing(keepers, eventually):
    first, second = keepers(ttl_s=30.0), keepers(ttl_s=30.0)
    held = first.acquire("job/1", 5.0)
    second.start()
    eventually(
        lambda: any(second._table.find_observed_owner(owner) for owner in first._state.ids)
    )  # else it looks free at first
    told = []
    second.when_free("job/1", told.append)()
    held.release()
    time.sleep(0.2)
    assert not told
    assert second.awaited_locks() == []


def test_all_locks_of_a_dead_owner_are_taken_over_together(keepers, eventually):
    first, second = keepers(), keepers()
    names = [f"job/{number}" for number in range(150)]
    tokens = {name: held.fence.token for name, held in first.try_acquire_many(names).items()}
    (owner,) = first._state.ids
    eventually(lambda: second._table.find_observed_owner(owner))
    told = []
    for name in names:
        second.when_free(name, lambda _name: told.append(second._table.find_death_time(owner)))
    first.close(release=False)
    eventually(lambda: len(told) == 150)
    assert set(told) == {None}, "before their owner was dead for certain"
    taken = second.try_acquire_many(names)
    assert len(taken) == 150
    assert all(held.fence.token > tokens[name] for name, held in taken.items())


def test_the_fences_of_an_owner_taken_over_are_refused(store, keepers):
    first, second = keepers(), keepers()
    fence = first.acquire("job/1", 5.0).fence
    first.close(release=False)
    second.acquire("job/1", 10.0)
    with pytest.raises(Conflict):
        store.commit([fence], [Put("done", b"late")])


def test_an_owner_that_is_gone_leaves_its_locks_free_at_once(store, keepers):
    first, second = keepers(ttl_s=10.0), keepers(ttl_s=10.0)
    first.acquire("job/1", 5.0)
    first.close(release=False)
    (owner,) = owners(store)
    assert second.try_acquire("job/1") is None
    store.delete(owner.key)
    assert second.acquire("job/1", 5.0).is_held


def test_losing_the_owner_is_told_once_and_the_keeper_goes_on(store, keepers, eventually):
    keeper = keepers()
    lost = []
    keeper.on_lost(lost.append)
    held = keeper.try_acquire_many(["job/1", "job/2"])
    (owner,) = owners(store)
    store.delete(owner.key)  # what a takeover does
    eventually(lambda: lost)
    assert lost == [("job/1", "job/2")]
    assert all(lock.lost.is_set() and not lock.is_held for lock in held.values())
    assert keeper.held() == {}
    again = keeper.acquire("job/1", 5.0)
    assert again.is_held
    assert again.fence.token > held["job/1"].fence.token
    with pytest.raises(LockLost):
        held["job/1"].release()
    assert again.is_held
    assert lost == [("job/1", "job/2")]


def test_releasing_a_lock_that_was_lost_leaves_it_to_whoever_has_it_now(store, keepers):
    first, second = keepers(), keepers()
    held = first.acquire("job/1", 5.0)
    store.delete(owners(store)[0].key)  # what a takeover does
    assert held.lost.wait(20.0)
    taken = second.acquire("job/1", 20.0)
    with pytest.raises(LockLost, match="job/1"):
        first.release(["job/1"])
    store.commit([taken.fence], [Put("done", b"1")])


def test_a_call_that_is_interrupted_gives_back_what_it_has_taken(connect, keepers, monkeypatch):
    store = connect()
    keeper, rival = keepers(store=store), keepers()
    keeper.acquire("job/0", 5.0)
    commit, commits = store.commit, []

    def second_is_interrupted(checks, ops):
        if len(ops) > 1:  # no renewal, which its own thread makes
            commits.append(ops)
            if len(commits) == 2:
                commit(checks, ops)
                raise KeyboardInterrupt
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", second_is_interrupted)
    names = [f"many/{number}" for number in range(120)]
    with pytest.raises(KeyboardInterrupt):
        keeper.try_acquire_many(names)
    assert keeper.held().keys() == {"job/0"}
    assert rival.acquire("many/0", 20.0).is_held
    assert rival.acquire("many/119", 20.0).is_held


def test_a_release_that_is_interrupted_is_done_by_the_next_chores_and_not_a_quarter_of_a_ttl_later(
    connect, keepers, monkeypatch
):
    """The chores are quicker than the thread that was interrupted: what they find must be theirs to free."""
    store = connect()
    keeper, rival = keepers(ttl_s=60.0, store=store), keepers(ttl_s=60.0)
    held = keeper.acquire("job/1", 10.0)
    time.sleep(0.2)  # the chores that every keeper begins with
    stop_work, lane = held.stop_work, keeper._core._cleanup_drain
    signal = lane.signal

    def interrupted():
        monkeypatch.setattr(held, "stop_work", stop_work)
        raise KeyboardInterrupt

    def at_once():
        signal()
        time.sleep(0.5)

    monkeypatch.setattr(held, "stop_work", interrupted)
    monkeypatch.setattr(lane, "signal", at_once)
    with pytest.raises(KeyboardInterrupt):
        keeper.release(["job/1"])
    assert rival.acquire("job/1", 5.0).is_held


def test_a_renewal_that_fails_is_told_with_the_time_that_is_left(connect, keepers, eventually):
    told = []
    with FaultyStore(connect()) as store, keepers(ttl_s=4.0, store=store) as keeper:
        keeper.on_renewal_failed(lambda error, remaining_s: told.append((type(error), remaining_s)))
        keeper.acquire("job/1", 10.0)
        store.cut_off()
        eventually(lambda: told, 20.0)
        store.reconnect()
    assert told[0][0] is Unavailable
    assert 0.0 <= told[0][1] < 4.0


def test_the_time_of_a_hold_counts_from_before_its_owner_was_sent(connect, keepers):
    slow = Fault("slow_answer", op="create", key="@locks/owners/*", delay_s=1.0)
    with FaultyStore(connect(), [slow]) as store, keepers(ttl_s=60.0, store=store) as keeper:
        keeper.acquire("job/1", 30.0)
        assert 0.0 < keeper.remaining_s() <= 59.0
        assert store.faults


def test_state_and_holders_tell_who_holds_without_taking(store, keepers):
    first, second = keepers("node-1"), keepers("node-2")
    held = first.acquire("job/1", 5.0)
    second.acquire("job/2", 5.0)
    second.release(["job/2"])
    state = second.state("job/1")
    assert (state.name, state.token) == ("job/1", held.fence.token)
    assert (state.holder.label, state.holder.ttl_s) == ("node-1", TTL_S)
    assert state.holder.pid > 0
    assert second.state("job/2").holder is None
    assert second.state("job/3").holder is None
    assert [found.name for found in second.holders()] == ["job/1"]
    assert [found.name for found in second.holders("job")] == ["job/1"]
    assert [(found.name, found.holder is None) for found in lock_states(store)] == [("job/1", False), ("job/2", True)]


def test_closing_leaves_every_lock_free_and_no_owner_behind(store, keepers):
    keeper = keepers()
    keeper.try_acquire_many([f"job/{number}" for number in range(120)])
    keeper.close()
    assert owners(store) == []
    assert all(found.holder is None for found in lock_states(store))
    with pytest.raises(Closed):
        keeper.try_acquire("job/1")


def test_an_owner_with_nothing_to_hold_is_given_up(store, keepers, eventually):
    keeper = keepers(ttl_s=0.3)
    keeper.acquire("job/1", 5.0).release()
    assert len(owners(store)) == 1
    eventually(lambda: not owners(store))
    assert keeper.acquire("job/1", 5.0).is_held


def test_sweeping_removes_what_the_dead_left_and_nothing_of_the_living(store, keepers):
    dead, living, sweeper = keepers("dead"), keepers("living"), keepers("sweeper")
    dead.try_acquire_many(["job/1", "job/2"])
    held = living.acquire("job/3", 5.0)
    dead.close(release=False)
    assert sweeper.sweep() == (0, 0)
    time.sleep(2.2 * TTL_S)
    assert sweeper.sweep() == (1, 2)
    assert len(owners(store)) == 1
    assert [found.name for found in sweeper.holders()] == ["job/3"]
    store.commit([held.fence], [Put("done", b"1")])


def test_sweeping_forgets_locks_that_are_free_for_long(store, keepers, monkeypatch):
    monkeypatch.setattr("latchwork.primitives.leased.inspect.FORGET_FREE_AFTER_S", 0.2)
    keeper = keepers()
    keeper.acquire("job/1", 5.0).release()
    held = keeper.acquire("job/2", 5.0)
    assert keeper.sweep() == (0, 0)
    time.sleep(0.3)
    assert keeper.sweep() == (0, 1)
    assert [entry.key for entry in store.list("locks", recursive=True)] == ["locks/job/2"]
    store.commit([held.fence], [Put("done", b"1")])


def test_one_keeper_of_a_store_sweeps_by_itself(store, keepers, monkeypatch, eventually):
    monkeypatch.setattr("latchwork.primitives.leased.inspect.FORGET_FREE_AFTER_S", 0.2)
    dead, *living = keepers("dead"), *(keepers(f"n{number}", sweep_period_s=0.1) for number in range(3))
    dead.try_acquire_many(["job/1", "job/2"])
    held = [keeper.acquire(f"mine/{number}", 5.0) for number, keeper in enumerate(living)]
    dead.close(release=False)
    swept = []
    for keeper in living:
        sweep = keeper._core.sweeper.sweep
        monkeypatch.setattr(
            keeper._core.sweeper, "sweep", lambda sweep=sweep, keeper=keeper: swept.append(keeper) or sweep()
        )
    names = {entry.key for entry in store.list("locks/job")}
    assert names == {"locks/job/1", "locks/job/2"}
    eventually(lambda: not store.list("locks/job") and len(owners(store)) == 3)
    assert {keeper.owner_id for keeper in swept[-3:]} == {min(keeper.owner_id for keeper in living)}
    assert all(each.is_held for each in held)


def test_a_keeper_without_locks_sweeps_while_no_other_has_any(store, keepers, monkeypatch, eventually):
    monkeypatch.setattr("latchwork.primitives.leased.inspect.FORGET_FREE_AFTER_S", 0.2)
    keeper = keepers(sweep_period_s=0.1)
    keeper.acquire("job/1", 5.0).release()
    eventually(lambda: not store.list("", recursive=True))


class Cut:
    """Loses the answer, or the request, of the next commit that writes a lock; the rest goes to the real store."""

    def __init__(self, store, when):
        self.commit, self.when, self.late, self.armed = store.commit, when, [], True

    def __call__(self, checks, ops):
        if not (self.armed and any(isinstance(op, Put) and op.key.startswith("locks/") for op in ops)):
            return self.commit(checks, ops)
        self.armed = False
        if self.when == "applied":
            self.commit(checks, ops)
        elif self.when == "applied later":
            self.late.append((checks, ops))
        raise OutcomeUnknown("cut")

    def land(self):
        for checks, ops in self.late:
            try:
                self.commit(checks, ops)
            except Conflict:
                return "refused"
        return "landed"


@pytest.mark.parametrize("when", ["applied", "applied later", "never applied"])
def test_a_waiting_acquire_survives_a_lost_answer_with_one_sound_hold(connect, keepers, monkeypatch, when):
    store = connect()
    keeper, rival = keepers(store=store), keepers()
    cut = Cut(store, when)
    monkeypatch.setattr(store, "commit", cut)
    held = keeper.acquire("job/1", 10.0)
    if when == "applied later":
        assert cut.land() == "refused"
    store.commit([held.fence], [Put("done", b"1")])
    assert rival.try_acquire("job/1") is None
    held.release()
    assert rival.acquire("job/1", 5.0).is_held


@pytest.mark.parametrize("when", ["applied", "applied later", "never applied"])
def test_a_try_with_a_lost_answer_never_leaves_a_lock_behind(connect, keepers, monkeypatch, eventually, when):
    store = connect()
    keeper, rival = keepers(store=store), keepers()
    keeper.acquire("job/0", 5.0)  # the owner lives on: its locks would never run out
    cut = Cut(store, when)
    monkeypatch.setattr(store, "commit", cut)
    with pytest.raises(OutcomeUnknown):
        keeper.try_acquire("job/1")
    assert "job/1" not in keeper.held()
    eventually(lambda: not keeper._state.unconfirmed_writes)
    if when == "applied later":
        assert cut.land() == "refused"
    assert keeper.state("job/1").holder is None
    assert rival.acquire("job/1", 5.0).is_held
    assert keeper.held().keys() == {"job/0"}


@pytest.mark.parametrize("when", ["applied", "applied later", "never applied"])
def test_a_release_with_a_lost_answer_is_made_good(connect, keepers, monkeypatch, when):
    store = connect()
    keeper, rival = keepers(store=store), keepers()
    keeper.acquire("job/0", 5.0)
    held = keeper.acquire("job/1", 5.0)
    cut = Cut(store, when)
    monkeypatch.setattr(store, "commit", cut)
    held.release()
    assert not held.is_held
    taken = rival.acquire("job/1", 5.0)
    assert cut.land() == ("refused" if when == "applied later" else "landed")
    store.commit([taken.fence], [Put("done", b"1")])


def test_a_takeover_with_a_lost_answer_leaves_no_lock_behind(connect, keepers, monkeypatch, eventually):
    store = connect()
    dead, keeper, rival = keepers("dead"), keepers(store=store), keepers()
    dead.acquire("job/1", 5.0)
    dead.close(release=False)
    keeper.acquire("job/0", 5.0)
    time.sleep(1.2 * TTL_S)
    cut = Cut(store, "applied later")
    monkeypatch.setattr(store, "commit", cut)
    with pytest.raises(OutcomeUnknown):
        keeper.try_acquire("job/1")
    eventually(lambda: not keeper._state.unconfirmed_writes)
    assert cut.land() == "refused"
    assert rival.acquire("job/1", 5.0).is_held


def test_locks_taken_before_trouble_are_handed_over(connect, keepers, monkeypatch):
    store = connect()
    keeper = keepers(store=store)
    keeper.acquire("job/0", 5.0)
    commit, calls = store.commit, []

    def second_fails(checks, ops):
        if any("/many/" in op.key for op in ops):  # renewals are commits, too
            calls.append(ops)
            if len(calls) == 2:
                raise Unavailable("cut")
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", second_fails)
    taken = keeper.try_acquire_many([f"many/{number}" for number in range(200)])
    assert 0 < len(taken) < 200
    assert keeper.held().keys() == taken.keys() | {"job/0"}


def test_an_owner_that_goes_before_the_watch_showed_it_holds_nobody_up(connect, store, keepers, monkeypatch):
    watched = connect()
    mirror = watched.mirror

    def blind(prefix, **options):
        return mirror("owners-never-shown" if prefix == "owners" else prefix, **options)

    monkeypatch.setattr(watched, "mirror", blind)
    first, second = keepers(ttl_s=4.0), keepers(ttl_s=4.0, store=watched)
    first.acquire("job/1", 5.0)
    first.close(release=False)
    (owner,) = owners(store)
    told = []
    assert second.try_acquire("job/1") is None
    second.when_free("job/1", told.append)
    store.delete(owner.key)
    assert second.acquire("job/1", 3.0).is_held
