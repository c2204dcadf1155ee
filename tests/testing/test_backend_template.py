"""The template of a backend keeps the contract, and the conformance kit finds typical mistakes in a copy of it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from levels import LONG


@dataclass(frozen=True)
class Mistake:
    """A typical mistake.

    Attributes:
        name: What is wrong.
        file: The module that has it.
        right: The text of the template.
        wrong: The text that replaces it.
        area: The file of the kit that finds it, without ``test_``.
    """

    name: str
    file: str
    right: str
    wrong: str
    area: str


MISTAKES = (
    Mistake(
        "a transaction is checked against a state that was read before the lock was taken",
        "backend.py",
        "            with self._file.lock(deadline):\n                state = self._expire()\n",
        "            state = self._file.read()\n            with self._file.lock(deadline):\n",
        "commit",
    ),
    Mistake(
        "a write without a session unbinds the key",
        "state.py",
        "owner = before.owner if before else None",
        "owner = None",
        "sessions",
    ),
    Mistake(
        "a deletion takes no token",
        "state.py",
        "        self.token = token\n",
        "        self.token = token if written else self.token\n",
        "writes",
    ),
    Mistake(
        "the keys of a closed session stay",
        "state.py",
        "self.delete([entry.key for entry in self.entries.values() if entry.owner == session_id])",
        "self.delete([])",
        "sessions",
    ),
    Mistake(
        "sessions of killed processes never end",
        "state.py",
        "if deadline <= now or self.boot != boot]",
        "if self.boot != boot]",
        "versions_never_lie",
    ),
    Mistake(
        "the least TTL is reported and not kept",
        "backend.py",
        "state.sessions[session_id] = (self._clock.now() + granted_s, granted_s)",
        "state.sessions[session_id] = (self._clock.now() + ttl_s, ttl_s)",
        "capabilities",
    ),
    Mistake(
        "a parent without a value is no child",
        "state.py",
        'return sorted({key[skip:].partition("/")[0] for key in self.below(prefix)})',
        'return [key[skip:] for key in self.below(prefix) if "/" not in key[skip:]]',
        "reads",
    ),
    Mistake(
        "a watch of a prefix reports its neighbors",
        "state.py",
        'return key == prefix or key.startswith(f"{prefix}/")',
        "return key.startswith(prefix)",
        "watches",
    ),
    Mistake(
        "a watch reports no deletions",
        "backend.py",
        "keys = sorted(before.keys() | after.keys())",
        "keys = sorted(after)",
        "watches",
    ),
    Mistake(
        "a number of a sequential key is given out again once all children are gone",
        "state.py",
        "        self.numbers[parent] = self.numbers.get(parent, 0) + 1\n        return self.numbers[parent]",
        "        return 1 + len(self.children(parent))",
        "writes",
    ),
    Mistake(
        "close leaves a thread running",
        "backend.py",
        "        self.wake()\n        self._thread.join()",
        "        self.wake()\n        self._closing = False",
        "lifecycle",
    ),
    Mistake(
        "changes are polled more slowly than is declared",
        "backend.py",
        "            self._wake.wait(SPEC.capabilities.poll_interval_s)",
        "            self._wake.wait(1.0)",
        "capabilities",
    ),
)


def kit(folder, *areas):
    """Run parts of the kit on the template in a folder, as a stranger does whose package is installed."""
    data, info = folder / "data", folder / "latchwork_jsonfile-0.1.0.dist-info"
    data.mkdir()
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: latchwork-jsonfile\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[latchwork.backends]\njsonfile = latchwork_jsonfile\n")
    left_out = ("PYTEST", "LATCHWORK_LONG_TESTS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "60", "--pyargs"]
    command += areas or ["latchwork_testkit.conformance"]
    command += ["--backend-url", f"jsonfile:///{data}"]
    return subprocess.run(
        command, cwd=folder, env={**kept, "PYTHONPATH": path}, capture_output=True, text=True, timeout=230, check=False
    )


def area(name):
    return f"latchwork_testkit.conformance.contract.test_{name}"


@pytest.fixture
def copy(tmp_path):
    folder = tmp_path / "copy"
    command = [sys.executable, "-m", "latchwork_testkit.backend_template", str(folder)]
    subprocess.run(command, check=True, timeout=60)
    assert subprocess.run(command, check=False, timeout=60, capture_output=True).returncode == 2
    return folder


@pytest.mark.slow
def test_the_template_keeps_every_promise(copy):
    done = kit(copy) if LONG else kit(copy, *map(area, ("capabilities", "commit", "reads", "watches", "writes")))
    assert done.returncode == 0, done.stdout
    total = next(line for line in done.stdout.splitlines() if line.startswith("total"))
    assert int(total.split()[1]) > 70
    assert total.split()[3] == "0"


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES if LONG else MISTAKES[6:9], ids=lambda mistake: mistake.name)
def test_the_kit_finds_a_typical_mistake(copy, mistake):
    path = copy / "latchwork_jsonfile" / mistake.file
    text = path.read_text()
    assert text.count(mistake.right) == 1
    path.write_text(text.replace(mistake.right, mistake.wrong))
    done = kit(copy, area(mistake.area))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "broken: contract: " in done.stdout
