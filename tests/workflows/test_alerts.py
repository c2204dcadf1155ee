"""Alerts: written with the fact, once for each cause, whatever dies or is lost in between."""

import pytest
import sqlalchemy as sa

from latchwork_workflows.db import definitions, runs
from latchwork_workflows.db.alerts import create_run_alert
from latchwork_workflows.db.tables import alert, delivery
from latchwork_workflows.state import Outcome, TimelineEvent
from patience import eventually
from workflows.hands import a_workflow

ALERTS = {"channels": ["ops", "chat"], "on": "failure"}


def alerts(stage, kind=None):
    with stage.database.read() as connection:
        rows = connection.execute(sa.select(alert).order_by(alert.c.id)).all()
    return [row for row in rows if kind in {None, row.kind}]


def ended(stage, hand, outcome=Outcome.FAILURE, **fields):
    """One attempt of the only task has ended so."""
    hand.end(hand.wait("a"), outcome, **fields)


def test_a_failure_is_told_once_by_each_channel_with_the_task_that_failed(stage):
    version = stage.apply(a_workflow(tasks={"a": [], "b": ["a"]}, alerts=ALERTS))
    hand = stage.hand()
    with stage.master():
        run = stage.start(version)
        ended(stage, hand, error="no such table", exit_code=1)
        stage.until(run, "failure")
    (told,) = alerts(stage)
    assert (told.run_id, told.kind, told.task) == (run, "failure", "")
    assert told.details["workflow"] == "default.flow"
    assert [(each["name"], each["error"]) for each in told.details["failed"]] == [("a", "no such table")]
    with stage.database.read() as connection:
        rows = connection.execute(sa.select(delivery.c.alert, delivery.c.channel, delivery.c.state)).all()
    assert sorted(rows) == [(told.id, "chat", "pending"), (told.id, "ops", "pending")]


@pytest.mark.parametrize(
    ("on", "outcome", "kinds"),
    [
        ("none", Outcome.FAILURE, []),
        ("success", Outcome.FAILURE, []),
        ("failure", Outcome.FAILURE, ["failure"]),
        ("all", Outcome.FAILURE, ["failure"]),
        ("failure", Outcome.SUCCESS, []),
        ("success", Outcome.SUCCESS, ["success"]),
        ("all", Outcome.SUCCESS, ["success"]),
    ],
)
def test_ends_are_told_as_the_workflow_says(stage, on, outcome, kinds):
    version = stage.apply(a_workflow(tasks={"a": []}, alerts={**ALERTS, "on": on}))
    hand = stage.hand()
    with stage.master():
        run = stage.start(version)
        ended(stage, hand, outcome)
        stage.until(run, outcome.value)
    assert [each.kind for each in alerts(stage)] == kinds


def test_a_stop_is_told_where_all_ends_are(stage):
    version = stage.apply(a_workflow(tasks={"a": []}, alerts={**ALERTS, "on": "all"}))
    with stage.master():
        run = stage.start(version)
        stage.send("stop", run)
        stage.until(run, "stopped")
    assert [each.kind for each in alerts(stage)] == ["stopped"]


def test_a_run_that_is_recovered_or_run_again_and_fails_again_is_told_again(stage):
    version = stage.apply(a_workflow(tasks={"a": []}, alerts=ALERTS))
    hand = stage.hand()
    with stage.master():
        run = stage.start(version)
        for count, again in enumerate(["", "recover", "rerun"], 1):
            if again:
                stage.send(again, run)
            ended(stage, hand)
            eventually(lambda count=count: len(alerts(stage)) == count)
        stage.until(run, "failure")
    assert len({each.cause for each in alerts(stage)}) == 3


def test_the_same_end_written_again_is_one_alert(stage):
    version = stage.apply(a_workflow(tasks={"a": []}, alerts=ALERTS))
    hand = stage.hand()
    with stage.master():
        run = stage.start(version)
        ended(stage, hand)
        stage.until(run, "failure")
    with stage.database.write() as connection:
        stored = runs.load_runs(connection, [run])[run]
        said = definitions.load_definition(connection, version.code, version.number)
        for now in (1.0, 2.0):
            create_run_alert(connection, said, stored, stored.known, TimelineEvent("failure"), now=now)
    assert len(alerts(stage)) == 1


def test_a_dry_run_tells_nothing(stage):
    version = stage.apply(a_workflow(tasks={"a": []}, alerts={**ALERTS, "on": "all"}))
    with stage.master():
        run = stage.start(version, dry=True)
        stage.until(run, "success")
    assert alerts(stage) == []


@pytest.mark.parametrize("on_timeout", ["warn", "both"])
def test_a_task_that_takes_too_long_is_told_once_while_it_runs(stage, on_timeout):
    task = {"timeout_s": 0.2, "on_timeout": on_timeout}
    version = stage.apply(a_workflow(tasks={"a": task}, alerts={**ALERTS, "on": "none"}))
    hand = stage.hand()
    with stage.master():
        run = stage.start(version)
        claim = hand.wait("a")
        eventually(lambda: alerts(stage, "timeout"))
        hand.end(claim, Outcome.FAILURE)
        stage.until(run, "failure")
    (told,) = alerts(stage)
    assert (told.kind, told.task) == ("timeout", "a")


def test_a_task_that_its_worker_has_ended_for_its_time_before_any_master_looked_is_told_of_too(stage):
    task = {"timeout_s": 0.001, "on_timeout": "both"}
    version = stage.apply(a_workflow(tasks={"a": task}, alerts={**ALERTS, "on": "none"}))
    hand = stage.hand()
    with stage.master():
        run = stage.start(version)
        claim = eventually(lambda: hand.take().get("a"))
    hand.end(claim, Outcome.FAILURE, took_s=5.0)
    with stage.master():
        stage.until(run, "failure")
    assert [each.kind for each in alerts(stage)] == ["timeout"]


