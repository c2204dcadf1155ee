"""Tasks that wait for runs of other workflows: which runs, until when, and who wakes them."""

import itertools
import time
import uuid
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

import latchwork
from latchwork_workflows.db.tables import waiting
from latchwork_workflows.installation import initialize
from latchwork_workflows.master import master_tasks
from latchwork_workflows.state import Outcome, RunState, TaskState
from latchwork_workflows.state.related_runs import WINDOWS, is_fulfilled, list_time_spans
from patience import eventually
from workflows.hands import Stage, a_workflow

DAY = 86_400.0
BERLIN = ZoneInfo("Europe/Berlin")


def a_dependent(on, **params):
    task = {"type": "dependent", "params": {"on": on, **params}}
    return a_workflow("waits", tasks={"dep": task, "go": ["dep"]})


def test_a_run_that_is_missing_or_goes_on_is_waited_for_and_its_end_wakes_who_waits(stage, client):
    hand = stage.hand()
    target, version = stage.apply(a_workflow("target", tasks={"t": []})), stage.apply(a_dependent("target"))
    with stage.master():
        made = stage.start(version, schedule_time=DAY + 3600)
        stage.until_task(made, dep="running")
        assert "no run of target (today) has succeeded yet" in client.runs.explain(made).tasks["dep"]
        stage.start(target, schedule_time=2 * DAY)  # of another day
        hand.end(hand.wait("t"))
        stage.start(target, schedule_time=DAY)
        t = hand.wait("t")
        assert stage.states(made)["dep"] == "running"
        hand.end(t, outputs={"rows": 7})
        go = hand.wait("go")
        assert hand.spec(go).values["rows"] == 7
        assert stage.count(waiting) == 0


def test_a_run_that_has_ended_before_is_found_at_once_and_the_newest_of_its_day_counts(stage):
    hand = stage.hand()
    target, version = stage.apply(a_workflow("target", tasks={"t": []})), stage.apply(a_dependent("target"))
    with stage.master():
        for outcome in (Outcome.FAILURE, Outcome.SUCCESS):
            stage.until(end(stage, hand, target, outcome), "success" if outcome is Outcome.SUCCESS else "failure")
        stage.start(version, schedule_time=DAY)
        hand.wait("go")


def end(stage, hand, target, outcome=Outcome.SUCCESS, at=DAY):
    made = stage.start(target, schedule_time=at)
    hand.end(hand.wait("t"), outcome)
    return made


def test_a_failure_fails_who_depends_on_it_or_is_mended_while_they_wait(stage):
    hand = stage.hand()
    target = stage.apply(a_workflow("target", tasks={"t": []}))
    at_once = stage.apply(a_dependent("target"))
    with stage.master():
        failed = end(stage, hand, target, Outcome.FAILURE)
        stage.until(failed, "failure")
        stage.until(stage.start(at_once, schedule_time=DAY), "failure")
        patient = stage.start(stage.apply(a_dependent("target", on_failure="wait", wait_s=3600)), schedule_time=DAY)
        eventually(lambda: stage.known(patient).tasks["dep"].fails_at)
        stage.send("recover", failed)
        hand.end(hand.wait("t"))
        hand.wait("go")
    assert ("a dependency has failed") in [error for *_, error in stage.attempts()]


def test_one_task_or_each_of_them_can_be_waited_for_while_their_run_goes_on(stage):
    hand = stage.hand()
    target = stage.apply(a_workflow("target", tasks={"t": [], "off": {"enabled": False}, "late": ["t"]}))
    one = stage.apply(
        a_dependent({"all": [{"workflow": "target", "task": "t"}, {"workflow": "target", "task": "off"}]})
    )
    with stage.master():
        made = stage.start(one, schedule_time=DAY)
        stage.until_task(made, dep="running")
        stage.start(target, schedule_time=DAY)
        hand.end(hand.wait("t"))
        both = hand.wait("go", "late")
        hand.end(both["go"])
        every = stage.start(stage.apply(a_dependent({"workflow": "target", "task": "*"})), schedule_time=DAY)
        stage.until_task(every, dep="running")
        hand.end(both["late"])
        hand.wait("go")


