"""Workflows under faults for minutes, and a verdict. Exit code 1 when anything happened that must not.

It runs from a copy of the tree, so that nobody who edits disturbs it.

make check WHAT=workflows-chaos ARGS="--pair postgres+etcd --minutes 10 --seed 7 --members 3"
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS))
#: Says that this process runs in a copy.
COPIED = "LATCHWORK_STORM_COPY"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default="all", help="database+store, such as postgres+etcd (default: all)")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of faults for each (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="which series of faults (default: 1)")
    parser.add_argument("--members", type=int, default=1, help="servers of the store (default: 1)")
    parser.add_argument("--workers", type=int, default=10, help="how many (default: 10)")
    options = parser.parse_args()
    if COPIED not in os.environ:
        run_in_copy()
    from backends_table import is_there
    from trials.flows.storm import PAIRS, Storm

    if options.pair not in {*PAIRS, "all"}:
        parser.error(f"there is no pair {options.pair!r}; use one of {', '.join(PAIRS)}, or all")
    failed = False
    for pair in PAIRS if options.pair == "all" else [options.pair]:
        if not (PAIRS[pair] == "sqlite" or is_there(PAIRS[pair])):
            continue
        folder = Path(tempfile.mkdtemp(prefix=f"latchwork-flows-{pair}-"))
        folder.chmod(0o755)
        members = 1 if PAIRS[pair] == "sqlite" else options.members
        print(f"{pair}: seed {options.seed}, logs in {folder}", file=sys.stderr, flush=True)
        with Storm(pair, options.seed, folder, members=members, workers=options.workers) as storm:
            report = storm.blow(options.minutes * 60, lambda text: print(f"  {text}", file=sys.stderr, flush=True))
        print(json.dumps(report.to_json(), indent=2), flush=True)
        failed |= bool(report.violations)
    return int(failed)


def run_in_copy():
    """Go on as another process, on a copy of the package and the tests."""
    folder = Path(tempfile.mkdtemp(prefix="latchwork-storm-tree-"))
    for name in ("python", "tests"):
        shutil.copytree(TESTS.parent / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    script = folder / "tests" / Path(__file__).resolve().relative_to(TESTS)
    sources = [folder / "python", *folder.glob("python/packages/*/src")]
    environ = {**os.environ, COPIED: str(folder), "PYTHONPATH": os.pathsep.join(map(str, sources))}
    os.execve(sys.executable, [sys.executable, str(script), *sys.argv[1:]], environ)


if __name__ == "__main__":
    sys.exit(main())
