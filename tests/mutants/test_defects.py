"""The planted defects fit the code and the tests as they are; `make check WHAT=mutants` plants them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from latchwork import primitives
from levels import always
from mutants.all_defects import DEFECTS
from mutants.defect import PACKAGE, ROOT, Defect, DefectStale
from mutants.overlay import overlay, run_tests

PRIMITIVES = {
    *("LeaderLatch", "Election", "Lock", "ReadWriteLock", "Semaphore", "PersistentLock", "LockKeeper", "Counter"),
    *("Sequence", "Barrier", "DoubleBarrier", "Group", "Queue", "PriorityQueue", "Backlog", "Once", "RateLimiter"),
}
#: Package to how many defects it has at least.
LEAST = {
    "store/": 12,
    "backends/embedded/": 5,
    "backends/etcd/": 5,
    "backends/zookeeper/": 5,
    ("jobs/", "schedules/"): 15,
    "executor/": 15,
    "tasks/": 15,
}


def test_every_primitive_has_defects():
    assert [name for name in PRIMITIVES if not hasattr(primitives, name)] == []
    assert {defect.subject for defect in DEFECTS} >= PRIMITIVES


def test_every_package_below_and_above_the_primitives_has_defects():
    planted = {package: sum(defect.file.startswith(package) for defect in DEFECTS) for package in LEAST}
    assert {package: count for package, count in planted.items() if count < LEAST[package]} == {}


def test_each_defect_is_caught_by_a_test_that_every_make_test_runs():
    """Whichever server's turn it is. The lists are read here; the long run proves that their tests fail."""
    assert [defect.breaks for defect in DEFECTS if not any(map(always, defect.tests))] == []


def test_every_defect_fits_the_code_once_and_leaves_valid_python():
    for defect in DEFECTS:
        ast.parse(defect.planted((PACKAGE / defect.file).read_text()), defect.breaks)


def test_every_defect_has_a_name_of_its_own():
    names = [(defect.subject, defect.breaks) for defect in DEFECTS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.timeout(330)
def test_every_test_that_has_to_catch_a_defect_is_there():
    assert all(defect.tests for defect in DEFECTS)
    wanted = sorted({f"tests/{test}" for defect in DEFECTS for test in defect.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *wanted]
    environment = {**os.environ, "DRIVER": "thread"}
    collected = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert collected.returncode == 0, collected.stdout + collected.stderr
    assert sorted(line for line in collected.stdout.splitlines() if "::" in line) == wanted


def test_a_defect_whose_text_has_changed_is_refused():
    defect = Defect("Lock", "nothing", "primitives/fair/lock.py", "no such text", "", ())
    with pytest.raises(DefectStale, match=r"lock\.py has the text of 'nothing' 0 times"):
        defect.planted("def lock(): ...")


def test_the_copy_has_the_defect_and_the_checkout_has_not():
    defect = DEFECTS[0]
    before = (PACKAGE / defect.file).read_text()
    with overlay(defect) as folder:
        assert (folder / "latchwork" / defect.file).read_text() == defect.planted(before)
    assert (PACKAGE / defect.file).read_text() == before
    assert not folder.exists()


def test_a_defect_is_caught_by_a_test_that_fails_and_not_by_one_that_passes():
    defect = next(each for each in DEFECTS if each.breaks == "a lease that has run out comes back")
    assert run_tests(defect.tests, defect).caught
    blind = run_tests(("primitives/test_lock_protocol.py::test_records_survive_a_round_trip",), defect)
    assert (blind.caught, blind.by) == (False, "every test passed")
