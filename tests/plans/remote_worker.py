"""A worker of plans in a process of its own, which others kill: ``python -m ... URL``. Its tasks sign what they do."""

from __future__ import annotations

import os
import sys
import threading

import latchwork
from latchwork.plans import PlanWorker
from latchwork.tasks import Functions, TaskContext

FUNCTIONS = Functions()


@FUNCTIONS.task(name="step")
def step(number: int, parts: list[int], context: TaskContext) -> int:
    """The sum of what came before, and its own number; slow enough to be killed in."""
    context.wait_for_stop(0.005)
    return (number + sum(parts)) % 1_000_003


def main(url: str) -> None:
    """Work until killed."""
    with (
        latchwork.connect(url, session_ttl_s=2) as store,
        PlanWorker(store, slots=2, functions=FUNCTIONS, session_ttl_s=2.0, label=str(os.getpid())),
    ):
        print("ready", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
