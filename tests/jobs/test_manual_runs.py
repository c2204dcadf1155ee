"""Runs that are asked for by hand: now, once, through the locks, whatever the schedule says."""

from __future__ import annotations

import logging
import threading
import time

import pytest

import latchwork
from latchwork.errors import LatchworkError, WaitTimeout
from latchwork.jobs import Control, Cron, FixedDelay, Job, RunRequest, RunResult, Threads
from latchwork.jobs.admin.control import delete_request
from latchwork.jobs.cron_progress import HeldItem
from latchwork.jobs.stored import cluster_store, keys
from latchwork.jobs.stored.chunked_set import ChunkNamer, store_set
from latchwork.jobs.stored.requests import decode_request, decode_result, delete_expired_requests, read_requested_items
from latchwork.jobs.worker.manual_runs import ManualRuns
from latchwork.testing import Fault, FaultyStore

YEARLY = Cron("0 3 1 1 *")


@pytest.fixture
def memory():
    with latchwork.connect("memory://asked") as store:
        yield cluster_store(store)


def a_job(run, items=("a", "b", "c"), **options):
    pool = items if callable(items) else list(items)
    return Job("report", work_pool=pool, run=run, **{"schedule": YEARLY, **options})


def locked(store, count):
    return len(store.list("locks/report")) == count


def test_a_yearly_job_runs_now_and_once_for_each_item_in_the_whole_cluster(store, cluster, eventually):
    ran = []
    for node in ("n1", "n2"):
        run = lambda context: ran.extend((context.node_id, item) for item in context.items)  # noqa: E731
        cluster.node(store, node, a_job(run, threads=Threads.per_item()))
    eventually(lambda: locked(store, 3))
    control = Control(store, by="kim@desk")
    ends = control.wait_for_runs(control.run_now("report"), 20.0)
    assert sorted(item for _, item in ran) == ["a", "b", "c"]
    assert sorted((end.node, *end.named) for end in ends) == sorted(ran)
    assert all(end.error is None for end in ends)
    assert store.list("requests") == store.list("manual", recursive=True) == [], "it is forgotten"


def test_one_item_is_run_alone_and_its_failure_is_reported(store, cluster, eventually):
    shares = []

    def run(context):
        shares.append(context.items)
        raise OSError("disk full")

    cluster.node(store, "n1", a_job(run))
    eventually(lambda: locked(store, 3))
    control = Control(store)
    assert control.wait_for_runs(control.run_now("report", ["b"]), 20.0) == [
        RunResult("n1", 1, ("b",), "OSError: disk full")
    ]
    assert shares == [("b",)]


def test_a_run_that_goes_on_is_waited_for(memory, cluster, eventually):
    begun, end, ran = threading.Event(), threading.Event(), []

    def run(context):
        cluster.log.begin(context)
        ran.append(1)
        begun.set()
        end.wait(20)
        cluster.log.end(context)

    cluster.node(memory, "n1", a_job(run, ["a"], schedule=FixedDelay(3600.0), initial_delay_s=0.0))
    assert begun.wait(10)
    control = Control(memory)
    request = control.run_now("report", ["a"])
    with pytest.raises(WaitTimeout, match="0 of 1 items of job report have had their run"):
        control.wait_for_runs(request, 0.5)
    request = control.run_now("report", ["a"])
    end.set()
    control.wait_for_runs(request, 20.0)
    assert len(ran) == 2, "the one that was called off never began"


def test_the_schedule_goes_on_as_if_nothing_had_been(memory, cluster, eventually):
    times = []
    schedule = FixedDelay(2.0)
    cluster.node(memory, "n1", a_job(lambda _: times.append(time.monotonic()), ["a"], schedule=schedule))
    eventually(lambda: locked(memory, 1))
    began = time.monotonic()
    control = Control(memory)
    control.wait_for_runs(control.run_now("report"), 20.0)
    eventually(lambda: len(times) == 2)
    assert times[0] < began + 1.5
    assert times[1] - began < 2.5


