"""Systems under faults for minutes, and a verdict. Exit code 1 when anything happened that must not.

It runs from a copy of the tree, so that edits do not disturb it.

make check WHAT=storms ARGS="--of plans --at etcd35 --minutes 10 --seed 7"
make check WHAT=storms ARGS="--of workflows --at postgres+etcd --members 3"
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
sys.path[0] = str(TESTS)  # not our own folder, whose modules have names of folders there
#: Says that this process runs in a copy.
COPIED = "LATCHWORK_STORM_COPY"
#: From so many minutes on a least number of faults of each kind is demanded.
FROM_MINUTES = 4.0


def main() -> int:
    """Run the chosen storms and return the exit status."""
    if COPIED not in os.environ:
        run_in_copy()
    from backends_table import is_there
    from trials.storms.forms import FORMS, storm_of

    every_place = list(dict.fromkeys(place for form in FORMS.values() for place in form.places))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", choices=[*FORMS, "all"], default="all", help="what is hurt (default: all)")
    parser.add_argument("--at", choices=[*every_place, "all"], default="all", help="where (default: everywhere)")
    parser.add_argument("--minutes", type=float, default=5.0, help="minutes of faults for each (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="which series of faults (default: 1)")
    parser.add_argument("--members", type=int, default=1, help="servers of the store (default: 1)")
    parser.add_argument("--list", action="store_true", help="only say which kinds of faults there are")
    options = parser.parse_args()
    plays = [
        (of, place)
        for of, form in FORMS.items()
        for place, backend in form.places.items()
        if options.of in (of, "all")
        and options.at in (place, "all")
        and (options.list or backend == "sqlite" or is_there(backend))
    ]
    if not plays:
        parser.error(f"{options.of} has no place {options.at}; use one of {', '.join(FORMS[options.of].places)}")
    if options.list:
        print("\n".join(f"{of}, {place}, {kind}" for of, place in plays for kind in FORMS[of].kinds(place)))
        return 0
    failed = False
    for of, place in plays:
        folder = Path(tempfile.mkdtemp(prefix=f"latchwork-storm-{of}-{place}-"))
        folder.chmod(0o755)
        print(f"{of} at {place}: seed {options.seed}, logs in {folder}", file=sys.stderr, flush=True)
        with storm_of(of, place, seed=options.seed, folder=folder, members=options.members) as storm:
            report = storm.run(options.minutes * 60, lambda text: print(f"  {text}", file=sys.stderr, flush=True))
        least = FORMS[of].least_of_each
        report.demand(list(storm.kinds), least, options.minutes, from_minutes=FROM_MINUTES)
        print(json.dumps(report.to_json(), indent=2), flush=True)
        failed |= bool(report.violations)
    return int(failed)


def run_in_copy() -> None:
    """Go on as another process, on a copy of the packages and the tests."""
    folder = Path(tempfile.mkdtemp(prefix="latchwork-storm-tree-"))
    for name in ("python", "tests"):
        shutil.copytree(TESTS.parent / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    script = folder / "tests" / Path(__file__).resolve().relative_to(TESTS)
    sources = [folder / "python", *folder.glob("python/packages/*/src")]
    environ = {**os.environ, COPIED: str(folder), "PYTHONPATH": os.pathsep.join(map(str, sources))}
    os.execve(sys.executable, [sys.executable, str(script), *sys.argv[1:]], environ)


if __name__ == "__main__":
    sys.exit(main())