def test_a_dry_run_is_waited_for_by_nobody(stage):
    """It let those go on that wait for what it only pretended, and hid a run of that day that had failed."""
    hand = stage.hand()
    target, version = stage.apply(a_workflow("target", tasks={"t": []})), stage.apply(a_dependent("target"))
    with stage.master():
        stage.until(stage.start(target, schedule_time=DAY, dry=True), "success")
        made = stage.start(version, schedule_time=DAY)
        stage.until_task(made, dep="running")
        stage.until(end(stage, hand, target, Outcome.FAILURE), "failure")
        stage.until(made, "failure")
        stage.until(stage.start(target, schedule_time=DAY, dry=True), "success")
        stage.until(stage.start(version, schedule_time=DAY), "failure")


def test_any_of_several_is_enough_where_that_is_said(stage):
    hand = stage.hand()
    target = stage.apply(a_workflow("target", tasks={"t": []}))
    on = {"any": [{"all": ["nobody", "target"]}, {"workflow": "target", "window": "yesterday"}]}
    version = stage.apply(a_dependent(on))
    with stage.master():
        end(stage, hand, target)
        made = stage.start(version, schedule_time=DAY)
        stage.until_task(made, dep="running")
        end(stage, hand, target, at=0.0)
        hand.wait("go")


def test_a_run_never_counts_as_one_that_it_waits_for(stage):
    """The newest run of its day would be itself, which ends only once it has ended."""
    hand = stage.hand()
    with stage.master():
        stage.until(end(stage, hand, stage.apply(a_workflow("waits", tasks={"t": []}))), "success")
        stage.start(stage.apply(a_dependent("waits")), schedule_time=DAY)
        hand.wait("go")


def test_who_depends_in_another_shard_hears_of_an_end_within_a_moment(database_url):
    with latchwork.connect(f"memory://{uuid.uuid4().hex}") as store:
        stage = Stage(database_url, store)
        initialize(stage.database, shards=2)
        target, version = stage.apply(a_workflow("target", tasks={"t": []})), stage.apply(a_dependent("target"))
        hand = stage.hand()
        with stage.master(0, poll_s=3600.0), stage.master(1, poll_s=3600.0):
            asked = stage.send("start", on=1, code=version.code, version=1, schedule_time=DAY)
            made = eventually(lambda: stage.command(asked).run_id)
            stage.until_task(made, dep="running")
            stage.send("start", on=0, code=target.code, version=1, schedule_time=DAY)
            hand.end(hand.wait("t"))
            hand.wait("go")
        stage.close()


def test_more_than_look_in_one_transaction_look_in_rounds_of_several(stage, monkeypatch):
    monkeypatch.setattr(master_tasks, "MAX_WOKEN", 2)
    hand = stage.hand()
    target, version = stage.apply(a_workflow("target", tasks={"t": []})), stage.apply(a_dependent("target"))
    with stage.master():
        some = [stage.start(version, schedule_time=DAY) for _ in range(5)]
        eventually(lambda: stage.count(waiting) == 5)
        end(stage, hand, target)
        for made in some:
            eventually(lambda made=made: stage.states(made)["dep"] == "success", 20.0)
        eventually(lambda: stage.commands_open() == [])


def test_what_ends_while_a_round_goes_on_is_seen_by_those_that_have_looked(stage, monkeypatch):
    """The rest of a round is a command, and so is what ended behind those that have looked: they look once more."""
    monkeypatch.setattr(master_tasks, "MAX_WOKEN", 2)
    hand = stage.hand()
    target, version = stage.apply(a_workflow("target", tasks={"t": []})), stage.apply(a_dependent("target"))
    with stage.master():
        some = [stage.start(version, schedule_time=DAY) for _ in range(5)]
        eventually(lambda: stage.count(waiting) == 5)
        with stage.database.write() as connection:  # nobody hears of the end
            rows = [dict(row) for row in connection.execute(sa.select(waiting)).mappings()]
            connection.execute(waiting.delete())
        stage.until(end(stage, hand, target), "success")
    with stage.database.write() as connection:
        connection.execute(waiting.insert(), rows)
    for after in ({"after": some[0]}, {}, {}):
        stage.send("wake", code=target.code, **after)
    with stage.master():
        for made in some:
            eventually(
                lambda made=made: stage.states(made)["dep"] == "success", 20.0
            )  # the next look is half a minute away
        eventually(lambda: stage.commands_open() == [])


