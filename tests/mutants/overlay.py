"""A copy of the package with one defect in it, which tests import instead. Nothing here touches the checkout."""

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
from dataclasses import asdict, dataclass
from pathlib import Path

from mutants.defect import PACKAGE, ROOT, Defect

#: Seconds for one test, and for the tests of one defect.
TEST_TIMEOUT_S, TIMEOUT_S = 45, 240.0
#: Seconds for the tests of all defects, without one.
BASELINE_TIMEOUT_S = 3600.0
_TESTS_FAILED = 1
_FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What became of a run of tests.

    Attributes:
        caught: the tests ran, and one failed, or hung.
        by: the first test that failed; why there is none, if there is none.
        took_s: seconds.
        output: what pytest said.
    """

    caught: bool
    by: str
    took_s: float
    output: str = ""

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if name != "output"}


@contextmanager
def overlay(defect: Defect | None) -> Iterator[Path]:
    """A folder to be put first on the path, with the package in it, the defect planted."""
    with tempfile.TemporaryDirectory(prefix="latchwork-mutant-") as folder:
        copy = Path(folder) / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.so"))
        for library in PACKAGE.glob("*.so"):
            (copy / library.name).symlink_to(library)
        if defect is not None:
            file = copy / defect.file
            file.write_text(defect.planted(file.read_text()))
        yield Path(folder)


def run_tests(tests: Iterable[str], defect: Defect | None, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Run tests above the package with a defect, until the first that fails."""
    began = time.monotonic()
    with overlay(defect) as folder:
        _prove_imported(folder)
        options = ["-x", "-q", "-rfE", "-p", "no:cacheprovider", "-p", "no:randomly", f"--timeout={TEST_TIMEOUT_S}"]
        command = [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in dict.fromkeys(tests))]
        status, output = _run(command, folder, timeout_s)
    took_s = round(time.monotonic() - began, 1)
    if status is None:
        return Outcome(caught=True, by=f"nothing ended within {timeout_s:.0f} s", took_s=took_s, output=output)
    found = _FAILED.search(output)
    if status != _TESTS_FAILED:
        why = "every test passed" if status == 0 else f"the tests did not run: pytest's exit status is {status}"
        return Outcome(caught=False, by=why, took_s=took_s, output=output)
    return Outcome(caught=True, by=found[1] if found else "a test hung", took_s=took_s, output=output)


def _run(command: list[str], folder: Path, timeout_s: float) -> tuple[int | None, str]:
    """Exit status, None if it took too long, and what was said; no process is left."""
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=said,
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
        said.seek(0)
        return status, said.read()


def _environment(folder: Path) -> dict[str, str]:
    # Minimising a schedule helps people only; a copy that is thrown away needs no bytecode; most defects show at once.
    options = {
        "DRIVER": "thread",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LATCHWORK_SHRINK_S": "0",
        "LATCHWORK_TEST_PATIENCE_S": "12",
    }
    return {**os.environ, **options, "PYTHONPATH": str(folder)}


def _prove_imported(folder: Path) -> None:
    code = "import latchwork; print(latchwork.__file__)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=ROOT, env=_environment(folder), capture_output=True, text=True, check=False)
    # A defect that breaks the import shows as tests that did not run.
    if found.returncode == 0 and Path(found.stdout.strip()).parent.parent != folder:
        raise RuntimeError(f"tests would import {found.stdout.strip()}, not the copy in {folder}")
