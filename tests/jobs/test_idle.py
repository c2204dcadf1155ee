"""What a node writes while nothing happens: etcd keeps each write until its history is compacted."""

from __future__ import annotations

import time

from latchwork.executor import Executor, ExecutorWorker
from latchwork.jobs import FixedDelay, Job
from latchwork.plans import PlanWorker
from latchwork.tasks import Functions

IDLE_S = 10.0
LOCK_TTL_S = 10.0


def check_idle(store, backend_url, most):
    """Check that so many writes happen at most."""
    time.sleep(2.0)
    changed = []
    with store.watch("") as watch:
        watch.next(10.0)
        watch.subscribe(lambda batch: changed.extend(change.key for change in batch))
        before = store.put("probe", b"").token
        time.sleep(IDLE_S)
        after = store.put("probe", b"").token
    assert len([key for key in changed if key != "probe"]) <= most
    keeps_no_history = backend_url.startswith(("memory:", "sqlite:", "postgresql:"))  # a renewal is a write there
    assert keeps_no_history or after - before - 1 <= most


def test_an_idle_node_of_jobs_renews_all_its_locks_three_times_in_their_ttl_and_writes_nothing_else(
    store, backend_url, cluster, eventually
):
    late = {"schedule": FixedDelay(3600.0), "initial_delay_s": 3600.0}
    cluster.node(
        store, "n1", Job("report", work_pool=list("abcdef"), run=lambda _: None, **late), lock_ttl_s=LOCK_TTL_S
    )
    eventually(lambda: len(store.list("locks/report")) == 6)
    check_idle(store, backend_url, 3 * IDLE_S / LOCK_TTL_S + 1)


def test_idle_workers_write_nothing(store, backend_url):
    functions = Functions()
    worker = ExecutorWorker(store, node_id="n1", slots=2, functions=functions)
    with worker, PlanWorker(store, functions=functions), Executor(store, functions=functions):
        check_idle(store, backend_url, 0)
