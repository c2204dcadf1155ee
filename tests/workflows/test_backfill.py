"""Backfills: one run for each date, whatever becomes of the others, so many at a time, in their order."""

import random
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

from latchwork.errors import WaitTimeout
from latchwork_workflows import DateRange, WrongState
from latchwork_workflows.db import backfills
from latchwork_workflows.db import runs as rows
from latchwork_workflows.db.tables import backfill, command, workflow_run
from latchwork_workflows.errors import BadRequest
from latchwork_workflows.master.backfills import MAX_AT_ONCE
from latchwork_workflows.model.backfill_dates import MAX_SCHEDULE_TIMES, list_schedule_times
from latchwork_workflows.model.definition import ScheduleSpec
from latchwork_workflows.state import Outcome
from latchwork_workflows.state.backfills import BackfillState, DateCounts, decide_next_step
from patience import eventually
from workflows.hands import a_workflow

#: Three days, and more.
OCTOBER = DateRange(date(2025, 10, 12), date(2025, 10, 14))
NOW = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
ONE_TASK = {"a": []}


def runs(stage, number):
    """The state of each date, the oldest first."""
    with stage.database.read() as connection:
        found = (
            sa.select(workflow_run.c.state)
            .where(workflow_run.c.backfill == number)
            .order_by(workflow_run.c.schedule_time)
        )
        return list(connection.execute(found).scalars())


def state(stage, number):
    with stage.database.read() as connection:
        return connection.execute(sa.select(backfill.c.state).where(backfill.c.id == number)).scalar_one()


def day_of(hand, claim):
    return hand.spec(claim).values["schedule_time"][:10]


def take_days(hand, count):
    """So many tasks, by the date that each is for, and no more."""
    got = {}
    eventually(lambda: got.update(hand.take_all()) or len(got) >= count)
    assert len(got) == count
    return {day_of(hand, claim): claim for claim in got.values()}


@pytest.fixture
def begun(stage, client):
    """A backfill of a workflow with one task, and a worker."""
    stage.apply(a_workflow(tasks=ONE_TASK))

    def begin(dates=OCTOBER, **options):
        return client.backfills.start("flow", dates, **options).id()

    return begin, stage.hand()


# What the rows ask for


def test_a_serial_backfill_has_a_run_for_each_date_at_once(stage, begun):
    """In DolphinScheduler #1320 there was one for all of them, and whoever depended on the others failed."""
    begin, hand = begun
    with stage.master():
        number = begin()
        assert runs(stage, number) == ["running", "submitted", "submitted"]
        for day in ("2025-10-12", "2025-10-13", "2025-10-14"):
            assert state(stage, number) == "running"
            hand.end(take_days(hand, 1)[day])
        eventually(lambda: state(stage, number) == "success")
    assert runs(stage, number) == ["success"] * 3
    assert stage.runs() == 3


def test_a_date_that_fails_in_a_serial_backfill_suppresses_no_later_one(stage, begun):
    """DolphinScheduler #12361: after the second of three days failed, the third was never made."""
    begin, hand = begun
    with stage.master():
        number = begin()
        for day in ("2025-10-12", "2025-10-13", "2025-10-14"):
            hand.end(take_days(hand, 1)[day], Outcome.FAILURE if day == "2025-10-13" else Outcome.SUCCESS)
        eventually(lambda: state(stage, number) == "failure")
    assert runs(stage, number) == ["success", "failure", "success"]


def test_a_date_that_is_killed_in_a_parallel_backfill_suppresses_no_later_one(stage, begun):
    """DolphinScheduler #15835: the dates behind the one that was killed were never made."""
    begin, hand = begun
    with stage.master():
        number = begin(DateRange(date(2025, 10, 1), date(2025, 10, 5)), parallel=2)
        two = take_days(hand, 2)
        hand.end(two["2025-10-01"], Outcome.KILLED)
        hand.end(two["2025-10-02"], Outcome.FAILURE)
        for claim in take_days(hand, 2).values():
            hand.end(claim)
        hand.end(take_days(hand, 1)["2025-10-05"])
        eventually(lambda: state(stage, number) == "failure")
    assert runs(stage, number) == ["failure", "failure", "success", "success", "success"]


