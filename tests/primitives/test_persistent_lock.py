"""What one persistent lock does, on every backend."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from concurrent.futures import Future

import pytest

from latchwork.errors import Closed, Conflict, InvalidKey, LatchworkError, LockLost, Unavailable, WaitTimeout
from latchwork.primitives import LockKeeper, PersistentLock, force_release
from latchwork.store import system_namespace
from latchwork.testing.faults import FaultyStore
from latchwork.types import Create, Put

TTL_S = 1.0


def take_over(store):
    """Remove the owner of the locks, as a takeover does."""
    locks = system_namespace(store, "locks")
    locks.delete(locks.list("owners")[0].key)


@pytest.fixture
def locks(connect):
    """Make a lock with a client of its own; closed after the test."""
    made = []

    def make(name="orders", *, label="", ttl_s=TTL_S):
        made.append(PersistentLock(connect(), name, ttl_s=ttl_s, owner_label=label))
        return made[-1]

    yield make
    for lock in made:
        lock.close()


def test_with_acquires_and_releases(connect, locks):
    store = connect()
    with PersistentLock(store, "orders", ttl_s=TTL_S) as fence:
        store.commit([fence], [Put("done", b"1")])
        assert locks().holder() is not None
    assert locks().acquire(0.0).token > fence.token


def test_one_object_serves_any_number_of_withs(connect):
    lock = PersistentLock(connect(), "orders", ttl_s=TTL_S)
    tokens = []
    for _ in range(3):
        with lock as fence:
            tokens.append(fence.token)
    assert tokens == sorted(set(tokens))
    assert lock.holder() is None


def test_threads_that_share_one_object_exclude_each_other(connect, store):
    """A thread that leaves must not end the keeper by which another has just got the lock."""
    lock = PersistentLock(connect(), "orders", ttl_s=TTL_S)
    inside, overlaps, tokens = threading.Lock(), [], []

    def work():
        for _ in range(12):
            with lock as fence:
                if not inside.acquire(blocking=False):
                    overlaps.append(fence.token)
                    continue
                store.commit([fence], [Put("done", b"")])
                tokens.append(fence.token)
                inside.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert overlaps == []
    assert len(tokens) == 48
    assert tokens == sorted(set(tokens))
    assert lock.holder() is None


def test_a_with_whose_lock_was_lost_does_not_release_the_next_holders(connect, store):
    lock = PersistentLock(connect(), "orders", ttl_s=TTL_S)
    lost, taken, leave = threading.Event(), threading.Event(), threading.Event()

    def next_holder():
        lost.wait(10)
        with lock:
            taken.set()
            leave.wait(10)
            assert lock.is_held

    thread = threading.Thread(target=next_holder)
    thread.start()
    with pytest.raises(LockLost), lock:
        event = lock.lost
        take_over(store)
        assert event.wait(5)
        lost.set()
        assert taken.wait(10)
    assert lock.is_held
    leave.set()
    thread.join(10)
    assert lock.holder() is None


def test_several_locks_share_a_keeper_and_its_one_owner(connect, store):
    with LockKeeper(connect(), ttl_s=TTL_S) as keeper:
        locks = [PersistentLock(keeper._store, f"orders-{number}", keeper=keeper) for number in range(3)]
        for lock in locks:
            lock.acquire(5.0)
        assert len(store.list("@locks/owners")) == 1
        locks[0].close()
        assert sorted(keeper.held()) == ["orders-1", "orders-2"]


def test_a_lock_that_is_lost_tells_its_listeners_and_its_release_says_so(locks, store, eventually):
    lock, told = locks(), []
    lock.on_lost(lambda: told.append("lost"))
    lock.acquire(5.0)
    lost = lock.lost
    take_over(store)
    eventually(lambda: told)
    assert lost.is_set()
    assert not lock.is_held
    with pytest.raises(LockLost, match="orders"):
        lock.release()
    assert told == ["lost"]


def test_a_renewal_that_fails_is_told_to_those_who_listen_and_to_nobody_else(connect, eventually):
    told, gone = [], []
    with FaultyStore(connect()) as store:
        lock = PersistentLock(store, "orders", ttl_s=4.0)
        lock.on_renewal_failed(lambda error, remaining_s: told.append((type(error), remaining_s)))
        lock.on_renewal_failed(lambda *_: gone.append(1))()  # and taken back
        lock.acquire(10.0)
        store.cut_off()
        eventually(lambda: told, 20.0)
        store.reconnect()
        lock.close()
    assert told[0][0] is Unavailable
    assert 0.0 <= told[0][1] < 4.0
    assert gone == []


def test_a_lock_held_elsewhere_times_out_and_names_its_holder(locks):
    locks(label="the first").acquire(5.0)
    with pytest.raises(WaitTimeout, match="lock 'orders' is held by 'the first'"):
        locks().acquire(0.2)


def test_the_next_holder_gets_it_at_once_when_it_is_released(locks, eventually):
    first, second = locks(), locks()
    first.acquire(5.0)
    got = []
    waiter = threading.Thread(target=lambda: got.append((second.acquire(20.0), time.monotonic())))
    waiter.start()
    eventually(lambda: second._own and second._own.awaited_locks())
    time.sleep(0.1)
    released_at = time.monotonic()
    first.release()
    waiter.join(10.0)
    assert got[0][1] - released_at < 0.5 * TTL_S
    assert second.is_held


def test_a_hold_is_renewed_for_as_long_as_it_lasts(locks):
    lock, rival = locks(), locks()
    lock.acquire(5.0)
    with pytest.raises(WaitTimeout):
        rival.acquire(2.5 * TTL_S)
    assert lock.is_held
    assert 0.0 < lock.remaining_s() <= TTL_S


def test_the_fence_of_a_released_hold_is_refused(store, locks):
    lock = locks()
    fence = lock.acquire(5.0)
    lock.release()
    with pytest.raises(Conflict) as conflict:
        store.commit([fence], [Put("done", b"late")])
    assert conflict.value.failed


def test_the_fence_is_valid_in_every_namespace(connect):
    store = connect()
    with PersistentLock(store.namespace("app"), "orders", ttl_s=TTL_S) as fence:
        store.namespace("data").commit([fence], [Put("done", b"1")])
    assert store.get("data/done").value == b"1"
    with pytest.raises(Conflict):
        store.commit([fence], [Put("done", b"late")])


def test_a_lock_is_not_held_after_its_release(locks):
    lock = locks()
    lock.acquire(5.0)
    lock.release()
    assert not lock.is_held
    assert lock.remaining_s() == 0.0
    with pytest.raises(LockLost):
        _ = lock.fence


def test_releasing_what_is_not_held_is_an_error(locks):
    with pytest.raises(LockLost, match="'orders' is not held by this object"):
        locks().release()


def test_acquiring_twice_is_an_error_and_does_not_hang(locks):
    lock = locks()
    lock.acquire(5.0)
    with pytest.raises(LatchworkError, match="held by this thread"):
        lock.acquire()


def test_a_closed_lock_says_so(locks):
    lock = locks()
    lock.close()
    lock.close()
    with pytest.raises(Closed):
        lock.acquire()


def test_closing_wakes_a_waiter(locks, eventually):
    locks().acquire(5.0)
    waiter = locks()
    errors = []

    def wait():
        try:
            waiter.acquire()
        except LatchworkError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: waiter._own and waiter._own.awaited_locks())
    waiter.close()
    thread.join(5.0)
    assert [type(error) for error in errors] == [Closed]


def test_a_holder_that_is_killed_is_followed_within_its_ttl_and_little_more(holder, locks):
    next_one = locks()
    next_one._subscribe_to_keeper(object()).start()  # follows the owners from its start
    first = holder("lock", "orders", TTL_S)
    token = first.hear()["token"]
    time.sleep(0.5 * TTL_S)
    killed_at = time.monotonic()
    first.send(signal.SIGKILL)
    fence = next_one.acquire(10.0)
    took_s = time.monotonic() - killed_at
    print(f"taken over {took_s:.2f} s after the kill")
    assert took_s < 1.05 * TTL_S + 0.5
    assert took_s > 0.5 * TTL_S  # it was held until its last renewal had run out
    assert fence.token > token


def test_a_holder_that_slept_past_its_ttl_is_refused_and_knows(holder, locks, store):
    next_one = locks()
    next_one._subscribe_to_keeper(object()).start()
    first = holder("lock", "orders", TTL_S)
    first.hear()
    assert first.ask("write") == {"write": "written"}
    first.freeze()
    fence = next_one.acquire(10.0)
    store.commit([fence], [Put("written", b"by the next")])
    first.wake()
    answers = [first.ask("ours"), first.ask("write"), first.hear()]
    assert {"ours": False} in answers
    assert {"write": "Conflict"} in answers
    assert {"lost": True} in answers
    assert store.get("written").value == b"by the next"


def test_a_takeover_by_a_late_observer_takes_one_more_ttl(holder, locks):
    first = holder("lock", "orders", TTL_S)
    first.hear()
    first.send(signal.SIGKILL)
    time.sleep(2.0 * TTL_S)
    started_at = time.monotonic()
    locks().acquire(10.0)
    assert TTL_S < time.monotonic() - started_at < 2.0 * TTL_S  # and not another TTL


def test_holders_in_many_threads_never_write_at_the_same_time(connect):
    store, rounds = connect(), 8
    inside, overlaps, errors = [], [], []

    def work(number):
        lock = PersistentLock(store, "orders", ttl_s=TTL_S)
        try:
            for _ in range(rounds):
                fence = lock.acquire(30.0)
                inside.append(number)
                overlaps.extend([list(inside)] if len(inside) > 1 else [])
                entry = store.get("counter")
                store.commit([fence], [Put("counter", str(int(entry.value if entry else 0) + 1).encode())])
                inside.remove(number)
                lock.release()
        except BaseException as error:
            errors.append(error)
        finally:
            lock.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not errors
    assert not overlaps
    assert int(store.get("counter").value) == 4 * rounds


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a b", "@x", "../a"])
def test_a_malformed_name_is_refused_before_any_io(name):
    with pytest.raises(InvalidKey, match="lock name"):
        PersistentLock(NoStore(), name)


class NoStore:
    """Fails the test if it is used at all: construction and bad arguments do no I/O."""

    clock = None

    def pipeline(self, **_):
        return None


def test_work_under_a_persistent_lock_is_told_to_stop_before_the_lock_can_run_out(store, eventually):
    lock = PersistentLock(store, "orders", ttl_s=2.4)
    with lock, lock.guard_work(margin_s=0.8) as work:
        table, renewals = lock._own._table, []
        renew = table.renew
        table.renew = lambda *args: renewals.append(1) or renew(*args)
        eventually(lambda: len(renewals) == 3)  # longer than it goes on without one
        assert not work.stopped.is_set()
        table.renew = lambda *_: Future()  # from now on no renewal is answered
        assert work.wait(30.0)
        assert lock.remaining_s() > 0.0
        with pytest.raises(LockLost, match="lock 'orders' ends in"):
            work.raise_if_stopped()


def test_releasing_a_persistent_lock_stops_its_work_at_once(store):
    lock = PersistentLock(store, "orders")
    lock.acquire(5.0)
    with lock.guard_work() as work:
        lock.release()
        assert work.stopped.is_set()
    with pytest.raises(LockLost):
        lock.guard_work()
    lock.close()


def test_a_with_that_ends_in_another_thread_releases_all_the_same(connect):
    mine = PersistentLock(connect(), "orders")
    mine.__enter__()
    ending = threading.Thread(target=lambda: mine.__exit__(None, None, None))
    ending.start()
    ending.join(30.0)
    assert not mine.is_held
    assert mine.holder() is None


def test_locks_that_are_never_closed_share_one_keeper_that_ends_with_the_store(connect, eventually):
    others = set(threading.enumerate())
    store = connect()
    for number in range(20):
        lock = PersistentLock(store, f"lock-{number}")
        lock.acquire(5.0)
        lock.release()
    left = [each for each in threading.enumerate() if each not in others and "locks-" in each.name]
    assert len(left) <= 4  # the keeper's, and those that call its listeners
    store.close()
    eventually(lambda: not any(thread.is_alive() for thread in left))


def test_a_lock_that_is_held_when_its_store_is_closed_can_be_had_at_once(connect, locks):
    store = connect()
    PersistentLock(store, "orders", ttl_s=60.0).acquire(5.0)
    store.close()
    locks("orders").acquire(5.0)


def test_closing_a_lock_wakes_who_waits_for_it_through_a_given_keeper(connect, in_thread, eventually):
    store = connect()
    with LockKeeper(store) as theirs, LockKeeper(store) as keeper:
        theirs.acquire("orders")
        lock = PersistentLock(store, "orders", keeper=keeper)
        waiting = in_thread(lock.acquire)
        eventually(keeper.awaited_locks)
        lock.close()
        with pytest.raises(Closed):
            waiting.outcome()


@pytest.mark.parametrize("namespace", [None, "app"])
def test_operations_beside_a_forced_release_write_keys_of_the_callers_store(connect, namespace):
    root = connect()
    store = root.namespace(namespace) if namespace else root
    lock = PersistentLock(store, "orders", ttl_s=60.0)
    with contextlib.suppress(LockLost), lock as fence:
        before = force_release(store, "orders", also=lambda before: [Put("audit/1", str(before.token).encode())])
        assert before.token == fence.token
        assert store.get("audit/1").value == str(fence.token).encode()
        assert root.get(f"{namespace}/audit/1" if namespace else "audit/1") is not None
        assert lock.holder() is None


def test_a_forced_release_with_a_refused_operation_leaves_the_lock_with_its_holder(connect):
    store = connect().namespace("app")
    store.put("audit/1", b"")
    record = Create("audit/1", b"")
    lock = PersistentLock(store, "orders", ttl_s=60.0)
    with lock:
        with pytest.raises(Conflict) as caught:
            force_release(store, "orders", also=lambda _before: [record])
        assert list(caught.value.failed) == [record]
        with pytest.raises(InvalidKey, match="is reserved"):
            force_release(store, "orders", also=lambda _before: [Put("@locks/locks/other", b"")])
        assert lock.holder() is not None
