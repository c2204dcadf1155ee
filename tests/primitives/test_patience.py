"""Waits that begin while the server is away: as long as they may, and no longer. The same at every primitive."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import latchwork
from latchwork import primitives
from latchwork.errors import Closed, LatchworkError, Unavailable, WaitTimeout
from latchwork.primitives import (
    Barrier,
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
    WorkQueue,
)
from latchwork.testing.faults import Fault, FaultyStore


class Wait(NamedTuple):
    """How a primitive is made, how it is waited for, which call a server that is away fails, what is raised then."""

    make: Callable[[Any, str], Any]
    wait: Callable[[Any, float | None], object]
    op: str = "open_session"
    late: type[LatchworkError] = Unavailable


def started(one):
    one.start()
    return one


def with_an_item(store, kind):
    """A queue with an item in it, which was put while the server was there."""
    with latchwork.connect(store.url) as before:
        kind(before, "a").put(b"1")
    return kind(store, "a")


def with_a_free_item(store):
    """A work queue with an item in it, which was put while the server was there."""
    with latchwork.connect(store.url) as before:
        WorkQueue(before, "a").put("any", "s", "1", b"")
    return WorkQueue(store, "a")


WAITS = {
    "Lock": Wait(Lock, lambda one, s: one.acquire(s)),
    "ReadWriteLock.read": Wait(lambda store, name: ReadWriteLock(store, name).read, lambda one, s: one.acquire(s)),
    "ReadWriteLock.write": Wait(lambda store, name: ReadWriteLock(store, name).write, lambda one, s: one.acquire(s)),
    "Semaphore": Wait(lambda store, name: Semaphore(store, name, leases=1), lambda one, s: one.acquire(s)),
    "Election": Wait(lambda store, name: Election(store, name, node_id="n"), lambda one, s: one.campaign(timeout_s=s)),
    "Barrier": Wait(lambda store, name: Barrier(store, name, parties=1, member_id="m"), lambda one, s: one.wait(s)),
    "DoubleBarrier": Wait(
        lambda store, name: DoubleBarrier(store, name, parties=1, member_id="m"),
        lambda one, s: one.enter(s),
    ),
    "Queue.put": Wait(Queue, lambda one, s: one.put(b"1", timeout_s=s)),
    "Queue.take": Wait(lambda store, _: with_an_item(store, Queue), lambda one, s: one.take(s)),
    "PriorityQueue.take": Wait(lambda store, _: with_an_item(store, PriorityQueue), lambda one, s: one.take(s)),
    "WorkQueue": Wait(lambda store, _: with_a_free_item(store), lambda one, s: one.wait_free("any", s), "list"),
    "WorkQueue.take": Wait(lambda store, _: with_a_free_item(store), lambda one, s: one.take("any", s)),
    "WorkQueue.put": Wait(
        lambda store, name: WorkQueue(store, name, capacity=1),
        lambda one, s: one.put("any", "s", "1", b"", timeout_s=s),
    ),
    "Once": Wait(Once, lambda one, s: one.run(lambda _work: b"", timeout_s=s)),
    "RateLimiter": Wait(
        lambda store, name: RateLimiter(store, name, permits=1, interval_s=60),
        lambda one, s: one.acquire(timeout_s=s),
    ),
    "PersistentLock": Wait(PersistentLock, lambda one, s: one.acquire(s), "create"),
    "LockKeeper": Wait(lambda store, _: LockKeeper(store), lambda one, s: one.acquire("a", s), "create"),
    "LockKeeper.adopt": Wait(lambda store, _: LockKeeper(store), lambda one, s: one.adopt("0" * 32, None, s), "list"),
    # They join in a thread of their own, which goes on when a wait is over: that we are not in is all a wait can say.
    "LeaderLatch": Wait(
        lambda store, name: started(LeaderLatch(store, name, node_id="n")), lambda one, s: one.wait(s), late=WaitTimeout
    ),
    "Group": Wait(
        lambda store, name: started(Group(store, name, member_id="m")), lambda one, s: one.wait(s), late=WaitTimeout
    ),
}
#: Nothing is waited for but the server: ``timeout_s`` is for the answer, see the tests of each.
WITHOUT_WAITS = {"Counter", "Sequence"}


def test_every_primitive_is_here():
    parts = {
        "QueueClaim",
        "PreparedClaimEnd",
        "QueueItem",
        "Candidate",
        "GroupMember",
        "HeldLock",
        "Leader",
        "LockHolder",
        "LockState",
        "Observer",
        "CreateClaimed",
        "ConsumerShard",
    }
    parts |= {"Term", "Ticket", "View", "ViewChange", "GuardedWork"}
    kinds = {name for name in primitives.__all__ if isinstance(getattr(primitives, name), type)}
    assert {name.partition(".")[0] for name in WAITS} | WITHOUT_WAITS == kinds - parts


@pytest.fixture
def faulty():
    """A store whose first calls of a kind fail: so many of them, or all."""
    opened = []

    def make(op, times):
        fault = Fault("fail", op=op, times=times)
        opened.append(FaultyStore(latchwork.connect(f"memory://away-{uuid.uuid4().hex}/test"), [fault]))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_that_begins_while_the_server_is_away_goes_on_when_it_is_back(faulty, name):
    kind = WAITS[name]
    store = faulty(kind.op, 3)
    one = kind.make(store, "a")
    kind.wait(one, 60.0)
    assert len(store.faults) == 3
    assert len([call for call in store.calls if call.op == kind.op]) >= 4
    one.close()


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_that_ends_while_the_server_is_away_says_so(faulty, name):
    kind = WAITS[name]
    one = kind.make(faulty(kind.op, None), "a")
    for timeout_s in (0, 0.1):
        with pytest.raises(kind.late):
            kind.wait(one, timeout_s)
    one.close()


@pytest.mark.parametrize("name", WAITS)
def test_closing_ends_a_wait_for_the_server(faulty, name, in_thread, eventually):
    kind = WAITS[name]
    store = faulty(kind.op, None)
    one = kind.make(store, "a")
    waiting = in_thread(lambda: kind.wait(one, None))
    eventually(lambda: len(store.calls) > 1)
    one.close()
    with pytest.raises(Closed):
        waiting.outcome()
