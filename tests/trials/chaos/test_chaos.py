"""A short chaos run: five nodes, ten jobs, real processes, a real server; `make check WHAT=chaos` has long ones."""

from __future__ import annotations

import json

import pytest

from levels import LONG
from trials.chaos.storm import Storm

SECONDS = 60.0 if LONG else 16.0


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_nothing_overlaps_nothing_is_lost_and_nothing_is_left_over_under_faults(tmp_path):
    with Storm("etcd35", 20261121, tmp_path) as storm:
        report = storm.blow(SECONDS)
    print(json.dumps(report.to_json(), indent=2))
    assert report.verdict.violations == []
    assert report.left_over == []
    assert report.verdict.runs > 500
    assert len(report.landed) >= 6, report.landed
