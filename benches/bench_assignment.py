"""Measures how fast items are assigned to workers, in comparison with pure Python.

    python benches/bench_assignment.py --workers 1000 --items 100000     prints a table
    pytest benches/bench_assignment.py --benchmark-enable                keeps statistics

The comparison is rendezvous hashing in Python with mmh3, a hash written in C. This is the scheme of the compat mode,
with the same owners, which the bench checks first.
"""

from __future__ import annotations

import argparse
import json

import mmh3
import pytest

from latchwork.assignment import RendezvousHasher, strategy_by_name
from latchwork_testkit.assign_bench import bench

PEER_PAIRS = 2_000_000


def python_owner(key, workers):
    return max(workers, key=lambda worker: mmh3.hash64(key + worker)[0])


def peer(workers, items):
    """Return the Python hasher as a candidate, after a check that its owners are those of compat mode."""
    ids, keys = bench.build_worker_ids_and_keys(workers, items)
    keys = keys[: bench.get_item_count(PEER_PAIRS, workers)]
    compat = RendezvousHasher(ids, mode="compat").assign(keys[:20])
    if compat != [python_owner(key, ids) for key in keys[:20]]:
        raise SystemExit("compat mode and mmh3 disagree; run tests/assignment first")
    return bench.Candidate("python, mmh3", len(keys), lambda: [python_owner(key, ids) for key in keys])


def table(rows, reference):
    """Return the rows as text, with the speed of each in relation to the reference row."""
    base = next(row["items_per_s"] for row in rows if row["name"] == reference)
    lines = [f"{'':38}{'items':>10}{'seconds':>10}{'items/s':>14}{'factor':>9}{'moves':>10}"]
    for row in rows:
        figures = f"{row['items']:>10,}{row['seconds']:>10.4f}{row['items_per_s']:>14,.0f}"
        lines.append(f"{row['name']:38}{figures}{row['items_per_s'] / base:>9,.1f}{row.get('moves', ''):>10}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    try:
        peers = [peer(options.workers, options.items)] if options.workers > 0 else []
        result = bench.run_benchmark(options.workers, options.items, options.repeats, peers)
    except ValueError as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{options.workers:,} workers, {options.items:,} items, least of {options.repeats}; {result['machine']}\n")
    print("Batches of keys, str in, owners out; slow candidates place fewer items\n")
    print(table(result["hashing"], "python, mmh3"))
    print("\nStrategies, 10 jobs, moves included\n")
    print(table(result["strategies"], "rendezvous"))


@pytest.mark.parametrize("workers", [10, 100, 1000])
@pytest.mark.parametrize("mode", ["fast", "compat"])
def test_assign_10k_keys(benchmark, workers, mode):
    ids, keys = bench.build_worker_ids_and_keys(workers, 10_000)
    keys = keys if mode == "fast" else keys[:1000]
    benchmark(RendezvousHasher(ids, mode=mode).assign, keys)


def test_assign_10k_keys_by_weight(benchmark):
    ids, keys = bench.build_worker_ids_and_keys(100, 10_000)
    benchmark(RendezvousHasher(ids, [1.0 + n % 3 for n in range(100)]).assign, keys)


def test_python_peer_100_keys(benchmark):
    ids, keys = bench.build_worker_ids_and_keys(100, 100)
    benchmark(lambda: [python_owner(key, ids) for key in keys])


@pytest.mark.parametrize("name", ["rendezvous", "evenly-rendezvous", "evenly-spread", "balanced"])
@pytest.mark.parametrize("state", ["cold", "one worker left"])
def test_strategy_10k_items_100_workers(benchmark, name, state):
    problem = bench.build_cold_problem(100, 10_000)
    if state != "cold":
        problem = bench.build_problem_after_leave(problem, strategy_by_name(name).assign(problem).owners)
    benchmark(strategy_by_name(name).assign, problem)


if __name__ == "__main__":
    main()
