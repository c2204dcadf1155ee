"""Workflows of which one run goes at a time: starts wait, are discarded, or end the other; dates of backfills wait."""

from datetime import date

import pytest
import sqlalchemy as sa

from latchwork_workflows import DateRange, WrongState
from latchwork_workflows.db import definitions
from latchwork_workflows.db.tables import workflow_run
from latchwork_workflows.master.state_cache import VersionCache
from latchwork_workflows.state import Outcome, RunState
from latchwork_workflows.state.concurrency import ActiveRun, StartDecision, decide_start
from patience import eventually
from workflows.hands import a_workflow

GOES = ActiveRun(1, 0, RunState.RUNNING)
ENDS = ActiveRun(2, 0, RunState.READY_STOP)
WAITS = ActiveRun(3, 1, RunState.SERIAL_WAIT)


@pytest.fixture
def of(stage):
    """A workflow with a policy."""
    return lambda policy, **more: stage.apply(a_workflow(tasks={"a": [], "b": ["a"]}, serial=policy, **more))


def finish(stage, hand, run):
    """Both tasks of a run; nothing else may be there to be taken."""
    for name in ("a", "b"):
        hand.end(hand.wait(name))
    stage.until(run, "success")


def test_starts_come_one_after_the_other_each_when_the_one_before_has_ended(stage, client, of):
    """In DolphinScheduler #9846 the runs that waited were not started rightly."""
    of("wait")
    hand = stage.hand()
    with stage.master():
        runs = [client.runs.start("flow").id() for _ in range(3)]
        assert [stage.state(each) for each in runs] == ["running", "serial_wait", "serial_wait"]
        assert "waits for the concurrency limit" in client.runs.explain(runs[1]).tasks["a"]
        hand.end(hand.wait("a"), Outcome.FAILURE)
        stage.until(runs[0], "failure")
        finish(stage, hand, runs[1])
        finish(stage, hand, runs[2])
    assert stage.events(runs[2]) == ["begin", "success"]


def test_a_run_that_waits_keeps_what_its_start_said_and_starts_counting_when_it_begins(stage, client, of):
    of("wait", timeout_s=3600)
    hand = stage.hand()
    with stage.master():
        first = client.runs.start("flow").id()
        second = client.runs.start("flow", start_from=["b"], scope="only").id()
        assert stage.known(second).warn_at is None
        assert client.runs.get(second).started_at is None
        client.runs.stop(first)
        stage.until(first, "stopped")
        hand.end(hand.wait("b"))
        stage.until(second, "success")
    assert client.runs.get(second).started_at is not None


def test_the_highest_priority_that_waits_comes_next_and_one_that_is_stopped_never(stage, client, of):
    of("wait")
    hand = stage.hand()
    with stage.master():
        first, low, high, gone = (
            client.runs.start("flow", priority=each).id() for each in ("medium", "low", "high", "highest")
        )
        client.commands.wait(client.runs.stop(gone))
        assert stage.state(gone) == "stopped"
        finish(stage, hand, first)
        stage.until(high, "running")
        assert stage.state(low) == "serial_wait"


def test_a_start_is_discarded_while_another_run_goes_on_or_is_paused(stage, client, of):
    of("discard")
    with stage.master():
        first = client.runs.start("flow").id()
        with pytest.raises(WrongState, match=f"run {first} of default.flow is running, and default.flow discards"):
            client.runs.start("flow").id()
        client.commands.wait(client.runs.pause(first))
        stage.until(first, "paused")
        with pytest.raises(WrongState, match="is paused"):
            client.runs.start("flow").id()
        client.runs.stop(first)
        stage.until(first, "stopped")
        assert stage.state(client.runs.start("flow").id()) == "running"
    assert stage.runs() == 2
    assert stage.events(first).count("discarded") == 2


def test_a_start_with_priority_ends_the_others_and_begins_when_they_have_ended(stage, client, of):
    of("priority")
    hand = stage.hand()
    with stage.master():
        first = client.runs.start("flow").id()
        claim = hand.wait("a")
        stage.until_task(first, a="running")
        second = client.runs.start("flow").id()
        third = client.runs.start("flow").id()
        eventually(lambda: stage.is_cancelled(claim))
        assert stage.state(third) == "serial_wait"
        hand.end(claim, Outcome.KILLED)
        finish(stage, hand, third)
    assert [stage.state(each) for each in (first, second)] == ["stopped", "stopped"]
    assert "superseded" in stage.events(first)


