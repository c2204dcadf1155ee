"""Wide, large and many."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from latchwork.errors import ValueTooLarge
from latchwork.plans import PlanState, PlanWorker, TaskState
from latchwork.plans.transitions import batch_tasks
from latchwork.store.steps import run
from levels import LONG
from plans.work import CALLS, FUNCTIONS, WAIT_S, add, large, number_of, size_of, total

#: So wide a fan; every one of its tasks costs the same, whatever the width.
WIDE = 10_000 if LONG else 500


def test_a_wide_fan_goes_out_and_comes_in_and_is_read_by_its_last_ends(store, plans, worker):
    with plans.new() as plan:
        first = plan.add(add, 1, name="first")
        middle = [plan.add(add, first, number) for number in range(WIDE)]
        answer = plan.add(total, middle, name="answer")
    assert plan.handle.result(answer, WIDE / 10 + WAIT_S) == sum(range(WIDE)) + WIDE
    status = plan.handle.wait(WAIT_S)
    assert (status.state, status.tasks) == (PlanState.COMPLETED, {TaskState.DONE: WIDE + 2})
    assert len(CALLS) == WIDE + 1


def test_ten_thousand_neighbours_fit_into_a_record_and_twice_as_many_are_refused(plans):
    """Of the longest names that there are."""
    plan = plans.new()
    first = plan.add(add, 1, name="first")
    middle = [plan.add(add, first, name=f"n{number:049}") for number in range(10_000)]
    plan.add(total, middle, name="answer")
    records = plan._draft.build_records()
    for name in ("first", "answer"):
        assert 500_000 < len(records[name].to_bytes()) - len(records[name].args) < 900_000
        assert type(records[name]).from_bytes(records[name].to_bytes()) == records[name]
    assert records["answer"].args_from == records["answer"].deps
    for number in range(10_000):
        plan.add(add, first, name=f"m{number:049}")
    with pytest.raises(
        ValueTooLarge, match=r"'first' has 0 dependencies and 20,000 successors.* add intermediate tasks"
    ):
        plan.start()
    assert plans.list() == []


def test_large_records_are_rewritten_few_at_a_time(store, plans, plan_store):
    """A transaction holds a megabyte: of tasks with thousands of dependencies not twenty are made ready in one."""
    with plans.new(id="p") as plan:
        first = plan.add(add, 1, name="first")
        plan.map(total, [[first]] * 22)
    for task in run(plan_store.read_all_tasks("p")):
        if task.name != "first":
            store.put(task.entry.key, replace(task.record, why="x" * 60_000).to_bytes())
    with PlanWorker(store, slots=4, functions=FUNCTIONS):
        assert plan.handle.wait(WAIT_S).tasks == {TaskState.DONE: 23}


def test_portions_keep_the_order_and_leave_a_large_one_alone():
    sizes = [10, 700_000, 10, 300_000, 290_000, 20_000]
    tasks = [_Sized(size) for size in sizes]
    assert [[len(each.entry.value) for each in some] for some in batch_tasks(tasks, 2)] == [
        [10],
        [700_000],
        [10, 300_000],
        [290_000, 20_000],
    ]
    assert batch_tasks([], 2) == []


class _Sized:
    def __init__(self, size):
        self.entry = self
        self.value = b"x" * size


def test_a_fan_of_two_hundred_goes_out_and_comes_in(plans, worker):
    with plans.new() as plan:
        first = plan.add(add, 1)
        middle = [plan.add(add, first, number) for number in range(200)]
        answer = plan.add(total, middle)
    assert plan.handle.result(answer, 4 * WAIT_S) == sum(range(200)) + 200
    assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert len(CALLS) == 201


def test_large_arguments_and_results_come_whole(plans, worker):
    with plans.new() as plan:
        given = plan.add(size_of, b"y" * 100_000)
        made = plan.add(size_of, plan.add(large, 3_000_000))
    assert plan.handle.result(given, WAIT_S) == 100_000
    assert plan.handle.result(made, WAIT_S) == 3_000_000


def test_ten_workers_run_a_hundred_tasks_of_ten_dependencies_each_once(store, plans):
    wanted = {n: list(dict.fromkeys((n * 7 + dep * 13) % n for dep in range(10))) if n else [] for n in range(100)}
    with plans.new("stress") as plan:
        tasks = []
        for number, deps in wanted.items():
            tasks.append(plan.add(number_of, number, [tasks[dep] for dep in deps], name=f"n{number}"))
    workers = [PlanWorker(store, functions=FUNCTIONS, label=f"w{number}") for number in range(10)]
    for each in workers:
        each.start()
    status = plan.handle.wait(4 * WAIT_S)
    for each in workers:
        each.close()
    assert status.state is PlanState.COMPLETED
    assert status.tasks == {TaskState.DONE: 100}
    assert sorted(CALLS) == [("number", number, deps) for number, deps in wanted.items()]