def test_a_message_that_was_lost_costs_half_a_minute_and_no_more(stage):
    """Who registers while a run ends may miss it: neither sees the other's row. Then the next look finds it."""
    hand = stage.hand()
    moved = [0.0]
    target, version = stage.apply(a_workflow("target", tasks={"t": []})), stage.apply(a_dependent("target"))
    with stage.master(now=lambda: time.time() + moved[0]):
        made = stage.start(version, schedule_time=DAY)
        stage.until_task(made, dep="running")
        with stage.database.write() as connection:
            connection.execute(waiting.delete())
        end(stage, hand, target)
        eventually(lambda: stage.count(waiting) == 0 and stage.commands_open() == [])
        assert hand.take() == {}
        moved[0] = 31.0
        stage.poke()
        hand.wait("go")


@pytest.mark.parametrize(
    ("window", "count", "first", "end"),
    [
        ("this_hour", 1, (2026, 3, 29, 4), (2026, 3, 29, 5)),
        ("last_3_hours", 3, (2026, 3, 29, 0), (2026, 3, 29, 4)),  # an hour is missing that night
        ("today", 1, (2026, 3, 29), (2026, 3, 30)),
        ("yesterday", 1, (2026, 3, 28), (2026, 3, 29)),
        ("last_7_days", 7, (2026, 3, 22), (2026, 3, 29)),
        ("this_week", 1, (2026, 3, 23), (2026, 3, 30)),
        ("last_week", 1, (2026, 3, 16), (2026, 3, 23)),
        ("last_sunday", 1, (2026, 3, 22), (2026, 3, 23)),
        ("this_month", 1, (2026, 3, 1), (2026, 4, 1)),
        ("last_month", 1, (2026, 2, 1), (2026, 3, 1)),
        ("last_month_begin", 1, (2026, 2, 1), (2026, 2, 2)),
        ("last_month_end", 1, (2026, 2, 28), (2026, 3, 1)),
    ],
)
def test_a_window_is_spans_of_local_time(window, count, first, end):
    found = list_time_spans(window, datetime(2026, 3, 29, 4, 30, tzinfo=BERLIN))
    assert len(found) == count
    assert found[0].start == datetime(*first, tzinfo=BERLIN).timestamp()
    assert found[-1].end == datetime(*end, tzinfo=BERLIN).timestamp()
    assert all(one.end == other.start for one, other in itertools.pairwise(found))


def test_every_window_has_spans_in_every_month():
    for month in range(1, 13):
        for name in WINDOWS:
            assert all(each.start < each.end for each in list_time_spans(name, datetime(2026, month, 1, tzinfo=BERLIN)))


def test_what_is_tried_again_or_paused_has_not_failed_and_what_never_started_in_a_run_that_is_over_has():
    run, task = RunState, TaskState
    assert is_fulfilled(run.RUNNING, "a", {"a": task.RETRY_WAIT}) is None
    assert is_fulfilled(run.PAUSED, "a", {"a": task.PAUSED}) is None
    assert is_fulfilled(run.PAUSED, "", {}) is None
    assert is_fulfilled(run.STOPPED, "", {}) is False
    assert is_fulfilled(run.FAILURE, "a", {"a": task.WAITING}) is False
    assert is_fulfilled(run.FAILURE, "a", {"a": task.SUCCESS}) is True
    assert is_fulfilled(run.RUNNING, "*", {"a": task.SUCCESS, "b": task.SKIPPED}) is True
    assert is_fulfilled(run.RUNNING, "*", {"a": task.SUCCESS, "b": task.RUNNING}) is None
    assert is_fulfilled(run.SUCCESS, "gone", {"a": task.SUCCESS}) is False