def test_an_item_whose_node_dies_in_the_run_is_run_again_elsewhere(store, cluster, eventually, die):
    begun, ran = threading.Event(), []

    def run(context):
        ran.append(context.node_id)
        if len(ran) == 1:
            begun.set()
            context.wait_for_stop(20.0)

    first = cluster.node(store, "n1", a_job(run, ["a"]))
    eventually(lambda: locked(store, 1))
    control = Control(store)
    request = control.run_now("report")
    assert begun.wait(10)
    cluster.node(store, "n2", a_job(run, ["a"]))
    die(first)
    assert [end.node for end in control.wait_for_runs(request, 30.0)] == ["n2"]
    assert ran == ["n1", "n2"]


def test_an_item_that_moved_after_its_run_is_not_run_twice(memory, cluster, eventually):
    ran = []
    first = cluster.node(memory, "n1", a_job(lambda context: ran.append(context.node_id), ["a"]))
    eventually(lambda: locked(memory, 1))
    Control(memory).run_now("report")
    eventually(lambda: ran == ["n1"])
    cluster.node(memory, "n2", a_job(lambda context: ran.append(context.node_id), ["a"]))
    first.close()
    assert not threading.Event().wait(2.0), "time to run it"
    assert ran == ["n1"]


def test_items_that_come_after_the_request_are_not_run(memory, cluster, eventually):
    ran, pool = [], ["a", "b"]
    job = a_job(lambda context: ran.extend(context.items), lambda: list(pool), pool_check_period_s=0.1)
    cluster.node(memory, "n1", job)
    eventually(lambda: locked(memory, 2))
    request = Control(memory).run_now("report")
    eventually(lambda: sorted(ran) == ["a", "b"])
    pool[:] = ["a", "b", *(f"new-{number}" for number in range(5))]
    eventually(lambda: locked(memory, 7))
    cluster.node(memory, "n2", job)  # which learns of the request when they exist
    assert not threading.Event().wait(2.0), "time to run them"
    assert sorted(ran) == ["a", "b"]
    assert [end.items for end in Control(memory).wait_for_runs(request, 20.0)] == [2]
    assert memory.list("manual", recursive=True) == memory.list("requests") == []


def test_a_request_of_many_items_is_not_lost_when_a_manager_removes_its_copy_of_them_first(memory, monkeypatch):
    """The manager lists old requests, then the copy is written, and then the manager removes what has no request."""
    items = [f"item-{number:06}" for number in range(20_000)]
    store_set(memory, keys.work_pool_key("report"), items, checks=[], new_name=ChunkNamer("w"))
    commit, swept = type(memory).commit, []

    def overtaken(self, checks=(), ops=()):
        if any(op.key.startswith("requests/") for op in ops) and not swept:
            swept.append(delete_expired_requests(memory, time.time(), []))
            assert self.list("manual", recursive=True) == []
        return commit(self, checks, ops)

    monkeypatch.setattr(type(memory), "commit", overtaken)
    request = Control(memory).run_now("report")
    assert swept
    assert read_requested_items(memory, request) == frozenset(items)


@pytest.mark.parametrize("claimed", [True, False])
def test_a_run_that_was_called_off_never_begins(memory, claimed):
    request = Control(memory).run_now("report")
    memory.put("owners/o1", b"{}")
    asked = ManualRuns(memory, "n1")  # it follows nothing: a node that has not yet seen that it was called off
    owed = asked.find_remaining_run(request, {"a": HeldItem(1, "o1")}) if claimed else None
    delete_request(memory, request)
    with pytest.raises(LatchworkError):
        (owed or asked.find_remaining_run(request, {"a": HeldItem(1, "o1")})).record_start()
    assert memory.list("asked", recursive=True) == []


def test_what_cannot_be_asked_for_is_refused(memory):
    for items in ([], [f"i{n}" for n in range(101)], ["x" * 1000]):
        with pytest.raises(ValueError, match="item"):
            Control(memory).run_now("report", items)
    with pytest.raises(ValueError, match="job id"):
        Control(memory).run_now("a b")


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b"[" * 100_000, b'{"job": 1, "at_s": 1, "until_s": 1e999}'])
def test_a_foreign_record_is_no_request_and_no_end(value):
    assert decode_request("requests/x", value) is None
    assert decode_result(value) is None


