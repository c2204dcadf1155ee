"""The long form: every fault on every backend it applies to, idle and under load, in some rounds, judged.

    python tests/trials/contract/check_faults.py [--backend zookeeper] [--fault "server killed"] [--rounds 2]

Prints a line a play, the violations below it, and a table at the end. Exit status 1 when there was a violation.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from etcd_versions import is_there
from trials.contract.faults import FAULTS, Fault
from trials.contract.play import LOADS, Verdict, play
from trials.contract.stage import BACKENDS, LINKS
from trials.record import Patience


def main() -> int:
    options = _options()
    backends = [backend for backend in options.backend or BACKENDS if is_there(backend)]
    plays = [
        (backend, fault, load)
        for backend in backends
        for fault in FAULTS
        if backend in fault.backends and (not options.fault or fault.name in options.fault) and _is_possible(fault)
        for load in options.load or LOADS
        for _ in range(options.rounds)
    ]
    links = itertools.cycle([options.links] if options.links else LINKS)
    verdicts = []
    for number, (backend, fault, load) in enumerate(plays, start=1):
        verdicts.append(_give(backend, fault, load, next(links) if fault.cuts else "", options.reconnect_s))
        _tell(f"[{number}/{len(plays)}]", verdicts[-1])
    if options.json:
        options.json.write_text(json.dumps([verdict.to_json() for verdict in verdicts], indent=1))
    _table(verdicts)
    return 1 if any(verdict.violations for verdict in verdicts) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", action="append", choices=BACKENDS)
    parser.add_argument("--fault", action="append", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--load", action="append", choices=LOADS)
    parser.add_argument("--links", choices=LINKS, help="how links between servers are cut; by default each way in turn")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--reconnect-s", type=float, default=Patience.reconnect_s, help="reconnection may take so long")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _give(backend: str, fault: Fault, load: str, links: str, reconnect_s: float) -> Verdict:
    began = time.monotonic()
    try:
        return play(backend, fault, load, links=links, patience=Patience(reconnect_s))
    except Exception as error:
        took_s = round(time.monotonic() - began, 1)
        return Verdict(backend, fault.name, load, took_s, [f"the play broke off: {error!r}"], {})


def _tell(count: str, verdict: Verdict) -> None:
    told = " ".join(f"{name}={value:g}" for name, value in verdict.figures.items())
    state = "ok  " if not verdict.violations else "BAD "
    print(f"{count} {state} {verdict.backend}, {verdict.fault}, {verdict.load}: {verdict.took_s} s; {told}", flush=True)
    for sentence in verdict.violations[:12]:
        print(f"      {sentence}", flush=True)


def _is_possible(fault: Fault) -> bool:
    if fault.needs_root and os.geteuid() != 0:
        print(f"!!\n!! {fault.name!r} is NOT checked: it needs root\n!!", flush=True)
        return False
    return True


def _table(verdicts: list[Verdict]) -> None:
    """By backend and fault, then by backend alone."""
    for what in (lambda one: (one.backend, one.fault), lambda one: (one.backend, "all")):
        groups: dict[tuple[str, str], list[Verdict]] = {}
        for verdict in verdicts:
            groups.setdefault(what(verdict), []).append(verdict)
        print(
            "\n| backend | fault | plays | failed | calls | unknown | reconnection s: median, worst | watch s, worst |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for (backend, fault), group in groups.items():
            print(f"| {backend} | {fault} | {' | '.join(_cells(group))} |")


def _cells(group: list[Verdict]) -> list[str]:
    def values(name: str) -> list[float]:
        return [one.figures.get(name, 0.0) for one in group]

    back = values("reconnect_s")
    return [
        str(len(group)),
        str(sum(bool(one.violations) for one in group)),
        f"{sum(values('calls')):,.0f}",
        f"{sum(values('unknown')):,.0f}",
        f"{statistics.median(back):.2f}, {max(back):.2f}",
        f"{max(values('watch_s')):.2f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
