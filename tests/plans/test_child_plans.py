"""Tasks that return a plan: they wait for it without a worker, and have its value."""

from __future__ import annotations

import pytest

from latchwork.plans import ChildPlanFailed, ForeignRef, Plans, PlanState, PlanWorker, TaskState, WrongState, child_plan
from latchwork.plans.records import PlanRecord
from latchwork.plans.transitions import TxnPart
from latchwork.plans.wakeups import build_parent_wakeup
from latchwork.store.steps import run
from latchwork.tasks import Functions
from plans.work import CALLS, FUNCTIONS, GATE, WAIT_S, nothing_left, wait_until

NESTED = Functions()


@NESTED.task(name="nested")
def nested(depth: int) -> object:
    if depth == 0:
        return "the bottom"
    plan = child_plan(functions=NESTED)
    return plan.with_result(plan.add("nested", depth - 1))


@NESTED.task(name="empty")
def empty() -> object:
    return child_plan(functions=NESTED)


@pytest.fixture
def worker(store):
    """One slot: who waits for a plan must not have it."""
    with PlanWorker(store, slots=1, functions=FUNCTIONS) as made:
        yield made


def children(plans):
    return {plan_id: record for plan_id, record in plans.list() if record.parent is not None}


def the_child(plans):
    ((plan_id, _),) = children(plans).items()
    return plans.get(plan_id)


def test_the_value_of_a_task_is_that_of_the_plan_which_it_returns(store, plans, worker):
    with plans.new("outer") as plan:
        answer = plan.add("same", plan.add("inner", 4, name="waits"), name="answer")
    assert plan.handle.result(answer, WAIT_S) == 6
    assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert CALLS.count(("inner", 4)) == 1
    assert [record.parent for record in children(plans).values()] == [(plan.id, "waits")]
    plan.handle.remove()
    nothing_left(store)


def test_a_task_that_waits_for_a_plan_has_no_slot_however_deep(store, plans):
    with PlanWorker(store, slots=1, functions=NESTED):
        with Plans(store, functions=NESTED).new() as plan:
            answer = plan.add(nested, 6)
            nothing = plan.add(empty)
        assert plan.handle.result(answer, 2 * WAIT_S) == "the bottom"
        assert plan.handle.result(nothing, WAIT_S) is None
        plan.handle.remove()
        nothing_left(store)


def test_plans_are_nested_fifty_deep_at_most(store, plans, monkeypatch):
    monkeypatch.setattr("latchwork.plans.builder.MAX_DEPTH", 2)
    with PlanWorker(store, functions=NESTED):
        with Plans(store, functions=NESTED).new() as plan:
            answer = plan.add(nested, 3)
        with pytest.raises(ChildPlanFailed, match="nested 2 levels deep"):
            plan.handle.result(answer, WAIT_S)


def test_a_child_that_fails_fails_its_task_and_a_recover_goes_on_in_it(plans, worker):
    with plans.new(on_failure="continue") as plan:
        answer = plan.add("same", plan.add("inner-gate", 7, name="waits"), name="answer")
    assert plan.handle.wait(WAIT_S).state is PlanState.FAILED
    with pytest.raises(ChildPlanFailed, match="task gate failed: ValueError: not yet"):
        plan.handle.result("waits", 0)
    GATE.set()
    plan.handle.recover()
    assert plan.handle.result(answer, WAIT_S) == 7
    assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert CALLS.count(("inner-gate", 7)) == CALLS.count(("same", 7)) - 1 == 1  # one is of the outer plan


def test_a_cancel_goes_on_to_the_child_and_a_recover_too(plans, worker):
    with plans.new() as plan:
        answer = plan.add("same", plan.add("inner-waits", name="waits"))
    wait_until(lambda: CALLS)
    assert plan.handle.status().tasks[TaskState.CHILD] == 1
    plan.handle.cancel()
    assert plan.handle.wait(WAIT_S).state is PlanState.CANCELLED
    assert the_child(plans).state().has_ended
    plan.handle.recover()
    assert plan.handle.result(answer, WAIT_S) == "stopped"
    assert CALLS == [("waits",), ("same", "stopped")]


def test_a_child_that_is_cancelled_or_removed_alone_fails_its_task(plans, worker):
    for end, why in ((lambda child: child.cancel(), "is cancelled"), (lambda child: child.remove(), "was removed")):
        CALLS.clear()
        with plans.new() as plan:
            waits = plan.add("inner-gate", 1)
        wait_until(lambda: plan.handle.state().has_ended)
        plan.handle.remove()
        wait_until(lambda: not plans.list())
        with plans.new() as plan:
            waits = plan.add("inner-waits")
        wait_until(lambda: CALLS[-1:] == [("waits",)])
        end(the_child(plans))
        with pytest.raises(ChildPlanFailed, match=why):
            plan.handle.result(waits, WAIT_S)
        plan.handle.remove()
        wait_until(lambda: not plans.list())


def test_a_plan_that_is_removed_takes_its_children_along_while_they_run(store, plans, worker):
    with plans.new() as plan:
        plan.add("inner-waits")
    wait_until(lambda: CALLS)
    plan.handle.remove()
    nothing_left(store)
    assert plans.list() == []


def test_a_task_is_added_behind_one_that_waits_for_its_child(plans, worker):
    with plans.new() as plan:
        waits = plan.add("inner-waits", name="waits")
    wait_until(lambda: CALLS)
    late = plan.handle.add("same", waits)
    assert plan.handle.pending_deps(late) == ["waits"]
    the_child(plans).cancel()
    assert plan.handle.wait(WAIT_S).state is PlanState.FAILED


def test_the_end_of_a_child_and_a_recover_of_its_task_do_not_miss_each_other(store, plans, plan_store, worker):
    """The one loses that read before the other wrote, whichever it is: so the task is told."""
    with plans.new() as plan:
        plan.add("inner-gate", 1, name="waits")
    assert plan.handle.wait(WAIT_S).state is PlanState.FAILED
    worker.close()
    child = the_child(plans)
    entry, record = run(plan_store.read_plan(child.id))
    told = run(build_parent_wakeup(plan_store, child.id, record))  # nobody waits, as it seems
    (task,) = run(plan_store.read_tasks(plan.id, ["waits"]))
    outer, _ = run(plan_store.read_plan(plan.id))
    waits = PlanRecord.from_bytes(outer.value)
    again = plan_store.transitions.build_reactivation(plan.id, outer, task, task.record.with_state(TaskState.CHILD))
    assert waits.state is PlanState.FAILED
    assert run(plan_store.commit(again))
    end = plan_store.transitions.build_cancel_end(entry, record, 0).merge(told)
    assert not run(plan_store.commit(end)), "the end of the child must notice that a task waits for it now"
    told = run(build_parent_wakeup(plan_store, child.id, record))
    assert run(plan_store.commit(TxnPart(end.checks[:1], end.ops).merge(told)))
    assert [each for each in store.list("default/queue/partitions/plans/items", recursive=True) if "~waits" in each.key]


def test_what_cannot_be_a_child_plan_says_why(store, plans):
    plan = child_plan(functions=FUNCTIONS)
    with pytest.raises(ForeignRef, match="'nowhere' belongs to plan"):
        plan.with_result(type(plan.add("same", 1))("nowhere", "other"))
    with pytest.raises(WrongState, match="return it"):
        plan.start()
    with pytest.raises(ValueError, match="max_parallel must be"):
        child_plan(max_parallel=0)
