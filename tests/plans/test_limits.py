"""Plans of which only so many tasks run at a time."""

from __future__ import annotations

import threading
import time

import latchwork
from latchwork.plans import Plans, PlanState, PlanWorker
from latchwork.tasks import Functions, Retry, TaskContext
from plans.work import WAIT_S, nothing_left, wait_until

FUNCTIONS = Functions()
MUTEX = threading.Lock()


class Busy:
    now = most = done = 0


@FUNCTIONS.task(name="busy")
def busy(number: int, context: TaskContext) -> int:
    with MUTEX:
        Busy.now += 1
        Busy.most = max(Busy.most, Busy.now)
    context.wait_for_stop(0.02)
    with MUTEX:
        Busy.now -= 1
        Busy.done += 1
    return number


@FUNCTIONS.task(name="again", retry=Retry(attempts=2, initial_s=0.5, jitter=0.0))
def again(context: TaskContext) -> int:
    if context.attempt == 1:
        raise OSError
    return context.attempt


@FUNCTIONS.task(name="quick")
def quick(number: int) -> int:
    return number


def clear():
    Busy.now = Busy.most = Busy.done = 0


def test_no_more_tasks_than_that_run_at_a_time_on_all_workers_together(backend_url, store):
    clear()
    with latchwork.connect(backend_url) as other, Plans(store, functions=FUNCTIONS).new(max_parallel=3) as plan:
        plan.map(busy, range(30))
        handle = plan.start()
        with PlanWorker(store, slots=4, functions=FUNCTIONS), PlanWorker(other, slots=4, functions=FUNCTIONS):
            assert handle.wait(2 * WAIT_S).state is PlanState.COMPLETED
    assert (Busy.done, Busy.most) == (30, 3)
    assert store.list("default/running", recursive=True) == []


def test_a_plan_of_one_at_a_time_leaves_slots_to_others_and_hands_on_at_once(store):
    clear()
    plans = Plans(store, functions=FUNCTIONS)
    with PlanWorker(store, slots=4, functions=FUNCTIONS):
        with plans.new(max_parallel=1) as narrow:
            narrow.map(quick, range(40))
        with plans.new() as wide:
            wide.map(quick, range(40))
        began = time.monotonic()
        assert wide.handle.wait(WAIT_S).state is PlanState.COMPLETED
        assert narrow.handle.wait(WAIT_S).state is PlanState.COMPLETED
        assert time.monotonic() - began < WAIT_S  # a wake that was missed costs ten seconds each


def test_a_task_that_pauses_before_its_next_try_has_no_place(store):
    with PlanWorker(store, slots=2, functions=FUNCTIONS):
        with Plans(store, functions=FUNCTIONS).new(max_parallel=1) as plan:
            first = plan.add(again, name="first")
            second = plan.add(quick, 2, name="second")
        assert plan.handle.result(second, WAIT_S) == 2
        assert plan.handle.result(first, WAIT_S) == 2
        assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED


def test_the_places_of_a_worker_that_died_are_free(backend_url, store):
    clear()
    with latchwork.connect(backend_url) as lost:
        dying = PlanWorker(lost, functions=FUNCTIONS, session_ttl_s=2.0)
        dying.start()
        with Plans(store, functions=FUNCTIONS).new(max_parallel=1) as plan:
            plan.map(busy, range(5))
        wait_until(lambda: store.list("default/running", recursive=True))
        dying.drain(0.0)
        dying._work.session.close()
        with PlanWorker(store, functions=FUNCTIONS):
            assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
        dying.close(1.0)
    assert store.list("default/running", recursive=True) == []


def test_a_place_without_a_claim_is_given_back_while_its_worker_lives(store, monkeypatch):
    """What a claim leaves whose answer was lost, and which was given up."""
    monkeypatch.setattr("latchwork.plans.worker._ORPHAN_CHECK_S", 0.2)
    with PlanWorker(store, slots=2, functions=FUNCTIONS) as worker:
        with Plans(store, functions=FUNCTIONS).new(max_parallel=1) as plan:
            plan.add(quick, 1)
        plan.handle.wait(WAIT_S)
        store.put("default/running/x/0", b"plans/05-1-0/x~gone", session=worker._work.session)
        wait_until(lambda: store.get("default/running/x/0") is None)
        plan.handle.remove()
        nothing_left(store)
