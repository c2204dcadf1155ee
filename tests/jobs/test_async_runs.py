"""Runs that are ``async def`` functions: tasks of one event loop of the node, cancelled when they are told to stop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from functools import partial

import pytest

from latchwork import aio
from latchwork.errors import Closed
from latchwork.jobs import FixedDelay, Job, JobContext, Threads
from latchwork.store.driving.dedicated_loop import DedicatedLoop
from latchwork.types import Put
from patience import eventually

WAIT_S = 20.0


def a_job(run, job_id="report", items=("a", "b"), **options):
    defaults = {"schedule": FixedDelay(0.05), "initial_delay_s": 0.0, "threads": Threads.per_item()}
    return Job(job_id, **{"work_pool": list(items), "run": run, **defaults, **options})


class Seen:
    """What runs did, from the loop's thread."""

    def __init__(self):
        self.threads, self.items, self.cancelled = set(), [], []

    async def endless(self, context):
        self.threads.add(threading.current_thread())
        self.items += context.items
        try:
            await asyncio.sleep(3600.0)
        except asyncio.CancelledError:
            self.cancelled.append((context.should_stop, context.remaining_s() > 0.0))
            raise


def test_all_async_runs_of_a_node_are_tasks_of_one_loop_and_are_cancelled_when_it_closes(store, cluster):
    seen = Seen()
    node = cluster.node(store, "n1", [a_job(seen.endless), a_job(seen.endless, "other", ["c"])])
    eventually(lambda: sorted(seen.items) == ["a", "b", "c"], WAIT_S, "all run")
    assert len(seen.threads) == 1
    assert next(iter(seen.threads)).name == "latchwork-jobs-n1"
    node.close()
    assert seen.cancelled == [(True, True)] * 3
    assert not next(iter(seen.threads)).is_alive()


def test_a_run_that_is_cancelled_because_it_was_told_to_stop_has_not_failed(store, cluster):
    seen = Seen()
    node = cluster.node(store, "n1", [a_job(seen.endless, items=["a"])])
    eventually(lambda: seen.items, WAIT_S, "it runs")
    node.close()
    assert node.stats().jobs["report"].failures == 0


def test_an_async_run_writes_with_its_fence_through_the_awaitable_store(store, cluster):
    async def run(context):
        assert isinstance(context, aio.JobContext)
        for item in context.items:
            await context.store.commit([context.fence(item)], [Put(f"done/{item}", context.job_id.encode())])

    cluster.node(store, "n1", [a_job(run)])
    eventually(lambda: len(store.list("done")) == 2, WAIT_S, "both wrote")


def test_what_an_async_run_raises_is_its_failure_and_it_runs_again(store, cluster):
    raised = []

    async def run(_context):
        await asyncio.sleep(0)
        raised.append([ValueError("no"), SystemExit(3), asyncio.CancelledError()][min(len(raised), 2)])
        raise raised[-1]

    node = cluster.node(store, "n1", [a_job(run, items=["a"])])
    eventually(lambda: len(raised) >= 4, WAIT_S, "it runs again after each of them")
    eventually(lambda: node.stats().jobs["report"].failures >= 3, WAIT_S, "each is counted")


def test_a_run_may_end_what_it_has_begun_before_it_ends(store, cluster):
    ended = []

    async def run(context):
        try:
            await asyncio.sleep(3600.0)
        finally:
            await context.store.put("farewell", b"")
            ended.append(context.should_stop)

    node = cluster.node(store, "n1", [a_job(run, items=["a"])])
    eventually(lambda: node.stats().jobs["report"].active, WAIT_S, "it runs")
    time.sleep(0.1)
    node.close()
    assert ended == [True]
    assert store.get("farewell") is not None


