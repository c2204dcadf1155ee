"""The types of the twins, as type checkers see them: mypy --strict in each run, pyright in some. No network is used."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from latchwork import aio

ROOT = Path(__file__).resolve().parents[2]
CONSUMER = Path(__file__).with_name("typed") / "consumer.py"


def test_the_consumer_uses_every_public_name():
    text = CONSUMER.read_text()
    assert [name for name in aio.__all__ if not re.search(rf"\baio\.{name}\b", text)] == []


def test_mypy_finds_what_is_marked_wrong_and_nothing_else():
    strict = ["--strict", "--warn-unused-ignores", "--python-version", "3.11", "--config-file", ""]
    done = check("mypy", *strict, "--cache-dir", str(ROOT / ".mypy_cache"), str(CONSUMER))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_pyright_finds_what_is_marked_wrong_and_nothing_else(tmp_path):
    project = {
        "include": ["consumer.py"],
        "extraPaths": [str(ROOT / "python")],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": True,
        "reportUnknownLambdaType": True,
        "reportMissingTypeStubs": False,
    }
    (tmp_path / "consumer.py").write_text(CONSUMER.read_text())
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(project))
    done = check("pyright", "--project", str(tmp_path), "--pythonpath", sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings" in done.stdout


def check(checker, *args):
    command = [sys.executable, "-m", checker, *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
