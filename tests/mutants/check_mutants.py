"""Plant each defect in a copy of the package and check that its test fails.

    python tests/mutants/check_mutants.py [--only Queue] [--file store/] [--workers 2] [--no-baseline]

All tests must pass without a defect first. Prints a line for each defect, and the output of the tests that did not
notice theirs. The exit status is 1 if there is one, or if the text of a defect has changed.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mutants.all_defects import DEFECTS
from mutants.defect import Defect, DefectStale
from mutants.overlay import BASELINE_TIMEOUT_S, Outcome, run_tests


def main(arguments: list[str] | None = None) -> int:
    """Check the chosen defects and return the exit status."""
    options = _options(arguments)
    defects = _chosen(options)
    if not defects:
        print(f"no defect has {options.only!r} in its system or name, and {options.file!r} in its file")
        return 1
    stale = [error for defect in defects if (error := _stale(defect))]
    if stale:
        print("\n".join(stale))
        return 1
    if not options.no_baseline and not _passes_without(defects):
        return 1
    survivors = _plant_all(defects, options.workers)
    for defect, outcome in survivors:
        print(f"\nSURVIVED {defect.system}: {defect.name} ({defect.file})\n{outcome.output[-2000:]}")
    print(f"\n{len(defects) - len(survivors)} of {len(defects)} planted defects were caught")
    return 1 if survivors else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the system or the name of the defects")
    parser.add_argument("--file", default="", help="a part of the source file of the defects")
    parser.add_argument("--workers", type=int, default=2, help="how many defects are checked at the same time")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a defect first")
    return parser.parse_args(arguments)


def _chosen(options: argparse.Namespace) -> list[Defect]:
    only = options.only.lower()
    named = [defect for defect in DEFECTS if only in f"{defect.system}: {defect.name}".lower()]
    return [defect for defect in named if options.file in defect.file]


def _stale(defect: Defect) -> str:
    """Return why the defect does not fit the code, or nothing if it does."""
    try:
        defect.planted(defect.path_in().read_text())
    except DefectStale as error:
        return str(error)
    return ""


def _passes_without(defects: list[Defect]) -> bool:
    tests = sorted({defect.test for defect in defects})
    print(f"{len(tests)} tests without a defect ...", flush=True)
    outcome = run_tests(tests, None, BASELINE_TIMEOUT_S)
    if outcome.passed:
        print(f"they pass, in {outcome.took_s} s", flush=True)
        return True
    print(f"{outcome.output}\na test fails without a defect, fix that first: {outcome.by}")
    return False


def _plant_all(defects: list[Defect], workers: int) -> list[tuple[Defect, Outcome]]:
    """Check the defects and return those that their tests did not notice."""
    began = time.monotonic()
    survivors: list[tuple[Defect, Outcome]] = []
    with ThreadPoolExecutor(max(1, workers)) as pool:
        running = {pool.submit(run_tests, [defect.test], defect): defect for defect in defects}
        for number, each in enumerate(as_completed(running), 1):
            defect, outcome = running[each], each.result()
            if not outcome.caught:
                survivors.append((defect, outcome))
            state = "caught  " if outcome.caught else "SURVIVED"
            place = f"[{number}/{len(defects)}, {time.monotonic() - began:.0f} s]"
            print(f"{place} {state} {defect.system}: {defect.name}; {outcome.by} ({outcome.took_s} s)", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(main())
