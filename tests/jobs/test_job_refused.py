"""What user code and options must not do to a node."""

from __future__ import annotations

import pytest

from latchwork.jobs import InvalidJob, Job, Threads
from latchwork.jobs.job.job import WorkPoolFailed, read_pool


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
