"""Commands: each is done once, whoever reads it; those of masters are nobody else's; refused ones say why."""

import pytest

from latchwork_workflows.db.commands import INTERNAL, CommandType
from latchwork_workflows.errors import NotAllowed
from latchwork_workflows.state import Outcome
from patience import eventually
from workflows.hands import a_workflow


def test_each_command_is_done_once_whoever_has_the_shard(stage, monkeypatch):
    """Three masters come and go, and the answers to some of their commits are lost."""
    stage.lose_answers(monkeypatch, every=3)
    version = stage.apply(a_workflow(tasks={"a": []}))
    sent = [stage.send("start", code=version.code, version=1) for _ in range(9)]
    for _ in range(3):
        with stage.master() as run:
            eventually(lambda: not stage.commands_open() or stage.is_over(run))
        sent += [stage.send("start", code=version.code, version=1) for _ in range(3)]
    with stage.master():
        eventually(lambda: not stage.commands_open())
    assert stage.runs() == len(sent)
    assert len({stage.command(each).run_id for each in sent}) == len(sent)


def test_commands_are_done_in_their_order(stage):
    version = stage.apply(a_workflow())
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        claim = hand.wait("a")
        stage.until_task(made, a="running")
    orders = [stage.send(each, made) for each in ("pause", "resume", "stop", "recover")]
    with stage.master():
        eventually(lambda: not stage.commands_open())
        hand.end(claim, Outcome.KILLED)
        stage.until(made, "stopped")
    errors = [stage.command(each).error for each in orders]
    assert errors[:3] == [None] * 3
    assert "recover needs one that is failure, stopped" in errors[3]


def test_what_cannot_be_done_says_why_and_holds_nothing_up(stage):
    version = stage.apply(a_workflow())
    bad = [
        stage.send("start", code=999, version=1),
        stage.send("start", code=version.code, version=1, start_from=["z"]),
        stage.send("start", nonsense=1),
        stage.send("pause", 12345),
        stage.send("failover", 1),
    ]
    good = stage.send("start", code=version.code, version=1)
    with stage.master():
        eventually(lambda: stage.command(good).run_id)
    found = [stage.command(each).error for each in bad]
    for error, words in zip(
        found, ("no version 1", "no task 'z'", "is not a valid start", "no run 12345", "does not know"), strict=True
    ):
        assert words in error
    assert stage.runs() == 1


def test_a_start_from_chosen_tasks_runs_these_and_what_follows(stage):
    version = stage.apply(a_workflow(tasks={"a": [], "b": ["a"], "c": ["b"], "d": []}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version, start_from=["b"])
        hand.end(hand.wait("b"))
        hand.end(hand.wait("c"))
        stage.until(made, "success")
        dry = stage.start(version, dry=True, priority="highest")
        stage.until(dry, "success")
        only = stage.start(version, start_from=["b"], scope="only")
        hand.end(hand.wait("b"))
        stage.until(only, "success")
    assert stage.states(made) == {"a": "skipped", "b": "success", "c": "success", "d": "skipped"}


def test_what_masters_tell_each_other_is_asked_by_nobody_else(stage, client):
    version = stage.apply(a_workflow())
    with stage.master():
        made = stage.start(version)
    for kind in INTERNAL:
        with pytest.raises(NotAllowed, match="masters"):
            client.runs.send_action(made, kind.value.replace("_", "-"))
    assert {each.value for each in INTERNAL} >= {"failover", "waiting_thread", "timer", "wake"}
    assert CommandType.START not in INTERNAL
