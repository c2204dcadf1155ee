"""Wide, large and many."""

from __future__ import annotations

from latchwork.plans import PlanState, PlanWorker, TaskState
from plans.work import CALLS, FUNCTIONS, WAIT_S, add, large, number_of, size_of, total


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
