"""Answers that are lost: who starts, adds, cancels, recovers or removes knows in the end what became of it, once."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.plans import Plans, PlanState, PlanWorker
from latchwork.testing.faults import Fault, FaultyStore
from plans.work import CALLS, FUNCTIONS, GATE, WAIT_S, nothing_left, wait_until

KINDS = ("cut_before", "cut_after", "land_late")
LATE_S = 0.05
#: Commits of a start: record, two transactions of tasks, start.
MOST = 8


@pytest.fixture
def faulty(backend_url):
    with FaultyStore(latchwork.connect(backend_url)) as made:
        yield made


def lose(faulty, kind, nth=1):
    faulty.add(Fault(kind, op="c*", nth=nth, delay_s=LATE_S))  # commits and creates
    faulty.add(Fault(kind, op="put", nth=nth, delay_s=LATE_S))


def wide(plans, plan_id):
    builder = plans.new(id=plan_id)
    builder.add("total", builder.map("same", range(40)), name="sum")
    return builder


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_whose_answer_is_lost_anywhere_is_one_start(kind, store, faulty):
    plans = Plans(faulty, functions=FUNCTIONS)
    with PlanWorker(store, slots=4, functions=FUNCTIONS):
        for nth in range(1, MOST):
            CALLS.clear()
            builder = wide(plans, f"p{nth}")
            lose(faulty, kind, nth)
            for _ in range(3):
                try:
                    handle = builder.start()
                    break
                except (latchwork.OutcomeUnknown, latchwork.Unavailable):
                    continue
            assert handle.result("sum", WAIT_S) == sum(range(40))
            assert handle.wait(WAIT_S).state is PlanState.COMPLETED
            assert len(CALLS) == 40
        assert len(faulty.faults) >= 4


def test_a_start_that_lands_while_it_is_sent_again_is_one_start(store, plans, monkeypatch):
    commit, late = store.commit, []

    def lands_late(checks, ops):
        if late:
            commit(*late.pop())
        elif any(op.key.endswith("@start.0") for op in ops):
            late.append((checks, ops))
            raise latchwork.OutcomeUnknown("no answer")
        return commit(checks, ops)

    builder = wide(plans, "p")
    monkeypatch.setattr(builder._start.__self__._plan_store.store, "commit", lands_late)
    handle = builder.start()
    monkeypatch.undo()
    with PlanWorker(store, slots=4, functions=FUNCTIONS):
        assert handle.result("sum", WAIT_S) == sum(range(40))
    assert len(CALLS) == 40


def test_another_plan_of_the_same_id_is_no_start_of_ones_own(store, faulty, plans):
    with plans.new(id="taken") as plan:
        plan.add("same", 1)
    lose(faulty, "cut_after")
    with pytest.raises(Exception, match="plan 'taken' already"):
        wide(Plans(faulty, functions=FUNCTIONS), "taken").start()
    assert plan.handle.state() is PlanState.READY


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_whose_adding_was_not_answered_is_added_once(kind, plans, faulty, worker):
    with plans.new() as plan:
        plan.add("waits", name="held")
    wait_until(lambda: CALLS)
    handle = Plans(faulty, functions=FUNCTIONS).get(plan.id)
    for number in range(3):
        lose(faulty, kind)
        added = handle.add("same", number)
        assert plan.handle.result(added, WAIT_S) == number
    lose(faulty, kind)
    assert plan.handle.result(handle.add("same", 9, name="named"), WAIT_S) == 9
    assert sorted(CALLS[1:]) == [("same", number) for number in (0, 1, 2, 9)]
    assert sum(plan.handle.status().tasks.values()) == 5
    assert len(faulty.faults) >= 4


def test_a_task_added_without_a_name_keeps_clear_of_names_that_were_given(plans, worker):
    with plans.new() as plan:
        plan.add("waits", name="t00002")
        plan.add("same", 1, name="t00003")
    wait_until(lambda: ("waits",) in CALLS)
    names = [plan.handle.add("same", 2).name for _ in range(2)]
    assert len({*names, "t00002", "t00003"}) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancel_a_recover_and_a_removal_that_were_not_answered_are_one_each(kind, store, plans, faulty, worker):
    with plans.new() as plan:
        gate = plan.add("fails-until-gate", plan.add("waits"))
    wait_until(lambda: CALLS)
    handle = Plans(faulty, functions=FUNCTIONS).get(plan.id)
    lose(faulty, kind)
    handle.cancel()
    assert plan.handle.wait(WAIT_S).state is PlanState.CANCELLED
    GATE.set()
    lose(faulty, kind)
    handle.recover()
    assert plan.handle.wait(WAIT_S).state is PlanState.FAILED  # what the stopped task gave is no number
    assert gate.name
    lose(faulty, kind)
    handle.remove()
    nothing_left(store)
    assert len(faulty.faults) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_loses_answers_runs_each_task_once(kind, backend_url, store):
    with FaultyStore(latchwork.connect(backend_url)) as faulty:
        for nth in range(2, 30, 3):
            faulty.add(Fault(kind, op="commit", nth=nth, delay_s=LATE_S))
        with PlanWorker(faulty, slots=2, functions=FUNCTIONS):
            plans = Plans(store, functions=FUNCTIONS)
            with plans.new() as plan:
                first = [plan.add("same", number) for number in range(10)]
                answer = plan.add("add", *[plan.add("same", each) for each in first])
            assert plan.handle.result(answer, WAIT_S) == 45
            assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert sorted(CALLS[:-1]) == sorted(("same", number) for number in (*range(10), *range(10)))
