"""A shard's master: what it puts, takes in, takes back and cancels, and what it finds when it comes anew."""

from latchwork.workflows.state import Outcome
from workflows.hands import a_workflow


def test_an_instance_runs_to_its_end_in_the_order_of_its_tasks(stage):
    version = stage.apply(a_workflow())
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        a = hand.wait("a")
        stage.until_task(made, a="running")
        assert hand.take() == {}
        hand.end(a, outputs={"rows": 3})
        hand.end(hand.wait("b"))
        stage.until(made, "success")
    assert stage.attempts() == [(1, "first", "success", "hand", None)] * 2
    assert stage.left() == []


def test_what_failed_is_tried_again_and_then_fails_for_good(stage):
    version = stage.apply(a_workflow(tasks={"a": {"retries": 1, "retry_interval_s": 0}, "b": ["a"]}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        for _ in range(2):
            hand.end(hand.wait("a"), Outcome.FAILURE, error="no")
        stage.until(made, "failure")
    assert stage.attempts() == [(1, "first", "failure", "hand", "no"), (2, "retry", "failure", "hand", "no")]
    assert stage.states(made) == {"a": "failure", "b": "waiting"}
    assert stage.left() == []
