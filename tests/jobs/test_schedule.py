"""When a job runs next."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchwork.schedules.schedule import Cron, FixedDelay, FixedRate, Instant


def at(mono, wall=0.0):
    return Instant(mono, wall)


def berlin(*when, fold=0):
    return datetime(*when, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold).timestamp()


def test_fixed_delay_counts_from_the_end_of_the_run():
    schedule = FixedDelay(10.0)
    assert schedule.next_due(100.0, at(107.0)) == 117.0


def test_the_default_initial_delay_is_the_schedules_own():
    assert FixedDelay(10.0).first_due(at(5.0), None) == 15.0
    assert FixedRate(3.0).first_due(at(5.0), None) == 8.0


def test_an_initial_delay_of_zero_is_due_at_once():
    for schedule in (FixedDelay(10.0), FixedRate(3.0)):
        assert schedule.remaining_s(schedule.first_due(at(5.0), 0.0), at(5.0)) <= 0


def test_fixed_rate_counts_from_start_to_start():
    assert FixedRate(10.0).next_due(100.0, at(103.0)) == 110.0


def test_fixed_rate_skips_the_periods_a_long_run_covered():
    assert FixedRate(10.0).next_due(100.0, at(134.0)) == 140.0


@given(st.floats(0, 1e6), st.floats(0.001, 1e4), st.floats(0, 1e5))
def test_fixed_rate_is_never_due_before_the_run_ended(due, period, took):
    following = FixedRate(period).next_due(due, at(due + took))
    assert following >= (due + took) * (1 - 1e-12)
    assert following - due >= period - 1e-6


def test_cron_fires_at_the_next_matching_time():
    schedule = Cron("*/5 * * * *", tz="Europe/Berlin")
    assert schedule.first_due(at(0, berlin(2026, 3, 1, 12, 1)), None) == berlin(2026, 3, 1, 12, 5)


def test_cron_skips_the_fire_times_a_long_run_covered():
    schedule = Cron("*/5 * * * *", tz="Europe/Berlin")
    due = berlin(2026, 3, 1, 12, 5)
    assert schedule.next_due(due, at(0, berlin(2026, 3, 1, 12, 17))) == berlin(2026, 3, 1, 12, 20)


def test_cron_moves_on_even_when_the_wall_clock_was_set_back():
    schedule = Cron("0 * * * *", tz="Europe/Berlin")
    due = berlin(2026, 3, 1, 12, 0)
    assert schedule.next_due(due, at(0, due - 30)) == berlin(2026, 3, 1, 13, 0)


def test_cron_runs_a_job_of_the_skipped_hour_once_in_spring():
    schedule = Cron("30 2 * * *", tz="Europe/Berlin")
    first = schedule.first_due(at(0, berlin(2026, 3, 29, 0, 0)), None)
    assert berlin(2026, 3, 29, 3, 0) <= first <= berlin(2026, 3, 29, 3, 30)
    assert schedule.next_due(first, at(0, first)) == berlin(2026, 3, 30, 2, 30)


def test_cron_runs_a_job_of_the_repeated_hour_once_in_autumn():
    schedule = Cron("30 2 * * *", tz="Europe/Berlin")
    first = schedule.first_due(at(0, berlin(2026, 10, 25, 0, 0)), None)
    assert first in {berlin(2026, 10, 25, 2, 30), berlin(2026, 10, 25, 2, 30, fold=1)}
    assert schedule.next_due(first, at(0, first)) == berlin(2026, 10, 26, 2, 30)


def test_an_initial_delay_holds_back_the_first_fire_of_a_cron_job():
    schedule = Cron("* * * * *")
    assert schedule.first_due(at(0, 600.0), 61.0) == 720.0


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: FixedDelay(-1), "delay_s=-1"),
        (lambda: FixedDelay(float("nan")), "delay_s=nan"),
        (lambda: FixedDelay("1"), "delay_s='1'"),
        (lambda: FixedRate(0), "period_s=0"),
        (lambda: Cron("every monday"), "every monday"),
        (lambda: Cron("61 * * * *"), "61"),
        (lambda: Cron("* * * * *", tz="Mars/Base"), "Mars/Base"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_by_name(make, word):
    with pytest.raises(ValueError, match=word.replace("*", r"\*")):
        make()
