"""Runs many random schedules of every model: `make check WHAT=schedules ARGS="--count 5000 --only Latch"`.

Models are found in the `test_*.py` beside this file. Seeds begin where the run says; the same seeds are the same run.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import random
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from levels import DRIVERS  # noqa: E402 - the path comes first
from trials.schedules import by_loop  # noqa: E402
from trials.schedules.harness import Model, check  # noqa: E402

PROGRESS_EVERY_S = 5.0


def models():
    """Every model of the primitives, by name; those of the harness's own tests are broken on purpose."""
    found = {}
    for file in sorted(HERE.glob("test_*.py")):
        if file.name == "test_harness.py":
            continue
        module = importlib.import_module(f"trials.schedules.{file.stem}")
        kinds = [thing for thing in vars(module).values() if isinstance(thing, type) and issubclass(thing, Model)]
        found |= {kind.__name__: kind for kind in kinds if kind.actions()}
    return found


class Progress:
    """Says now and then how far it is."""

    def __init__(self, name, count):
        self.name = name
        self.count = count
        self.began = self.told = time.perf_counter()

    def __call__(self, done):
        now = time.perf_counter()
        if now - self.told > PROGRESS_EVERY_S or done == self.count:
            self.told = now
            print(f"{self.name}: {done} of {self.count}, {done / (now - self.began):.0f} a second", flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="schedules of each model")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; by default some random one")
    parser.add_argument("--only", default="", help="a part of the names of the models to run")
    parser.add_argument("--list", action="store_true", help="only say which models there are")
    parser.add_argument("--driver", choices=DRIVERS, default=DRIVERS[0], help="what drives the primitives")
    asked = parser.parse_args(arguments)
    by_loop.is_on = asked.driver == "loop"
    logging.disable(logging.CRITICAL)
    seed = asked.seed if asked.seed is not None else random.randrange(10**9)
    chosen = {name: model for name, model in models().items() if asked.only.lower() in name.lower()}
    if not chosen:
        print(f"no model has {asked.only!r} in its name; there are {', '.join(models())}", file=sys.stderr)
        return 2
    if asked.list:
        print("\n".join(chosen))
        return 0
    print(f"{asked.count} schedules of each of {', '.join(chosen)}; seeds from {seed}", flush=True)
    broken = 0
    for name, model in chosen.items():
        try:
            check(model, asked.count, first_seed=seed, progress=Progress(name, asked.count))
        except AssertionError as error:
            broken += 1
            print(error, flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
