"""The planted defects fit the code and the tests; `make check WHAT=mutants` plants them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from levels import always
from mutants.all_defects import DEFECTS
from mutants.defect import ROOT, Defect, DefectStale
from mutants.overlay import overlay, run_tests

#: The parts of the package that need at least three defects each.
PARTS = (
    *("store/", "backends/embedded/", "backends/etcd/", "backends/zookeeper/"),
    *("primitives/fair/", "primitives/leased/", "primitives/queue/", "primitives/numbers/"),
    *("primitives/group/", "primitives/barrier/"),
    *("jobs/", "tasks/", "executor/", "plans/", "worker_group/"),
    *(f"latchwork_workflows/{folder}/" for folder in ("master", "worker", "db")),
)


def test_every_part_that_coordinates_has_defects():
    counts = {part: sum(defect.file.startswith(part) for defect in DEFECTS) for part in PARTS}
    assert {part: count for part, count in counts.items() if count < 3} == {}


def test_each_defect_is_caught_by_a_test_that_every_make_test_runs():
    assert [defect.name for defect in DEFECTS if not always(defect.test)] == []


def test_every_defect_fits_the_code_once_and_leaves_valid_python():
    for defect in DEFECTS:
        ast.parse(defect.planted(defect.path_in().read_text()), defect.name)


def test_every_defect_has_a_name_of_its_own():
    names = [(defect.system, defect.name) for defect in DEFECTS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.timeout(330)
def test_every_test_that_has_to_catch_a_defect_is_there_and_not_slow():
    wanted = sorted({f"tests/{defect.test}" for defect in DEFECTS})
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        *wanted,
    ]
    environment = {**os.environ, "DRIVER": "thread"}
    collected = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert collected.returncode == 0, collected.stdout + collected.stderr
    assert sorted(line for line in collected.stdout.splitlines() if "::" in line) == wanted


def test_a_defect_whose_text_has_changed_is_refused():
    defect = Defect("Lock", "nothing", "primitives/fair/lock.py", "no such text", "", "")
    with pytest.raises(DefectStale, match=r"lock\.py contains the text of 'nothing' 0 times"):
        defect.planted("def lock(): ...")


def test_the_copy_has_the_defect_and_the_checkout_has_not():
    defect = DEFECTS[0]
    before = defect.path_in().read_text()
    with overlay(defect) as folder:
        assert defect.path_in(folder).read_text() == defect.planted(before)
    assert defect.path_in().read_text() == before
    assert not folder.exists()


def test_a_defect_is_caught_by_a_test_that_fails_and_not_by_one_that_passes():
    defect = next(each for each in DEFECTS if each.name == "an expired lease is revived")
    assert run_tests([defect.test], defect).caught
    other = run_tests(["primitives/test_lock_protocol.py::test_records_survive_a_round_trip"], defect)
    assert (other.caught, other.by) == (False, "every test passed")
