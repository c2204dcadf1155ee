"""Measures the embedded store: operations per second, the time from a commit to other processes, and the processor time
when idle.

    python benches/embedded_latency.py [directory of the file]

Prints figures without goals.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from latchwork.backends.url import open_backend, parse_url
from latchwork.clock import SYSTEM_CLOCK
from latchwork.types import Put

OPERATIONS = 5000
CHANGES = 200
IDLE_S = 5.0

WRITER = """
import sys, time
from latchwork.backends.url import open_backend, parse_url
from latchwork.clock import SYSTEM_CLOCK
from latchwork.types import Put
store = open_backend(parse_url(sys.argv[1]), SYSTEM_CLOCK)
for n in range(int(sys.argv[2])):
    time.sleep(0.02 + 0.4 * (n * 0.618 % 1) ** 2)
    store.commit([], [Put("stamp", str(SYSTEM_CLOCK.now()).encode())]).result()
store.close()
"""


def rate(label, operation):
    started = time.perf_counter()
    for n in range(OPERATIONS):
        operation(n)
    print(f"{label:34} {OPERATIONS / (time.perf_counter() - started):10,.0f} /s")


def rates(url):
    store = open_backend(parse_url(url), SYSTEM_CLOCK)
    name = url.partition(":")[0]
    rate(f"{name} put, 100 bytes", lambda n: store.commit([], [Put(f"k{n % 500}", bytes(100))]).result())
    rate(f"{name} get", lambda n: store.get(f"k{n % 500}", stale_ok=False).result())
    store.close()


def latency(url):
    """Measure from just before the commit in one process to the callback in another."""
    store = open_backend(parse_url(url), SYSTEM_CLOCK)
    delays, done = [], threading.Event()

    def sink(event):
        for change in getattr(event, "changes", ()):
            delays.append(SYSTEM_CLOCK.now() - float(change.entry.value))
            if len(delays) >= CHANGES:
                done.set()

    store.watch("stamp", sink)
    subprocess.run([sys.executable, "-c", WRITER, url, str(CHANGES)], check=True)
    done.wait(2)
    delays.sort()
    shown = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    figures = ", ".join(f"{label} {1000 * delays[int((len(delays) - 1) * at)]:.1f}" for label, at in shown.items())
    print(f"{'sqlite commit to other process':34} {figures} ms ({len(delays)} changes)")
    store.close()


def idle(url):
    store = open_backend(parse_url(url), SYSTEM_CLOCK)
    for label, prefix in (("without watches", None), ("with a watch", "a")):
        if prefix is not None:
            store.watch(prefix, lambda _: None)
        time.sleep(0.5)
        before = time.process_time()
        time.sleep(IDLE_S)
        print(f"{'idle, ' + label:34} {100 * (time.process_time() - before) / IDLE_S:10.2f} % of a core")
    store.close()


def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as directory:
        url = f"sqlite:///{Path(directory) / 'bench.db'}"
        rates("memory://bench")
        rates(url)
        idle(url)
        latency(url)


if __name__ == "__main__":
    main()
