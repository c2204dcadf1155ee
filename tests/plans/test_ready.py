"""What may be taken, and what a plan is before that."""

from __future__ import annotations

import time

import pytest

from latchwork.plans import NoSuchPlan, PlanState, WrongState
from plans.work import CALLS, WAIT_S, add, echo, plans_record


def test_nothing_of_a_draft_is_taken_and_it_is_not_complete(store, plans, place, worker):
    builder = plans.new(id="half")
    builder.add(add, 1)
    first = place.edges.drafted("half", plans_record(), store.session)
    store.commit(first.checks, first.ops)
    for edit in place.edges.built("half", builder._draft.records().items()):
        store.commit(edit.checks, edit.ops)
    time.sleep(0.3)
    assert CALLS == []
    assert not plans.get("half").completed()
    assert plans.get("half").state() is PlanState.DRAFT


def test_what_nobody_here_wrote_is_left_alone(store, plans, worker):
    store.put("plans/tasks/strange/t00000", b"no record")
    store.put("plans/plans/strange", b"\xff")
    store.put("plans/tasks/nobody", b"")
    with plans.new() as plan:
        answer = plan.add(add, 1, 2)
    assert plan.handle.result(answer, WAIT_S) == 3
    assert [plan_id for plan_id, _ in plans.list()] == [plan.id]


def test_a_plan_that_is_not_there_is_said_to_be_missing(plans):
    for ask in (lambda h: h.status(), lambda h: h.completed(), lambda h: h.cancel(), lambda h: h.recover()):
        with pytest.raises(NoSuchPlan, match="'nowhere'"):
            ask(plans.get("nowhere"))
    plans.get("nowhere").remove()


def test_a_task_runs_once_and_gets_its_arguments_in_order(plans, worker):
    with plans.new("order") as plan:
        parts = [plan.add(echo, number) for number in range(5)]
        answer = plan.add(echo, parts[3], "x", [parts[1], parts[0]], {"k": parts[4]}, after=[parts[2]])
    assert plan.handle.result(answer, WAIT_S) == [[3], "x", [[1], [0]], {"k": [4]}]
    assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert plan.handle.completed()
    assert len(CALLS) == 6
    assert CALLS[-1][1] == [3]


def test_an_empty_plan_completes_at_its_start(plans, worker):
    with plans.new() as plan:
        pass
    assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED


def test_an_id_is_started_once(plans, worker):
    with plans.new(id="daily") as plan:
        plan.add(add, 1)
    again = plans.new(id="daily")
    again.add(add, 2)
    with pytest.raises(WrongState, match="plan 'daily' already"):
        again.start()
    plan.handle.wait(WAIT_S)
    assert CALLS == [("add", 1)]
