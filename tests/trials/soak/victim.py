"""A process that uses primitives under ever-new names and runs tasks, until it is killed: ``python victim.py URL``."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import latchwork
from latchwork.executor import ExecutorWorker
from latchwork.primitives import Group, Lock
from trials.soak.churn import TTL_S, WORK, leaders, locks


def main() -> None:
    name = f"soak-victim-{os.getpid()}"
    with (
        latchwork.connect(sys.argv[1], session_ttl_s=TTL_S) as store,
        ExecutorWorker(store, functions=WORK, node_id=name, session_ttl_s=TTL_S),
        Group(store, "soak-victims", member_id=name),
    ):
        for number in itertools.count():
            with Lock(store, f"{name}/held"):
                for kind in (locks, leaders):
                    kind(store, f"{name}-{number}")


main()
