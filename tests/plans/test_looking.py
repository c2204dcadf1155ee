"""What is seen of a plan."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import latchwork
from latchwork.errors import WaitTimeout
from latchwork.plans import NoSuchPlan, NoSuchTask, Plans
from latchwork.store import Mirror
from latchwork.testing.faults import FaultyStore
from patience import eventually
from plans.work import CALLS, FUNCTIONS, GATE, WAIT_S, add, nothing_left


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


def test_waits_end_when_their_plan_was_replaced_between_two_states_of_the_watch(
    backend_url, store, plans, worker, monkeypatch
):
    begun = threading.Semaphore(0)
    wait_until = Mirror.wait_until

    def counted(mirror, *args):
        begun.release()
        return wait_until(mirror, *args)

    monkeypatch.setattr(Mirror, "wait_until", counted)
    faulty = FaultyStore(latchwork.connect(backend_url))
    with faulty, ThreadPoolExecutor(2) as threads:
        with plans.new(id="again") as plan:
            plan.add("waits", name="slow")
        seen = Plans(faulty, functions=FUNCTIONS).get("again")
        calls = {
            threads.submit(seen.wait, WAIT_S): NoSuchPlan,
            threads.submit(seen.result, "slow", WAIT_S): NoSuchTask,
        }
        for _ in calls:
            assert begun.acquire(timeout=WAIT_S)
        eventually(lambda: CALLS, what="the task")
        faulty.cut_watches(silent_s=1.0)
        plan.handle.remove()
        nothing_left(store)
        with plans.new(id="again") as plan:
            plan.add("waits-for-gate", name="slow")
        for call, error in calls.items():
            with pytest.raises(error):
                call.result(WAIT_S)
        GATE.set()
