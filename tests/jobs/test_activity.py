"""Which runs are going on, as seen from outside: said when they last, at next to no cost, gone when they are."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

import latchwork
from latchwork.jobs import ActiveRuns, Control, Cron, FixedDelay, Job, Threads, explain_item, inspect
from latchwork.jobs.node.run_reporter import MIN_INTERVAL_S
from latchwork.jobs.stored import cluster_store
from latchwork.jobs.stored.runs import MAX_NAMED_ITEMS, LiveRun, decode_active_runs, encode_active_runs


@pytest.fixture
def memory():
    with latchwork.connect("memory://activity") as store:
        yield cluster_store(store)


def job_state(store, job="report"):
    return inspect(store).job(job)


def told(store, job, item):
    return " ".join(explain_item(inspect(store), Control(store).settings(), job, item).sentences)


# Pure


def test_the_oldest_items_of_a_job_are_named_and_all_are_counted():
    old, young = (
        LiveRun("report", tuple(f"{name}{n:05}" for n in range(60)), at) for name, at in (("b", 5.0), ("a", 9.0))
    )
    (found,) = decode_active_runs("n1", encode_active_runs([young, old]))
    assert (found.node, found.job, found.runs, found.items, found.since_s) == ("n1", "report", 2, 120, 5.0)
    assert len(found.named) == MAX_NAMED_ITEMS
    assert set(old.items) < set(found.named)
    assert found.named["b00000"] == 5.0
    assert found.named["a00000"] == 9.0


def test_the_value_stays_small_however_many_runs_items_and_jobs_there_are():
    many = [LiveRun(f"job{n:04}", tuple(f"{'é' * 200}{k}" for k in range(200)), float(n)) for n in range(2000)]
    value = encode_active_runs(many)
    assert len(value) <= 64 * 1024
    found = decode_active_runs("n1", value)
    assert found[0].items == 200
    assert len(encode_active_runs(LiveRun("report", (f"i{n}",), float(n)) for n in range(10_000))) < 5_000


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"jobs": 1}', b'{"jobs": {"a": {}}}', b"\xff", b'{"jobs": {"a": 3}}']
)
def test_a_value_that_cannot_be_read_says_nothing(value):
    assert decode_active_runs("n1", value) == []


# From outside


def test_a_run_that_lasts_is_seen_from_outside_with_its_items_its_node_and_since_when(store, cluster, eventually):
    before = time.time()
    cluster.node(store, "n1", cluster.endless(items=["a", "b"], threads=Threads.whole()))
    state = eventually(lambda: (found := job_state(store)).is_running and found)
    after = time.time()
    (active,) = state.active
    assert (active.node, active.job, active.runs, active.items) == ("n1", "report", 1, 2)
    assert set(active.named) == {"a", "b"}
    assert before <= active.since_s <= after - 1.0
    assert state.active_since_s == active.since_s
    assert state.active_items == 2
    assert "a run of it has been active there since 20" in told(store, "report", "a")


def test_a_run_that_has_ended_is_not_seen_any_more(store, cluster, eventually):
    end = threading.Event()
    job = cluster.endless(items=["a"], run=lambda _: end.wait(20), schedule=FixedDelay(3600.0))
    cluster.node(store, "n1", job)
    eventually(lambda: job_state(store).is_running)
    end.set()
    eventually(lambda: not job_state(store).is_running)
    assert store.get("runs/n1") is None
    assert job_state(store).running == {"a": "n1"}, "its lock is held on"


def test_a_yearly_job_that_never_ran_holds_its_lock_and_does_not_count_as_running(memory, cluster, eventually):
    job = Job("night", work_pool=["a"], run=lambda _: None, schedule=Cron("0 3 1 1 *"))
    cluster.node(memory, "n1", job)
    eventually(lambda: job_state(memory, "night").running == {"a": "n1"})
    assert not threading.Event().wait(2.5), "time to say so"
    state = job_state(memory, "night")
    assert (state.is_running, state.active_items, state.active_since_s) == (False, 0, None)
    assert "it waits for its time" in told(memory, "night", "a")


def test_runs_that_are_short_are_never_written_down(memory, cluster, eventually):
    ran = []
    job = cluster.endless(items=["a", "b", "c"], run=ran.append, schedule=FixedDelay(0.01))
    with memory.mirror("runs") as mirror:
        seen = []
        mirror.on_change(seen.extend)
        cluster.node(memory, "n1", job)
        eventually(lambda: len(ran) > 100)
        assert not threading.Event().wait(2 * MIN_INTERVAL_S), "time to write"
        assert seen == []


def test_while_the_same_runs_go_on_nothing_is_written(memory, cluster, eventually):
    cluster.node(memory, "n1", cluster.endless())
    eventually(lambda: job_state(memory).active_items == 4)

    def is_the_same():
        version = memory.get("runs/n1").version
        threading.Event().wait(2 * MIN_INTERVAL_S)  # time to write; once for those that had only just begun
        return memory.get("runs/n1").version == version

    assert is_the_same() or is_the_same()


def test_runs_that_come_and_go_are_written_down_every_two_seconds_at_most(memory, cluster, eventually):
    job = cluster.endless(
        items=[f"i{n}" for n in range(30)], run=lambda c: c.wait_for_stop(1.2), schedule=FixedDelay(0.05), jitter_s=0.5
    )
    with memory.mirror("runs") as mirror:
        at = []
        mirror.on_change(lambda batch: batch and at.append(time.monotonic()))
        cluster.node(memory, "n1", job)
        eventually(lambda: len(at) >= 4, 20.0)
    assert all(later - sooner > MIN_INTERVAL_S - 0.3 for sooner, later in pairwise(at))


def test_what_a_node_says_goes_with_it_and_nothing_is_left_behind(store, cluster, eventually):
    node = cluster.node(store, "n1", cluster.endless())
    eventually(lambda: job_state(store).is_running)
    node.close()
    assert store.list("runs") == []


def test_a_node_that_lost_its_session_says_it_anew(store, cluster, eventually, expire):
    node = cluster.node(store, "n1", cluster.endless(items=["a"]), lock_ttl_s=10.0)
    eventually(lambda: job_state(store).is_running)
    since_s = job_state(store).active_since_s
    first = store.get("runs/n1").version
    expire(node._membership.session)
    eventually(lambda: (entry := store.get("runs/n1")) and entry.version != first)
    assert job_state(store).active_since_s == since_s
    assert cluster.log.count() == {"a": 1}, "it was interrupted"


def test_an_item_that_is_not_among_the_named_ones_is_not_said_to_wait(memory, cluster, eventually):
    items = [f"i{n:03}" for n in range(MAX_NAMED_ITEMS + 1)]
    cluster.node(memory, "n1", cluster.endless(items=items, threads=Threads.whole()))
    (active,) = eventually(lambda: job_state(memory).active)
    assert isinstance(active, ActiveRuns)
    assert (active.items, len(active.named)) == (MAX_NAMED_ITEMS + 1, MAX_NAMED_ITEMS)
    assert "not all named" in told(memory, "report", items[-1])
