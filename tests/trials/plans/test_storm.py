"""A short storm over plans; `make check WHAT=plans-chaos` has long ones."""

from __future__ import annotations

import json

import pytest

from backends_table import SHARED
from levels import LONG
from trials.plans.storm import Storm

SECONDS, TASKS = (60.0, 100) if LONG else (6.0, 40)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", SHARED if LONG else ["sqlite"])
def test_each_task_has_one_result_and_each_plan_completes_once_whoever_is_killed_frozen_or_cut_off(backend, tmp_path):
    with Storm(backend, 47, tmp_path, tasks=TASKS) as storm:
        report = storm.blow(SECONDS)
    print(json.dumps(report.to_json(), indent=2))
    assert report.violations == []
    assert report.plans >= 2
    assert sum(report.faults.values()) >= 2