def test_the_newest_date_comes_first_if_asked_and_never_more_than_so_many_are_at_work(stage, begun):
    begin, hand = begun
    with stage.master():
        number = begin(DateRange(date(2025, 10, 1), date(2025, 10, 4)), parallel=3, order="desc")
        three = take_days(hand, 3)
        assert sorted(three) == ["2025-10-02", "2025-10-03", "2025-10-04"]
        assert runs(stage, number)[0] == "submitted"
        hand.end(three["2025-10-03"])
        hand.end(take_days(hand, 1)["2025-10-01"])
        for day in ("2025-10-02", "2025-10-04"):
            hand.end(three[day])
        eventually(lambda: state(stage, number) == "success")


def test_a_backfill_that_stops_on_failure_is_held_until_the_failed_date_is_recovered(stage, client, begun):
    begin, hand = begun
    with stage.master():
        number = begin(stop_on_failure=True)
        hand.end(take_days(hand, 1)["2025-10-12"], Outcome.FAILURE)
        assert client.backfills.wait(number, 60).state is BackfillState.HELD
        assert runs(stage, number) == ["failure", "submitted", "submitted"]
        client.runs.recover(client.backfills.runs(number)[0].id)
        hand.end(take_days(hand, 1)["2025-10-12"])
        hand.end(take_days(hand, 1)["2025-10-13"])
        hand.end(take_days(hand, 1)["2025-10-14"])
        assert client.backfills.wait(number, 60).state is BackfillState.SUCCESS


def test_a_paused_date_keeps_its_place(stage, client, begun):
    begin, hand = begun
    with stage.master():
        number = begin()
        first = client.backfills.runs(number)[0].id
        claim = take_days(hand, 1)["2025-10-12"]
        client.commands.wait(client.runs.pause(first))
        hand.release(claim)
        stage.until(first, "paused")
        assert hand.take() == {}
        with pytest.raises(WaitTimeout, match="is running after"):
            client.backfills.wait(number, 0.0)
        client.runs.resume(first)
        take_days(hand, 1)
    assert runs(stage, number)[1:] == ["submitted"] * 2


def test_a_stopped_backfill_ends_what_runs_and_starts_no_more_and_a_date_may_still_be_recovered(stage, client, begun):
    begin, hand = begun
    with stage.master():
        number = begin()
        claim = take_days(hand, 1)["2025-10-12"]
        client.commands.wait(client.backfills.stop(number))
        eventually(lambda: stage.is_cancelled(claim))
        hand.end(claim, Outcome.KILLED)
        assert client.backfills.wait(number, 60).counts == {"stopped": 3}
        with pytest.raises(WrongState, match="is stopped; only one that is running or held"):
            client.backfills.stop(number)
        last = client.backfills.runs(number)[-1].id
        client.runs.recover(last)
        hand.end(take_days(hand, 1)["2025-10-14"])
        stage.until(last, "success")
        assert state(stage, number) == "stopped"


# Who dies when


def test_masters_that_die_or_hear_nothing_at_every_step_run_each_date_once(stage, begun, monkeypatch):
    begin, hand = begun
    ended = []
    lost = stage.lose_answers(monkeypatch, every=5)
    with stage.master():
        number = begin(DateRange(date(2025, 10, 1), date(2025, 10, 6)), parallel=2)

        def work():
            for claim in hand.take_all().values():
                ended.append(day_of(hand, claim))
                hand.end(claim, Outcome.FAILURE if len(ended) % 3 == 0 else Outcome.SUCCESS)
            return state(stage, number) == "failure"

        eventually(work, 60.0)
    assert sorted(ended) == [f"2025-10-0{each}" for each in range(1, 7)]
    assert lost


def test_a_master_that_comes_between_two_dates_goes_on_with_the_next(stage, begun):
    begin, hand = begun
    with stage.master():
        number = begin()
        claim = take_days(hand, 1)["2025-10-12"]
    hand.end(claim)
    with stage.master():
        hand.end(take_days(hand, 1)["2025-10-13"])
    with stage.master():
        hand.end(take_days(hand, 1)["2025-10-14"])
        eventually(lambda: state(stage, number) == "success")


def test_a_transaction_that_fails_at_any_step_leaves_neither_half_a_backfill_nor_two(stage, client, monkeypatch):
    stage.apply(a_workflow(tasks=ONE_TASK))
    asked = client.backfills.start("flow", OCTOBER)
    for step in range(4):
        with monkeypatch.context() as patch:
            stage.fail_at(patch, step)
            with stage.master(poll_s=0.05):
                eventually(lambda step=step: stage.failures > step)
        assert (stage.count(backfill), stage.runs()) == (0, 0)
    with stage.master():
        assert runs(stage, asked.id()) == ["running", "submitted", "submitted"]


