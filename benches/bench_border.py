"""Measures the overhead of calling the Rust core from Python, in comparison with calls from Rust.

    python benches/bench_border.py             prints the table
    python benches/bench_border.py --json      prints JSON

Both sides do the same operations on the same items and workers, on one thread and in turn: a Rust program
(`rust/core/benches/stateful.rs`), and `latchwork._core`. The fastest round counts. A change through Python also returns
the items that moved, as their own str objects. Adding items includes reading and hashing the new texts, while the Rust
program gets their hashes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from latchwork._core import ItemSet, RendezvousHasher
from latchwork_testkit.assign_bench import bench

ROOT = Path(__file__).resolve().parent.parent
#: The most that Python's side may take of the time of Rust's.
GOALS = {"assign": 1.25, "leave": 1.25, "join": 1.25, "hash": 2.0}


def build():
    """Build the Rust program and return its path."""
    command = ["cargo", "bench", "-p", "latchwork_core", "--bench", "stateful", "--no-run"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stderr
    found = re.search(r"\((\S*stateful-\w+)\)", output)
    if found is None:
        sys.exit(f"cargo did not say where the bench program is; it said: {output}")
    return ROOT / found[1]


def in_rust(program, workers, items):
    """Return the seconds of each operation in the Rust program."""
    output = subprocess.run([program, str(workers), str(items), "2"], check=True, capture_output=True, text=True).stdout
    return {name: int(nanoseconds) / 1e9 for name, nanoseconds in map(str.split, output.splitlines())}


def in_python(workers, items):
    """Return the seconds of each operation through the Python bindings."""
    ids, keys = bench.build_worker_ids_and_keys(workers, items)
    more = [f"job:more-{n:08}" for n in range(items // 100)]
    gone = ids[workers // 2]
    found = dict.fromkeys(("hash", "assign", "leave", "join", "add"), float("inf"))

    def note(name, work):
        started = time.perf_counter()
        result = work()
        found[name] = min(found[name], time.perf_counter() - started)
        return result

    for _ in range(2):
        held = note("hash", lambda: ItemSet(keys))
        hasher = RendezvousHasher(ids)
        made = note("assign", lambda hasher=hasher, held=held: hasher.assign(held, threads=1))
        note("leave", lambda made=made: made.leave(gone))
        note("join", lambda made=made: made.join(gone))
        del held  # or else the first change of the items would copy them
        note("add", lambda made=made: made.add_items(more))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000, help="workers (default: 1000)")
    parser.add_argument("--items", type=int, default=1_000_000, help="items (default: 1000000)")
    parser.add_argument("--rounds", type=int, default=5, help="the least of so many counts (default: 5)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    program = build()
    rust, python = {}, {}
    for _ in range(options.rounds):
        for least, found in (
            (rust, in_rust(program, options.workers, options.items)),
            (python, in_python(options.workers, options.items)),
        ):
            least.update({name: min(seconds, least.get(name, seconds)) for name, seconds in found.items()})
    rows = [
        {
            "name": name,
            "rust_s": rust[name],
            "python_s": python[name],
            "ratio": python[name] / rust[name],
            "goal": GOALS.get(name),
        }
        for name in rust
    ]
    if options.json:
        print(json.dumps({"machine": bench.describe_machine(), "rows": rows}, indent=2))
        return
    print(f"{options.items:,} items, {options.workers:,} workers; hash: texts in, hashed (Rust), and interned (Python)")
    for row in rows:
        times = f"{row['rust_s'] * 1e3:>9.3f} ms {row['python_s'] * 1e3:>9.3f} ms {row['ratio']:>7.2f} x"
        met = row["goal"] is None or row["ratio"] <= row["goal"]
        goal = "" if row["goal"] is None else f"goal {row['goal']}: {'met' if met else 'missed'}"
        print(f"  {row['name']:8} {times} {goal}")


if __name__ == "__main__":
    main()
