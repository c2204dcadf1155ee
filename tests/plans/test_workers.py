"""Workers: whose task it is, what they tell, and what they do while there is nothing to do."""

from __future__ import annotations

import threading
import time

import pytest

import latchwork
from latchwork.plans import PlanState, PlanWorker
from latchwork.tasks import Retry
from latchwork.testing.faults import Fault, FaultyStore
from plans.work import CALLS, FUNCTIONS, GATE, WAIT_S, echo, fails_once, wait_until


def test_a_dead_workers_task_is_run_by_another(backend_url, plans, store):
    with plans.new() as plan:
        answer = plan.add("waits")
    with latchwork.connect(backend_url) as lost:
        dying = PlanWorker(lost, functions=FUNCTIONS, session_ttl_s=2.0, label="dying")
        dying.start()
        wait_until(lambda: CALLS)
        assert [each.worker for each in plan.handle.status().running] == ["dying"]
        dying.drain(0.0)
        dying._work.session.close()
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


def test_of_two_workers_that_want_one_task_one_has_it_and_the_other_takes_the_next(backend_url, store, plans):
    with plans.new() as plan:
        plan.add("waits", name="first")
        plan.add("waits", name="second")
    with PlanWorker(store, functions=FUNCTIONS):  # makes both ready, and takes one
        wait_until(lambda: len(CALLS) == 1)
        slow = FaultyStore(latchwork.connect(backend_url), [Fault("slow_request", op="commit", delay_s=0.2)])
        with slow, PlanWorker(slow, functions=FUNCTIONS, label="late"):
            wait_until(lambda: len(CALLS) == 2)
            running = plan.handle.status().running
            assert len({each.worker for each in running}) == len({each.task for each in running}) == 2
            plan.handle.cancel()
            assert plan.handle.wait(WAIT_S).state is PlanState.CANCELLED


def test_what_raised_on_one_worker_has_no_result_and_is_run_by_another(backend_url, store, plans):
    seen = []
    with plans.new() as plan:
        answer = plan.add("fails-until-gate", 5, retry=Retry(attempts=10, initial_s=0.05, max_s=0.05))
    with PlanWorker(store, functions=FUNCTIONS, label="first", on_failure=lambda *what: seen.append(what)):
        wait_until(lambda: len(seen) >= 2)
    assert store.get(f"default/results/{plan.id}/{answer.name}") is None
    assert plan.handle.status().running == ()
    GATE.set()
    with latchwork.connect(backend_url) as other, PlanWorker(other, functions=FUNCTIONS, label="second"):
        assert plan.handle.result(answer, WAIT_S) == 5
    assert {failure.name for _, _, failure in seen} == {"ValueError"}


def test_an_idle_worker_hears_of_a_plan_at_once_and_writes_nothing_before(backend_url, plans, worker):
    with latchwork.connect(backend_url) as other:
        wait_until(lambda: other.list("@plans/default/queue/consumers", recursive=True))
        time.sleep(0.3)
        before = [(entry.key, entry.version) for entry in other.list("@plans", recursive=True)]
        time.sleep(0.5)
        assert [(entry.key, entry.version) for entry in other.list("@plans", recursive=True)] == before
    began = time.monotonic()
    with plans.new() as plan:
        answer = plan.add("same", 1)
    assert plan.handle.result(answer, WAIT_S) == 1
    assert time.monotonic() - began < 5.0  # it looks by itself only every ten seconds


def test_what_has_run_is_ended_when_the_store_is_back(backend_url, plans):
    faulty = FaultyStore(latchwork.connect(backend_url))
    with faulty, PlanWorker(faulty, functions=FUNCTIONS, session_ttl_s=30.0):
        with plans.new() as plan:
            answer = plan.add("waits-for-gate")
        wait_until(lambda: CALLS)
        faulty.cut_off()
        GATE.set()
        time.sleep(0.5)
        faulty.reconnect()
        assert plan.handle.result(answer, WAIT_S) == "open"
    assert len(CALLS) == 1


def test_a_cancel_does_not_wait_for_the_pause_before_the_next_try(plans, worker):
    with plans.new() as plan:
        plan.add("fails", retry=Retry(attempts=3, initial_s=300.0, max_s=300.0))
    wait_until(lambda: CALLS)
    wait_until(lambda: plan.handle.status().running)
    time.sleep(0.2)
    plan.handle.cancel()
    assert plan.handle.wait(10.0).state is PlanState.CANCELLED
    assert len(CALLS) == 1


def test_a_cancel_that_waits_for_a_task_which_does_not_listen_holds_no_slot(plans, store):
    with PlanWorker(store, slots=2, functions=FUNCTIONS):
        with plans.new() as plan:
            plan.add("deaf")
        with plans.new() as other:
            answer = other.add("same", 3)
        wait_until(lambda: CALLS)
        plan.handle.cancel()
        assert other.handle.result(answer, WAIT_S) == 3  # the cancel waits, and holds no slot while it does
        assert plan.handle.state() is PlanState.CANCELLING
        GATE.set()
        assert plan.handle.wait(WAIT_S).state is PlanState.CANCELLED


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"slots": 0}, "slots must be"),
        ({"run_in": "cloud"}, "run_in must be"),
        ({"session_ttl_s": 0.0}, "session_ttl_s must be"),
    ],
)
def test_an_option_of_a_worker_that_cannot_be_says_why(store, options, why):
    with pytest.raises(ValueError, match=why):
        PlanWorker(store, functions=FUNCTIONS, **options)


def test_a_task_is_stopped_when_its_plan_was_replaced_while_no_watch_reported_it(backend_url, store, plans):
    faulty = FaultyStore(latchwork.connect(backend_url))
    with faulty, PlanWorker(faulty, functions=FUNCTIONS):  # of one slot
        with plans.new(id="again") as plan:
            plan.add("waits")
        wait_until(lambda: CALLS)
        began = time.monotonic()
        faulty.cut_watches(silent_s=2.0)
        with PlanWorker(store, functions=FUNCTIONS):
            plan.handle.remove()
            wait_until(lambda: not plans.list())
        with plans.new(id="again") as plan:
            plan.add(echo, 1)
        wait_until(lambda: CALLS == [("waits",), ("echo", 1)])
        assert time.monotonic() - began < WAIT_S / 2  # by itself the first task ends after WAIT_S


def test_a_worker_closes_when_a_claim_was_deleted_and_no_watch_reported_it(backend_url, store, plans):
    faulty = FaultyStore(latchwork.connect(backend_url))
    with faulty:
        worker = PlanWorker(faulty, functions=FUNCTIONS)
        worker.start()
        with plans.new() as plan:
            plan.add("waits-for-gate")
        wait_until(lambda: CALLS)
        faulty.cut_watches(silent_s=600.0)
        (holder,) = (entry.key for entry in store.list("", recursive=True) if "/holders/" in entry.key)
        store.delete(holder)
        GATE.set()
        closing = threading.Thread(target=worker.close, daemon=True)
        closing.start()
        closing.join(WAIT_S)
        assert not closing.is_alive()  # it would try to write the result for ever
