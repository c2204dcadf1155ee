"""`.ci/run`: what missed its moment is run again; what judges the stores is not."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import run_plugin
from levels import Choice

DAY = dt.date(2026, 11, 23)
RUN = Path(__file__).parents[1] / ".ci" / "run"
#: What is run again: it fails as often as the file `misses` has lines.
AGAIN = """
echo "again on $SERVERS, nothing missing: $LATCHWORK_NOTHING_MISSING"
[ -s misses ] || exit 0
sed -i 1d misses
exit 1
"""


@pytest.fixture
def ci(tmp_path):
    """Runs a copy of it, with a `make test` that fails and a second run that passes; its exit code and output."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(RUN, tmp_path / ".ci" / "run")
    cache = tmp_path / ".pytest_cache" / "v" / "cache"
    for name, text in ((".venv/bin/python", AGAIN), ("bin/make", '[ "$1" != test ]')):
        program = tmp_path / name
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    cache.mkdir(parents=True)
    (cache.parent / "latchwork").mkdir()

    def run(*failed, misses=0, no_verdict=()):
        (cache.parent / "latchwork" / "no_verdict").write_text(json.dumps(no_verdict, indent=2))
        (tmp_path / "misses").write_text("missed\n" * misses)
        (cache / "lastfailed").write_text(json.dumps(dict.fromkeys(failed, True), indent=2))
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        ran = subprocess.run(
            [tmp_path / ".ci" / "run"],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return ran.returncode, ran.stdout

    return run


def test_a_test_that_missed_its_moment_is_run_again(ci):
    code, said = ci("tests/store/test_pipeline.py::test_a", "tests/primitives/test_lock.py::test_b[etcd35]")
    assert code == 0
    assert "again on all" in said  # whichever server's turn it is by then


def test_a_postgresql_or_a_browser_that_is_missing_is_a_failure(ci):
    assert "nothing missing: 1" in ci("tests/workflows/web/test_browser.py::test_a")[1]


@pytest.mark.parametrize(("misses", "ends"), [(1, 0), (2, 1)])
def test_what_misses_its_moment_twice_has_a_third_try_and_no_fourth(ci, misses, ends):
    code, said = ci("tests/store/test_pipeline.py::test_a", misses=misses)
    assert (code, said.count("again on all")) == (ends, 2)


@pytest.mark.parametrize(
    "name",
    [
        "tests/trials/history/test_history.py::test_a",
        "tests/model/test_model.py::test_a",
        "tests/trials/contract/test_faults.py::test_a[etcd35]",
        "tests/trials/primitives/test_locks.py::test_a",
        "tests/trials/schedules/test_schedules.py::test_a",
        "tests/trials/storms/test_storms.py::test_a",
        "tests/backends/zookeeper/test_versions.py::test_versions_never_lie",
    ],
)
def test_a_verdict_on_the_stores_is_final_at_once(ci, name):
    code, said = ci("tests/store/test_pipeline.py::test_a", name)
    assert code != 0
    assert name in said
    assert "again" not in said


def test_a_test_whose_server_did_not_start_has_given_no_verdict(ci):
    broken, judged = (f"tests/trials/storms/test_storms.py::test_{name}[etcd35]" for name in "ab")
    code, said = ci(broken, no_verdict=[broken])
    assert code == 0
    assert "again on all" in said
    code, said = ci(broken, judged, no_verdict=[broken])
    assert code != 0
    assert "again on all" not in said


def test_a_run_notes_which_tests_failed_before_they_began_until_they_fail_by_themselves():
    cache = {}
    kept = SimpleNamespace(get=cache.get, set=cache.__setitem__)
    config = SimpleNamespace(cache=kept, stash={run_plugin.DESELECTED: 0, run_plugin.CHOICE: Choice.of("memory", DAY)})

    def ends(**names):
        stats = {kind: [SimpleNamespace(nodeid=f"tests/{name}.py::test") for name in of] for kind, of in names.items()}
        run_plugin.pytest_terminal_summary(SimpleNamespace(stats=stats, write_line=print), config)
        return cache[run_plugin.NO_VERDICT]

    assert ends(error="ab", failed="c") == ["tests/a.py::test", "tests/b.py::test"]
    assert ends(failed="b") == ["tests/a.py::test"]


def test_five_tests_that_failed_are_named_and_run_again(ci):
    names = [f"tests/store/test_pipeline.py::test_{number}" for number in range(5)]
    code, said = ci(*names)
    assert code == 0
    assert "run again alone: 5\n" in said
    assert all(name in said for name in names)


def test_more_than_five_failures_are_not_run_again(ci):
    code, said = ci(*(f"tests/store/test_pipeline.py::test_{number}" for number in range(6)))
    assert code != 0
    assert "6 tests failed; none is run again" in said
    assert "again on" not in said


def test_hosted_ci_runs_the_same_targets():
    hosted = (RUN.parents[1] / ".github" / "workflows" / "ci.yml").read_text()
    commands = re.findall(r"^make (.*) </dev/null", RUN.read_text(), re.MULTILINE)
    targets = {word for command in commands for word in command.split() if not word.startswith("-")}
    assert targets == set(re.findall(r"run: make (\w+)", hosted)) == {"build", "lint", "docs", "test"}
