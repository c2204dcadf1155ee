"""Every primitive through every fault on every server: `make check-primitive-faults`.

    python tests/trials/primitives/check_faults.py [--backend etcd35] [--fault frozen] [--primitive Lock] [--rounds 1]

Prints a line a play and a table at the end. Exit status 1 when a rule was broken.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from etcd_versions import is_there
from trials.primitives.plays import ALL, play
from trials.primitives.stage import BACKENDS, Scene


def main():
    options = _options()
    logging.disable(logging.CRITICAL)
    there = [backend for backend in options.backend or BACKENDS if is_there(backend)]
    wanted = [
        (backend, fault, primitive)
        for backend, fault, primitive in ALL
        if backend in there
        and options.fault.lower() in fault.name
        and (not options.primitive or primitive in options.primitive)
        for _ in range(options.rounds)
    ]
    rows = []
    with tempfile.TemporaryDirectory(prefix="latchwork-faults-") as directory:
        for backend, members in dict.fromkeys((backend, fault.members) for backend, fault, _ in wanted):
            plays = [each for each in wanted if (each[0], each[1].members) == (backend, members)]
            with Scene(backend, members, directory) as scene:
                for _, fault, primitive in plays:
                    rows.append(_give(scene, fault, primitive))
                    _tell(f"[{len(rows)}/{len(wanted)}]", rows[-1])
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return _table(rows)


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", action="append", choices=BACKENDS)
    parser.add_argument("--fault", default="", help="a part of the names of the faults")
    parser.add_argument("--primitive", action="append")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _give(scene, fault, primitive):
    began = time.monotonic()
    try:
        play(scene, fault, primitive)
        broken = ""
    except Exception as error:
        broken = f"{error!r}\n{traceback.format_exc()}"
    took_s = round(time.monotonic() - began, 1)
    return {
        "backend": scene.backend,
        "fault": fault.name,
        "primitive": primitive,
        "took_s": took_s,
        "broken": broken,
    }


def _tell(count, row):
    state = "BAD" if row["broken"] else "ok "
    print(f"{count} {state} {row['backend']}, {row['fault']}: {row['primitive']} ({row['took_s']} s)", flush=True)
    if row["broken"]:
        print(row["broken"], flush=True)


def _table(rows):
    backends = [backend for backend in BACKENDS if any(row["backend"] == backend for row in rows)]
    given = Counter((row["fault"], row["backend"]) for row in rows)
    kept = Counter((row["fault"], row["backend"]) for row in rows if not row["broken"])
    print(f"\n| fault | {' | '.join(backends)} |\n|---{'|---' * len(backends)}|")
    for name in dict.fromkeys(row["fault"] for row in rows):
        cells = [f"{kept[name, each]} of {given[name, each]}" if given[name, each] else "" for each in backends]
        print(f"| {name} | {' | '.join(cells)} |")
    broken = sum(bool(row["broken"]) for row in rows)
    print(f"\n{len(rows) - broken} of {len(rows)} plays kept every rule")
    return 1 if broken or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
