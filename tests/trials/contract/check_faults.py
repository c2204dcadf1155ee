"""The long form: every fault on every backend it applies to, idle and under load, in some rounds, judged.

    python tests/trials/contract/check_faults.py [--backend zookeeper] [--fault "server killed"] [--rounds 2] [--list]

Prints a line a play, the violations below it, and a table at the end. Exit status 1 when there was a violation.
"""

from __future__ import annotations

import itertools
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from trials.contract.faults import FAULTS
from trials.contract.play import LOADS, play
from trials.judges.contract.facts import Patience
from trials.runner import Planned, backends_of, give_all, parser_of
from trials.stage import LINKS


def main() -> int:
    parser = parser_of(__doc__, rounds=2)
    parser.add_argument("--fault", action="append", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--load", action="append", choices=LOADS)
    parser.add_argument("--links", choices=LINKS, help="how links between servers are cut; by default each way in turn")
    parser.add_argument("--reconnect-s", type=float, default=Patience.reconnect_s, help="reconnection may take so long")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if not options.fault or fault.name in options.fault]
    for fault in faults:
        if not fault.is_possible:
            print(f"!!\n!! {fault.name!r} is NOT checked: it needs root\n!!", flush=True)
    links = itertools.cycle([options.links] if options.links else LINKS)
    patience = Patience(options.reconnect_s)
    plays = [
        Planned(
            backend,
            fault.name,
            load,
            partial(play, backend, fault, load, links=next(links) if fault.cuts else "", patience=patience),
        )
        for backend in backends_of(options)
        for fault in faults
        if backend in fault.backends and (options.list or fault.is_possible)
        for load in options.load or LOADS
        for _ in range(options.rounds)
    ]
    return give_all(plays, options)


if __name__ == "__main__":
    sys.exit(main())
