"""Failures, cancels and recovers."""

from __future__ import annotations

import pytest

from latchwork.errors import WaitTimeout
from latchwork.plans import NoResult, PlanState, TaskState, WrongState
from plans.work import CALLS, GATE, WAIT_S, add, echo, fails, fails_until_gate, total, wait_until


def test_a_plan_that_continues_skips_only_what_depends_on_a_failure(plans, worker):
    with plans.new(on_failure="continue") as plan:
        bad = plan.add(fails, name="bad")
        behind = plan.add(add, bad, name="behind")
        far = plan.add(echo, behind, plan.add(add, 1), name="far")
        good = plan.add(add, 2, name="good")
    status = plan.handle.wait(WAIT_S)
    assert status.state is PlanState.FAILED
    assert status.failed == (("bad", "ValueError: no such day"),)
    assert status.tasks == {TaskState.FAILED: 1, TaskState.SKIPPED: 2, TaskState.DONE: 2}
    assert plan.handle.result(good, 0) == 2
    with pytest.raises(ValueError, match="no such day"):
        plan.handle.result(bad, 0)
    with pytest.raises(NoResult, match="was skipped"):
        plan.handle.result(far, 0)


def test_a_plan_that_stops_ends_what_runs_and_starts_nothing_more(plans, worker):
    with plans.new() as plan:
        running = plan.add("waits")
        bad = plan.add(fails, after=())
        plan.add(add, running, bad)
        plan.add(echo, running)
    status = plan.handle.wait(WAIT_S)
    assert status.state is PlanState.FAILED
    assert status.tasks[TaskState.FAILED] == 1
    assert not status.tasks.get(TaskState.READY)
    assert not status.tasks.get(TaskState.WAITING)
    assert ("echo",) not in CALLS


def test_recover_runs_what_was_lost_and_keeps_results(plans, worker):
    with plans.new(on_failure="continue") as plan:
        kept = plan.add(add, 5)
        gate = plan.add(fails_until_gate, kept)
        answer = plan.add(add, gate, kept)
    assert plan.handle.wait(WAIT_S).state is PlanState.FAILED
    plan.handle.recover()
    assert plan.handle.wait(WAIT_S).state is PlanState.FAILED
    GATE.set()
    plan.handle.recover()
    assert plan.handle.result(answer, WAIT_S) == 10
    assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert CALLS.count(("add", 5)) == 1
    assert CALLS.count(("gate", 5)) == 3
    with pytest.raises(WrongState, match="is completed"):
        plan.handle.recover()


def test_a_result_is_waited_for_though_a_recovery_began_and_ended_between_two_looks(plans, plan_store, monkeypatch):
    with plans.new() as plan:
        answer = plan.add(add, 2)
    entry = plan_store.store.get(plan_store.keys.task_key(plan.handle.id, answer.name))
    look, before = plan.handle._wait_for_end, iter([(entry, TaskState.FAILED)])  # as it was, and is no more
    monkeypatch.setattr(plan.handle, "_wait_for_end", lambda *args: next(before, None) or look(*args))
    with pytest.raises(WaitTimeout, match="has not ended"):
        plan.handle.result(answer, 0)


def test_cancel_ends_a_plan_and_recover_goes_on(plans, worker):
    with plans.new() as plan:
        first = plan.add("waits")
        last = plan.add(echo, first)
    wait_until(lambda: CALLS)
    plan.handle.cancel()
    plan.handle.cancel()
    assert plan.handle.wait(WAIT_S).state is PlanState.CANCELLED
    assert CALLS == [("waits",)]
    with pytest.raises(WrongState, match="is cancelled"):
        plan.handle.cancel()
    plan.handle.recover()
    assert plan.handle.result(last, WAIT_S) == ["stopped"]
    assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert CALLS == [("waits",), ("echo", "stopped")]


def test_a_task_with_a_fault_in_its_payload_fails_and_is_not_tried_for_ever(store, plans, worker):
    with plans.new() as plan:
        plan.add(total, [plan.add(echo, "text")], name="total")
    status = plan.handle.wait(WAIT_S)
    assert status.failed[0][0] == "total"
