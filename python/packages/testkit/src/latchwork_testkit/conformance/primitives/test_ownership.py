"""Locks and elections: there is one owner, and its fence is refused after another owner has taken over."""

from __future__ import annotations

import threading
import time

import pytest

from latchwork.errors import Conflict, WaitTimeout
from latchwork.primitives import LeaderLatch, Lock, PersistentLock, ReadWriteLock, Semaphore
from latchwork.types import Put

WAIT_S = 30.0


def test_a_lock_has_one_holder_at_a_time_and_tokens_that_grow(client, run_concurrently):
    inside, most, tokens = [], [], []

    def hold(lock):
        for _ in range(5):
            fence = lock.acquire(WAIT_S)
            inside.append(1)
            most.append(len(inside))
            tokens.append(fence.token)
            inside.pop()
            lock.release()

    locks = [Lock(client(), "orders") for _ in range(4)]
    run_concurrently(*(lambda lock=lock: hold(lock) for lock in locks))
    for lock in locks:
        lock.close()
    assert max(most) == 1
    assert tokens == sorted(set(tokens))


def test_a_lock_passes_to_the_next_one_when_the_session_of_its_holder_ends(client):
    first, second = client(), client()
    held, waiting = Lock(first, "orders"), Lock(second, "orders")
    old = held.acquire(WAIT_S)
    first.session.close()
    new = waiting.acquire(WAIT_S)
    assert new.token > old.token
    with pytest.raises(Conflict):
        second.commit([old], [Put("result", b"late")])
    second.commit([new], [Put("result", b"ours")])
    waiting.close()


def test_waiters_get_a_lock_in_the_order_in_which_they_asked(client):
    stores = [client() for _ in range(4)]
    locks = [Lock(store, "orders") for store in stores]
    locks[0].acquire(WAIT_S)
    order, threads = [], []

    def wait(number):
        locks[number].acquire(WAIT_S)
        order.append(number)
        locks[number].release()

    for number in (1, 2, 3):
        threads.append(threading.Thread(target=wait, args=(number,), daemon=True))
        threads[-1].start()
        until = time.monotonic() + WAIT_S
        while len(locks[0].waiters()) < number and time.monotonic() < until:
            time.sleep(0.01)
    locks[0].release()
    for thread in threads:
        thread.join(WAIT_S)
    assert order == [1, 2, 3]


def test_a_semaphore_has_as_many_holders_as_leases(client):
    semaphores = [Semaphore(client(), "scanners", leases=2) for _ in range(3)]
    semaphores[0].acquire(WAIT_S)
    semaphores[1].acquire(WAIT_S)
    with pytest.raises(WaitTimeout):
        semaphores[2].acquire(0.2)
    semaphores[0].release()
    semaphores[2].acquire(WAIT_S)
    for semaphore in semaphores:
        semaphore.close()


def test_readers_share_a_lock_and_a_writer_has_it_alone(client):
    locks = [ReadWriteLock(client(), "table") for _ in range(3)]
    locks[0].read.acquire(WAIT_S)
    locks[1].read.acquire(WAIT_S)
    with pytest.raises(WaitTimeout):
        locks[2].write.acquire(0.2)
    locks[0].read.release()
    locks[1].read.release()
    locks[2].write.acquire(WAIT_S)
    with pytest.raises(WaitTimeout):
        locks[0].read.acquire(0.2)
    for lock in locks:
        lock.close()


def test_another_candidate_leads_when_the_leader_leaves(client):
    first = LeaderLatch(client(), "leader", node_id="n1")
    second = LeaderLatch(client(), "leader", node_id="n2")
    first.start()
    old = first.wait(WAIT_S)
    second.start()
    assert not second.is_leader
    first.close()
    assert second.wait(WAIT_S).token > old.token
    second.close()


def test_a_persistent_lock_outlives_the_session_of_its_store(client):
    first = client()
    held = PersistentLock(first, "job", ttl_s=2.0)
    held.acquire(WAIT_S)
    first.session.close()
    waiting = PersistentLock(client(), "job", ttl_s=2.0)
    with pytest.raises(WaitTimeout):
        waiting.acquire(0.5)
    held.release()
    waiting.acquire(WAIT_S)
    held.close()
    waiting.close()
