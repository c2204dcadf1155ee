"""What user code and options must not do to a node."""

from __future__ import annotations

from functools import partial

import pytest

from latchwork.jobs import InvalidJob, Job, Threads
from latchwork.jobs.job import WorkPoolFailed, read_pool


@pytest.mark.parametrize("limit", [-1, 1.5, "2", None, True])
def test_a_number_of_threads_that_makes_no_sense_is_refused(limit):
    with pytest.raises(InvalidJob, match=r"at_most\(n\)"):
        Threads(limit)


def test_a_work_pool_that_calls_exit_is_a_failed_work_pool():
    def leave():
        raise SystemExit(3)

    with pytest.raises(WorkPoolFailed, match="SystemExit: 3") as caught:
        read_pool(Job("report", work_pool=leave, run=print))
    assert isinstance(caught.value.__cause__, SystemExit)


def test_control_c_in_a_work_pool_stays_control_c():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_pool(Job("report", work_pool=interrupted, run=print))


async def forgotten_one_by_one(_context):
    yield


def generated(_context):
    yield


@pytest.mark.parametrize(
    "run",
    [forgotten_one_by_one, generated, partial(forgotten_one_by_one, None)],
    ids=["async-generator", "generator", "partial"],
)
def test_a_run_whose_body_would_never_run_is_refused_at_construction(run):
    with pytest.raises(InvalidJob, match="whose body would never run"):
        Job("report", work_pool=["a"], run=run)


def test_an_async_work_pool_is_refused_at_construction_and_a_generator_is_none():
    async def pool():
        return ["a"]

    with pytest.raises(InvalidJob, match="work_pool is an async function"):
        Job("report", work_pool=pool, run=print)

    def generator():
        yield "a"

    assert read_pool(Job("report", work_pool=generator, run=print)) == ("a",)
