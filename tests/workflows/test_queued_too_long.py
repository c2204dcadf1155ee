"""A task that says how long it waits for a worker: taken back and failed, or taken, and never both."""

import pytest

from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.master.dispatcher import Dispatcher
from latchwork_workflows.state import Outcome
from patience import eventually
from workflows.hands import a_workflow


@pytest.fixture
def clock():
    return [1_000.0]


@pytest.fixture
def flow(stage):
    return stage.apply(a_workflow(tasks={"a": {"max_queued_s": 60, "retries": 1, "retry_interval_s": 5}, "b": ["a"]}))


def later(stage, clock, seconds):
    clock[0] += seconds
    stage.poke()


def test_what_no_worker_takes_in_time_has_failed_counts_as_a_try_and_says_so(stage, client, flow, clock):
    with stage.master(now=lambda: clock[0]):
        made = stage.start(flow)
        eventually(stage.items)
        assert "If none claims it within" in client.runs.explain(made).tasks["a"]
        later(stage, clock, 61)
        stage.until_task(made, a="retry_wait")
        assert "No worker claimed attempt 1 in time; the next one starts" in client.runs.explain(made).tasks["a"]
        later(stage, clock, 6)
        stage.until_task(made, a="submitted")
        later(stage, clock, 61)
        stage.until(made, "failure")
        eventually(lambda: stage.left() == [])
    assert "2 of 2 attempts; no worker claimed the last one in time" in client.runs.explain(made).tasks["a"]
    assert [(n, outcome, why) for n, _, outcome, _, why in stage.attempts()] == [
        (1, "not_taken", "no worker claimed it within 60 s"),
        (2, "not_taken", "no worker claimed it within 60 s"),
    ]
    assert stage.events(made) == ["begin", "not_taken", "retry", "not_taken", "failure", "failure"]


def test_a_worker_that_takes_it_before_it_is_taken_back_runs_it(stage, flow, clock, monkeypatch):
    hand, taken = stage.hand(), {}
    take_back = Dispatcher.withdraw_items

    def late(sending, places):
        if not taken:
            taken.update(hand.take())
        return take_back(sending, places)

    monkeypatch.setattr(Dispatcher, "withdraw_items", late)
    with stage.master(now=lambda: clock[0]):
        made = stage.start(flow)
        eventually(stage.items)
        later(stage, clock, 61)
        eventually(lambda: taken)
        stage.until_task(made, a="running")
        hand.end(taken["a"])
        hand.end(hand.wait("b"))
        stage.until(made, "success")
    assert [outcome for _, _, outcome, *_ in stage.attempts()] == ["success", "success"]


def test_a_master_that_dies_before_it_has_taken_it_back_leaves_that_to_the_next(stage, flow, clock, monkeypatch):
    with monkeypatch.context() as patch, stage.master(now=lambda: clock[0]):
        made = stage.start(flow)
        eventually(stage.items)
        patch.setattr(Dispatcher, "withdraw_items", lambda _self, _places: [])
        later(stage, clock, 61)
        eventually(lambda: stage.known(made).tasks["a"].is_overdue)
    assert stage.items()
    with stage.master(now=lambda: clock[0]):
        stage.until_task(made, a="retry_wait")
    assert not stage.items()


def test_its_time_counts_anew_when_its_worker_dies(stage, flow, clock):
    hand = stage.hand()
    with stage.master(now=lambda: clock[0]):
        made = stage.start(flow)
        hand.wait("a")
        stage.until_task(made, a="running")
        later(stage, clock, 1000)
        stage.lose(hand)
        stage.until_task(made, a="submitted")
        assert stage.known(made).tasks["a"].fails_at == clock[0] + 60


def test_a_master_does_not_turn_and_turn_while_a_pause_waits_for_what_runs(stage, clock):
    """What is due in a pause stays due until the run goes on: it is no reason to wake."""
    version = stage.apply(a_workflow(tasks={"a": {"retries": 1, "retry_interval_s": 5}, "b": []}))
    hand = stage.hand()
    with stage.master(now=lambda: clock[0]) as run:
        made = stage.start(version)
        got = hand.wait("a", "b")
        hand.end(got["a"], Outcome.FAILURE)
        stage.until_task(made, a="retry_wait", b="running")
        stage.send("pause", made)
        stage.until(made, "ready_pause")
        later(stage, clock, 6)
        before = run.iterations
        eventually(lambda: run.iterations > before)
        assert stage.known(made).wake_at is None
        assert run.iterations < before + 20
        hand.end(got["b"])
        stage.until(made, "paused")


@pytest.mark.parametrize("given", [0, -1, "soon"])
def test_a_time_that_is_none_is_refused_by_its_place(given):
    with pytest.raises(DefinitionInvalid, match=r"tasks\[0\].max_queued_s"):
        a_workflow(tasks={"a": {"max_queued_s": given}})


def test_a_task_that_no_worker_gets_has_no_such_time(client):
    tasks = [{"name": "sub", "type": "sub_process", "params": {"workflow": "x"}, "max_queued_s": 5}]
    with pytest.raises(DefinitionInvalid, match="this is for tasks of workers"):
        client.workflows.apply({"name": "flow", "tasks": tasks})