def test_a_request_is_read_as_it_was_written():
    request = RunRequest("1", "report", ("a", "b"), 5.0, 9.0, "kim")
    assert decode_request("requests/1", request.to_bytes()) == request
    end = RunResult("n1", 300, ("a",), "E")
    assert decode_result(end.to_bytes()) == end


def test_requests_of_long_ago_are_swept_with_what_became_of_them(store):
    now = time.time()
    for name, until_s in (("old", now - 90_000.0), ("new", now)):
        store.put(f"requests/{name}", RunRequest(name, "report", None, 1.0, until_s).to_bytes())
        store.put(f"manual/{name}/ended/1", RunResult("n1", 1, ("a",)).to_bytes())
    store.put("manual/lost/ended/1", b"?")
    delete_expired_requests(store, now, [])
    assert (store.children("requests"), store.children("manual")) == (["new"], ["new"])


@pytest.mark.parametrize("ahead_s", [600.0, -600.0])
def test_a_request_of_another_wall_clock_is_valid_for_its_time(memory, ahead_s):
    now = time.time()
    for name, within_s in (("short", 0.5), ("long", 60.0)):
        at_s = now + ahead_s
        memory.put(f"requests/{name}", RunRequest(name, "report", None, at_s, at_s + within_s).to_bytes())
    changed = threading.Event()
    manual = ManualRuns(memory, "n1")
    manual.start(changed.set)
    try:
        assert changed.wait(10.0)
        assert [each.id for each in manual.find_requests("report", ("a",))] == ["long", "short"]
        time.sleep(0.6)
        assert [each.id for each in manual.find_requests("report", ("a",))] == ["long"]
    finally:
        manual.close()


def test_a_node_whose_clock_is_days_ahead_says_once_that_it_ignores_a_request(memory, caplog, eventually):
    at_s = time.time() - 3 * 86_400.0
    memory.put("requests/old", RunRequest("old", "report", None, at_s, at_s + 60.0).to_bytes())
    changes = []
    manual = ManualRuns(memory, "n1")
    manual.start(lambda: changes.append(1))
    try:
        eventually(lambda: changes)
        assert manual.find_requests("report", ("a",)) == []
        before = len(changes)
        memory.put("requests/other", RunRequest("other", "report", None, at_s, time.time() + 60.0).to_bytes())
        eventually(lambda: len(changes) > before)
        assert [each.id for each in manual.find_requests("report", ("a",))] == ["other"]
    finally:
        manual.close()
    (warning,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert "this node ignores the request" in warning
    assert "compare the clocks" in warning


class RefusesManualRuns:
    """Fails the writes of manual runs while the test wants it."""

    is_refusing = True

    def next_fault(self, op, keys):
        is_manual = op == "commit" and any("/manual/" in key for key in keys)
        return Fault("fail") if self.is_refusing and is_manual else None


def test_a_manual_run_that_cannot_start_is_one_warning_while_scheduled_runs_start(memory, cluster, eventually, caplog):
    caplog.set_level(logging.INFO, "latchwork.jobs")
    ran, plan = [], RefusesManualRuns()
    job = a_job(lambda context: ran.append(context.fire_time_s), ["a"], schedule=Cron("* * * * * *"))
    with FaultyStore(latchwork.connect("memory://asked"), plan) as store:
        node = cluster.node(store, "n1", job)
        eventually(lambda: ran)
        request = Control(memory).run_now("report")
        eventually(lambda: "a manual run cannot start" in caplog.text)
        count = len(ran)
        eventually(lambda: len(ran) >= count + 3)
        assert "can start again" not in caplog.text
        plan.is_refusing = False
        Control(memory).wait_for_runs(request, 20.0)
        node.close()
    assert caplog.text.count("a manual run cannot start") == 1
    assert caplog.text.count("can start again") == 1
