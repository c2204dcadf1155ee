"""Tasks that are added while a plan runs."""

from __future__ import annotations

import pytest

from latchwork.plans import DuplicateTask, NoSuchTask, PlanState, TaskState, WrongState
from plans.work import GATE, WAIT_S, add, echo, fails_until_gate, wait_until


def test_tasks_are_added_to_a_plan_that_runs(plans, worker):
    with plans.new() as plan:
        held = plan.add("waits", name="held")
        done = plan.add(add, 3, name="done")
    handle = plan.handle
    assert handle.result(done, WAIT_S) == 3
    behind_done = handle.add(add, done, 4)
    assert handle.result(behind_done, WAIT_S) == 7
    behind_held = handle.add(echo, held, name="behind")
    assert handle.pending_deps(behind_held) == ["held"]
    with pytest.raises(DuplicateTask):
        handle.add(add, 1, name="behind")
    with pytest.raises(NoSuchTask, match="nowhere"):
        handle.add(add, type(held)("nowhere", plan.id))
    handle.cancel()
    assert handle.wait(WAIT_S).state is PlanState.CANCELLED
    with pytest.raises(WrongState, match="is cancelled"):
        handle.add(add, 1)


def test_a_task_added_behind_a_failure_is_skipped_and_recovered_with_it(plans, worker):
    with plans.new(on_failure="continue") as plan:
        gate = plan.add(fails_until_gate, 1, name="gate")
        plan.add("waits", name="waits")
    handle = plan.handle
    wait_until(lambda: handle.status().failed)
    late = handle.add(add, gate, 1)
    handle.cancel()
    handle.wait(WAIT_S)
    assert handle.status().tasks[TaskState.SKIPPED] == 1
    GATE.set()
    handle.recover()
    assert handle.result(late, WAIT_S) == 2
    assert handle.wait(WAIT_S).state is PlanState.COMPLETED
