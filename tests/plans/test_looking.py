"""What is seen of a plan."""

from __future__ import annotations

import pytest

from latchwork.errors import WaitTimeout
from plans.work import WAIT_S, add


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
