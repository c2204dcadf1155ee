"""Runs tests on a copy of the package with one defect. The checkout is never changed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mutants.defect import ADD_ONS, PACKAGE, ROOT, Defect

#: Seconds for one test, and for the run of one defect.
TEST_TIMEOUT_S, TIMEOUT_S = 45, 240.0
#: Seconds for the tests of all defects, without one.
BASELINE_TIMEOUT_S = 3600.0
_TESTS_FAILED = 1
_FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """The result of a test run.

    Attributes:
        passed: All tests ran and passed.
        caught: The tests ran, and one failed or hung.
        by: The first test that failed, or why there is none.
        took_s: The duration in seconds.
        output: The output of pytest.
    """

    passed: bool
    caught: bool
    by: str
    took_s: float
    output: str


@contextmanager
def overlay(defect: Defect | None) -> Iterator[Path]:
    """Make copies of the packages with the defect, and yield the folder to put first on the path."""
    with tempfile.TemporaryDirectory(prefix="latchwork-mutant-") as folder:
        for package in (PACKAGE, *ADD_ONS):
            shutil.copytree(package, Path(folder) / package.name, ignore=shutil.ignore_patterns("*.so"))
        for library in PACKAGE.glob("*.so"):
            (Path(folder) / PACKAGE.name / library.name).symlink_to(library)
        if defect is not None:
            file = defect.path_in(Path(folder))
            file.write_text(defect.planted(file.read_text()))
        yield Path(folder)


def run_tests(tests: Iterable[str], defect: Defect | None, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Run tests on the package with a defect, until the first test fails."""
    began = time.monotonic()
    with overlay(defect) as folder:
        _check_imported(folder)
        options = ["-x", "-q", "-rfE", "-p", "no:cacheprovider", "-p", "no:randomly", f"--timeout={TEST_TIMEOUT_S}"]
        command = [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in tests)]
        status, output = _run(command, folder, timeout_s)
    took_s = round(time.monotonic() - began, 1)
    if status is None:
        by = f"the run did not end within {timeout_s:.0f} s"
    elif status == _TESTS_FAILED:
        failed = _FAILED.search(output)
        by = failed[1] if failed else "a test hung"
    else:
        by = "every test passed" if status == 0 else f"the tests did not run: pytest exited with status {status}"
    return Outcome(passed=status == 0, caught=status in {None, _TESTS_FAILED}, by=by, took_s=took_s, output=output)


def _run(command: list[str], folder: Path, timeout_s: float) -> tuple[int | None, str]:
    """Run a command, and return its exit status and output. The status is None if it was killed after the timeout."""
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        output.seek(0)
        return status, output.read()


def _environment(folder: Path) -> dict[str, str]:
    # A failing schedule need not be minimized, and most defects show at once.
    options = {
        "DRIVER": "thread",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LATCHWORK_SHRINK_S": "0",
        "LATCHWORK_TEST_PATIENCE_S": "12",
    }
    return {**os.environ, **options, "PYTHONPATH": str(folder)}


def _check_imported(folder: Path) -> None:
    """Check that tests import the copy. A defect that breaks the import shows as tests that did not run."""
    code = "import latchwork; print(latchwork.__file__)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=ROOT, env=_environment(folder), capture_output=True, text=True, check=False)
    if found.returncode == 0 and Path(found.stdout.strip()).parent.parent != folder:
        raise RuntimeError(f"tests would import {found.stdout.strip()}, not the copy in {folder}")
