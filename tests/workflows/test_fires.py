"""Schedules: one run for each fire time, whoever dies when; windows, time zones, what is missed."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

from latchwork.schedules import WallClock
from latchwork_workflows.db import schedules
from latchwork_workflows.db.schedules import ScheduleRow
from latchwork_workflows.db.tables import fire, schedule, workflow_run
from latchwork_workflows.maintenance import Doctor
from latchwork_workflows.services.schedules import list_next_fires
from patience import eventually
from workflows.hands import a_workflow

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


def row(cron="*/10 * * * *", **fields):
    given = {
        "code": 1,
        "project": "default",
        "name": "flow",
        "version": 1,
        "online": True,
        "shard": 0,
        "tz": "UTC",
        "starts_at": None,
        "ends_at": None,
        "misfire": "once",
        "max_lateness_s": 86_400.0,
        "enabled": True,
        "cursor": NOON,
    }
    return ScheduleRow(**{**given, "cron": cron, **fields})


def local(*parts, tz="Europe/Berlin", fold=0):
    return datetime(*parts, tzinfo=ZoneInfo(tz), fold=fold).timestamp()


def scheduled(stage, **fields):
    """A workflow that owes nothing from before noon."""
    version = stage.apply(a_workflow(tasks={"a": []}, schedule={"cron": "*/10 * * * *", **fields}))
    with stage.database.write() as connection:
        connection.execute(sa.update(schedule).values(cursor=NOON))
    return version


def times(stage):
    with stage.database.read() as connection:
        found = sa.select(workflow_run.c.schedule_time).order_by(workflow_run.c.schedule_time)
        return [(each - NOON) / 60 for each in connection.execute(found).scalars()]


def test_a_fire_time_starts_one_run_when_it_comes(stage):
    scheduled(stage)
    clock = [NOON + 599]
    with stage.master(now=lambda: clock[0], poll_s=0.05):
        eventually(lambda: stage.count(fire) == 0)
        for minutes in (10, 20, 30):
            clock[0] = NOON + minutes * 60
            eventually(lambda minutes=minutes: times(stage)[-1:] == [minutes])
    assert times(stage) == [10, 20, 30]
    assert stage.count(fire) == 3


def test_a_fire_time_is_started_once_though_the_clock_goes_back_over_it(stage):
    scheduled(stage)
    clock = [NOON + 599]
    with stage.master(now=lambda: clock[0], poll_s=0.05):
        for minutes in (10, 20, 30):
            clock[0] = NOON + minutes * 60
            eventually(lambda minutes=minutes: times(stage)[-1:] == [minutes])
        for minutes in (5, 10, 20, 30, 40):
            clock[0] = NOON + minutes * 60
            time.sleep(0.2)  # four polls
        eventually(lambda: times(stage)[-1:] == [40])
    assert times(stage) == [10, 20, 30, 40]


@pytest.mark.parametrize(("misfire", "expected"), [("once", [60]), ("all", [10, 20, 30, 40, 50, 60]), ("skip", [60])])
def test_what_was_missed_is_made_up_for_as_the_schedule_says(stage, misfire, expected):
    scheduled(stage, misfire=misfire)
    with stage.master(now=lambda: NOON + 3630, poll_s=0.05):
        eventually(lambda: times(stage) == expected)


def test_masters_that_die_at_every_step_of_a_fire_start_one_run(stage, monkeypatch):
    """The transaction is left before each of its statements in turn, and again when its answer is lost."""
    scheduled(stage)
    for step in range(4):
        with monkeypatch.context() as patch:
            stage.fail_at(patch, step)
            with stage.master(now=lambda: NOON + 610, poll_s=0.05) as run:
                eventually(lambda step=step, run=run: stage.failures > step or stage.is_over(run))
    with stage.master(now=lambda: NOON + 610, poll_s=0.05):
        eventually(lambda: times(stage) == [10])
    with stage.master(now=lambda: NOON + 610, poll_s=0.05) as run:
        eventually(lambda: run.iterations > 2)
    assert times(stage) == [10]
    assert stage.count(fire) == 1


def test_a_fire_that_somebody_has_written_is_not_started_again(stage):
    version = scheduled(stage)
    with stage.database.write() as connection:
        found = schedules.load_schedules(connection, 0)[0]
        assert schedules.start_scheduled_run(connection, found, NOON + 600) is not None
        assert schedules.start_scheduled_run(connection, found, NOON + 600) is None
    assert stage.count(fire) == 1
    assert version.number == 1


def test_a_schedule_fires_within_its_window_only():
    window = row(starts_at=NOON + 3600, ends_at=NOON + 4800)
    assert (window.get_next_fire(NOON) - NOON) / 60 == 60
    assert (
        row(starts_at=NOON + 3600, ends_at=NOON + 4800, cursor=NOON + 4200).get_next_fire(NOON + 4300) - NOON
    ) / 60 == 80
    assert row(ends_at=NOON + 4800, cursor=NOON + 4800).get_next_fire(NOON + 4900) is None


def test_a_fire_time_before_the_end_of_its_window_is_made_up_for_after_it():
    """It was forgotten: the newest that had passed was looked at alone, and that one was behind the end."""
    hourly = row("0 * * * *", cursor=NOON - 1800, ends_at=NOON + 1800)
    late = NOON + 3 * 3600 + 60
    assert hourly.get_next_fire(late) == NOON
    assert replace(hourly, misfire="all").get_next_fire(late) == NOON
    assert replace(hourly, misfire="skip").get_next_fire(late) is None
    assert replace(hourly, max_lateness_s=3600.0).get_next_fire(late) is None
    assert replace(hourly, cursor=NOON).get_next_fire(late) is None
    assert replace(hourly, starts_at=NOON + 60).get_next_fire(late) is None


def test_what_is_told_to_be_next_is_within_the_window_of_a_schedule():
    """Pages and commands told fire times of after the end, at which nothing starts."""
    hourly = row("0 * * * *", starts_at=NOON + 3600, ends_at=NOON + 2 * 3600)
    assert list_next_fires(hourly, NOON, 5) == [NOON + 3600, NOON + 7200]
    assert list_next_fires(hourly, NOON + 7200, 1) == []
    assert list_next_fires(replace(hourly, ends_at=None), NOON + 7200, 2) == [NOON + 3 * 3600, NOON + 4 * 3600]
    assert list_next_fires(replace(hourly, cron="0 0 31 2 *"), NOON, 1) == []


def test_a_schedule_follows_its_time_zone_over_both_changes_of_the_clock():
    spring = row("30 2 * * *", tz="Europe/Berlin", cursor=local(2026, 3, 28, 12))
    # 2:30 is left out: right after the gap
    assert spring.get_next_fire(local(2026, 3, 28, 13)) == local(2026, 3, 29, 3)
    autumn = row("30 2 * * *", tz="Europe/Berlin", cursor=local(2026, 10, 24, 12))
    first = autumn.get_next_fire(local(2026, 10, 24, 13))
    assert first == local(2026, 10, 25, 2, 30)
    after = row("30 2 * * *", tz="Europe/Berlin", cursor=first)
    assert after.get_next_fire(first + 1) == local(2026, 10, 26, 2, 30)


def test_what_is_offline_or_switched_off_does_not_fire_and_owes_nothing_afterwards(stage, client):
    scheduled(stage)
    client.workflows.set_online("flow", online=False)
    with stage.master(now=lambda: NOON + 3600, poll_s=0.05) as run:
        eventually(lambda: run.iterations > 3)
    assert times(stage) == []
    client.workflows.set_online("flow", online=True)
    client.schedules.set_enabled("flow", enabled=False)
    client.schedules.set_enabled("flow", enabled=True)
    with stage.database.read() as connection:
        assert connection.execute(sa.select(schedule.c.cursor)).scalar() > NOON + 3600


def applied(client, **fields):
    """A version more of what is scheduled."""
    return client.workflows.apply(a_workflow(tasks={"a": []}, **fields).definition.to_json())


def test_a_new_version_leaves_a_workflow_offline_and_its_schedule_switched_off(stage, client):
    scheduled(stage)
    client.workflows.set_online("flow", online=False)
    client.schedules.set_enabled("flow", enabled=False)
    cron = {"cron": "*/10 * * * *"}
    assert not applied(client, schedule=cron, timeout_s=60).online
    assert not applied(client, schedule={"cron": "0 * * * *"}).online
    with stage.database.read() as connection:
        (found,) = schedules.load_schedules(connection)
    assert (found.cron, found.online, found.enabled) == ("0 * * * *", False, False)
    assert client.workflows.apply(a_workflow(tasks={"a": []}).definition.to_json(), online=True).online


def test_missed_fire_times_survive_a_version_with_the_same_schedule_and_no_other(stage, client):
    every = {"cron": "*/10 * * * *", "misfire": "all"}
    scheduled(stage, misfire="all")
    assert applied(client, schedule=every, timeout_s=60).version == 2
    with stage.master(now=lambda: NOON + 1210, poll_s=0.05):
        eventually(lambda: times(stage) == [10, 20])
    applied(client, schedule={**every, "cron": "*/5 * * * *"})
    with stage.database.read() as connection:
        (found,) = schedules.load_schedules(connection)
    assert found.cursor > time.time() - 60


def test_a_wall_clock_that_jumps_for_seconds_starts_nothing(stage):
    scheduled(stage, misfire="all")
    jump_s = [0.0]
    began = time.monotonic()
    clock = WallClock(wall_s=lambda: NOON + 300 + time.monotonic() - began + jump_s[0])
    with stage.master(now=clock.now, poll_s=0.05) as run:
        for jump_s[0] in (86_400.0, 0.0, -86_400.0, 0.0):
            iterations = run.iterations
            eventually(lambda iterations=iterations: run.iterations > iterations + 3)
    assert times(stage) == []
    with stage.database.read() as connection:
        assert connection.execute(sa.select(schedule.c.cursor)).scalar() == NOON


def test_a_schedule_that_a_clock_ahead_has_settled_is_named_and_set_back(stage, client, caplog):
    stage.apply(a_workflow(tasks={"a": []}, schedule={"cron": "* * * * * *"}))
    ahead = time.time() + 3600
    with stage.database.write() as connection:
        connection.execute(sa.update(schedule).values(cursor=ahead))
    (found,) = Doctor(stage.database, stage.store, wait=lambda _: None).check()[-1:]
    assert (found.kind, found.subject) == ("schedule ahead", "default.flow")
    with stage.master(poll_s=0.05) as run:
        eventually(lambda: run.iterations > 3)
        assert stage.count(fire) == 0
        assert caplog.text.count("then disable and enable it") == 1
        client.schedules.set_enabled("flow", enabled=False)
        client.schedules.set_enabled("flow", enabled=True)
        eventually(lambda: stage.count(fire) >= 2)
