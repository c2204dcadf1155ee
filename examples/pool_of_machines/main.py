"""A pool of machines: nodes in processes of their own, one of which is killed; the sum is right all the same.

    python main.py [URL]        sqlite:///primes.db unless given; etcd://... and zk://... are the same

On real machines the nodes are ``latchwork executor run --import tasks --slots 8 --url URL``, one on each.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import as_completed
from pathlib import Path

import latchwork
from latchwork.executor import Executor
from tasks import count

STEP, LAST = 2_500, 50_000
NODE = """
import sys, latchwork, tasks
from latchwork.executor import ExecutorWorker
with latchwork.connect(sys.argv[1]) as store:
    ExecutorWorker(store, slots=2, session_ttl_s=2.0).run_forever()
"""


def node(url: str) -> subprocess.Popen[bytes]:
    """A node, as on another machine."""
    return subprocess.Popen([sys.executable, "-c", NODE, url], cwd=Path(__file__).parent)


def main(url: str) -> int:
    """The number of primes below ``LAST``, found by two nodes of which one dies."""
    nodes = [node(url), node(url)]
    try:
        with latchwork.connect(url) as store, Executor(store) as pool:
            futures = [pool.submit(count, first, first + STEP) for first in range(0, LAST, STEP)]
            total = 0
            for number, future in enumerate(as_completed(futures, timeout=120)):
                total += future.result()
                if number == 1:
                    nodes[0].kill()
                    print("killed a node; the others take its tasks")
        return total
    finally:
        for each in nodes:
            each.terminate()
            each.wait()


if __name__ == "__main__":
    found = main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///primes.db")
    print(f"{found:,} primes below {LAST:,}")
