"""The runnable example of the executor, as a reader runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import latchwork

REPOSITORY = Path(__file__).resolve().parent.parent.parent
EXAMPLE = REPOSITORY / "examples" / "pool_of_machines" / "main.py"


@pytest.mark.slow
def test_the_example_counts_all_primes_though_a_node_is_killed(tmp_path):
    paths = os.pathsep.join([str(Path(latchwork.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    url = f"sqlite:///{tmp_path}/primes.db"
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), url],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "killed a worker; the other one takes over its tasks",
        "5,133 primes below 50,000",
    ]
    assert "Traceback" not in done.stderr
