"""What a task waits for stands in its record: when it is ready, and when it is not though all of that has ended."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from latchwork.plans import Plans, PlanState, PlanWorker, TaskState
from latchwork.store.steps import run
from plans.test_ends import FUNCTIONS as ECHO
from plans.test_ends import OUTCOME, Bench, echo
from plans.work import FUNCTIONS, WAIT_S


def two_and_sum(plan):
    plan.add(echo, [plan.add(echo, 1, name="one"), plan.add(echo, 2, name="two")], name="sum")
    plan.add(echo, name="alone")


@pytest.fixture
def bench(store):
    return Bench(store, two_and_sum, on_failure="continue")


def fail(bench, name):
    """As its worker does, which dies before it skips what comes behind."""
    entry, plan = run(bench.plan_store.read_plan("p"))
    (task,) = run(bench.plan_store.read_tasks("p", [name]))
    part = bench.plan_store.transitions.build_failure("p", entry, plan, task, reason="no such day", result=b"=")
    bench.store.commit(part.checks, part.ops)


def end(bench, name):
    (task,) = run(bench.plan_store.read_tasks("p", [name]))
    part = bench.plan_store.transitions.build_completion("p", task, OUTCOME.to_bytes())
    bench.store.commit(part.checks, part.ops)


def test_what_waits_for_a_task_that_failed_is_never_ready_whoever_looks(bench):
    fail(bench, "one")
    end(bench, "two")
    run(bench.progress.make_ready("p", run(bench.plan_store.read_plan("p")), ["sum"]))
    assert bench.state("sum") is TaskState.WAITING
    run(bench.progress._make_one_ready("p", "sum"))
    assert bench.state("sum") is TaskState.WAITING


def test_what_failed_since_the_plan_was_read_makes_nothing_ready(bench):
    before = run(bench.plan_store.read_plan("p"))
    fail(bench, "one")
    end(bench, "two")
    run(bench.progress.make_ready("p", before, ["sum"]))
    assert bench.state("sum") is TaskState.WAITING


def test_an_end_in_a_plan_where_a_task_has_failed_looks_itself(bench):
    fail(bench, "one")
    bench.entry, bench.plan = run(bench.plan_store.read_plan("p"))
    (two,) = bench.decide("two")
    assert bench.state("two") is TaskState.DONE  # written at once, and not with its item
    assert bench.commit("two", two)
    assert bench.state("sum") is TaskState.WAITING


@pytest.mark.parametrize("state", [PlanState.CANCELLING, PlanState.RECOVERING], ids=lambda each: each.value)
def test_nothing_becomes_ready_while_the_plan_is_cancelled_or_recovers(bench, state):
    end(bench, "one")
    end(bench, "two")
    entry, plan = run(bench.plan_store.read_plan("p"))
    bench.store.put(entry.key, replace(plan, state=state).to_bytes())
    run(bench.progress.make_ready("p", run(bench.plan_store.read_plan("p")), ["sum"]))
    run(bench.progress._make_one_ready("p", "sum"))
    assert bench.state("sum") is TaskState.WAITING


def test_a_plan_with_failures_goes_on_where_nothing_waits_for_them(store):
    functions = FUNCTIONS
    with PlanWorker(store, slots=4, functions=functions):
        with Plans(store, functions=functions).new(on_failure="continue") as plan:
            bad = plan.add("fails", name="bad")
            plan.add("same", bad, name="behind")
            ref = plan.add("same", 0)
            for _ in range(5):
                ref = plan.add("add", ref, plan.add("same", 1))
        assert plan.handle.wait(WAIT_S).state is PlanState.FAILED
        assert plan.handle.result(ref, 0) == 5
        assert plan.handle.status().tasks == {TaskState.DONE: 11, TaskState.FAILED: 1, TaskState.SKIPPED: 1}


def test_a_wide_task_is_ready_once_the_first_of_many_has_ended_too(store):
    """What it waits for is asked for from the last; of hundreds only one is left."""

    def wide(plan):
        plan.add(echo, [plan.add(echo, n, name=f"n{n}") for n in range(300)], name="sum")

    bench = Bench(store, wide)
    for at in range(1, 300, 40):
        tasks = run(bench.plan_store.read_tasks("p", [f"n{n}" for n in range(at, min(300, at + 40))]))
        parts = [bench.plan_store.transitions.build_completion("p", each, b"=") for each in tasks]
        for first in range(0, len(parts), 20):
            some = parts[first : first + 20]
            bench.store.commit([c for e in some for c in e.checks], [o for e in some for o in e.ops])
    look = bench.progress.make_ready
    run(look("p", run(bench.plan_store.read_plan("p")), ["sum"]))
    assert bench.state("sum") is TaskState.WAITING
    assert Plans(store, functions=ECHO).get("p").pending_deps("sum") == ["n0"]
    end(bench, "n0")
    run(look("p", run(bench.plan_store.read_plan("p")), ["sum"]))
    assert bench.state("sum") is TaskState.READY
