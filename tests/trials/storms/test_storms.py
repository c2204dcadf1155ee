"""A short storm over each system: real processes on a real server; `make check WHAT=storms` has long ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from levels import LONG
from trials.storms.forms import FORMS, storm_of
from trials.storms.storm import Report


def short(of, place, seconds, least_kinds, *marks, **least):
    """A storm of so many seconds, in which so many kinds of faults land and the figures reach these."""
    return pytest.param(of, place, seconds, least_kinds, least, marks=marks, id=of)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("of", "place", "seconds", "least_kinds", "least"),
    [
        short("jobs", "etcd35", 16.0, 6, pytest.mark.serial, runs=500),
        short("executor", "etcd35", 8.0, 3, pytest.mark.serial, results=100),
        short("workers", "etcd35", 8.0, 2, pytest.mark.serial, generations_passed=4),
        short("workflows", "sqlite+sqlite", 8.0, 2, pytest.mark.serial, runs=5),
        short("plans", "sqlite", 6.0, 2, plans=2),
    ],
)
def test_nothing_that_a_system_promises_is_broken_by_kills_freezes_and_cuts(
    of, place, seconds, least_kinds, least, tmp_path
):
    options = {"plans": {"tasks": 100 if LONG else 40}, "workflows": {"workers": 10 if LONG else 3}}.get(of, {})
    with storm_of(of, place, seed=20261121, folder=tmp_path, **options) as storm:
        report = storm.run(60.0 if LONG else seconds)
    print(json.dumps(report.to_json(), indent=2))
    assert report.violations == []
    assert {name: report.figures[name] for name, value in least.items() if report.figures[name] < value} == {}
    assert len(report.faults) >= least_kinds, report.faults


def test_too_few_faults_are_a_violation_of_a_long_storm_and_a_note_of_a_short_one():
    long, brief = Report("jobs", "sqlite", 1), Report("jobs", "sqlite", 1)
    for report, minutes in ((long, 4.0), (brief, 2.0)):
        report.faults.update({"kill worker": 5, "cut worker": 4})
        report.demand(["kill worker", "cut worker", "cut manager"], 5, minutes, from_minutes=4.0)
    assert long.violations == ["fewer than 5 faults landed of: cut worker (4), cut manager (0)"]
    assert brief.violations == []
    assert brief.notes == [f"{long.violations[0]}; that is demanded of 4 minutes or more"]


def test_the_script_lists_the_faults_of_each_system_at_each_place():
    command = [sys.executable, Path(__file__).with_name("run_storm.py"), "--list"]
    environment = {**os.environ, "LATCHWORK_STORM_COPY": "this tree will do"}
    listed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout
    kinds = [
        f"{of}, {place}, {kind}" for of, form in FORMS.items() for place in form.places for kind in form.kinds(place)
    ]
    assert listed.splitlines() == kinds
