"""A plan whose record was damaged is removed like any other, with or without a worker."""

from __future__ import annotations

import pytest

from latchwork.errors import BadRecord
from latchwork.plans import ChildPlanFailed, PlanState
from latchwork.plans.keys import PARTITION, item_id, sort_key
from latchwork.plans.records import PlanRecord
from latchwork.plans.removal import _delete_items
from latchwork.store.steps import run
from plans.work import CALLS, GATE, WAIT_S, nothing_left, wait_until


def damage(store, plan_store, plan_id):
    store.put(plan_store.keys.plan_key(plan_id), b"\xff no plan")


@pytest.fixture
def damaged(store, plans, plan_store):
    """A plan with tasks that have items and others that wait, and no worker."""
    with plans.new(id="w47", priority=7) as plan:
        plan.add("same", plan.add("same", 4, name="first"), name="second")
        plan.add("same", 5, name="other")
    damage(store, plan_store, "w47")
    return plan.handle


def test_a_damaged_plan_is_removed_without_a_worker(store, plans, damaged):
    with pytest.raises(BadRecord):
        damaged.state()
    damaged.remove()
    nothing_left(store)
    with plans.new(id="w47") as plan:
        plan.add("same", 1)
    assert plan.handle.state() is PlanState.READY


def test_a_damaged_plan_is_removed_while_a_worker_runs_its_tasks(store, plans, plan_store, worker):
    with plans.new() as plan:
        plan.add("same", 1, after=[plan.add("waits-for-gate")])
    wait_until(lambda: CALLS)
    damage(store, plan_store, plan.id)
    plan.handle.remove()
    GATE.set()
    wait_until(lambda: not store.list("default/tasks", recursive=True))
    worker.close(WAIT_S)
    plans.sweep()
    nothing_left(store)


def test_a_sweep_leaves_a_damaged_plan_alone(store, plans, damaged):
    before = {entry.key for entry in store.list("", recursive=True)}
    assert plans.sweep() == 0
    assert {entry.key for entry in store.list("", recursive=True)} == before


@pytest.mark.parametrize("name", ["waits", "w" * 50])
def test_a_task_that_waits_for_a_damaged_child_fails_when_that_is_removed(store, plans, plan_store, worker, name):
    with plans.new() as plan:
        plan.add("inner-waits", name=name)
    wait_until(lambda: [each for each, record in plans.list() if record.parent is not None])
    (child,) = [each for each, record in plans.list() if record.parent is not None]
    wait_until(lambda: plan_store.store.get(plan_store.keys.task_key(plan.id, name)).value.find(child.encode()) > 0)
    damage(store, plan_store, child)
    plans.get(child).remove()
    GATE.set()
    assert plan.handle.wait(WAIT_S).state is PlanState.FAILED
    with pytest.raises(ChildPlanFailed, match="was removed"):
        plan.handle.result(name, WAIT_S)


def test_a_removal_that_comes_late_leaves_the_items_of_the_next_plan_with_the_id(store, plan_store):
    store.put(plan_store.keys.plan_key("w47"), PlanRecord(PlanState.REMOVING).to_bytes())
    seen = run(plan_store.read_plan("w47"))
    store.put(plan_store.keys.plan_key("w47"), PlanRecord(PlanState.READY, started_ms=1).to_bytes())
    item = plan_store.queue.key(PARTITION, sort_key(5, 1, 0), item_id("w47", "t00000"))
    store.put(item, b"{}")
    run(_delete_items(plan_store, "w47", seen, bool))
    assert store.get(item) is not None
