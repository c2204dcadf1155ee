"""The protocol of workers as a model: right as designed, and wrong without any one of its checks."""

from __future__ import annotations

import os

import pytest

from worker_group.model import Job, seeds_until_broken

#: Each check of each transaction, and a schedule, of the many that are played, that needs it.
CHECKS = {
    "join.head": 10,
    "rejoin.head": 1,
    "rejoin.init": 0,
    "rejoin.final": 243,
    "lost.head": 6,
    "lost.member": 5,
    "lost.init": 100,
    "lost.final": 4_949,
    "arrive.board": 44,
    "arrive.live": 0,
    "arrive.epoch": 0,
    "arrive.head": 10,
    "complete.live": 31,
    "complete.head": 1,
    "complete.arrivals": 0,
    "complete.board": 242,
    "complete.opened": 30,
    "leave.live": 5,
    "leave.head": 0,
    "pass.board": 0,
}
#: Checks that another one of the same transaction implies, because whatever they guard is written with the head.
IMPLIED = {"rejoin.member", "rejoin.epoch", "lost.live", "lost.epoch", "complete.epoch", "complete.member"}
#: The same where a join may begin with a head that another one has left, and where it is told that all have begun.
EXTRA_CHECKS = {"join.head": 6, "join.member": 0, "fault.told": 0}
COUNT = int(os.environ.get("LATCHWORK_SCHEDULES", "100"))


def test_jobs_end_well_under_random_schedules():
    for seed in range(COUNT):
        Job(seed).play()


@pytest.mark.parametrize("check", sorted(CHECKS))
def test_a_job_is_broken_without_this_check(check):
    assert seeds_until_broken(check, 3, CHECKS[check]) is not None, "change the model, or find another schedule"


@pytest.mark.parametrize("check", sorted(CHECKS))
def test_the_schedule_that_needs_a_check_goes_well_with_it(check):
    Job(CHECKS[check]).play()


@pytest.mark.parametrize("check", sorted(IMPLIED))
def test_a_check_that_another_implies_is_not_missed(check):
    assert seeds_until_broken(check, 10) is None


def test_jobs_end_well_with_hints_and_every_fault_is_told_after_its_start():
    for seed in range(COUNT // 3):
        Job(seed, extras=True).play()


@pytest.mark.parametrize("check", sorted(EXTRA_CHECKS))
def test_a_job_with_hints_and_told_starts_is_broken_without_this_check(check):
    assert seeds_until_broken(check, 5, EXTRA_CHECKS[check], extras=True) is not None
