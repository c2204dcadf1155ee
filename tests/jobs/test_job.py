"""Jobs: how they are made, what is refused, how items are split into runs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchwork.jobs.job import InvalidJob, Job, Threads, WorkPoolFailed, check_jobs, read_pool
from latchwork.schedules.schedule import Cron, FixedDelay, FixedRate


def nothing(context):
    """A run that does nothing."""


def job(job_id="report", **options):
    return Job(job_id, **{"work_pool": ["a"], "run": nothing, **options})


def test_a_job_made_of_functions_has_the_documented_defaults():
    made = job()
    assert (made.schedule, made.initial_delay_s, made.pool_check_period_s) == (FixedDelay(60.0), None, 60.0)
    assert made.threads == Threads.whole()


def test_a_subclass_may_give_its_options_as_attributes():
    class Report(Job):
        id = "report"
        schedule = FixedRate(5.0)
        threads = Threads.per_item()

        def work_pool(self):
            return {"b", "a"}

        def run(self, context):
            return None

    made = Report()
    assert read_pool(made) == ("a", "b")
    assert made.schedule == FixedRate(5.0)
    assert Report("other").id == "other"


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("0 3 * * *", Cron("0 3 * * *")),
        ("@daily", Cron("0 0 * * *")),
        (timedelta(minutes=5), FixedRate(300.0)),
    ],
)
def test_a_schedule_may_be_given_as_cron_text_or_as_the_time_between_two_starts(short, long):
    class Report(Job):
        id = "report"
        schedule = short

        def work_pool(self):
            return ["a"]

        def run(self, context):
            return None

    changed = job()
    changed.change(schedule=short)
    assert job(schedule=short).schedule == Report().schedule == changed.schedule == long


@pytest.mark.parametrize("wrong", ["every day", "", timedelta(0), FixedRate, 5])
def test_a_schedule_that_stands_for_none_is_refused(wrong):
    with pytest.raises(InvalidJob, match="job report: schedule"):
        job(schedule=wrong)
    with pytest.raises(InvalidJob, match="job report: schedule"):
        job().change(schedule=wrong)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"job_id": "a b"}, "job id 'a b'"),
        ({"job_id": ""}, "job id ''"),
        ({"run": None}, "run is None"),
        ({"run": 7}, "run is 7"),
        ({"work_pool": "abc"}, "work_pool is 'abc'"),
        ({"work_pool": None}, "work_pool is None"),
        ({"work_pool": ["a", "a"]}, "item 'a' twice"),
        ({"schedule": 60}, "schedule is 60"),
        ({"threads": 3}, "threads is 3"),
        ({"pool_check_period_s": -1}, "pool_check_period_s is -1"),
        ({"requires": {"zone": 1}}, "requires is {'zone': 1}; give label names and values as str"),
        ({"jitter_s": "x"}, "jitter_s is 'x'"),
        ({"initial_delay_s": float("inf")}, "initial_delay_s is inf"),
    ],
)
def test_a_job_put_together_wrongly_is_one_clear_error(options, word):
    with pytest.raises(InvalidJob, match=word):
        job(**options)


def test_a_subclass_that_forgets_the_base_constructor_is_checked_by_the_manager():
    class Odd(Job):
        id = "a b"

        def __init__(self):
            pass

        def work_pool(self):
            return []

        def run(self, context):
            return None

    with pytest.raises(InvalidJob, match="job id 'a b'"):
        check_jobs([Odd()])


def test_two_jobs_with_one_id_are_refused_by_that_id():
    with pytest.raises(InvalidJob, match="two jobs have the id 'report'"):
        check_jobs([job(), job()])


@pytest.mark.parametrize("bad", [7, [7], "jobs", None])
def test_what_is_no_job_is_refused(bad):
    with pytest.raises(InvalidJob, match="is not a Job"):
        check_jobs(bad)


def test_a_single_job_may_be_given_without_a_list():
    one = job()
    assert check_jobs(one) == {"report": one}


@pytest.mark.parametrize(
    ("returned", "word"),
    [
        (["a", 7], "7 is of type int"),
        ("abc", "returned 'abc'"),
        (None, "returned None"),
        (["a", "b", "a"], "'a' twice"),
        (["x" * 513], "513 bytes"),
        ([b"a"], "of type bytes"),
    ],
)
def test_a_work_pool_that_returns_nonsense_is_named_with_the_remedy(returned, word):
    with pytest.raises(InvalidJob, match=f"work pool of job report.*{word}"):
        read_pool(job(work_pool=lambda: returned))


def test_a_work_pool_that_raises_keeps_the_original_as_the_cause():
    def broken():
        raise OSError("disk on fire")

    with pytest.raises(WorkPoolFailed, match="OSError: disk on fire") as caught:
        read_pool(job(work_pool=broken))
    assert isinstance(caught.value.__cause__, OSError)


def test_a_work_pool_that_raises_while_it_is_iterated_counts_as_raising():
    def half():
        yield "a"
        raise OSError("half-way")

    with pytest.raises(WorkPoolFailed, match="half-way"):
        read_pool(job(work_pool=half))


@given(st.sets(st.text(max_size=5), max_size=40), st.integers(0, 12))
def test_items_are_split_into_disjoint_runs_of_sizes_within_one(items, limit):
    parts = Threads(limit).split_items(items)
    assert sorted(item for part in parts for item in part) == sorted(items)
    assert all(parts)
    sizes = [len(part) for part in parts]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(parts) == (len(items) if limit == 0 else min(limit, len(items)))


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "2"])
def test_a_thread_limit_that_is_no_positive_number_is_refused(bad):
    with pytest.raises(InvalidJob, match="at_most"):
        Threads.at_most(bad)
