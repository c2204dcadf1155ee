"""What follows from the end of a task, whoever has left it."""

from __future__ import annotations

from latchwork.plans import PlanState, PlanWorker, TaskState
from latchwork.plans.records import encode_inline_result
from latchwork.store.steps import run
from latchwork.tasks import Outcome, Payloads
from plans.work import CALLS, FUNCTIONS, WAIT_S, add, echo, nothing_left, total, wait_until


def test_a_result_that_was_not_propagated_is_propagated_without_another_call(store, plans, plan_store):
    with plans.new() as plan:
        first = plan.add(add, 1, name="first")
        plan.add(add, first, name="second")
    handle = plan.handle
    outcome = Outcome(Payloads().encode(41, "a result")).to_bytes()
    task = run(plan_store.read_tasks(plan.id, ["first"]))[0]
    entry, record = run(plan_store.read_plan(plan.id))
    ready = plan_store.transitions.build_ready(plan.id, (entry, record), task)
    store.commit(ready.checks, ready.ops)
    task = run(plan_store.read_tasks(plan.id, ["first"]))[0]
    done = plan_store.transitions.build_completion(plan.id, task, encode_inline_result(outcome))
    store.commit(done.checks, done.ops)
    for each in store.list("default/queue/partitions", recursive=True):
        if "@start" in each.key:  # whoever takes that looks at all tasks
            store.delete(each.key)
    with PlanWorker(store, functions=FUNCTIONS):
        assert handle.result("second", WAIT_S) == 41
        assert handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert CALLS == [("add", 41)]
    assert entry.key == f"default/plans/{plan.id}"


def test_two_ends_that_name_each_other_as_the_one_to_come_cannot_both_land(store, plans, plan_store):
    with plans.new(id="p") as plan:
        one, two = plan.add(echo, 1, name="one"), plan.add(echo, 2, name="two")
        plan.add(total, [one, two], name="sum")
        plan.add(echo, name="alone")
        plan.add(echo, name="apart")

    async def passed_on(seen, task):
        waiting = await plan_store.read_tasks("p", task.record.successors)
        others = [dep for each in waiting for dep in each.record.deps if dep != task.name]
        witnesses = await plan_store.find_unfinished_tasks("p", others)
        if not waiting:
            witnesses = [each for each in await plan_store.list_unfinished_tasks("p", 10) if each != task.name][:1]
        ready = [] if witnesses else waiting
        return plan_store.transitions.build_delegating_completion(
            "p", seen, task, b"=", ready=ready, witnesses=witnesses
        )

    for pair in (("one", "two"), ("alone", "apart")):
        seen = run(plan_store.read_plan("p"))
        tasks = run(plan_store.read_tasks("p", pair))
        for key in [e.key for e in store.list("default/todo/p", recursive=True)]:
            if pair == ("alone", "apart") and key.rpartition("/")[2] not in pair:
                store.delete(key)
        parts = [run(passed_on(seen, each)) for each in tasks]
        assert [run(plan_store.commit(each)) for each in parts] == [True, False]
        assert run(passed_on(seen, tasks[1])) is None or pair == ("one", "two")
    last = run(passed_on(seen, run(plan_store.read_tasks("p", ["two"]))[0]))
    assert last is not None
    assert run(plan_store.commit(last))
    assert run(plan_store.read_tasks("p", ["sum"]))[0].record.state is TaskState.READY


def test_a_task_that_vanishes_is_skipped_quietly(store, plans, worker, plan_store, caplog):
    with plans.new() as plan:
        plan.add("waits", name="running")
    wait_until(lambda: CALLS)
    plan.handle.remove()
    nothing_left(store)
    assert plans.list() == []
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
