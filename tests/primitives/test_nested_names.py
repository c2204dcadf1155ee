"""Names below a name: what is used under ``a/eu`` never counts for ``a``, whichever primitives they are."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress

import pytest

import latchwork
from latchwork.errors import BarrierBroken, LatchworkError, WaitTimeout
from latchwork.primitives import (
    Barrier,
    Counter,
    DoubleBarrier,
    Election,
    Group,
    LeaderLatch,
    Lock,
    LockKeeper,
    Once,
    PersistentLock,
    PriorityQueue,
    Queue,
    RateLimiter,
    ReadWriteLock,
    Semaphore,
    Sequence,
    WorkQueue,
)
from latchwork.testing import FaultyStore
from latchwork.types import Create

URL = "memory://nested-names/test"


@pytest.fixture
def others():
    """Another client that has one of each in use, everything under a name of its own below ``a``."""
    with latchwork.connect(URL) as store, ExitStack() as used:
        threads = [threading.Thread(target=lambda each=each: wait_in(each)) for each in waiting(store, used)]
        hold(store, used)
        for thread in threads:
            thread.start()
        wanted = {"a/barrier/arrived-x", "a/double/arrived-x", "a/once/starts", "a/group/views"}
        with store.mirror("a") as mirror:
            mirror.wait_until(lambda now: wanted <= set(now), 45.0)
        yield store
        used.close()
        for thread in threads:
            thread.join()
        store.delete_tree("a")


def waiting(store, used):
    """What waits until it is called off, as functions."""
    barrier = used.enter_context(Barrier(store, "a/barrier", parties=2, member_id="x"))
    double = DoubleBarrier(store, "a/double", parties=2, member_id="x")
    once, go = Once(store, "a/once"), threading.Event()
    for end in (double.close, go.set):
        used.callback(end)
    return [barrier.wait, double.enter, lambda: once.run(lambda _work: go.wait(45.0) and None)]


def wait_in(wait):
    with suppress(LatchworkError):
        wait()


def hold(store, used):
    """Have one of each that can be had without waiting."""
    for lock in (Lock(store, "a/lock"), ReadWriteLock(store, "a/rw").read, Semaphore(store, "a/semaphore", leases=1)):
        used.callback(lock.close)
        lock.acquire(0)
    used.enter_context(PersistentLock(store, "a/persistent"))
    used.enter_context(LeaderLatch(store, "a/latch", node_id="x")).wait(45.0)
    used.enter_context(Election(store, "a/election", node_id="x").campaign(b"theirs", timeout_s=0))
    used.enter_context(Group(store, "a/group", member_id="x")).wait(45.0)
    for queue in (Queue(store, "a/queue"), PriorityQueue(store, "a/priorities")):
        queue.put_many([b"taken", b"free"])
        used.callback(queue.take(0).release)
    backlog = WorkQueue(store, "a/backlog")
    backlog.put("any", "s", "1", b"free")
    RateLimiter(store, "a/rate", permits=1, interval_s=60).acquire(timeout_s=0)
    Counter(store, "a/counter").put(7)
    Sequence(store, "a/sequence").take(lambda number: [Create(f"a/ids/{number}", b"")])


def lock(store):
    one = Lock(store, "a", label="mine")
    assert one.holder() is None
    with one:
        assert (one.holder().label, one.waiters()) == ("mine", [])


def read_write_lock(store):
    one = ReadWriteLock(store, "a", label="mine")
    one.write.acquire(0)
    assert ([each.label for each in one.holders()], one.waiters()) == (["mine"], [])
    one.close()


def semaphore(store):
    one = Semaphore(store, "a", leases=1, label="mine")
    assert (one.size(), one.holders()) == (None, [])
    one.acquire(0)
    with pytest.raises(WaitTimeout, match="held by 'mine'"):
        Semaphore(store, "a").acquire(0.05)
    assert ([each.label for each in one.holders()], one.waiters()) == (["mine"], [])
    one.close()


def persistent_lock(store):
    with PersistentLock(store, "a", owner_label="mine") as fence:
        assert PersistentLock(store, "a").holder().label == "mine"
        assert fence.token


def lock_keeper(store):
    with LockKeeper(store, owner_label="mine") as keeper:
        keeper.acquire("a", 0)
        assert list(keeper.held()) == ["a"]


def leader_latch(store):
    one = LeaderLatch(store, "a", node_id="mine")
    assert one.candidates() == []
    with one:
        one.wait(45.0)
        assert [each.node_id for each in one.candidates()] == ["mine"]


def election(store):
    one = Election(store, "a", node_id="mine")
    with one.observe() as seen:
        assert (one.leader(), seen.next(45.0)) == (None, None)
        with one.campaign(b"ours", timeout_s=0):
            assert (one.leader().value, seen.next(45.0).value) == (b"ours", b"ours")
            with one.observe() as later:
                assert later.next(45.0).value == b"ours"
        assert seen.next(45.0) is None
        with Election(store, "a/more", node_id="x").campaign(timeout_s=0), pytest.raises(WaitTimeout):
            seen.next(0.1)


def barrier(store):
    one = Barrier(store, "a", parties=2, member_id="mine")
    assert one.arrived() == []
    with pytest.raises(BarrierBroken) as caught:
        one.wait(0.1)
    assert caught.value.arrived == ("mine",)


def double_barrier(store):
    one = DoubleBarrier(store, "a", parties=2, member_id="mine")
    assert one.members() == []
    with pytest.raises(BarrierBroken) as caught:
        one.enter(0.1)
    assert caught.value.arrived == ("mine",)


def group(store):
    with Group(store, "a", member_id="mine") as one:
        assert one.wait(45.0).ids == ["mine"]


def queue(store):
    one = Queue(store, "a", capacity=1)
    one.put(b"mine", timeout_s=0)
    with pytest.raises(WaitTimeout):
        one.put(b"too much", timeout_s=0.05)
    assert one.take(0).value == b"mine"
    with pytest.raises(WaitTimeout):
        one.take(0.05)
    assert (one.size(), len(one.claims()), one.waiting_consumers(), one.waiting_producers()) == (1, 1, [], [])


def priority_queue(store):
    one = PriorityQueue(store, "a")
    one.put(b"mine", priority=9)
    assert (one.take(0).value, one.size()) == (b"mine", 1)


def backlog(store):
    one = WorkQueue(store, "a")
    assert (one.partitions(), one.items(), one.wait_free("any", 0.05)) == ([], [], False)
    one.put("any", "s", "1", b"mine")
    (claim,) = one.try_take(["any"], limit=9)
    assert (claim.value, one.size(), list(one.claims()), one.waiting_consumers("any")) == (b"mine", 1, ["any/s/1"], [])
    claim.ack()


def once(store):
    one = Once(store, "a")
    assert (one.outcome(), one.runner()) == (None, None)
    assert one.run(lambda _work: b"mine", timeout_s=0) == b"mine"


def rate_limiter(store):
    one = RateLimiter(store, "a", permits=1, interval_s=60)
    assert (one.issued(), one.waiters()) == (0, [])
    one.acquire(timeout_s=0)
    one.close()


def counter(store):
    one = Counter(store, "a")
    assert (one.value(), one.add(2), one.value()) == (0, 2, 2)


def sequence(store):
    one = Sequence(store, "a")
    assert one.last() == 0
    one.take(lambda number: [Create(f"ids/{number}", b"")])
    assert one.last() == 1
    store.delete_tree("ids")


KINDS = (
    *(lock, read_write_lock, semaphore, persistent_lock, lock_keeper, leader_latch, election, barrier, double_barrier),
    *(group, queue, priority_queue, backlog, once, rate_limiter, counter, sequence),
)


@pytest.mark.parametrize("use", KINDS, ids=[each.__name__ for each in KINDS])
def test_what_is_used_under_nested_names_does_not_count(others, use):
    with latchwork.connect(URL) as store:
        use(store)


@pytest.mark.parametrize(
    "wait",
    [
        lambda store, name, member, s: Barrier(store, name, parties=3, member_id=member).wait(s),
        lambda store, name, member, s: DoubleBarrier(store, name, parties=3, member_id=member).enter(s),
    ],
    ids=["Barrier", "DoubleBarrier"],
)
def test_arrivals_at_a_nested_barrier_cost_a_waiter_no_calls(wait):
    with latchwork.connect(URL) as store, FaultyStore(latchwork.connect(URL)) as counted:
        nested = [threading.Thread(target=wait_in, args=(lambda m=m: wait(store, "a/eu", m, None),)) for m in "xy"]
        for thread in nested:
            thread.start()
        with store.mirror("a/eu") as mirror:
            mirror.wait_until(lambda now: {"a/eu/arrived-x", "a/eu/arrived-y"} <= set(now), 45.0)
        with pytest.raises(BarrierBroken):
            wait(counted, "a", "mine", 1.0)
        calls = len(counted.calls)
    for thread in nested:
        thread.join()
    assert calls < 30
