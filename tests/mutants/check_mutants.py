"""Plants one defect after the other in a copy of the package and demands that its tests fail.

    python tests/mutants/check_mutants.py [--only Queue] [--file store/] [--always] [--workers 2] [--json out.json]

First all tests of all defects have to pass without any. With ``--always`` only those tests are run that every
`make test` runs: see ``levels.always``. Prints a line a defect and a table of those that survived, or
whose text has changed. Exit status 1 when there is one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from levels import always
from mutants.all_defects import DEFECTS
from mutants.defect import PACKAGE, Defect, DefectStale
from mutants.overlay import BASELINE_TIMEOUT_S, Outcome, run_tests


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    defects = [_with_always(defect) if options.always else defect for defect in _chosen(options)]
    if not defects:
        print(f"no defect has {options.only!r} in its subject or name, and {options.file!r} in its file")
        return 1
    stale = [told for defect in defects if (told := _stale(defect) or _untested(defect))]
    if stale:
        print("\n".join(stale))
        return 1
    if not options.no_baseline and not _passes_without(defects):
        return 1
    found = _plant_all(defects, options.workers)
    if options.json:
        rows = [{"subject": each.subject, "defect": each.breaks, **found[each].to_json()} for each in defects]
        options.json.write_text(json.dumps(rows, indent=1))
    return _tell(found)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the names of the defects, or of their subjects'")
    parser.add_argument("--file", default="", help="a part of the names of the files that they are planted in")
    parser.add_argument("--always", action="store_true", help="run only the tests that every `make test` runs")
    parser.add_argument("--workers", type=int, default=2, help="how many are tried side by side")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a defect first")
    parser.add_argument("--json", type=Path, help="write the outcomes here too")
    return parser.parse_args(arguments)


def _chosen(options: argparse.Namespace) -> list[Defect]:
    only = options.only.lower()
    named = [defect for defect in DEFECTS if only in f"{defect.subject}: {defect.breaks}".lower()]
    return [defect for defect in named if options.file in defect.file]


def _with_always(defect: Defect) -> Defect:
    return replace(defect, tests=tuple(filter(always, defect.tests)))


def _stale(defect: Defect) -> str:
    try:
        defect.planted((PACKAGE / defect.file).read_text())
    except DefectStale as error:
        return str(error)
    return ""


def _untested(defect: Defect) -> str:
    """Without a test pytest would run them all."""
    return "" if defect.tests else f"no test that every `make test` runs catches {defect.subject}: {defect.breaks}"


def _passes_without(defects: list[Defect]) -> bool:
    tests = {test for defect in defects for test in defect.tests}
    print(f"{len(tests)} tests without a defect ...", flush=True)
    outcome = run_tests(sorted(tests), None, BASELINE_TIMEOUT_S)
    if outcome.by == "every test passed":
        print(f"they pass, in {outcome.took_s} s", flush=True)
        return True
    print(f"{outcome.output}\na test fails without any defect: {outcome.by}; mend that first")
    return False


def _plant_all(defects: list[Defect], workers: int) -> dict[Defect, Outcome]:
    began = time.monotonic()
    found: dict[Defect, Outcome] = {}
    with ThreadPoolExecutor(max(1, workers)) as pool:
        running = {pool.submit(run_tests, defect.tests, defect): defect for defect in defects}
        for each in as_completed(running):
            defect, outcome = running[each], each.result()
            found[defect] = outcome
            state = "caught  " if outcome.caught else "SURVIVED"
            place = f"[{len(found)}/{len(defects)}, {time.monotonic() - began:.0f} s]"
            print(f"{place} {state} {defect.subject}: {defect.breaks}; {outcome.by} ({outcome.took_s} s)", flush=True)
    return found


def _tell(found: dict[Defect, Outcome]) -> int:
    planted = Counter(defect.subject for defect in found)
    caught = Counter(defect.subject for defect, outcome in found.items() if outcome.caught)
    print("\n| subject | defects | caught |\n|---|---|---|")
    for subject in sorted(planted):
        print(f"| {subject} | {planted[subject]} | {caught[subject]} |")
    survivors = [(defect, outcome) for defect, outcome in found.items() if not outcome.caught]
    for defect, outcome in survivors:
        print(f"\nSURVIVED {defect.subject}: {defect.breaks} ({defect.file})\n{outcome.output[-2000:]}")
    print(f"\n{len(found) - len(survivors)} of {len(found)} planted defects were caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
