"""What may be taken, and what a plan is before that."""

from __future__ import annotations

import time

import pytest

from latchwork.plans import NoSuchPlan, PlanState, PlanWorker, WrongState
from plans.work import CALLS, FUNCTIONS, WAIT_S, add, echo, plans_record, wait_until, what_is_left


def test_nothing_of_a_draft_is_taken_and_it_is_not_complete(store, plans, plan_store, worker):
    builder = plans.new(id="half")
    builder.add(add, 1)
    first = plan_store.transitions.build_draft("half", plans_record(), store.session)
    store.commit(first.checks, first.ops)
    for part in plan_store.transitions.build_task_writes("half", builder._draft.build_records().items()):
        store.commit(part.checks, part.ops)
    time.sleep(0.3)
    assert CALLS == []
    assert not plans.get("half").is_completed()
    assert plans.get("half").state() is PlanState.DRAFT


def test_what_nobody_here_wrote_is_left_alone(store, plans, worker):
    store.put("default/tasks/strange/t00000", b"no record")
    store.put("default/plans/strange", b"\xff")
    store.put("default/tasks/nobody", b"")
    with plans.new() as plan:
        answer = plan.add(add, 1, 2)
    assert plan.handle.result(answer, WAIT_S) == 3
    assert [plan_id for plan_id, _ in plans.list()] == [plan.id]


def test_a_plan_that_is_not_there_is_said_to_be_missing(plans):
    for ask in (lambda h: h.status(), lambda h: h.is_completed(), lambda h: h.cancel(), lambda h: h.recover()):
        with pytest.raises(NoSuchPlan, match="'nowhere'"):
            ask(plans.get("nowhere"))
    plans.get("nowhere").remove()


def test_a_task_runs_once_and_gets_its_arguments_in_order(plans, worker):
    with plans.new("order") as plan:
        parts = [plan.add(echo, number) for number in range(5)]
        answer = plan.add(echo, parts[3], "x", [parts[1], parts[0]], {"k": parts[4]}, after=[parts[2]])
    assert plan.handle.result(answer, WAIT_S) == [[3], "x", [[1], [0]], {"k": [4]}]
    assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert plan.handle.is_completed()
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


def test_a_task_is_not_taken_before_all_that_it_depends_on_is_done(store, plans, worker):
    with plans.new() as plan:
        held = plan.add("waits", name="held")
        done = plan.add("same", 1, name="done")
        plan.add("echo", held, done, name="behind")
    assert plan.handle.result(done, WAIT_S) == 1
    wait_until(lambda: ("waits",) in CALLS)
    items = store.list("default/queue/partitions/plans/items", recursive=True)
    assert [each.key.rpartition("~")[2] for each in items if "@" not in each.key] == ["held"]
    assert plan.handle.pending_deps("behind") == ["held"]
    assert ("echo", "stopped", 1) not in CALLS


def test_a_worker_where_there_are_no_plans_takes_and_writes_nothing(store, plans):
    with PlanWorker(store, "nowhere", functions=FUNCTIONS) as idle:
        with plans.new() as plan:
            plan.add("same", 1)
        time.sleep(0.3)
        assert idle.stats().taken == 0
    assert plan.handle.state() is PlanState.READY
    assert [each.key for each in store.list("nowhere", recursive=True)] == []


def test_a_plan_that_completed_has_no_edge_no_item_and_no_place_left(store, plans, worker):
    with plans.new() as plan:
        plan.add("total", [plan.add("same", number) for number in range(5)])
    assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    wait_until(lambda: not [key for key in what_is_left(store) if "/backlog/" in key])
    assert not [key for key in what_is_left(store) if "/in/" in key or "/todo/" in key]