def test_stop_listeners_and_waits_of_an_async_run_are_of_its_loop(store, cluster):
    told, here = [], []

    async def listen():
        await asyncio.sleep(0)
        told.append(threading.current_thread())

    async def watch(context):
        told.append(await context.wait_for_stop(WAIT_S))

    async def run(context):
        here.append(threading.current_thread())
        context.on_stop(listen)
        watching = asyncio.create_task(watch(context))
        try:
            assert not await context.wait_for_stop(0.01)
            await asyncio.sleep(3600.0)
        finally:
            await watching

    node = cluster.node(store, "n1", [a_job(run, items=["a"])])
    eventually(lambda: here, WAIT_S, "it runs")
    time.sleep(0.1)
    node.close()
    assert sorted(map(str, told)) == sorted(map(str, [True, here[0]]))


def test_an_async_run_of_a_subclass_and_a_partial_are_run(store, cluster):
    done = []

    class Report(Job):
        id = "report"
        schedule = FixedDelay(0.05)
        initial_delay_s = 0.0

        def work_pool(self):
            return ["a"]

        async def run(self, context):
            done.append(context.job_id)

    async def with_name(name, _context):
        done.append(name)

    cluster.node(store, "n1", [Report(), a_job(partial(with_name, "partial"), "other")])
    eventually(lambda: {"report", "partial"} <= set(done), WAIT_S, "both run")


def test_the_loop_goes_on_when_a_background_task_raises_system_exit(store, cluster):
    runs = []

    async def leave():
        raise SystemExit(1)

    async def run(_context):
        runs.append(asyncio.ensure_future(leave()))
        await asyncio.sleep(0.01)

    cluster.node(store, "n1", [a_job(run, items=["a"])])
    eventually(lambda: len(runs) > 3, WAIT_S, "it runs again and again")


def test_a_node_that_an_async_run_closes_does_not_wait_for_that_run(store, cluster, monkeypatch):
    monkeypatch.setenv("LATCHWORK_ASYNC_WARN", "0")
    took, nodes, made = [], [], threading.Event()

    async def run(_context):
        await asyncio.to_thread(made.wait, WAIT_S)
        began = time.monotonic()
        nodes[0].close()
        took.append(time.monotonic() - began)

    nodes.append(cluster.node(store, "n1", [a_job(run, items=["a"])], close_timeout_s=30.0))
    made.set()
    eventually(lambda: took, WAIT_S, "it closed its own node")
    assert took[0] < 15.0


# The loop by itself


@pytest.fixture
def loop():
    made = DedicatedLoop("latchwork-own-loop-of-test")
    yield made
    made.close(5.0)


def never(_call):
    return lambda: None


def test_a_function_sees_the_context_variables_of_who_waits_for_it(loop):
    variable = contextvars.ContextVar("variable", default="")

    async def read():
        return variable.get()

    variable.set("mine")
    assert loop.run(read, never) == "mine"


def test_one_that_is_to_stop_already_does_not_begin(loop):
    begun = []

    async def fn():
        begun.append(1)

    def at_once(call):
        call()
        return lambda: None

    assert loop.run(fn, at_once) is None
    assert len(begun) <= 1


def test_a_closed_loop_ends_what_functions_left_behind_and_runs_nothing_more(loop):
    ended = []

    async def forever():
        try:
            await asyncio.sleep(3600.0)
        finally:
            ended.append("task")

    async def generate():
        try:
            yield 1
        finally:
            ended.append("generator")

    kept = []

    async def leave_behind():
        kept.append(asyncio.ensure_future(forever()))
        kept.append(generate())
        await kept[1].__anext__()
        await asyncio.sleep(0)

    loop.run(leave_behind, never)
    assert loop.close(5.0)
    assert ended == ["task", "generator"]
    with pytest.raises(Closed, match="runs nothing any more"):
        loop.run(leave_behind, never)


def test_a_context_for_tests_is_awaited_like_the_real_one():
    async def use():
        context = aio.JobContext(["a"], job_id="report")
        told = []
        context.on_stop(lambda: told.append("listener"))
        await context.stop()
        return told, await context.wait_for_stop(1.0), context.should_stop, context.items, repr(context)

    assert asyncio.run(use()) == (["listener"], True, True, ("a",), f"<aio {stopped()!r}>")


def stopped():
    context = JobContext(["a"], job_id="report")
    context.stop()
    return context
