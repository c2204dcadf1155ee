"""What users' jobs and pools do to a node: each has a stated behaviour, and a log line that helps."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time

import pytest

import latchwork
from latchwork.jobs import FixedDelay, Job, NodeRecord, Threads, inspect
from latchwork.jobs.stored import cluster_store, keys


@pytest.fixture
def memory():
    with latchwork.connect("memory://trouble") as store:
        yield cluster_store(store)


# Runs


def test_a_run_that_returns_at_once_without_a_pause_starves_nobody(memory, cluster, eventually):
    counts = {"hot": 0, "calm": 0}

    def count(context):
        counts[context.job_id] += 1

    def job(job_id, delay_s):
        return cluster.endless(job_id, items=[job_id], run=count, schedule=FixedDelay(delay_s), threads=Threads.whole())

    node = cluster.node(memory, "n1", [job("hot", 0.0), job("calm", 0.01)])
    eventually(lambda: counts["hot"] > 1000 and counts["calm"] > 10)
    began = time.monotonic()
    node.close()
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_run_that_tries_to_end_the_interpreter_counts_as_failed_and_runs_again(
    memory, cluster, eventually, end, caplog
):
    def leave(_context):
        raise end(3)

    node = cluster.node(memory, "n1", cluster.endless(items=["a"], run=leave))
    eventually(lambda: node.stats().jobs["report"].failures >= 2)
    assert "run_failed node=n1 job=report" in caplog.text


HOLDS_THE_INTERPRETER = """
import ctypes, sys, threading, time
import latchwork
from latchwork.jobs import FixedDelay, Job, JobManager

done = []

def work(context):
    fence = context.fence("a")
    print("start", fence.token, flush=True)
    if not done:
        done.append(True)
        ctypes.PyDLL(None).usleep(int(5e6))  # keeps the interpreter's lock: no other thread of this process runs
        from latchwork import Conflict, LatchworkError, Put
        while True:
            try:  # not by the store of the context, which asks its own clock first
                store.commit([fence], [Put("result", b"late")])
                print("wrote", flush=True)
                break
            except Conflict:
                print("refused", flush=True)
                break
            except LatchworkError:
                time.sleep(0.2)  # the server was out of reach for as long
    context.wait_for_stop()

job = Job("report", work_pool=["a"], run=work, schedule=FixedDelay(0.05), initial_delay_s=0.0)
with latchwork.connect(sys.argv[1]) as store:
    JobManager(store, "n1", job, session_ttl_s=2.0, lock_ttl_s=2.0).run_forever()
"""


def test_a_run_that_holds_the_interpreter_past_the_ttl_is_replaced_and_its_late_write_refused(
    etcd35, cluster, eventually, tmp_path
):
    url = etcd35.url("holds-the-interpreter")
    script, log = tmp_path / "node.py", tmp_path / "n1.log"
    script.write_text(HOLDS_THE_INTERPRETER)
    with latchwork.connect(url) as store, log.open("wb") as output:
        process = subprocess.Popen([sys.executable, script, url], stdout=output, stderr=subprocess.STDOUT)
        try:
            eventually(lambda: b"start" in log.read_bytes(), 20)
            other = cluster.node(store, "n2", cluster.endless(items=["a"]), session_ttl_s=2.0, lock_ttl_s=2.0)
            eventually(lambda: cluster.log.owners() == {"a": "n2"}, 20)
            eventually(lambda: b"refused" in log.read_bytes(), 20)
            assert b"wrote" not in log.read_bytes()
            eventually(lambda: "n1" in inspect(store).nodes, 20, "n1 registers anew")
            other.close()
            eventually(lambda: log.read_bytes().count(b"start") >= 2, 20)
        finally:
            process.terminate()
            assert process.wait(20) == 0


# Pools


def test_a_pool_of_no_items_is_fine_and_one_that_shrinks_stops_what_runs(memory, cluster, eventually):
    items = []
    job = cluster.endless(work_pool=lambda: list(items), pool_check_period_s=0.05)
    cluster.node(memory, "n1", job)
    assert inspect(memory).pools == {"report": ()}
    items += ["a", "b", "c"]
    eventually(lambda: set(cluster.log.owners()) == {"a", "b", "c"})
    items.remove("b")
    eventually(lambda: set(cluster.log.owners()) == {"a", "c"})
    items.clear()
    eventually(lambda: not cluster.log.owners())
    assert inspect(memory).pools == {"report": ()}


def test_a_pool_that_flaps_interrupts_only_the_items_that_flap(memory, cluster, eventually):
    turn = [0]

    def pool():
        turn[0] += 1
        return ["a", "b"] + (["c"] if turn[0] % 2 else [])

    cluster.node(memory, "n1", cluster.endless(work_pool=pool, pool_check_period_s=0.1), debounce_s=0.02)
    eventually(lambda: cluster.log.count()["c"] >= 3)
    assert cluster.log.count()["a"] == cluster.log.count()["b"] == 1


@pytest.mark.slow
def test_a_pool_of_1_000_000_items_is_stored_in_small_values_and_assigned(memory, cluster, eventually):
    items = [f"item-{number:07}" for number in range(1_000_000)]
    job = Job("big", work_pool=lambda: items, run=print, initial_delay_s=3600.0)
    node = cluster.node(memory, "n1", job, session_ttl_s=60.0, close_timeout_s=60.0)  # a slow machine is busy with it
    eventually(lambda: node.stats().moves >= 1_000_000, 120)
    manifests = memory.list(keys.assignment_key("n1", "big"))
    assert max(len(entry.value) for entry in memory.list("", recursive=True)) < 1_000_000
    assert len(manifests) > 10


# Versions


def test_nodes_of_different_versions_on_one_root_are_a_warning_that_names_them(memory, cluster, eventually, caplog):
    caplog.set_level(logging.WARNING)
    cluster.node(memory, "n1", cluster.endless())
    old = NodeRecord("old", "ready", "host", 1, "abc", 0.0, 10.0, version="0.0.1")
    memory.put(keys.alive_key("old"), old.to_bytes())
    eventually(lambda: "nodes of different latchwork versions share this cluster: 0.0.1: old; " in caplog.text)
    threading.Event().wait(0.3)
    assert caplog.text.count("different latchwork versions") == 1
