"""A pool of machines: two worker processes, one of which is killed. The result is correct nevertheless.

    python main.py [URL]        default: sqlite:///primes.db; etcd://... and zk://... work the same way

On real machines, run ``latchwork executor run --import tasks --slots 8 --url URL`` on each of them.
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
    """Start a worker in its own process, as on another machine."""
    return subprocess.Popen([sys.executable, "-c", NODE, url], cwd=Path(__file__).parent)


def main(url: str) -> int:
    """Count the primes below ``LAST`` on two workers, one of which is killed."""
    nodes = [node(url), node(url)]
    try:
        with latchwork.connect(url) as store, Executor(store) as pool:
            futures = [pool.submit(count, first, first + STEP) for first in range(0, LAST, STEP)]
            total = 0
            for number, future in enumerate(as_completed(futures, timeout=120)):
                total += future.result()
                if number == 1:
                    nodes[0].kill()
                    print("killed a worker; the other one takes over its tasks")
        return total
    finally:
        for each in nodes:
            each.terminate()
            each.wait()


if __name__ == "__main__":
    found = main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///primes.db")
    print(f"{found:,} primes below {LAST:,}")