def test_a_task_whose_time_only_ends_it_is_told_as_a_failure_alone(stage):
    version = stage.apply(a_workflow(tasks={"a": {"timeout_s": 0.001}}, alerts=ALERTS))
    hand = stage.hand()
    with stage.master():
        run = stage.start(version)
        ended(stage, hand, took_s=5.0)
        stage.until(run, "failure")
    assert [each.kind for each in alerts(stage)] == ["failure"]


def test_a_run_that_takes_too_long_is_told_and_once_more_if_it_fails_for_that(stage):
    version = stage.apply(a_workflow(tasks={"a": []}, timeout_s=0.2, on_timeout="both", alerts=ALERTS))
    with stage.master():
        run = stage.start(version)
        stage.until(run, "failure")
    assert [each.kind for each in alerts(stage)] == ["timeout", "failure"]


def test_a_workers_death_is_told_once_for_an_attempt_where_failovers_are(stage):
    version = stage.apply(a_workflow(tasks={"a": []}, alerts={**ALERTS, "failover": True}))
    with stage.master():
        run = stage.start(version)
        for name in ("w1", "w2"):
            hand = stage.hand(name)
            hand.wait("a")
            stage.until_task(run, a="running")
            stage.lose(hand)
            stage.until_task(run, a="submitted")
        (told,) = alerts(stage)
        assert (told.kind, told.task, told.details["worker"]) == ("failover", "a", "w1")
        ended(stage, stage.hand(), Outcome.SUCCESS)
        stage.until(run, "success")


def test_a_master_that_died_is_told_once_for_each_workflow_and_one_that_ended_is_not(stage):
    version = stage.apply(a_workflow(tasks={"a": []}, alerts={**ALERTS, "failover": True}))
    with stage.master():
        first = stage.start(version)
        second = stage.start(version)
        eventually(lambda: len(stage.items()) == 2)
    assert stage.owner() == ""
    with stage.master(node="other"):
        eventually(lambda: stage.owner() == "other")
    assert alerts(stage) == []
    with stage.database.write() as connection:
        connection.exec_driver_sql("UPDATE shard SET owner = 'dead'")
    with stage.master(node="third"):
        eventually(lambda: stage.owner() == "third")
        (told,) = alerts(stage)
    assert (told.run_id, told.kind) == (first, "takeover")
    assert (told.details["former"], told.details["owner"], told.details["runs"]) == ("dead", "third", [first, second])


def test_a_failure_is_told_once_though_answers_of_the_database_are_lost(stage, monkeypatch):
    version = stage.apply(a_workflow(tasks={"a": {"retries": 1, "retry_interval_s": 0}}, alerts=ALERTS))
    hand = stage.hand()
    with stage.master():
        lost = stage.lose_answers(monkeypatch, every=3)
        runs = [stage.start(version) for _ in range(2)]

        def work():
            for claim in hand.take_all().values():
                hand.end(claim, Outcome.FAILURE)
            return all(stage.state(each) == "failure" for each in runs)

        eventually(work, 60.0)
    assert lost
    assert sorted(each.run_id for each in alerts(stage)) == runs


@pytest.mark.parametrize("step", range(4))
def test_a_master_that_dies_while_it_writes_leaves_fact_and_alert_or_neither(stage, monkeypatch, step):
    version = stage.apply(a_workflow(tasks={"a": []}, alerts=ALERTS))
    hand = stage.hand()
    with stage.master():
        run = stage.start(version)
        claim = hand.wait("a")
        with monkeypatch.context() as patched:
            stage.fail_at(patched, step)
            hand.end(claim, Outcome.FAILURE)
            eventually(lambda: stage.failures or stage.state(run) == "failure")
            assert (stage.state(run) == "failure") == bool(alerts(stage))
        stage.until(run, "failure")
    assert [each.kind for each in alerts(stage)] == ["failure"]


def test_a_run_that_a_defect_has_ended_is_told_with_the_reason(stage, monkeypatch):
    version = stage.apply(a_workflow(tasks={"a": []}, alerts=ALERTS))
    hand = stage.hand()
    with stage.master() as run_of_shard:
        run = stage.start(version)
        claim = hand.wait("a")
        stage.until_task(run, a="running")
        assert run_of_shard is not None

        def broken(*_):
            raise RuntimeError("a defect")

        with monkeypatch.context() as patched:
            patched.setattr("latchwork_workflows.master.writer.advance", broken)
            hand.end(claim)
            stage.until(run, "failure")
    (told,) = alerts(stage)
    assert told.details["why"] == f"run {run} cannot continue: RuntimeError: a defect"


def test_rows_of_a_query_are_told_once_by_the_channel_of_the_task_with_their_place(stage):
    mail = {"channel": "boss", "to": ["b@example.org"], "subject": "Orders"}
    params = {"connection": "sqlite://", "statement": "SELECT 1", "mail": mail}
    version = stage.apply(a_workflow(tasks={"a": {"type": "sql", "params": params}}))
    hand = stage.hand()
    with stage.master():
        run = stage.start(version)
        ended(stage, hand, Outcome.SUCCESS, outputs={"rows": 2}, log_ref="1/1/1/1.1.log")
        stage.until(run, "success")
    (told,) = alerts(stage)
    assert (told.kind, told.task, told.details["count_rows"]) == ("rows", "a", 2)
    assert told.details["log_ref"] == "1/1/1/1.1.rows"
    with stage.database.read() as connection:
        assert connection.execute(sa.select(delivery.c.channel)).scalars().all() == ["boss"]
