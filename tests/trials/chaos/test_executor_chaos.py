"""A short chaos run of an executor: three workers, two submitters, real processes, a real server.

`make check WHAT=chaos ARGS="--of executor"` has long ones.
"""

from __future__ import annotations

import json

import pytest

from levels import LONG
from trials.chaos.executor_storm import ExecutorStorm

SECONDS = 60.0 if LONG else 8.0


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_each_task_has_one_result_and_what_was_cancelled_never_runs_under_faults(tmp_path):
    with ExecutorStorm("etcd35", 20261122, tmp_path) as storm:
        report = storm.blow(SECONDS)
    print(json.dumps(report.to_json(), indent=2))
    assert report.verdict.violations == []
    assert report.left_over == []
    assert report.verdict.results > 100
    assert len(report.landed) >= 3, report.landed
