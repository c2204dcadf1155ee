"""Leases on every backend."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from latchwork.errors import (
    BadRecord,
    Conflict,
    InvalidKey,
    LatchworkError,
    LockLost,
    OutcomeUnknown,
    SessionLost,
    Unavailable,
    WaitTimeout,
)
from latchwork.primitives import Semaphore
from latchwork.types import Create, Put

TTL_S = 1.0


@pytest.fixture
def semaphore(connect):
    """Make a semaphore with a client, and so a session, of its own; closed after the test."""
    made = []

    def make(leases=2, name="scanner", *, store=None, **options):
        made.append(Semaphore(store or connect(session_ttl_s=TTL_S), name, leases=leases, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_as_many_hold_it_as_there_are_leases(semaphore, store):
    first, second, third = semaphore(label="a"), semaphore(label="b"), semaphore()
    one, two = first.acquire(5.0), second.acquire(5.0)
    assert two.token > one.token
    store.commit([one, two], [Put("seen", b"by both")])
    assert [each.label for each in third.holders()] == ["a", "b"]
    with pytest.raises(WaitTimeout, match=r"semaphore 'scanner' is held by 'a' \(pid .*\), 'b' \(pid .* after 0.1 s"):
        third.acquire(0.1)
    with pytest.raises(WaitTimeout):
        third.acquire(0.0)
    assert third.waiters() == []


def test_any_lease_that_is_released_goes_to_the_first_that_waits(semaphore, in_thread, eventually):
    holders, waiters = [semaphore(3) for _ in range(3)], [semaphore(3) for _ in range(3)]
    for each in holders:
        each.acquire(5.0)
    waiting = []
    for number, each in enumerate(waiters):
        waiting.append(in_thread(lambda each=each: each.acquire(30.0)))
        eventually(lambda number=number: len(holders[0].waiters()) == number + 1)
    tokens = []
    for holder, waiter in zip([holders[1], holders[0], holders[2]], waiting, strict=True):
        holder.release()
        tokens.append(waiter.outcome().token)
    assert tokens == sorted(tokens)
    assert holders[0].waiters() == []


def test_more_than_the_leases_never_hold_it(semaphore, in_thread):
    inside, most, mutex = [], [], threading.Lock()

    def work(mine):
        for _ in range(3):
            with mine:
                with mutex:
                    inside.append(1)
                    most.append(len(inside))
                time.sleep(0.002)
                with mutex:
                    inside.pop()

    workers = [semaphore(2) for _ in range(5)]
    for each in [in_thread(lambda mine=mine: work(mine)) for mine in workers]:
        each.outcome(60.0)
    assert len(most) == 15
    assert max(most) <= 2


def test_a_thread_may_hold_several_leases(semaphore):
    mine, other = semaphore(2), semaphore(2)
    with mine as one, mine as two:
        assert two.token > one.token
        assert len(mine.holders()) == 2
        with pytest.raises(WaitTimeout):
            other.acquire(0.0)
    assert mine.holders() == []


def test_a_released_lease_is_refused_in_writes(semaphore, store):
    with semaphore() as fence:
        pass
    with pytest.raises(Conflict):
        store.commit([fence], [Put("seen", b"late")])


def test_only_the_first_waiter_watches_the_leases(semaphore, connect, in_thread, eventually, monkeypatch):
    holder = semaphore(1)
    holder.acquire(5.0)
    watched, waiting = [], []
    for number in range(3):
        store = connect()
        seen = []
        watched.append(seen)
        watch = store.watch
        monkeypatch.setattr(
            store, "watch", lambda key, seen=seen, watch=watch, **how: seen.append(key) or watch(key, **how)
        )
        mine = semaphore(1, store=store)
        waiting.append(in_thread(lambda mine=mine: (mine.acquire(30.0), mine)[1]))
        eventually(lambda number=number: len(holder.waiters()) == number + 1 and watched[number])
    tickets = [each.key for each in holder.waiters()]
    assert watched == [["scanner/leases"], [tickets[0]], [tickets[1]]]
    holder.release()
    for each in waiting:
        each.outcome().release()


def test_another_size_than_the_stored_one_is_refused_and_none_takes_it(semaphore):
    with semaphore(2):
        with pytest.raises(LatchworkError, match="has 2 leases, not 3; create it with leases=2, or resize it"):
            semaphore(3).acquire(5.0)
        with semaphore(None) as fence:
            assert fence
    assert semaphore(None).size() == 2


def test_without_any_size_it_cannot_be_acquired(semaphore):
    assert semaphore(None).size() is None
    with pytest.raises(LatchworkError, match="has no size yet; create it with leases=n"):
        semaphore(None).acquire(5.0)


def test_a_larger_size_lets_waiters_in_at_once(semaphore, in_thread, eventually):
    first, second, third = semaphore(1), semaphore(1), semaphore(1)
    first.acquire(5.0)
    waiting = [in_thread(lambda: second.acquire(30.0)), in_thread(lambda: third.acquire(30.0))]
    eventually(lambda: len(first.waiters()) == 2)
    first.resize(3)
    for each in waiting:
        each.outcome()
    assert len(first.holders()) == 3


def test_a_smaller_size_takes_nothing_and_gives_nothing_until_enough_were_released(semaphore, in_thread, eventually):
    holders, waiter = [semaphore(3) for _ in range(3)], semaphore(3)
    for each in holders:
        each.acquire(5.0)
    waiting = in_thread(lambda: waiter.acquire(30.0))
    eventually(lambda: len(waiter.waiters()) == 1)
    holders[0].resize(1)
    assert all(each.is_held for each in holders)
    for each in holders[:2]:
        each.release()
    time.sleep(0.1)
    assert not waiter.is_held
    holders[2].release()
    waiting.outcome()
    assert len(waiter.holders()) == 1


def test_a_size_that_shrinks_between_look_and_write_gives_no_lease(semaphore, connect, monkeypatch):
    store = connect()
    mine, other = semaphore(2, store=store), semaphore(2)
    other.acquire(5.0)
    commit = store.commit

    def shrinking(checks, ops):
        monkeypatch.setattr(store, "commit", commit)
        other.resize(1)
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", shrinking)
    with pytest.raises(WaitTimeout):
        mine.acquire(0.3)
    assert len(mine.holders()) == 1
    assert mine.waiters() == []


def test_who_slept_until_its_ticket_was_gone_gets_no_lease(semaphore, connect, store, monkeypatch):
    slow = connect()
    mine, other = semaphore(1, store=slow), semaphore(1)
    commit = slow.commit

    def sleeping(checks, ops):
        monkeypatch.setattr(slow, "commit", commit)
        (ticket,) = other.waiters()
        store.delete(ticket.key)  # as when its session ends meanwhile
        other.acquire(5.0)
        return commit(checks, ops)

    monkeypatch.setattr(slow, "commit", sleeping)
    with pytest.raises(LockLost, match="another client deleted it"):
        mine.acquire(5.0)
    assert len(other.holders()) == 1


@pytest.mark.parametrize("when", ["applied", "never applied"])
def test_a_lease_with_a_lost_answer_is_taken_once(semaphore, connect, monkeypatch, when):
    store = connect()
    mine = semaphore(2, store=store)
    commit = store.commit

    def losing(checks, ops):
        monkeypatch.setattr(store, "commit", commit)
        if when == "applied":
            commit(checks, ops)
        raise OutcomeUnknown("cut")

    monkeypatch.setattr(store, "commit", losing)
    mine.acquire(5.0)
    assert len(mine.holders()) == 1
    mine.release()
    assert (mine.holders(), mine.waiters()) == ([], [])


def test_a_lease_that_lands_between_the_reads_of_it_and_of_its_ticket_is_ours(semaphore, connect, monkeypatch):
    """Two keys are read at two moments, of which neither may have seen the lease, and neither the ticket."""
    store = connect()
    mine = semaphore(2, store=store)
    commit, read, late = store.commit, store.get_many, []

    def losing(checks, ops):  # sent, and on its way for long
        late.append((checks, ops))
        monkeypatch.setattr(store, "commit", in_the_way)
        raise OutcomeUnknown("cut")

    def in_the_way(checks, ops):  # another program's key is where the lease belongs, and goes again
        key = next(op.key for op in ops if isinstance(op, Create))
        monkeypatch.setattr(store, "commit", commit)
        store.put(key, b"")
        with pytest.raises(Conflict) as refused:
            commit(checks, ops)
        store.delete(key)
        raise refused.value

    def between(keys):
        monkeypatch.setattr(store, "get_many", read)
        (lease,) = read(keys[1:])
        commit(*late[0])
        return [*read(keys[:1]), lease]

    monkeypatch.setattr(store, "commit", losing)
    monkeypatch.setattr(store, "get_many", between)
    mine.acquire(5.0)
    assert len(mine.holders()) == 1
    assert mine.waiters() == []


def test_a_lease_of_unknown_outcome_is_removed_when_the_acquire_gives_up(semaphore, connect, monkeypatch, eventually):
    store = connect()
    mine, other = semaphore(2, store=store), semaphore(2)
    commit, listing, delete, cut = store.commit, store.list, store.delete, threading.Event()

    def unless_cut(call):
        def guarded(*args, **options):
            if cut.is_set():
                raise Unavailable("cut")
            return call(*args, **options)

        return guarded

    def losing(checks, ops):
        commit(checks, ops)
        cut.set()
        raise OutcomeUnknown("cut")

    monkeypatch.setattr(store, "commit", losing)
    monkeypatch.setattr(store, "list", unless_cut(listing))
    monkeypatch.setattr(store, "delete", unless_cut(delete))
    with pytest.raises((Unavailable, OutcomeUnknown)):
        mine.acquire(0.1)
    assert len(other.holders()) == 1
    cut.clear()
    eventually(lambda: other.holders() == [])


def test_a_lost_session_gives_its_leases_back(semaphore, connect, in_thread, eventually):
    store = connect(session_ttl_s=TTL_S)
    mine, other = semaphore(1, store=store), semaphore(1)
    mine.acquire(5.0)
    waiting = in_thread(lambda: other.acquire(30.0))
    eventually(lambda: len(mine.waiters()) == 1)
    store.session.mark_ended()
    assert not mine.is_held
    waiting.outcome()
    with pytest.raises(LockLost):
        mine.release()


def test_a_lost_session_ends_the_wait_for_a_lease(semaphore, connect, in_thread, eventually):
    store = connect(session_ttl_s=TTL_S)
    first, second = semaphore(1), semaphore(1, store=store)
    first.acquire(5.0)
    waiting = in_thread(second.acquire)
    eventually(lambda: len(first.waiters()) == 1)
    store.session.mark_ended()
    with pytest.raises(SessionLost):
        waiting.outcome(5.0)


def test_a_dead_holders_lease_comes_back_within_the_ttl(holder, semaphore):
    first = holder("semaphore", "scanner", TTL_S)
    first.hear()
    second = semaphore(1)
    granted_s = second._store.session.ttl_s
    killed_at = time.monotonic()
    first.send(signal.SIGKILL)
    second.acquire(granted_s + 10.0)
    assert time.monotonic() - killed_at < granted_s + 2.0


@pytest.mark.parametrize("leases", [0, -1])
def test_a_size_below_one_is_refused(semaphore, leases):
    with pytest.raises(ValueError, match="at least 1 lease"):
        Semaphore(None, "scanner", leases=leases)
    with pytest.raises(ValueError, match="at least 1 lease"):
        semaphore().resize(leases)


@pytest.mark.parametrize("name", ["", "a//b"])
def test_a_malformed_name_is_refused_before_any_io(name):
    with pytest.raises(InvalidKey, match="semaphore name"):
        Semaphore(None, name, leases=1)


def test_a_lease_that_no_session_owns_takes_up_none(semaphore, store, in_thread, eventually):
    first, second = semaphore(1), semaphore(1)
    first.acquire(5.0)
    first.release()
    store.put("scanner/leases/t9999999998", b"another program wrote this")
    first.acquire(5.0)
    assert len(first.holders()) == 1
    waiting = in_thread(lambda: second.acquire(20.0))
    eventually(lambda: len(first.waiters()) == 1)
    store.put("scanner/leases/t9999999999", b"while somebody waits")
    first.release()
    waiting.outcome()
    assert [each.session_id for each in second.holders()] == [second._store.session.id]


def test_a_key_in_the_place_of_ones_own_lease_is_one_error_and_the_next_has_a_turn(semaphore, connect, monkeypatch):
    store = connect()
    mine = semaphore(1, store=store)
    create = store.create_ordered_key

    def another_program_writes_too(*args, **options):
        created = create(*args, **options)
        store.put(created.entry.key.replace("/queue/", "/leases/"), b"another program wrote this")
        return created

    with monkeypatch.context() as patch:
        patch.setattr(store, "create_ordered_key", another_program_writes_too)
        with pytest.raises(BadRecord, match=r"leases/t-[0-9a-f-]+' is not a lease of semaphore 'scanner'.* delete it"):
            mine.acquire(5.0)
    assert mine.waiters() == []
    store.delete_tree("scanner/leases")
    mine.acquire(5.0)


def test_a_size_that_somebody_deleted_is_stored_again_or_asked_for(semaphore, connect):
    store = connect()
    mine = semaphore(leases=2, store=store)
    mine.acquire(5.0)
    mine.release()
    any_size = semaphore(leases=None)
    any_size.acquire(5.0)
    any_size.release()
    store.delete("scanner/leases/size")
    with pytest.raises(LatchworkError, match="has no size yet"):
        any_size.acquire(5.0)
    mine.acquire(5.0)
    assert any_size.size() == 2
