"""A node with many jobs whose locks come slowly: what it is told meanwhile does not wait for them."""

from __future__ import annotations

import threading

import pytest

import latchwork
from latchwork.jobs import Control, FixedDelay, Job
from latchwork.jobs.stored import cluster_store
from latchwork.primitives import LockKeeper

pytestmark = pytest.mark.serial

JOBS = 20
ITEMS = 1500
#: Seconds that a call for some hundred locks takes: all of them take ``JOBS`` x 4 x this, 4 s.
CALL_S = 0.05


@pytest.fixture
def memory():
    with latchwork.connect("memory://many-jobs") as store:
        yield cluster_store(store)


@pytest.fixture
def slow_locks(monkeypatch):
    """Calls for locks take their time; the names of those that were asked for."""
    real = LockKeeper.try_acquire_many
    asked = []

    def slow(keeper, names):
        asked.append(sorted(names))
        assert not threading.Event().wait(CALL_S)
        return real(keeper, names)

    monkeypatch.setattr(LockKeeper, "try_acquire_many", slow)
    return asked


@pytest.fixture
def is_acquiring(memory, cluster, eventually, slow_locks):
    """Start a node with this job, and with many others that it is in the midst of taking the locks of."""

    def start(job):
        pools = {f"many{number:02}": [] for number in range(JOBS)}
        others = [
            Job(name, work_pool=lambda name=name: list(pools[name]), run=lambda _: None, initial_delay_s=3600.0)
            for name in pools
        ]
        node = cluster.node(memory, "n1", [job, *others], lock_ttl_s=20.0, session_ttl_s=20.0)
        eventually(lambda: cluster.log.owners() or node.stats().jobs[job.id].items)
        for other in others:
            pools[other.id] += [f"i{number:04}" for number in range(ITEMS)]
            other.refresh_pool()
        eventually(lambda: sum(name.startswith("many") for names in slow_locks for name in names) > ITEMS, 30.0)
        return node

    return start


def held(node):
    return sum(map(len, node._worker.locks.get_held_locks().values()))


def test_a_run_is_told_within_a_second_that_its_job_is_disabled(memory, cluster, is_acquiring):
    told = threading.Event()
    node = is_acquiring(cluster.endless("hot", ["x"], on_stop=lambda _: told.set()))
    Control(memory).disable("hot")
    assert told.wait(1.0)
    assert held(node) < JOBS * ITEMS, "it had all locks already"


def test_a_run_is_told_within_a_second_that_its_item_is_gone(is_acquiring, cluster):
    told = threading.Event()
    pool = ["x"]
    job = cluster.endless("hot", on_stop=lambda _: told.set(), work_pool=lambda: list(pool))
    node = is_acquiring(job)
    pool.clear()
    job.refresh_pool()
    assert told.wait(1.0 + 0.3)  # the time that a rebalance waits for more, and takes
    assert held(node) < JOBS * ITEMS, "it had all locks already"


def test_a_new_item_of_another_job_starts_before_the_many_have_their_locks(is_acquiring, cluster, eventually):
    pool = ["x"]
    job = cluster.endless("small", work_pool=lambda: list(pool))
    node = is_acquiring(job)
    pool.append("y")
    job.refresh_pool()
    eventually(lambda: set(cluster.log.owners()) == {"x", "y"}, 2.0)
    assert held(node) < JOBS * ITEMS, "it had all locks already"


def test_a_shorter_wait_holds_within_a_second(memory, cluster, is_acquiring):
    ran = threading.Event()
    job = cluster.endless("hot", ["x"], run=lambda _: ran.set(), schedule=FixedDelay(3600.0), initial_delay_s=None)
    node = is_acquiring(job)
    assert not ran.is_set()
    Control(memory).change_job("hot", schedule=FixedDelay(0.05))
    assert ran.wait(1.0)
    assert held(node) < JOBS * ITEMS, "it had all locks already"


def test_a_run_is_told_that_its_job_is_disabled_while_a_call_for_locks_hangs(
    memory, cluster, eventually, monkeypatch, slow_locks
):
    del slow_locks
    told, hanging, go_on = threading.Event(), threading.Event(), threading.Event()
    pool = []
    other = Job("other", work_pool=lambda: list(pool), run=lambda _: None)
    cluster.node(memory, "n1", [cluster.endless("hot", ["x"], on_stop=lambda _: told.set()), other])
    eventually(cluster.log.owners)
    monkeypatch.setattr(LockKeeper, "try_acquire_many", lambda *_: hanging.set() or (go_on.wait(20) and {}))
    pool.append("y")
    other.refresh_pool()
    assert hanging.wait(10)
    try:
        Control(memory).disable("hot")
        assert told.wait(1.0)
    finally:
        go_on.set()


@pytest.mark.slow
def test_jobs_take_turns_for_their_locks(is_acquiring, cluster, slow_locks, eventually):
    node = is_acquiring(cluster.endless("hot", ["x"]))
    eventually(lambda: held(node) == JOBS * ITEMS + 1, 60.0)
    order = [names[0].partition("/")[0] for names in slow_locks if names[0].startswith("many")]
    firsts = [order.index(f"many{number:02}") for number in range(JOBS)]
    assert max(firsts) < 2 * JOBS, f"the last job had its first turn after {max(firsts)} calls"
    assert len(order) <= JOBS * 4, "locks were asked for twice"
