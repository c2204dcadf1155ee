"""A run works under the very locks it was started with, and under no later ones."""

from __future__ import annotations

import threading

import pytest

from latchwork.errors import LockLost
from latchwork.jobs import FixedDelay, Job, Threads
from latchwork.jobs.stored import cluster_store
from latchwork.jobs.worker.item_locks import LOCK_BATCH, ItemLocks, LockBatches, LockScheduler, RunLocks
from latchwork.primitives import LockKeeper
from latchwork.store import connect
from latchwork.types import Put


@pytest.fixture
def store():
    with connect("memory://run-locks") as made:
        cluster = cluster_store(made)
        cluster.delete_tree("")
        yield cluster


@pytest.fixture
def locks(store):
    made = ItemLocks(store, "n1", 30.0, lambda: None)
    yield made
    made.close(release=True)


@pytest.fixture
def short_locks(store):
    """Those whose owner soon looks whether it still is there."""
    made = ItemLocks(store, "n1", 2.0, lambda: None)
    yield made
    made.close(release=True)


def take(locks, items):
    """Ask for what is to be asked for, as a worker does; whether any was taken."""
    return locks.try_acquire("j", locks.set_wanted_items("j", items))


def hold(locks, eventually, *items):
    eventually(lambda: take(locks, items) and len(locks.get_held_locks().get("j", {})) == len(items))
    return RunLocks("j", locks.get_held_locks()["j"])


def test_a_lock_that_was_lost_and_taken_anew_is_no_lock_of_the_old_run(store, short_locks, eventually):
    locks = short_locks
    old = hold(locks, eventually, "x")
    assert old.fence("x").token
    store.delete(store.list("owners")[0].key)  # what is left of an owner that was taken over
    eventually(lambda: old.remaining_s() == 0)
    new = hold(locks, eventually, "x")
    assert new.remaining_s() > 0
    assert old.remaining_s() == 0
    with pytest.raises(LockLost, match="was lost during this run"):
        old.fence("x")


def test_a_stale_run_that_wakes_after_its_item_came_back_can_write_nothing(store, cluster, eventually):
    out, go, begun, done = {}, threading.Event(), threading.Event(), threading.Event()

    def run(context):
        if begun.is_set():
            return
        begun.set()
        go.wait(15)  # frozen: it does not look at should_stop
        out["left"] = context.remaining_s()
        try:
            store.commit([context.fence("x")], [Put("result", b"stale")])
        except LockLost as error:
            out["error"] = error
        done.set()

    cluster.node(store, "n1", Job("j", work_pool=["x"], run=run, initial_delay_s=0.0), lock_ttl_s=0.8)
    assert begun.wait(5)
    store.delete(store.list("owners")[0].key)
    other = LockKeeper(store, ttl_s=5.0, owner_label="other")
    taken = eventually(lambda: other.try_acquire("j/x"))
    store.commit([taken.fence], [Put("result", b"new")])
    eventually(lambda: cluster.nodes[0]._worker.locks.remaining_s() == 0)
    other.close()
    assert not threading.Event().wait(0.5)  # long enough to lock it anew, were that allowed
    go.set()
    assert done.wait(5)
    assert out["left"] == 0
    assert isinstance(out["error"], LockLost)
    assert store.get("result").value == b"new"


def test_when_the_server_fails_nothing_is_waited_for_so_that_nothing_wakes_in_circles(store, eventually, monkeypatch):
    woken = []
    locks = ItemLocks(store, "n1", 1.0, lambda: woken.append(1))
    try:
        hold(locks, eventually, "a")
        monkeypatch.setattr(LockKeeper, "try_acquire_many", fail)
        with pytest.raises(LockLost):
            take(locks, ["b", "c"])
        assert not threading.Event().wait(0.3)
        assert woken == []
        monkeypatch.undo()
        assert take(locks, ["b", "c"])
    finally:
        locks.close(release=True)


def fail(self, names):
    raise LockLost("the server is away")


def test_many_locks_are_taken_and_given_back_in_parts_and_the_caller_may_end_it_in_between(locks, eventually):
    hold(locks, eventually, "first")
    items = [f"i{number:04}" for number in range(LOCK_BATCH * 2 + 10)]
    scheduler, work = LockScheduler(), LockBatches(locks, "j", (), items)
    assert scheduler.process_batches([work], lambda _: False)
    assert (len(locks.get_held_locks()["j"]), work.has_acquisitions) == (1 + LOCK_BATCH, True)
    assert scheduler.process_batches([work], lambda _: True)
    assert (len(locks.get_held_locks()["j"]), work.has_acquisitions) == (1 + len(items), False)
    back = LockBatches(locks, "j", items, ())
    assert not scheduler.process_batches([back], lambda _: False)
    assert (len(locks.get_held_locks()["j"]), back.remaining_batches) == (1 + LOCK_BATCH + 10, 2)
    scheduler.process_batches([back], lambda _: True)
    assert list(locks.get_held_locks()["j"]) == ["first"]


def test_jobs_take_turns_and_the_next_time_it_goes_on_where_it_ended(locks):
    works = [LockBatches(locks, job, (), [f"i{number:04}" for number in range(LOCK_BATCH * 4)]) for job in "abc"]
    scheduler = LockScheduler()

    def held():
        return {job: len(items) // LOCK_BATCH for job, items in locks.get_held_locks().items()}

    for expected in ({"a": 1}, {"a": 2}, {"a": 2, "b": 1}, {"a": 3, "b": 1}, {"a": 3, "b": 1, "c": 1}):
        scheduler.process_batches(works, lambda _: False)  # every second call is for the job with the least left
        assert held() == expected
    scheduler.process_batches(works, lambda _: True)
    assert held() == dict.fromkeys("abc", 4)


def test_a_small_job_comes_before_large_ones_that_were_there_first(locks):
    works = [LockBatches(locks, job, (), [f"i{number:04}" for number in range(LOCK_BATCH * 3)]) for job in "abc"]
    scheduler = LockScheduler()
    scheduler.process_batches(works, lambda _: False)
    works.append(LockBatches(locks, "z", (), ["new"]))
    scheduler.process_batches(works, lambda _: False)
    assert list(locks.get_held_locks()) == ["a", "z"]


def test_items_that_are_still_being_locked_start_one_run_not_one_for_each_part(store, cluster, eventually):
    shares = []
    job = Job(
        "j",
        work_pool=[f"i{number}" for number in range(LOCK_BATCH * 3)],
        run=lambda context: shares.append(len(context.items)),
        schedule=FixedDelay(0.05),
        initial_delay_s=0.0,
        threads=Threads.whole(),
    )
    node = cluster.node(store, "n1", job)
    node._worker._should_continue = lambda *_args, **_options: False  # every slice is a step of its own
    eventually(lambda: shares, timeout_s=20)
    assert shares[0] == LOCK_BATCH * 3
