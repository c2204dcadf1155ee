"""A short storm over workflows; `make check WHAT=workflows-chaos` has long ones."""

from __future__ import annotations

import json

import pytest

from levels import LONG
from trials.flows.storm import PAIRS, Storm

SECONDS, WORKERS = (60.0, 10) if LONG else (8.0, 3)


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(500)
@pytest.mark.parametrize("pair", PAIRS if LONG else ["sqlite+sqlite"])
def test_each_fire_time_runs_once_and_no_attempts_overlap_whoever_is_killed_frozen_or_cut_off(pair, tmp_path):
    with Storm(pair, 61, tmp_path, workers=WORKERS) as storm:
        report = storm.blow(SECONDS)
    print(json.dumps(report.to_json(), indent=2))
    assert report.violations == []
    assert report.runs >= 5
    assert sum(report.faults.values()) >= 2
