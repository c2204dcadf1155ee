"""Closing a node: every run is told, whatever hangs, and the time to close is kept."""

from __future__ import annotations

import threading
import time

import pytest

from latchwork.jobs import FixedDelay, Job, Threads
from latchwork.jobs.stored import cluster_store
from latchwork.jobs.worker.worker import JobWorker
from latchwork.primitives import LockKeeper
from latchwork.store import connect


@pytest.fixture
def store():
    with connect("memory://worker-close") as made:
        cluster = cluster_store(made)
        cluster.delete_tree("")
        yield cluster


def per_item(run, items, **options):
    defaults = {"schedule": FixedDelay(0.05), "initial_delay_s": 0.0, "threads": Threads.per_item()}
    return Job("j", run=run, work_pool=items, **{**defaults, **options})


def test_runs_are_told_to_stop_although_the_worker_hangs_in_a_call(store, cluster, eventually, monkeypatch):
    items, stopped, hanging, leave = ["a"], threading.Event(), threading.Event(), threading.Event()
    begun = []

    def run(context):
        begun.append(context.items)
        context.wait_for_stop()
        stopped.set()

    node = cluster.node(
        store, "n1", per_item(run, lambda: list(items), pool_check_period_s=0.1), close_timeout_s=0.3, lock_ttl_s=5.0
    )
    eventually(lambda: begun)
    real = LockKeeper.try_acquire_many

    def hang(keeper, names):
        if keeper is node._worker.locks._keeper:
            hanging.set()
            leave.wait(15)
        return real(keeper, names)

    monkeypatch.setattr(LockKeeper, "try_acquire_many", hang)
    items.append("b")
    assert hanging.wait(5)
    closer = threading.Thread(target=node.close)
    closer.start()
    assert stopped.wait(0.5)
    closer.join(10)
    assert not closer.is_alive()
    leave.set()
    node._worker._thread.join(5)
    assert not node._worker._thread.is_alive()
    assert begun == [("a",)]


def test_the_worker_takes_a_closing_step_even_when_no_time_is_given(store, cluster, eventually):
    stopped = threading.Event()

    def run(context):
        context.wait_for_stop()
        stopped.set()

    node = cluster.node(store, "n1", per_item(run, ["a"]), close_timeout_s=0.0)
    eventually(lambda: node.stats().jobs["j"].active)
    node.close()
    assert stopped.wait(1)


def test_a_stop_listener_that_hangs_delays_neither_the_hand_over_nor_close(store, cluster, eventually):
    leave = threading.Event()

    def run(context):
        context.on_stop(lambda: leave.wait(30))
        context.wait_for_stop()

    try:
        first = cluster.node(store, "n1", per_item(run, list("abcdef")), close_timeout_s=0.5)
        eventually(lambda: first.stats().jobs["j"].active == 6)
        second = cluster.node(store, "n2", per_item(run, list("abcdef")), close_timeout_s=0.5)
        before = time.monotonic()
        eventually(lambda: second.stats().jobs["j"].active == 3)
        assert time.monotonic() - before < 3.0
        before = time.monotonic()
        first.close()
        assert time.monotonic() - before < 3.0
    finally:
        leave.set()


def test_close_from_a_run_does_not_wait_for_that_run(store, cluster, eventually):
    found = {}
    closed = threading.Event()

    def run(context):
        worker = cluster.nodes[0]._worker
        found["inside"] = any(run.is_current_thread for run in worker._list_live_runs())
        before = time.monotonic()
        found["stuck"] = JobWorker.close(worker, 5.0)
        found["took_s"] = time.monotonic() - before
        found["told"] = context.should_stop
        closed.set()

    node = cluster.node(store, "n1", per_item(run, ["a"]))
    assert not any(run.is_current_thread for run in node._worker._list_live_runs())
    assert closed.wait(10)
    assert found["inside"]
    assert found["told"]
    assert found["stuck"] == ["j"]
    assert found["took_s"] < 3.0


def test_items_that_are_still_being_locked_do_not_delay_close(store, cluster, eventually, monkeypatch):
    real = LockKeeper.try_acquire_many

    def slow(keeper, names):
        assert not threading.Event().wait(0.2)
        return real(keeper, names)

    monkeypatch.setattr(LockKeeper, "try_acquire_many", slow)
    for pause in ("_FILL_S", "_FILL_BUSY_S"):  # nothing but closing ends it: all items would take 9 s
        monkeypatch.setattr(f"latchwork.jobs.worker.worker.{pause}", 60.0)
    job = per_item(lambda context: None, [f"i{number}" for number in range(20_000)], threads=Threads.whole())
    node = cluster.node(store, "n1", job, close_timeout_s=1.0)
    eventually(lambda: store.list("locks/j", limit=1))
    before = time.monotonic()
    node.close()
    assert time.monotonic() - before < 2.5  # less than the time to close and the grace of a call
