"""The fire times of cron expressions, against a search through every minute, where clocks are set in odd ways."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from latchwork.schedules import Cron

#: Zones, and the days on which their clock is set: by half an hour, an hour, a day, back and forward, at midnight too.
SHIFTS = {
    "Australia/Lord_Howe": ("2024-04-06", "2024-10-05"),
    "Europe/Berlin": ("2026-03-28", "2026-10-24"),
    "America/Caracas": ("2007-12-09", "2016-05-01"),
    "Asia/Pyongyang": ("2018-05-04",),
    "Pacific/Apia": ("2011-12-29", "2011-09-24"),
    "Antarctica/Troll": ("2024-03-31", "2024-10-27"),
    "UTC": ("2024-01-01",),
}
DAYS = [(zone, day) for zone, days in SHIFTS.items() for day in days]
#: Those that follow the time that passes, with the hours and minutes that match.
PASSING = {
    "* * * * *": (range(24), range(60)),
    "*/15 * * * *": (range(24), range(0, 60, 15)),
    "0 * * * *": (range(24), (0,)),
    "0 */2 * * *": (range(0, 24, 2), (0,)),
    "*/20 0-3 * * *": (range(4), range(0, 60, 20)),
}
#: Those that count for their date.
DATED = ("30 2 * * *", "15 1 * * *", "0 0 * * *", "59 23 * * *", "45 1,2 * * *", "0 45 1 * * *")


def begin_of(day):
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() - 12 * 3600


def listed(cron, start, end):
    fires = []
    while (at := cron.fire_after(fires[-1] if fires else start)) <= end:
        fires.append(at)
    return fires


@pytest.mark.parametrize(("zone", "day"), DAYS, ids=lambda part: part.replace("/", "-"))
@pytest.mark.parametrize("expression", PASSING)
def test_an_expression_with_a_star_fires_at_each_moment_whose_reading_matches(zone, day, expression):
    start, (hours, minutes), there = begin_of(day), PASSING[expression], ZoneInfo(zone)
    times = ((at, datetime.fromtimestamp(at, there)) for at in (start + 60.0 * n for n in range(1, 36 * 60)))
    expected = [at for at, clock in times if clock.hour in hours and clock.minute in minutes]
    assert listed(Cron(expression, tz=zone), start, start + (36 * 60 - 1) * 60.0) == expected


@pytest.mark.parametrize(("zone", "day"), DAYS, ids=lambda part: part.replace("/", "-"))
@pytest.mark.parametrize("expression", [*list(PASSING)[1:], *DATED])
def test_the_fire_times_are_the_same_from_wherever_they_are_counted(zone, day, expression):
    cron, start = Cron(expression, tz=zone), begin_of(day)
    fires = listed(cron, start, start + 3 * 86400)
    for before, after in pairwise(fires):
        for at in (before, before + 1.0, (before + after) / 2, after - 0.5):
            assert cron.fire_after(at) == after
            assert cron.fire_before(at, 0.0) == before
        assert cron.fire_before(after - 0.5, before + 1.0) is None


@pytest.mark.parametrize(("zone", "day"), [each for each in DAYS if each[0] != "Pacific/Apia"], ids=" ".join)
@pytest.mark.parametrize("expression", ["30 2 * * *", "15 1 * * *", "0 0 * * *", "0 15 2 * * *", "0 30 1 * * *"])
def test_a_daily_job_fires_once_for_each_date(zone, day, expression):
    start = begin_of(day)
    fires = listed(Cron(expression, tz=zone), start, start + 6 * 86400)
    dates = [datetime.fromtimestamp(at, ZoneInfo(zone)).date() for at in fires]
    assert len(dates) >= 5
    assert dates == [dates[0] + timedelta(days=n) for n in range(len(dates))]


@pytest.mark.parametrize("second", ["", "0 "])
def test_a_fire_time_that_the_clock_was_set_forward_over_comes_right_after_that(second):
    cron = Cron(f"{second}15 2 * * *", tz="Australia/Lord_Howe")  # from 2:00 the clock goes on at 2:30
    at = cron.fire_after(datetime(2024, 10, 5, 12, tzinfo=UTC).timestamp())
    assert datetime.fromtimestamp(at, ZoneInfo("Australia/Lord_Howe")).isoformat() == "2024-10-06T02:30:00+11:00"


@pytest.mark.parametrize(
    ("word", "fields"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@Weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_crons_own_words_stand_for_their_fields(word, fields):
    assert Cron(word) == Cron(fields)


@pytest.mark.parametrize("wrong", ["@reboot", "@every 5m", "@", 5, None, ["0 0 * * *"]])
def test_what_is_no_expression_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match="Cron expression"):
        Cron(wrong)
