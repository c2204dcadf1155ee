"""What a node writes while nothing happens: etcd keeps each write until its history is compacted."""

from __future__ import annotations

import time

from latchwork.executor import Executor, ExecutorWorker
from latchwork.jobs import FixedDelay, Job
from latchwork.plans import PlanWorker
from latchwork.tasks import Functions

IDLE_S = 10.0
#: Writes per second of an idle node.
MOST = 0.1


def check_idle(store, backend_url):
    """Check that hardly anything is written to the server, and no key of ours."""
    time.sleep(2.0)
    changed = []
    with store.watch("") as watch:
        watch.next(10.0)
        watch.subscribe(lambda batch: changed.extend(change.key for change in batch))
        before = store.put("probe", b"").token
        time.sleep(IDLE_S)
        after = store.put("probe", b"").token
    assert {*changed} - {"probe"} == set()
    keeps_no_history = backend_url.startswith(("memory:", "sqlite:", "postgresql:"))  # a renewal is a write there
    assert keeps_no_history or after - before - 1 <= MOST * IDLE_S


def test_an_idle_node_of_jobs_writes_nearly_nothing(store, backend_url, cluster, eventually):
    late = {"schedule": FixedDelay(3600.0), "initial_delay_s": 3600.0}
    cluster.node(store, "n1", Job("report", work_pool=list("abcdef"), run=lambda _: None, **late))
    eventually(lambda: len(store.list("locks/report")) == 6)
    check_idle(store, backend_url)


def test_idle_workers_write_nearly_nothing(store, backend_url):
    functions = Functions()
    worker = ExecutorWorker(store, node_id="n1", slots=2, functions=functions)
    with worker, PlanWorker(store, functions=functions), Executor(store, functions=functions):
        check_idle(store, backend_url)
