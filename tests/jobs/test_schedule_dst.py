"""Cron on the two days of a year when the clock is set, minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from latchwork.schedules.schedule import Cron, Instant

DAYS = {
    ("Europe/Berlin", "spring"): (2026, 3, 28, 23),
    ("Europe/Berlin", "autumn"): (2026, 10, 24, 22),
    ("America/New_York", "spring"): (2026, 3, 8, 5),
    ("America/New_York", "autumn"): (2026, 11, 1, 4),
}
EXPRESSIONS = ["* * * * *", "*/15 * * * *", "*/15 2 * * *", "0 2 * * *", "30 2 * * *", "30 1 * * *", "30 30 1 * * *"]


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("day", DAYS, ids=" ".join)
def test_the_next_start_is_always_still_to_come(day, expression):
    schedule = Cron(expression, tz=day[0])
    midnight = datetime(*DAYS[day], tzinfo=UTC).timestamp()
    for minute in range(25 * 60):
        now = midnight + 60.0 * minute
        assert schedule.next_due(now - 60.0, Instant(0.0, now)) > now
        assert schedule.first_due(Instant(0.0, now + 0.5), None) > now + 0.5


@pytest.mark.parametrize("day", DAYS, ids=" ".join)
def test_a_daily_job_runs_once_on_the_day_the_clock_is_set(day):
    schedule = Cron("30 2 * * *", tz=day[0])
    midnight = datetime(*DAYS[day], tzinfo=UTC).timestamp()
    starts = set()
    due = schedule.first_due(Instant(0.0, midnight), None)
    while due < midnight + 23 * 3600:
        starts.add(due)
        due = schedule.next_due(due, Instant(0.0, due + 35 * 60.0))  # ends in the second pass of the hour
    assert len(starts) == 1
