"""Mutate the modules that decide without I/O, and count the mutants that their tests notice.

    python tests/mutants/check_mutation.py [--only state] [--show] [--workers 2] [--keep FOLDER]

mutmut makes the mutants and runs the tests, in a copy of the tree. A mutant is *killed* if a test fails, and *survives*
otherwise. Races and fences are not its business: `check_mutants.py` plants those by hand. The exit status is 1 if the
score of a group is below its least: a little less than what was measured. 0 means that it was never measured whole.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {"latchwork": "python/latchwork", "latchwork_workflows": "python/packages/workflows/src/latchwork_workflows"}
#: Exit codes of a mutant's tests, as mutmut keeps them: 0 survived, 5 and 33 no test, 24, 36 and 152 took too long.
SURVIVED, UNTESTED, TOO_LONG = {0}, {5, 33}, {24, 36, 152, 255, -24}


@dataclass(frozen=True)
class Group:
    """Modules that decide, and the tests that are run against their mutants.

    Attributes:
        modules: below the folder of the sources.
        tests: below ``tests``; quick ones that need no server.
        least: the least score, in percent of the mutants.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    least: float


GROUPS = {
    "state": Group(
        ("latchwork_workflows/state/*.py",),
        ("workflows/test_state.py", "workflows/test_branches_and_maps.py"),
        0.0,
    ),
    "plans": Group(
        ("latchwork/plans/states.py",),
        ("plans/test_transitions.py", "plans/test_builder.py", "plans/test_readiness.py", "plans/test_propagation.py"),
        0.0,
    ),
    "groups": Group(("latchwork/worker_group/transactions.py",), ("worker_group/test_transactions.py",), 0.0),
    "leased": Group(
        ("latchwork/primitives/leased/protocol.py",),
        ("primitives/test_lock_protocol.py", "primitives/test_lock_simulation.py", "primitives/test_adopting.py"),
        85.0,
    ),
    "jobs": Group(
        ("latchwork/jobs/manager/rebalance.py",),
        ("jobs/test_rebalance.py",),
        0.0,
    ),
    "schedules": Group(
        ("latchwork/schedules/*.py",),
        ("jobs/test_cron_times.py", "jobs/test_schedule.py", "jobs/test_schedule_dst.py", "jobs/test_fires.py"),
        70.0,
    ),
}


def main() -> int:
    """Measure the chosen groups and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=GROUPS, action="append", help="one of the groups; may be repeated")
    parser.add_argument("--show", action="store_true", help="print the mutants that survived, as differences")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="how many mutants at the same time")
    parser.add_argument("--keep", type=Path, help="work in this folder and keep it")
    options = parser.parse_args()
    failed = False
    for name in options.only or GROUPS:
        folder = (options.keep or Path(tempfile.mkdtemp(prefix="latchwork-mutation-"))) / name
        try:
            score, counts = measure(GROUPS[name], folder, options.workers, show=options.show)
        finally:
            if options.keep is None:
                shutil.rmtree(folder.parent, ignore_errors=True)
        failed |= score < GROUPS[name].least
        print(f"{name}: {score:.1f} % killed, at least {GROUPS[name].least:g} % demanded; {dict(counts)}", flush=True)
    return int(failed)


def measure(group: Group, folder: Path, workers: int, *, show: bool = False) -> tuple[float, Counter[str]]:
    """Return the share of mutants that were killed, in percent, and how many there were of each outcome."""
    stage(group, folder)
    environment = {**os.environ, "SERVERS": "memory", "DRIVER": "thread"}
    command = [sys.executable, "-m", "mutmut"]
    ran = subprocess.run(
        [*command, "run", "--max-children", str(workers)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    outcomes = outcomes_in(folder)
    if ran.returncode or not outcomes:
        raise SystemExit(f"mutmut failed:\n{ran.stdout[-4000:]}{ran.stderr[-4000:]}")
    if show:
        for name in (name for name, outcome in outcomes.items() if outcome in ("survived", "untested")):
            subprocess.run([*command, "show", name], cwd=folder, env=environment, check=False)
    counts = Counter(outcomes.values())
    return 100.0 * (counts["killed"] + counts["too long"]) / len(outcomes), counts


def stage(group: Group, folder: Path) -> None:
    """Copy sources and tests to where mutmut expects them, and configure it."""
    without = shutil.ignore_patterns("__pycache__")
    for name, source in SOURCES.items():
        shutil.copytree(ROOT / source, folder / "src" / name, ignore=without)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=without)
    lists = {
        "source_paths": ["src/"],
        "only_mutate": [f"src/{module}" for module in group.modules],
        "pytest_add_cli_args_test_selection": [f"tests/{test}" for test in group.tests],
    }
    settings = "timeout_multiplier = 10.0\n" + "".join(
        f"{name} = {json.dumps(values)}\n" for name, values in lists.items()
    )
    configured = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(f"{configured}\n[tool.mutmut]\n{settings}", encoding="utf-8")


def outcomes_in(folder: Path) -> dict[str, str]:
    """Return the outcome of each mutant by its name."""
    found = {}
    for path in (folder / "mutants").rglob("*.py.meta"):
        for name, code in json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"].items():
            found[name] = (
                "survived"
                if code in SURVIVED
                else "untested"
                if code in UNTESTED
                else "too long"
                if code in TOO_LONG
                else "killed"
            )
    return found


if __name__ == "__main__":
    sys.exit(main())
