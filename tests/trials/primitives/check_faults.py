"""Every primitive through every fault on every server.

    python tests/trials/primitives/check_faults.py [--backend etcd35] [--fault frozen] [--primitive Lock] [--list]
                                                   [--driver loop]

Prints a line a play and a table at the end. Exit status 1 when a rule was broken.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import pytest

import through_loop
from levels import DRIVERS
from trials.primitives.faults import Fault
from trials.primitives.players import DRIVEN_MODULES
from trials.primitives.plays import ALL, play
from trials.runner import Planned, Verdict, backends_of, give_all, parser_of
from trials.stage import Stage


class Servers(contextlib.ExitStack):
    """The stage of the last play, for as long as plays are on the same servers."""

    key: tuple[str, int] | None = None

    def stage(self, backend: str, members: int) -> Stage:
        if self.key != (backend, members):
            self.close()
            directory = self.enter_context(tempfile.TemporaryDirectory(prefix="latchwork-faults-"))
            self._stage = self.enter_context(Stage(backend, Path(directory), members=members))
            self.key = backend, members
        return self._stage


def give(servers: Servers, backend: str, fault: Fault, primitive: str) -> Verdict:
    stage = servers.stage(backend, fault.members)
    began = time.monotonic()
    play(stage, fault, primitive)
    return Verdict(backend, fault.name, primitive, round(time.monotonic() - began, 1), [])


def main() -> int:
    parser = parser_of(__doc__, rounds=1)
    parser.add_argument("--fault", default="", help="a part of the names of the faults")
    parser.add_argument("--primitive", action="append")
    parser.add_argument("--driver", choices=DRIVERS, default=DRIVERS[0], help="what drives the primitives")
    options = parser.parse_args()
    if options.driver == "loop":
        through_loop.install(DRIVEN_MODULES, pytest.MonkeyPatch())
    logging.disable(logging.CRITICAL)
    there = backends_of(options)
    wanted = [
        (backend, fault, primitive)
        for backend, fault, primitive in ALL
        if backend in there
        and options.fault.lower() in fault.name
        and (not options.primitive or primitive in options.primitive)
        for _ in range(options.rounds)
    ]
    wanted.sort(key=lambda each: (there.index(each[0]), each[1].members))
    with Servers() as servers:
        plays = [Planned(each[0], each[1].name, each[2], partial(give, servers, *each)) for each in wanted]
        return give_all(plays, options)


if __name__ == "__main__":
    sys.exit(main())
