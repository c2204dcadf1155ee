"""What is removed, swept, and deleted when its time is over."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

import latchwork.plans.worker
from latchwork.errors import Conflict
from latchwork.plans import NoResult, PlanState, PlanWorker, drafts
from latchwork.plans.records import PlanRecord
from latchwork.schedules import WallClock
from plans.work import (
    FUNCTIONS,
    WAIT_S,
    add,
    echo,
    fails,
    large,
    nothing_left,
    plans_record,
    run_of,
    size_of,
    total,
    wait_until,
)


def test_a_removed_plan_leaves_nothing_and_its_id_is_free(store, plans, worker):
    for _ in range(2):
        with plans.new(id="again", on_failure="continue") as plan:
            plan.map(add, range(5))
            plan.add(add, plan.add(fails))
            plan.add(size_of, plan.add(large, 2_000_000))
        plan.handle.wait(WAIT_S)
        plan.handle.remove()
        nothing_left(store)


def test_drafts_of_dead_builders_and_orphans_are_swept(store, plans, plan_store, worker):
    session = store.open_session(2.0)
    first = plan_store.transitions.build_draft("dead", plans_record(), session)
    store.commit(first.checks, first.ops)
    store.put("default/tasks/orphan/t00000", b"x")
    living = plan_store.transitions.build_draft("living", plans_record(), store.session)
    store.commit(living.checks, living.ops)
    session.close()
    assert plans.sweep() == 2
    nothing_left(store, but=("living",))
    assert plans.sweep() == 0


@pytest.mark.parametrize("step", ["_store_large_args", "_start"])
def test_a_builder_whose_draft_is_swept_is_told_so_and_may_start_it_again(store, plans, worker, monkeypatch, step):
    """Its session ends before the tasks are written, or before the start."""
    do_step = getattr(drafts, step)

    async def swept(plan_store, plan_id, *args):
        monkeypatch.undo()
        store.delete(f"default/drafts/{plan_id}")
        plans.sweep()
        return await do_step(plan_store, plan_id, *args)

    plan = plans.new()
    task = plan.add(add, 1, 2)
    monkeypatch.setattr(drafts, step, swept)
    with pytest.raises(Conflict, match="was removed before it was started"):
        plan.start()
    handle = plan.start()
    assert handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert handle.result(task, 5) == 3


def test_results_in_the_middle_go_when_their_time_is_over_and_a_worker_deletes_them(store, plans, worker):
    with plans.new(keep_results_s=0.2) as plan:
        middle = plan.add(large, 1_000_000)
        named = plan.add(echo, 7, name="named")
        plan.add(echo, named)
        last = plan.add(size_of, middle)
    handle = plan.handle
    assert handle.wait(WAIT_S).state is PlanState.COMPLETED
    wait_until(lambda: run_of(plans).are_results_gone)
    assert store.get(f"default/results/{handle.id}/{middle.name}") is None
    with pytest.raises(NoResult, match="was deleted"):
        handle.result(middle, 0)
    assert (handle.result("named", 0), handle.result(last, 0)) == ([7], 1_000_000)
    assert store.list(f"default/data/{handle.id}", recursive=True) == []


def test_a_sweep_deletes_results_whose_time_is_over_and_keeps_those_of_a_plan_that_failed(store, plans):
    with PlanWorker(store, functions=FUNCTIONS):
        with plans.new(keep_results_s=3600.0) as kept:
            kept.add(total, [kept.add(add, 1, 2)])
        with plans.new(keep_results_s=0.0, on_failure="continue") as failed:
            failed.add(fails, failed.add(add, 1, 2))
        assert failed.handle.wait(WAIT_S).state is PlanState.FAILED
        assert kept.handle.wait(WAIT_S).state is PlanState.COMPLETED
    key = f"default/plans/{kept.id}"
    record = PlanRecord.from_bytes(store.get(key).value)
    plans.sweep()
    assert len(store.list(f"default/results/{kept.id}")) == 2
    store.put(key, replace(record, keep_results_s=0.0).to_bytes())
    assert plans.sweep() == 1
    assert [each.key.rpartition("/")[2] for each in store.list(f"default/results/{kept.id}")] == ["t00001"]
    assert plans.sweep() == 0
    assert len(store.list(f"default/results/{failed.id}")) == 2


def test_a_plan_is_removed_with_its_children_while_no_worker_is_there(store, plans):
    with PlanWorker(store, functions=FUNCTIONS):
        with plans.new() as ended:
            ended.add("inner-gate", 1)
        ended.handle.wait(WAIT_S)
    with plans.new() as started:
        started.map(add, range(3))
    assert len(plans.list()) == 3
    ended.handle.remove()
    started.handle.remove()
    assert plans.list() == []
    nothing_left(store)


def test_a_sweep_finishes_the_removal_that_a_dead_client_has_begun(store, plans, plan_store):
    with plans.new(id="half") as plan:
        plan.map(add, range(3))
    entry = store.get("default/plans/half")
    part = plan_store.transitions.build_removal_start("half", entry, PlanRecord.from_bytes(entry.value))
    store.commit(part.checks, part.ops)
    assert plans.sweep() == 1
    assert plans.list() == []
    nothing_left(store)


@pytest.mark.parametrize("task", [add, fails], ids=["completed", "failed"])
def test_a_worker_removes_a_plan_when_its_time_is_over(store, plans, worker, task):
    with pytest.raises(ValueError, match="keep_s"):
        plans.new(keep_s=-1.0)
    with plans.new(keep_s=None) as kept, plans.new(keep_s=0.3) as plan:
        plan.add(task, name="one")
        kept.add(add, 1)
    assert plan.handle.wait(WAIT_S).has_ended
    kept.handle.wait(WAIT_S)
    wait_until(lambda: [plan_id for plan_id, _ in plans.list()] == [kept.id])
    kept.handle.remove()
    nothing_left(store)


def test_a_sweep_removes_a_plan_when_its_time_is_over_and_not_before_its_end(store, plans):
    with PlanWorker(store, functions=FUNCTIONS):
        with plans.new(keep_s=3600.0) as ended:
            ended.add(fails)
        ended.handle.wait(WAIT_S)
    with plans.new(keep_s=0.0) as waits:
        waits.add(add, 1)
    assert plans.sweep() == 0
    key = f"default/plans/{ended.id}"
    store.put(key, replace(PlanRecord.from_bytes(store.get(key).value), keep_s=0.0).to_bytes())
    assert plans.sweep() == 1
    assert [plan_id for plan_id, _ in plans.list()] == [waits.id]


def test_a_worker_sweeps_by_itself(store, plans, plan_store, monkeypatch):
    monkeypatch.setattr(latchwork.plans.worker, "_SWEEP_S", 0.3)
    session = store.open_session(2.0)
    dead = plan_store.transitions.build_draft("dead", plans_record(), session)
    store.commit(dead.checks, dead.ops)
    store.put("default/tasks/orphan/t00000", b"x")
    session.close()
    with PlanWorker(store, functions=FUNCTIONS):
        wait_until(lambda: plans.list() == [])
        nothing_left(store)


def test_a_wall_clock_that_has_just_jumped_removes_no_plan(store, plans, monkeypatch):
    jump_s, sweeps, sweep = [-86_400.0], [], latchwork.plans.worker.sweep_plans
    clock = WallClock(store.clock, lambda: time.time() + jump_s[0])

    async def count(*args):
        sweeps.append(await sweep(*args))

    monkeypatch.setattr(latchwork.plans.worker, "WallClock", lambda _clock: clock)
    monkeypatch.setattr(latchwork.plans.worker, "sweep_plans", count)
    monkeypatch.setattr(latchwork.plans.worker, "_SWEEP_S", 0.1)
    jump_s[0] = 0.0
    with PlanWorker(store, functions=FUNCTIONS):
        with plans.new(keep_s=0.0) as plan:
            plan.add(add, 1)
        plan.handle.wait(WAIT_S)
        before = len(sweeps)
        wait_until(lambda: len(sweeps) >= before + 2)
        assert [plan_id for plan_id, _ in plans.list()] == [plan.id]
        monkeypatch.setattr("latchwork.schedules.wall_clock.CONFIRM_S", 0.0)
        wait_until(lambda: plans.list() == [])


def test_a_worker_remembers_nothing_of_ended_plans_but_their_records(plans, worker):
    handles = []
    for _ in range(3):
        with plans.new(max_parallel=4) as plan:
            middle = [plan.add(add, number, name=f"a{number}") for number in range(4)]
            plan.add(add, *middle)
        handles.append(plan.handle)
    for handle in handles:
        assert handle.wait(WAIT_S).state is PlanState.COMPLETED
    work = worker._work
    hooks = work._hooks

    def kept():
        return [hooks._results._kept, hooks._results._names, hooks._records, hooks._batcher._plans]

    wait_until(lambda: not any(kept()))
    assert hooks._results._bytes == 0
    assert work._expiries == {}
