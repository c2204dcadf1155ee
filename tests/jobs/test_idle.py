"""What a node writes while nothing happens: etcd keeps each write until its history is compacted."""

from __future__ import annotations

import time

import pytest

from latchwork.executor import Executor, ExecutorWorker
from latchwork.jobs import FixedDelay, Job
from latchwork.plans import PlanWorker
from latchwork.tasks import Functions
from patience import eventually

IDLE_S = 10.0
LOCK_TTL_S = 10.0


def check_idle(store, most):
    """Check that keys are written so many times at most."""
    time.sleep(2.0)
    changed = []
    with store.watch("") as watch:
        watch.next(10.0)
        watch.subscribe(lambda batch: changed.extend(change.key for change in batch))
        time.sleep(IDLE_S)
        store.put("probe", b"")
        eventually(lambda: "probe" in changed)
    assert len(changed) - 1 <= most


@pytest.mark.slow
def test_an_idle_node_of_jobs_renews_all_its_locks_three_times_in_their_ttl_and_writes_nothing_else(store, cluster):
    late = {"schedule": FixedDelay(3600.0), "initial_delay_s": 3600.0}
    cluster.node(
        store, "n1", Job("report", work_pool=list("abcdef"), run=lambda _: None, **late), lock_ttl_s=LOCK_TTL_S
    )
    eventually(lambda: len(store.list("locks/report")) == 6)
    check_idle(store, 3 * IDLE_S / LOCK_TTL_S + 1)


@pytest.mark.slow
def test_idle_workers_write_nothing(store):
    functions = Functions()
    worker = ExecutorWorker(store, node_id="n1", slots=2, functions=functions)
    with worker, PlanWorker(store, functions=functions), Executor(store, functions=functions):
        check_idle(store, 0)
