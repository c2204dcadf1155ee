"""What a primitive leaves under its name is removed by `forget`, and by nothing while somebody uses the name."""

from __future__ import annotations

import contextlib
import threading

import pytest

import latchwork
from latchwork import Conflict, Create
from latchwork.primitives import (
    Barrier,
    Counter,
    DoubleBarrier,
    Election,
    Group,
    LeaderLatch,
    Lock,
    Once,
    PersistentLock,
    PriorityQueue,
    Queue,
    RateLimiter,
    ReadWriteLock,
    Semaphore,
    Sequence,
    WorkQueue,
    forget,
)
from patience import eventually
from primitives.conftest import list_arrivals

pytestmark = pytest.mark.threads
NAME = "dir/name"


def use_lock(store):
    with Lock(store, NAME):
        pass


def use_rwlock(store):
    lock = ReadWriteLock(store, NAME)
    with lock.read:
        pass
    with lock.write:
        pass


def use_semaphore(store):
    with Semaphore(store, NAME, leases=2):
        pass


def use_election(store):
    with Election(store, NAME, node_id="n1").campaign(b"v", timeout_s=10):
        pass


def use_latch(store):
    with LeaderLatch(store, NAME, node_id="n1") as latch:
        latch.wait(timeout_s=10)


def use_counter(store):
    Counter(store, NAME).add(2)


def use_sequence(store):
    Sequence(store, NAME).take(lambda number: [Create(f"record-{number}", b"")])
    store.delete("record-1")


def use_barrier(store):
    with contextlib.closing(Barrier(store, NAME, parties=1, member_id="n1")) as barrier:
        barrier.wait(timeout_s=10)


def use_double_barrier(store):
    with DoubleBarrier(store, NAME, parties=1, member_id="n1", timeout_s=10):
        pass


def use_group(store):
    with Group(store, NAME, member_id="n1") as group:
        group.wait(timeout_s=10)


def use_queue(store):
    with contextlib.closing(Queue(store, NAME)) as queue:
        queue.put(b"small")
        queue.put(b"large" * 2000)
        for _ in range(2):
            with queue.take(timeout_s=10):
                pass


def use_priority_queue(store):
    with contextlib.closing(PriorityQueue(store, NAME)) as queue:
        queue.put(b"x", priority=3)
        with queue.take(timeout_s=10):
            pass


def use_work_queue(store):
    with contextlib.closing(WorkQueue(store, NAME)) as queue:
        for number in range(60):  # more than one transaction removes
            queue.put("any", f"s{number}", "i", b"")
        for item in queue.items("any"):
            queue.remove(item)


def use_once(store):
    Once(store, NAME).run(lambda _: b"done", timeout_s=10)


def use_rate_limiter(store):
    with RateLimiter(store, NAME, permits=100, interval_s=0.5) as limiter:
        limiter.acquire(timeout_s=10)


def use_persistent_lock(store):
    with PersistentLock(store, NAME, ttl_s=2):
        pass


USES = [value for name, value in list(globals().items()) if name.startswith("use_")]
#: These leave nothing by themselves.
CLEAN = {"use_lock", "use_rwlock", "use_election", "use_latch"}


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_nothing_of_a_name_stays_after_forget_and_it_can_be_used_again(store, use):
    store.put("dir/other", b"")
    for _ in range(2):
        use(store)
        eventually(lambda: not any(entry.owner for entry in entries_of(store)))
        removed = forget(store, NAME)
        assert (removed == 0) == (use.__name__ in CLEAN)
        assert [entry.key for entry in entries_of(store)] == ["dir/other"]
        assert forget(store, NAME) == 0
    if use is use_counter:
        assert Counter(store, NAME).value() == 0


def entries_of(store):
    """All keys of the tests, except takers of queues, which end with their session."""
    return [entry for entry in store.list("dir", recursive=True) if "/holders/" not in entry.key]


@contextlib.contextmanager
def waiting_at_a_barrier(store):
    barrier = Barrier(store, NAME, parties=2, member_id="n1")
    thread = threading.Thread(target=_wait, args=(barrier,))
    thread.start()
    eventually(lambda: list_arrivals(store, NAME))
    yield
    barrier.close()
    thread.join()


def _wait(barrier):
    with contextlib.suppress(latchwork.LatchworkError):
        barrier.wait(timeout_s=10)


@contextlib.contextmanager
def an_item(store):
    with contextlib.closing(Queue(store, NAME)) as queue:
        queue.put(b"x")
        yield


@contextlib.contextmanager
def a_dead_letter(store):
    with contextlib.closing(WorkQueue(store, NAME)) as queue:
        queue.put("any", "s", "i", b"x")
        queue.move_to_dead_letters(queue.items("any")[0])
        yield


@contextlib.contextmanager
def a_member(store):
    with Group(store, NAME, member_id="n1") as group:
        group.wait(timeout_s=10)
        yield


IN_USE = {
    "lock": lambda store: Lock(store, NAME),
    "semaphore": lambda store: Semaphore(store, NAME, leases=1),
    "persistent lock": lambda store: PersistentLock(store, NAME, ttl_s=5),
    "barrier": waiting_at_a_barrier,
    "item": an_item,
    "dead letter": a_dead_letter,
    "member": a_member,
}


@pytest.mark.parametrize("what", IN_USE)
def test_what_is_in_use_is_not_forgotten(store, what):
    with IN_USE[what](store):
        before = [(entry.key, entry.token) for entry in store.list("dir", recursive=True)]
        with pytest.raises(Conflict, match="'dir/name' is in use: "):
            forget(store, NAME)
        after = [(entry.key, entry.token) for entry in store.list("dir", recursive=True)]
        assert [key for key, _ in before] == [key for key, _ in after]


def test_keys_that_no_primitive_wrote_and_names_below_stay(store):
    for key in ("dir/name", "dir/name/tailor", "dir/name/settings/tail"):
        store.put(key, b"mine")
    with Semaphore(store, "dir/name/below", leases=1):
        pass
    use_once(store)
    assert forget(store, NAME) == 2
    assert [entry.key for entry in store.list("dir", recursive=True)] == [
        "dir/name",
        "dir/name/below/leases/size",
        "dir/name/settings/tail",
        "dir/name/tailor",
    ]


def test_a_record_that_is_written_while_it_is_removed_stays(store, monkeypatch):
    """Between the look and the removal another client takes permits: they are not forgotten."""
    use_rate_limiter(store)
    commit = type(store).commit

    def overtaken(self, checks=(), ops=()):
        monkeypatch.undo()
        use_rate_limiter(store)
        return commit(self, checks, ops)

    monkeypatch.setattr(type(store), "commit", overtaken)
    with pytest.raises(Conflict, match="was written while"):
        forget(store, NAME)
    assert RateLimiter(store, NAME, permits=100, interval_s=0.5).issued() == 2


@pytest.mark.parametrize("use", [use_semaphore, use_queue, use_group, use_rate_limiter], ids=lambda use: use.__name__)
def test_users_and_forgetters_of_one_name_get_on(store, use):
    """A user that meets a removal begins anew; nobody fails, and nothing stays at the end."""
    stop = threading.Event()

    def forgets():
        while not stop.is_set():
            with contextlib.suppress(Conflict):
                forget(store, NAME)

    thread = threading.Thread(target=forgets)
    thread.start()
    try:
        for _ in range(15):
            use(store)
    finally:
        stop.set()
        thread.join()
    eventually(lambda: not any(entry.owner for entry in entries_of(store)))
    forget(store, NAME)
    assert entries_of(store) == []