@pytest.mark.slow
def test_a_long_backfill_is_led_on_in_several_transactions(stage, client):
    stage.apply(a_workflow(tasks=ONE_TASK))
    dates = DateRange(date(2025, 1, 1), date(2025, 1, 1 + 30))
    months = [date(2020 + year, month, 1) for year in range(5) for month in range(1, 13)]
    with stage.master():
        asked = client.backfills.start("flow", [*dates, *months], parallel=2, dry_run=True)
        many = client.backfills.start("flow", DateRange(date(2025, 1, 1), date(2025, 9, 1)), parallel=200, dry_run=True)
        assert asked.wait(60).counts == {"success": 31 + 60}
        assert many.wait(60).counts == {"success": 244}
    with stage.database.read() as connection:
        wakes = connection.execute(sa.select(command.c.args).where(command.c.type == "wake")).scalars().all()
    assert wakes == [{"backfill": many.id()}] * (244 // MAX_AT_ONCE)


def test_a_date_that_no_version_can_start_counts_as_failed(stage, client, monkeypatch):
    stage.apply(a_workflow(tasks=ONE_TASK))
    save, times = rows.save_run, set()

    def refusing(connection, before, *given, **more):
        times.add(before.schedule_time)
        if sorted(times).index(before.schedule_time) == 1:  # not by id: some databases give a run a new one in a retry
            raise ValueError("a definition from another time")
        return save(connection, before, *given, **more)

    with stage.master():
        monkeypatch.setattr(rows, "save_run", refusing)
        found = client.backfills.start("flow", OCTOBER, dry_run=True).wait(60)
    assert found.counts == {"success": 2, "failure": 1}
    assert found.state is BackfillState.FAILURE


# What is refused


@pytest.mark.parametrize(
    "change",
    [
        {"schedule_times": []},
        {"schedule_times": [1.0, 1.0]},
        {"schedule_times": ["1"]},
        {"schedule_times": None},
        {"schedule_times": [-1.0]},
        {"schedule_times": [float(each) for each in range(MAX_SCHEDULE_TIMES + 1)]},
        {"parallel": 0},
        {"parallel": True},
        {"order": "up"},
        {"code": 77},
    ],
)
def test_a_command_that_nobody_of_ours_wrote_makes_nothing(stage, change):
    version = stage.apply(a_workflow(tasks=ONE_TASK))
    given = {"code": version.code, "version": 1, "schedule_times": [1.0], "parallel": 1, "order": "asc", **change}
    with stage.master():
        number = stage.send("backfill", **given)
        assert eventually(lambda: stage.command(number).error)
        stop = stage.send("backfill_stop", backfill=9)
        assert eventually(lambda: stage.command(stop).error) == "there is no backfill 9 here"
        odd = stage.send("wake", backfill="9")
        assert "names no backfill" in eventually(lambda: stage.command(odd).error)
    assert (stage.count(backfill), stage.runs()) == (0, 0)


def test_a_client_is_told_what_is_wrong_with_its_dates(stage, client):
    stage.apply(a_workflow(tasks=ONE_TASK, params={"day": "x"}))
    for wrong, why in [
        ({"dates": []}, "dates: no dates are given"),
        ({"dates": [date(9999, 12, 31)]}, "9999-12-31 is in the future"),
        ({"dates": [date(1, 1, 1)]}, "is before 1970"),
        ({"dates": DateRange(date(1990, 1, 1), date(2020, 1, 1))}, "more than 5,000 runs"),
        ({"parallel": 0}, "parallel: Input should be greater than or equal to 1"),
        ({"order": "up"}, "order: Input should be 'asc' or 'desc'"),
        ({"params": {"dye": 1}}, "params.dye"),
        ({"priority": "huge"}, "priority"),
    ]:
        with pytest.raises(BadRequest, match=why):
            client.backfills.start("flow", **{"dates": OCTOBER, **wrong})
    client.workflows.set_online("flow", online=False)
    with pytest.raises(WrongState, match="offline"):
        client.backfills.start("flow", OCTOBER)
    assert stage.commands_open() == []


def test_a_repeated_key_is_one_backfill(stage, client):
    stage.apply(a_workflow(tasks=ONE_TASK))
    asked = [client.backfills.start("flow", OCTOBER, unique_key="k", dry_run=True) for _ in range(2)]
    with stage.master():
        assert asked[0].wait(60).id == asked[1].wait(60).id
    assert [each.dates for each in client.backfills.list("flow")] == [3]


# Which moments dates are


def spec(cron, **fields):
    return ScheduleSpec(cron=cron, **fields)


def local(*parts, tz="Europe/Berlin"):
    return datetime(*parts, tzinfo=ZoneInfo(tz)).timestamp()


def test_dates_without_a_schedule_are_their_midnights_in_utc_each_once():
    found = list_schedule_times([date(2025, 1, 2), date(2025, 1, 1), date(2025, 1, 2)], None, NOW)
    assert found == [local(2025, 1, 1, tz="UTC"), local(2025, 1, 2, tz="UTC")]


def test_dates_with_a_schedule_are_all_its_fire_times_in_its_time_zone():
    found = list_schedule_times(
        DateRange(date(2025, 10, 25), date(2025, 10, 26)), spec("0 3,15 * * *", tz="Europe/Berlin"), NOW
    )
    assert found == [local(2025, 10, day, hour) for day in (25, 26) for hour in (3, 15)]  # summer time ends on the 26th


def test_dates_of_a_range_on_which_it_does_not_fire_are_left_out_and_named_ones_refused():
    mondays = spec("0 0 * * 1", end=datetime(2020, 1, 1, tzinfo=UTC))
    found = list_schedule_times(DateRange(date(2025, 10, 1), date(2025, 10, 31)), mondays, NOW)
    assert [datetime.fromtimestamp(each, UTC).day for each in found] == [6, 13, 20, 27]
    with pytest.raises(ValueError, match="does not fire on 2025-10-07"):
        list_schedule_times([date(2025, 10, 6), date(2025, 10, 7)], mondays, NOW)
    with pytest.raises(ValueError, match="never fires on these dates"):
        list_schedule_times(DateRange(date(2025, 10, 7), date(2025, 10, 8)), mondays, NOW)
    with pytest.raises(ValueError, match="more than 5,000"):
        list_schedule_times(DateRange(date(2025, 10, 1), date(2025, 10, 31)), spec("* * * * *"), NOW)


def test_a_fire_time_of_today_that_has_not_come_is_refused():
    noon = NOW + 12 * 3600
    with pytest.raises(ValueError, match=r"2026-03-01T15:00:00\+00:00 is in the future"):
        list_schedule_times([date(2026, 3, 1)], spec("0 9,15 * * *"), noon)
    with pytest.raises(ValueError, match="is before"):
        DateRange(date(2026, 3, 2), date(2026, 3, 1))


# The decision alone


@pytest.mark.parametrize("seed", range(40))
def test_a_random_history_starts_each_date_once_and_ends_where_it_should(seed):
    play = random.Random(seed)
    parallel, stop_on_failure = play.randint(1, 4), play.random() < 0.5
    dates, was, failed_ever = ["pending"] * play.randint(1, 9), BackfillState.RUNNING, False
    for _ in range(400):
        counts = DateCounts(*(dates.count(each) for each in ("pending", "going", "succeeded", "failed")))
        step = decide_next_step(was, counts, parallel=parallel, stop_on_failure=stop_on_failure)
        assert counts.active + step.start <= max(parallel, counts.active)
        for place in [place for place, each in enumerate(dates) if each == "pending"][: step.start]:
            dates[place] = "going"
        counts = DateCounts(*(dates.count(each) for each in ("pending", "going", "succeeded", "failed")))
        again = decide_next_step(step.state, counts, parallel=parallel, stop_on_failure=stop_on_failure)
        assert again == (step.state, 0)
        was = step.state
        going = [place for place, each in enumerate(dates) if each == "going"]
        if going:
            place = play.choice(going)
            dates[place] = play.choice(["succeeded", "succeeded", "failed"])
            failed_ever |= dates[place] == "failed"
        elif was is BackfillState.HELD:
            assert stop_on_failure
            dates[dates.index("failed")] = "going"  # somebody recovers it
    assert was in {BackfillState.SUCCESS, BackfillState.FAILURE}
    assert (was is BackfillState.FAILURE) == ("failed" in dates)
    assert "pending" not in dates


def test_a_backfill_of_another_shard_is_not_there(stage, begun):
    begin, _ = begun
    with stage.master():
        number = begin()
    with stage.database.read() as connection:
        assert backfills.load_backfill(connection, number, shard=1) is None
