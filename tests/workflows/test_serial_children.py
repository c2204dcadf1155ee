"""Sub-processes of workflows of which so many runs go at a time: what the parent sees, and who would wait for ever."""

import pytest

from latchwork_workflows.state import Outcome
from patience import eventually
from workflows.hands import a_workflow
from workflows.test_sub_process import the_child

PARENT = {"sub": {"type": "sub_process", "params": {"workflow": "child"}}, "behind": ["sub"]}


@pytest.fixture
def child(stage):
    return lambda policy, **more: stage.apply(a_workflow("child", tasks={"a": [], "b": ["a"]}, serial=policy, **more))


@pytest.fixture
def parent(stage):
    return stage.apply(a_workflow("parent", tasks=PARENT))


def test_a_child_waits_for_its_turn_and_its_parent_says_so(stage, client, child, parent):
    hand = stage.hand()
    with stage.master():
        other = stage.start(child("wait"))
        made = stage.start(parent)
        inner = the_child(stage, made)
        assert (stage.state(inner), stage.states(made)["sub"]) == ("serial_wait", "running")
        assert (
            f"waits for its run {inner}, which waits for the concurrency limit"
            in client.runs.explain(made).tasks["sub"]
        )
        for name in ("a", "b"):
            hand.end(hand.wait(name))
        stage.until(other, "success")
        for name in ("a", "b", "behind"):
            hand.end(hand.wait(name))
        stage.until(made, "success")


def test_a_start_waits_for_a_child_that_goes(stage, child, parent):
    hand = stage.hand()
    version = child("wait")
    with stage.master():
        made = stage.start(parent)
        hand.wait("a")
        assert stage.state(stage.start(version)) == "serial_wait"
        assert stage.state(made) == "running"


def test_a_child_that_is_discarded_fails_its_task_with_the_reason(stage, child, parent):
    with stage.master():
        other = stage.start(child("discard"))
        made = stage.start(parent)
        stage.until(made, "failure")
    assert [why for *_, why in stage.attempts() if why] == [
        f"run {other} of default.child is running, and default.child discards further starts"
    ]
    assert stage.runs() == 2


def test_a_child_with_priority_ends_the_other_and_begins_then(stage, child, parent):
    hand = stage.hand()
    with stage.master():
        other = stage.start(child("priority"))
        claim = hand.wait("a")
        stage.until_task(other, a="running")
        made = stage.start(parent)
        eventually(lambda: stage.is_cancelled(claim))
        assert stage.state(the_child(stage, made)) == "serial_wait"
        hand.end(claim, Outcome.KILLED)
        stage.until(other, "stopped")
        hand.end(hand.wait("a"))
        assert stage.state(made) == "running"


def test_a_child_does_not_begin_while_its_parent_is_paused(stage, client, child, parent):
    hand = stage.hand()
    with stage.master(poll_s=0.3):
        version = child("wait")
        other = stage.start(version)
        made = stage.start(parent)
        inner = the_child(stage, made)
        client.commands.wait(client.runs.pause(made))
        stage.until(made, "paused")
        assert stage.state(inner) == "serial_wait"
        behind = stage.start(version)
        for run in (other, behind):  # the paused one is in nobody's way
            for name in ("a", "b"):
                hand.end(hand.wait(name))
            stage.until(run, "success")
        assert stage.state(inner) == "serial_wait"
        client.commands.wait(client.runs.resume(made))
        stage.until(inner, "running")


def test_a_child_that_is_recovered_waits_for_its_turn_and_keeps_what_succeeded(stage, client, child, parent):
    hand = stage.hand()
    with stage.master():
        version = child("wait")
        made = stage.start(parent)
        hand.end(hand.wait("a"))
        hand.end(hand.wait("b"), Outcome.FAILURE)
        stage.until(made, "failure")
        other = stage.start(version)
        client.commands.wait(client.runs.recover(made))
        inner = the_child(stage, made)
        assert (stage.state(inner), stage.states(inner)["a"]) == ("serial_wait", "success")
        for name in ("a", "b"):
            hand.end(hand.wait(name))
        stage.until(other, "success")
        hand.end(hand.wait("b"))
        hand.end(hand.wait("behind"))
        stage.until(made, "success")


def test_a_stop_of_the_parent_ends_a_child_that_waits(stage, client, child, parent):
    with stage.master():
        stage.start(child("wait"))
        made = stage.start(parent)
        client.runs.stop(made)
        stage.until(made, "stopped")
        assert stage.state(the_child(stage, made)) == "stopped"


def test_a_child_that_would_wait_for_the_run_that_it_is_in_is_refused(stage):
    tasks = {"sub": {"type": "sub_process", "params": {"workflow": "two"}}}
    one = stage.apply(a_workflow("one", tasks=tasks, serial="wait"))
    stage.apply(a_workflow("two", tasks={"sub": {"type": "sub_process", "params": {"workflow": "one"}}}))
    with stage.master():
        made = stage.start(one)
        stage.until(made, "failure")
    assert stage.runs() == 2
    assert any(f"run {made} of default.one has the slot" in (why or "") for *_, why in stage.attempts())
