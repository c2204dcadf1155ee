"""The programs of examples/ do what they say, and are what the tutorials show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import latchwork
from test_docs import BLOCKS, REPOSITORY, environment

EXAMPLES = REPOSITORY / "examples"


def run(*words, folder):
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def eigenvalue(size=40, steps=100):
    """The same on one processor."""
    vector, length = [1.0] * size, 0.0
    for _ in range(steps):
        vector = [sum(x / (i + j + 1) for j, x in enumerate(vector)) for i in range(size)]
        length = sum(x * x for x in vector) ** 0.5
        vector = [x / length for x in vector]
    return length


@pytest.mark.slow
def test_a_power_iteration_with_a_worker_killed_half_way_gives_what_one_process_gives(tmp_path):
    said = run(EXAMPLES / "power_iteration" / "start.py", folder=tmp_path)
    assert "exit codes [0, 0, 0, 0]" in said
    assert abs(float(said.split()[-1]) - eigenvalue()) < 1e-8
    with latchwork.connect(f"sqlite:///{tmp_path}/power.db") as store:
        ended = json.loads(store.get("@workers/default/ended/power").value)
        assert (ended["state"], ended["completed"]) == ("COMPLETED", 4)


def test_the_tutorial_shows_the_programs_as_they_are():
    shown = {
        block.how.removeprefix("file="): block.body for block in BLOCKS[REPOSITORY / "docs" / "tutorial-workers.md"]
    }
    for name in ("power.py", "start.py"):
        assert shown[name].strip() == (EXAMPLES / "power_iteration" / name).read_text().strip()


def test_every_example_is_run_by_a_test():
    run_here = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_example*.py"))
    for folder in (each for each in EXAMPLES.iterdir() if each.is_dir()):
        assert f'"{folder.name}"' in run_here
