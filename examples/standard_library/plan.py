"""Measure the standard library in parallel and kill a worker halfway: python plan.py [--modules N] [--url URL]."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from library import ROOT, measure, merge, report

import latchwork
from latchwork.plans import Plans, TaskState

BATCH = 20


def build(plan, modules):
    """Add a task for each file, one for each batch of 20 files, and one for the report."""
    measured = plan.map(measure, modules)
    batches = [measured[at : at + BATCH] for at in range(0, len(measured), BATCH)]
    merged = [plan.add(merge, batch) for batch in batches]
    plan.add(report, plan.add(merge, merged, name="total"), name="report")


def worker(url):
    """Start a worker in its own process, as on any machine that can connect to the store."""
    command = [str(Path(sys.executable).with_name("latchwork")), "plans", "worker", "--import", "library"]
    environment = {**os.environ, "LATCHWORK_URL": url}
    return subprocess.Popen([*command, "--slots", "2", "--session-ttl-s", "5"], env=environment)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--modules", type=int, default=160)
    parser.add_argument("--url", default="sqlite:///library.db")
    options = parser.parse_args()
    modules = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("*.py"))[: options.modules]

    with latchwork.connect(options.url) as store:
        with Plans(store).new("standard library") as plan:
            build(plan, modules)
        handle = plan.handle

    workers = [worker(options.url) for _ in range(3)]
    try:
        with latchwork.connect(options.url) as store:
            handle = Plans(store).get(handle.id)
            while (done := handle.status().tasks.get(TaskState.DONE, 0)) < len(modules) // 2:
                time.sleep(0.05)
            workers[0].kill()
            print(f"killed a worker when {done} tasks were done")
            status = handle.wait(timeout_s=120)
            print(f"{status.state.value}: {dict(status.tasks)[TaskState.DONE]} tasks done")
            print(handle.result("report"))
            handle.remove()
    finally:
        for each in workers:
            each.terminate()
        for each in workers:
            each.wait()


if __name__ == "__main__":
    main()
