"""Plans on every backend: who may take what, and what follows from the end of a task."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

import latchwork
from latchwork.errors import WaitTimeout
from latchwork.plans import (
    DuplicateTask,
    NoResult,
    NoSuchPlan,
    NoSuchTask,
    Plans,
    PlanState,
    PlanWorker,
    TaskState,
    WrongState,
)
from latchwork.plans.place import Place
from latchwork.plans.records import PlanRecord, result_value
from latchwork.store.steps import run
from latchwork.tasks import Functions, Outcome, Payloads, Retry, TaskContext

WAIT_S = 30.0
FUNCTIONS = Functions()
LOCK = threading.Lock()
CALLS = []


@pytest.fixture(autouse=True)
def _calls():
    CALLS.clear()
    GATE.clear()


GATE = threading.Event()


def called(*what):
    with LOCK:
        CALLS.append(what)


@FUNCTIONS.task(name="echo")
def echo(*values: object) -> list[object]:
    called("echo", *values)
    return list(values)


@FUNCTIONS.task(name="add")
def add(*values: int) -> int:
    called("add", *values)
    return sum(values)


@FUNCTIONS.task(name="number")
def number_of(number: int, parts: list[int]) -> int:
    called("number", number, parts)
    return number


@FUNCTIONS.task(name="total")
def total(values: list[int]) -> int:
    return sum(values)


@FUNCTIONS.task(name="fails")
def fails(*_: object) -> int:
    called("fails")
    raise ValueError("no such day")


@FUNCTIONS.task(name="fails-once", retry=Retry(attempts=3, initial_s=0.01))
def fails_once(key: str) -> str:
    called("fails-once", key)
    if sum(each == ("fails-once", key) for each in CALLS) == 1:
        raise OSError("the first time")
    return key


@FUNCTIONS.task(name="fails-until-gate")
def fails_until_gate(value: int) -> int:
    called("gate", value)
    if not GATE.is_set():
        raise ValueError("not yet")
    return value


@FUNCTIONS.task(name="waits")
def waits(context: TaskContext) -> str:
    called("waits")
    context.wait_stop(WAIT_S)
    context.log.info("stopped")
    return "stopped" if context.should_stop else "late"


@FUNCTIONS.task(name="asks")
def asks(context: TaskContext) -> object:
    return context.context


@FUNCTIONS.task(name="large")
def large(size: int) -> bytes:
    return b"x" * size


@FUNCTIONS.task(name="size")
def size_of(value: bytes) -> int:
    return len(value)


@pytest.fixture
def plans(store):
    return Plans(store, functions=FUNCTIONS)


@pytest.fixture
def place(store):
    return Place(store, "plans")


@pytest.fixture
def worker(store):
    with PlanWorker(store, slots=4, functions=FUNCTIONS, context="of the node") as made:
        yield made


def wait_until(true):
    until = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < until, "the condition did not come true in time"
        time.sleep(0.01)


def nothing_left(store, *, but=()):
    def left():
        kinds = ("tasks", "in", "todo", "results", "drafts", "adds", "data", "plans")
        keys = [entry.key for kind in kinds for entry in store.list(f"plans/{kind}", recursive=True)]
        keys += [
            entry.key for entry in store.list("plans/backlog/lanes", recursive=True) if "/shelves/" not in entry.key
        ]
        return [key for key in keys if not any(part in key for part in but)]

    wait_until(lambda: not left())


# Who may take what


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


def plans_record():
    return PlanRecord(PlanState.DRAFT)


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


def test_a_dead_workers_task_is_run_by_another(backend_url, plans, store):
    with plans.new() as plan:
        answer = plan.add("waits")
    with latchwork.connect(backend_url) as lost:
        dying = PlanWorker(lost, functions=FUNCTIONS, session_ttl_s=2.0, label="dying")
        dying.start()
        wait_until(lambda: CALLS)
        assert [each.worker for each in plan.handle.status().running] == ["dying"]
        dying._stop.set()
        dying._shift.session.close()
        with PlanWorker(store, functions=FUNCTIONS, label="living"):
            wait_until(lambda: len(CALLS) == 2)
            plan.handle.cancel()
            assert plan.handle.wait(WAIT_S).state is PlanState.CANCELLED
        dying.close()
    assert plan.handle.result(answer, 0) == "stopped"  # what ends while the plan is cancelled counts


# Failing


def test_a_task_that_raises_is_tried_again_and_its_worker_is_told(store, plans):
    seen = []
    with PlanWorker(store, functions=FUNCTIONS, on_failure=lambda *what: seen.append(what)):
        with plans.new() as plan:
            answer = plan.add(fails_once, "a")
        assert plan.handle.result(answer, WAIT_S) == "a"
    assert [(plan_id, task, failure.name) for plan_id, task, failure in seen] == [(plan.id, answer.name, "OSError")]


def test_a_plan_that_continues_skips_only_what_depends_on_a_failure(plans, worker):
    with plans.new(on_failure="continue") as plan:
        bad = plan.add(fails, name="bad")
        behind = plan.add(add, bad, name="behind")
        far = plan.add(echo, behind, plan.add(add, 1), name="far")
        good = plan.add(add, 2, name="good")
    status = plan.handle.wait(WAIT_S)
    assert status.state is PlanState.FAILED
    assert status.failed == (("bad", "ValueError: no such day"),)
    assert status.tasks == {TaskState.FAILED: 1, TaskState.SKIPPED: 2, TaskState.DONE: 2}
    assert plan.handle.result(good, 0) == 2
    with pytest.raises(ValueError, match="no such day"):
        plan.handle.result(bad, 0)
    with pytest.raises(NoResult, match="was skipped"):
        plan.handle.result(far, 0)


def test_a_plan_that_stops_ends_what_runs_and_starts_nothing_more(plans, worker):
    with plans.new() as plan:
        running = plan.add("waits")
        bad = plan.add(fails, after=())
        plan.add(add, running, bad)
        plan.add(echo, running)
    status = plan.handle.wait(WAIT_S)
    assert status.state is PlanState.FAILED
    assert status.tasks[TaskState.FAILED] == 1
    assert not status.tasks.get(TaskState.READY)
    assert not status.tasks.get(TaskState.WAITING)
    assert ("echo",) not in CALLS


def test_recover_runs_what_was_lost_and_keeps_results(plans, worker):
    with plans.new(on_failure="continue") as plan:
        kept = plan.add(add, 5)
        gate = plan.add(fails_until_gate, kept)
        answer = plan.add(add, gate, kept)
    assert plan.handle.wait(WAIT_S).state is PlanState.FAILED
    plan.handle.recover()
    assert plan.handle.wait(WAIT_S).state is PlanState.FAILED
    GATE.set()
    plan.handle.recover()
    assert plan.handle.result(answer, WAIT_S) == 10
    assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert CALLS.count(("add", 5)) == 1
    assert CALLS.count(("gate", 5)) == 3
    with pytest.raises(WrongState, match="is completed"):
        plan.handle.recover()


def test_cancel_ends_a_plan_and_recover_goes_on(plans, worker):
    with plans.new() as plan:
        first = plan.add("waits")
        last = plan.add(echo, first)
    wait_until(lambda: CALLS)
    plan.handle.cancel()
    plan.handle.cancel()
    assert plan.handle.wait(WAIT_S).state is PlanState.CANCELLED
    assert CALLS == [("waits",)]
    with pytest.raises(WrongState, match="is cancelled"):
        plan.handle.cancel()
    plan.handle.recover()
    assert plan.handle.result(last, WAIT_S) == ["stopped"]
    assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert CALLS == [("waits",), ("echo", "stopped")]


def test_a_task_with_a_fault_in_its_payload_fails_and_is_not_tried_for_ever(store, plans, worker):
    with plans.new() as plan:
        plan.add(total, [plan.add(echo, "text")], name="total")
    status = plan.handle.wait(WAIT_S)
    assert status.failed[0][0] == "total"


# What a worker that died has left


def test_a_result_that_was_not_propagated_is_propagated_without_another_call(store, plans, place):
    with plans.new() as plan:
        first = plan.add(add, 1, name="first")
        plan.add(add, first, name="second")
    handle = plan.handle
    outcome = Outcome(Payloads().encode(41, "a result")).to_bytes()
    task = run(place.tasks(plan.id, ["first"]))[0]
    entry, record = run(place.plan(plan.id))
    ready = place.edges.made_ready(plan.id, record, task)
    store.commit(ready.checks, ready.ops)
    task = run(place.tasks(plan.id, ["first"]))[0]
    done = place.edges.finished(plan.id, record, task, result_value(outcome), [])
    store.commit(done.checks, done.ops)
    for each in store.list("plans/backlog/lanes", recursive=True):
        if "@start" in each.key:  # whoever takes that looks at all tasks
            store.delete(each.key)
    with PlanWorker(store, functions=FUNCTIONS):
        assert handle.result("second", WAIT_S) == 41
        assert handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert CALLS == [("add", 41)]
    assert entry.key == f"plans/plans/{plan.id}"


def test_two_ends_that_name_each_other_as_the_one_to_come_cannot_both_land(store, plans, place):
    with plans.new(id="p") as plan:
        one, two = plan.add(echo, 1, name="one"), plan.add(echo, 2, name="two")
        plan.add(total, [one, two], name="sum")
        plan.add(echo, name="alone")
        plan.add(echo, name="apart")

    async def passed_on(plan, task):
        waiting = await place.tasks("p", task.record.succ)
        others = {each.name: dep for each in waiting for dep in each.record.deps if dep != task.name}
        others = {each: dep for each, dep in others.items() if await place.edges_there("p", [(each, dep)])}
        another = next((each for each in await place.left("p", 10) if each != task.name), None)
        return place.edges.passed_on("p", plan, task, b"=", waiting=waiting, others=others, another=another)

    for pair in (("one", "two"), ("alone", "apart")):
        _, record = run(place.plan("p"))
        tasks = run(place.tasks("p", pair))
        for key in [e.key for e in store.list("plans/todo/p", recursive=True)]:
            if pair == ("alone", "apart") and key.rpartition("/")[2] not in pair:
                store.delete(key)
        edits = [run(passed_on(record, each)) for each in tasks]
        assert [run(place.commit(each)) for each in edits] == [True, False]
        assert run(passed_on(record, tasks[1])) is None or pair == ("one", "two")
    last = run(passed_on(record, run(place.tasks("p", ["two"]))[0]))
    assert last is not None
    assert run(place.commit(last))
    assert run(place.tasks("p", ["sum"]))[0].record.state is TaskState.READY


def test_a_task_that_vanishes_is_skipped_quietly(store, plans, worker, place, caplog):
    with plans.new() as plan:
        plan.add("waits", name="running")
    wait_until(lambda: CALLS)
    plan.handle.remove()
    nothing_left(store)
    assert plans.list() == []
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_a_removed_plan_leaves_nothing_and_its_id_is_free(store, plans, worker):
    for _ in range(2):
        with plans.new(id="again", on_failure="continue") as plan:
            plan.map(add, range(5))
            plan.add(add, plan.add(fails))
            plan.add(size_of, plan.add(large, 2_000_000))
        plan.handle.wait(WAIT_S)
        plan.handle.remove()
        nothing_left(store)


def test_drafts_of_dead_builders_and_orphans_are_swept(store, plans, place, worker):
    session = store.open_session(2.0)
    first = place.edges.drafted("dead", plans_record(), session)
    store.commit(first.checks, first.ops)
    store.put("plans/tasks/orphan/t00000", b"x")
    living = place.edges.drafted("living", plans_record(), store.session)
    store.commit(living.checks, living.ops)
    session.close()
    assert plans.sweep() == 2
    nothing_left(store, but=("living",))
    assert plans.sweep() == 0


# Tasks added meanwhile


def test_results_in_the_middle_go_when_their_time_is_over_and_a_worker_deletes_them(store, plans, worker):
    with plans.new(keep_results_s=0.2) as plan:
        middle = plan.add(large, 1_000_000)
        named = plan.add(echo, 7, name="named")
        plan.add(echo, named)
        last = plan.add(size_of, middle)
    handle = plan.handle
    assert handle.wait(WAIT_S).state is PlanState.COMPLETED
    wait_until(lambda: run_of(plans).are_results_gone)
    assert store.get(f"plans/results/{handle.id}/{middle.name}") is None
    with pytest.raises(NoResult, match="kept no longer"):
        handle.result(middle, 0)
    assert (handle.result("named", 0), handle.result(last, 0)) == ([7], 1_000_000)
    assert store.list(f"plans/data/{handle.id}", recursive=True) == []


def run_of(plans):
    ((_, record),) = plans.list()
    return record


def test_a_sweep_deletes_results_whose_time_is_over_and_keeps_those_of_a_plan_that_failed(store, plans):
    with PlanWorker(store, functions=FUNCTIONS):
        with plans.new(keep_results_s=3600.0) as kept:
            kept.add(total, [kept.add(add, 1, 2)])
        with plans.new(keep_results_s=0.0, on_failure="continue") as failed:
            failed.add(fails, failed.add(add, 1, 2))
        assert failed.handle.wait(WAIT_S).state is PlanState.FAILED
        assert kept.handle.wait(WAIT_S).state is PlanState.COMPLETED
    key = f"plans/plans/{kept.id}"
    record = PlanRecord.of(store.get(key).value)
    plans.sweep()
    assert len(store.list(f"plans/results/{kept.id}")) == 2
    store.put(key, replace(record, keep_results_s=0.0).to_bytes())
    assert plans.sweep() == 1
    assert [each.key.rpartition("/")[2] for each in store.list(f"plans/results/{kept.id}")] == ["t00001"]
    assert plans.sweep() == 0
    assert len(store.list(f"plans/results/{failed.id}")) == 2


def test_tasks_are_added_to_a_plan_that_runs(plans, worker):
    with plans.new() as plan:
        held = plan.add("waits", name="held")
        done = plan.add(add, 3, name="done")
    handle = plan.handle
    assert handle.result(done, WAIT_S) == 3
    behind_done = handle.add(add, done, 4)
    assert handle.result(behind_done, WAIT_S) == 7
    behind_held = handle.add(echo, held, name="behind")
    assert handle.why(behind_held) == ["held"]
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


# Workers


def test_functions_get_the_context_of_their_node(plans, worker):
    with plans.new() as plan:
        answer = plan.add("asks")
    assert plan.handle.result(answer, WAIT_S) == "of the node"


def test_a_worker_with_nothing_to_do_closes_at_once(store):
    worker = PlanWorker(store, slots=2, functions=FUNCTIONS)
    worker.start()
    time.sleep(0.2)
    began = time.monotonic()
    assert worker.close() == []
    assert time.monotonic() - began < 3.0
    worker.close()


def test_a_result_that_is_waited_for_too_short_a_time_says_so(plans):
    with plans.new() as plan:
        answer = plan.add(add, 1)
    with pytest.raises(WaitTimeout, match="has not ended after 0"):
        plan.handle.result(answer, 0.0)


def test_the_graph_of_a_plan_has_its_tasks_and_their_states(plans, worker):
    with plans.new("drawn") as plan:
        plan.add(add, plan.add(add, 1, name="a"), name="b")
    plan.handle.wait(WAIT_S)
    graph = plan.handle.graph()
    assert [(node.id, node.kind) for node in graph.nodes] == [("a", "done"), ("b", "done")]
    assert [(edge.source, edge.target) for edge in graph.edges] == [("a", "b")]
    assert graph.title == "drawn"


# Size


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
