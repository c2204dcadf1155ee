"""Workers: whose task it is, what they tell, and what they do while there is nothing to do."""

from __future__ import annotations

import time

import latchwork
from latchwork.plans import PlanState, PlanWorker
from plans.work import CALLS, FUNCTIONS, WAIT_S, fails_once, wait_until


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


def test_a_task_that_raises_is_tried_again_and_its_worker_is_told(store, plans):
    seen = []
    with PlanWorker(store, functions=FUNCTIONS, on_failure=lambda *what: seen.append(what)):
        with plans.new() as plan:
            answer = plan.add(fails_once, "a")
        assert plan.handle.result(answer, WAIT_S) == "a"
    assert [(plan_id, task, failure.name) for plan_id, task, failure in seen] == [(plan.id, answer.name, "OSError")]


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
