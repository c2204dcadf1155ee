"""Measures the processor time of an idle store, and runs a process that writes from time to time."""

from __future__ import annotations

import subprocess
import sys
import time

CHANGES = 60
_WRITER = """
import sys, time
import latchwork
with latchwork.connect(sys.argv[1]) as store:
    for n in range(int(sys.argv[2])):
        time.sleep(0.1 + 0.2 * (n * 0.618 % 1) ** 2)
        store.put("stamp", str(store.clock.now()).encode())
"""


def cpu_share(seconds):
    """Return the processor time of this process while it does nothing, in percent of a core."""
    time.sleep(1.0)
    before, started = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    return 100 * (time.process_time() - before) / (time.perf_counter() - started)


def write_elsewhere(url):
    """Start a process that puts the time into the key ``stamp``, ``CHANGES`` times, so far apart that no changes are
    merged.
    """
    subprocess.run([sys.executable, "-c", _WRITER, url, str(CHANGES)], check=True)
