"""Plants one defect after the other in a copy of the package and demands that its tests fail.

    python tests/mutants/check_mutants.py [--only Queue] [--workers 2] [--json out.json]

First all tests of all defects have to pass without any. Prints a line a defect and a table of those that survived, or
whose text has changed. Exit status 1 when there is one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mutants.all_defects import DEFECTS
from mutants.defect import PACKAGE, Defect, DefectStale
from mutants.overlay import Outcome, run_tests


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    defects = [defect for defect in DEFECTS if options.only.lower() in f"{defect.primitive}: {defect.breaks}".lower()]
    if not defects:
        print(f"no defect has {options.only!r} in its primitive or name")
        return 1
    stale = [told for defect in defects if (told := _stale(defect))]
    if stale:
        print("\n".join(stale))
        return 1
    if not options.no_baseline and not _passes_without(defects):
        return 1
    found = _plant_all(defects, options.workers)
    if options.json:
        rows = [{"primitive": each.primitive, "defect": each.breaks, **found[each].to_json()} for each in defects]
        options.json.write_text(json.dumps(rows, indent=1))
    return _tell(found)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the names of the defects, or of their primitive's")
    parser.add_argument("--workers", type=int, default=2, help="how many are tried side by side")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a defect first")
    parser.add_argument("--json", type=Path, help="write the outcomes here too")
    return parser.parse_args(arguments)


def _stale(defect: Defect) -> str:
    try:
        defect.planted((PACKAGE / defect.file).read_text())
    except DefectStale as error:
        return str(error)
    return ""


def _passes_without(defects: list[Defect]) -> bool:
    tests = {test for defect in defects for test in defect.tests}
    print(f"{len(tests)} tests without a defect ...", flush=True)
    outcome = run_tests(sorted(tests), None)
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
            print(f"{place} {state} {defect.primitive}: {defect.breaks}; {outcome.by} ({outcome.took_s} s)", flush=True)
    return found


def _tell(found: dict[Defect, Outcome]) -> int:
    planted = Counter(defect.primitive for defect in found)
    caught = Counter(defect.primitive for defect, outcome in found.items() if outcome.caught)
    print("\n| primitive | defects | caught |\n|---|---|---|")
    for primitive in sorted(planted):
        print(f"| {primitive} | {planted[primitive]} | {caught[primitive]} |")
    survivors = [(defect, outcome) for defect, outcome in found.items() if not outcome.caught]
    for defect, outcome in survivors:
        print(f"\nSURVIVED {defect.primitive}: {defect.breaks} ({defect.file})\n{outcome.output[-2000:]}")
    print(f"\n{len(found) - len(survivors)} of {len(found)} planted defects were caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