def test_a_run_is_not_recovered_or_run_again_beside_another(stage, client, of):
    of("wait")
    hand = stage.hand()
    with stage.master():
        first = client.runs.start("flow").id()
        hand.end(hand.wait("a"), Outcome.FAILURE)
        stage.until(first, "failure")
        second = client.runs.start("flow").id()
        for ask in (client.runs.recover, client.runs.rerun):
            with pytest.raises(WrongState, match=f"run {second} of default.flow is running"):
                client.commands.wait(ask(first))
        finish(stage, hand, second)
        client.commands.wait(client.runs.recover(first))
        finish(stage, hand, first)


@pytest.mark.parametrize("policy", ["wait", "discard", "priority"])
def test_each_date_of_a_backfill_runs_one_after_the_other_whatever_the_policy(stage, client, of, policy):
    """DolphinScheduler #10916, #13967: a backfill of a serial workflow made fewer runs than dates."""
    of(policy)
    hand = stage.hand()
    with stage.master():
        number = client.backfills.start("flow", DateRange(date(2025, 10, 1), date(2025, 10, 3)), parallel=3).id()
        for _ in range(3):
            hand.end(hand.wait("a"))
            hand.end(hand.wait("b"))
        assert client.backfills.wait(number, 60).counts == {"success": 3}


def test_a_dry_run_takes_no_turn(stage, client, of):
    of("wait")
    with stage.master():
        client.runs.start("flow").id()
        assert client.runs.start("flow", dry_run=True).wait(60).state is RunState.SUCCESS


def test_masters_that_hear_nothing_of_their_writes_let_one_run_go_at_a_time(stage, client, of, monkeypatch):
    of("wait")
    hand = stage.hand()
    asked = [client.runs.start("flow") for _ in range(5)]
    stage.lose_answers(monkeypatch, every=5)
    with stage.master(poll_s=0.5):

        def work():
            for claim in hand.take_all().values():
                hand.end(claim)
            with stage.database.read() as connection:
                found = connection.execute(sa.select(workflow_run.c.state)).scalars().all()
            assert sum(each == "running" for each in found) <= 1
            return found == ["success"] * 5

        eventually(work, 100.0)
        assert len({each.id() for each in asked}) == 5


def test_a_turn_that_nobody_told_of_is_found(stage, client, of):
    """A run that begins to wait while the other one ends, in another shard, is not seen by that one."""
    of("wait")
    with stage.master(poll_s=0.2):
        first, second = (client.runs.start("flow").id() for _ in range(2))
        with stage.database.write() as connection:
            gone = sa.update(workflow_run).where(workflow_run.c.id == first)
            connection.execute(gone.values(state="stopped", active=False))
        stage.until(second, "running")


def test_a_run_that_waits_and_that_no_version_can_start_fails_and_not_its_shard(stage, client, of, monkeypatch):
    of("wait")
    with stage.master():
        first, second = (client.runs.start("flow").id() for _ in range(2))
        assert stage.state(second) == "serial_wait"
    with stage.database.write() as connection:
        gone = sa.update(workflow_run).where(workflow_run.c.id == first)
        connection.execute(gone.values(state="stopped", active=False))

    def refuse(*_of):
        raise ValueError("from another time")

    monkeypatch.setattr(definitions, "load_definition", refuse)
    with stage.master(poll_s=0.2, plans=VersionCache()):
        stage.until(second, "failure")


@pytest.mark.parametrize(
    ("policy", "others", "expected"),
    [
        ("parallel", [GOES, WAITS], (StartDecision.RUN, ())),
        ("wait", [], (StartDecision.RUN, ())),
        ("wait", [WAITS], (StartDecision.WAIT, ())),
        ("discard", [WAITS], (StartDecision.DISCARD, ())),
        ("priority", [GOES, ENDS, WAITS], (StartDecision.WAIT, (GOES, WAITS))),
        ("priority", [ENDS], (StartDecision.WAIT, ())),
    ],
)
def test_what_becomes_of_a_start(policy, others, expected):
    assert decide_start(policy, others)[:2] == expected
    wanted = decide_start(policy, others, must_run=True)
    assert wanted.stop == ()
    assert wanted.decision is not StartDecision.DISCARD
