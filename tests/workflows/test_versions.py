"""Versions: a run keeps the one that it was started with; only what is online starts; the graph is the order."""

import pytest

from latchwork_workflows.errors import WrongState
from workflows.hands import a_workflow


def test_a_run_keeps_its_version_whatever_is_applied_meanwhile(stage):
    first = stage.apply(a_workflow(tasks={"a": [], "b": ["a"]}))
    hand = stage.hand()
    with stage.master():
        old = stage.start(first)
        hand.end(hand.wait("a"))
        stage.until_task(old, b="submitted")
        second = stage.apply(a_workflow(tasks={"a": [], "c": ["a"]}))
        new = stage.start(second)
        got = hand.wait("b", "a")
        assert hand.spec(got["b"]).head.version == 1
        hand.end(got["b"])
        hand.end(got["a"])
        hand.end(hand.wait("c"))
        stage.until(old, "success")
        stage.until(new, "success")
    assert (first.code, first.number, second.code, second.number) == (first.code, 1, first.code, 2)
    assert list(stage.states(old)) == ["a", "b"]
    assert list(stage.states(new)) == ["a", "c"]


def test_a_rerun_and_a_recovery_keep_the_version_too(stage):
    first = stage.apply(a_workflow(tasks={"a": []}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(first)
        hand.end(hand.wait("a"))
        stage.until(made, "success")
        stage.apply(a_workflow(tasks={"z": []}))
        stage.send("rerun", made)
        hand.end(hand.wait("a"))
        stage.until(made, "success")
    assert stage.known(made).round == 2


def test_only_what_is_online_is_started(client, stage):
    client.workflows.apply(a_workflow().definition.to_json(), online=False)
    with pytest.raises(WrongState, match="offline"):
        client.runs.start("flow")
    client.workflows.set_online("flow", online=True)
    client.runs.start("flow")


def test_tasks_start_in_topological_order(stage):
    tasks = {"d": ["b", "c"], "b": ["a"], "c": ["a"], "a": []}
    version = stage.apply(a_workflow(tasks=tasks))
    hand, seen = stage.hand(), []
    with stage.master():
        made = stage.start(version)
        for names in (["a"], ["b", "c"], ["d"]):
            got = hand.wait(*names)
            for name in names:
                hand.end(got[name] if len(names) > 1 else got)
                seen.append(name)
        stage.until(made, "success")
    assert seen == ["a", "b", "c", "d"]
