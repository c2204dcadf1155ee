"""Measures rendezvous hashing in comparison with other libraries, and the cost of changes of an `Assignment`.

    python benches/bench_hashing.py                        prints the tables
    python benches/bench_hashing.py --json > hashing.json  prints JSON
    python benches/bench_hashing.py --plot docs/images     time against items and workers, as SVG

All candidates run in turn, and the fastest run of each counts. Slow libraries assign only some of the items, so compare
the rates. Libraries that are not installed are left out; `requirements.txt` here has them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from latchwork._core import ItemSet, RendezvousHasher
from latchwork_testkit.assign_bench import bench
from latchwork_testkit.assign_bench.libraries import LIBRARIES


def batches(workers, items, repeats):
    """Assign keys to owners with all libraries. Return rows with items, seconds and items_per_s, and for other
    libraries how many times faster latchwork is, with the goal.
    """
    ids, keys = bench.build_worker_ids_and_keys(workers, items)
    hasher = RendezvousHasher(ids)
    candidates = [
        bench.Candidate("latchwork", items, lambda: hasher.assign(keys)),
        *bench.build_library_candidates(workers, items),
    ]
    rows = bench.measure(candidates, repeats)
    goals = {peer.name: peer.goals.get(workers) for peer in LIBRARIES}
    for row in rows[1:]:
        row["factor"] = rows[0]["items_per_s"] / row["items_per_s"]
        row["goal"] = goals[row["name"]]
    return rows


#: Of what is kept in Rust, the greatest ratio to a plain assign.
KEPT_GOALS = {"a worker joins": 1 / 80, "a worker leaves": 1 / 80, "the best 3": 2.6, "weighted": 2.8, "evenly": 1.2}


def stateful(workers, items, repeats):
    """Measure the changes of an `Assignment`, with goals. First compares a change with a fresh assignment."""
    ids, keys = bench.build_worker_ids_and_keys(workers, min(items, 10_000))
    made = RendezvousHasher(ids).assign(ItemSet(keys))
    made.leave(ids[workers // 2])
    if list(made.to_dict().values()) != RendezvousHasher(made.workers).assign(keys):
        raise SystemExit("an incremental change and a fresh assignment disagree; run tests/assignment first")
    return [{**row, "goal": KEPT_GOALS.get(row["name"])} for row in bench.measure_stateful(workers, items, repeats)]


def plot(folder):
    """Draw the time against the number of items and of workers, for all libraries."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    series = {
        "items": ([1_000, 10_000, 100_000, 1_000_000], lambda size: (1000, size), "items, on 1,000 workers"),
        "workers": ([10, 100, 1_000, 4_000], lambda size: (size, 100_000), "workers, for 100,000 items"),
    }
    for what, (sizes, shape, label) in series.items():
        lines = {}
        for size in sizes:
            workers, items = shape(size)
            for row in batches(workers, items, 3):
                lines.setdefault(row["name"], []).append(items / row["items_per_s"])
            print(f"  {what}: {size:,}", file=sys.stderr)
        figure, axes = plt.subplots(figsize=(6.4, 4.0))
        for name, seconds in lines.items():
            axes.loglog(sizes, seconds, marker="o", label=name)
        axes.set_xlabel(label)
        axes.set_ylabel("seconds, text in and owners out")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend()
        figure.tight_layout()
        figure.savefig(folder / f"assign-{what}.svg", metadata={"Date": None})
        plt.close(figure)


def table(title, rows):
    """Return the rows as text."""
    lines = [title]
    for row in rows:
        parts = [f"  {row['name']:28}", f"{row['seconds']:>10.4f} s"]
        if "items_per_s" in row:
            parts.append(f"{row['items']:>10,} items {row['items_per_s']:>14,.0f}/s")
        if "factor" in row:
            parts.append(f"{row['factor']:>10.1f} x")
        if "ratio" in row:
            parts.append(f"{row['ratio']:>9.4f} of a plain assign")
        if row.get("goal"):
            good = row["factor"] >= row["goal"] if "factor" in row else row["ratio"] <= row["goal"]
            parts.append(f"goal {row['goal']:.4g}: {'met' if good else 'missed'}")
        lines.append(" ".join(parts))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000, help="items of the batches (default: 100000)")
    parser.add_argument("--kept", type=int, default=1_000_000, help="items kept in Rust (default: 1000000)")
    parser.add_argument("--repeats", type=int, default=5, help="the least of so many counts (default: 5)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw time against items and workers instead")
    options = parser.parse_args()
    if options.plot:
        plot(options.plot)
        return
    found = {"machine": bench.describe_machine(), "batches": {}, "kept": {}}
    for workers in (1000, 100):
        found["batches"][workers] = batches(workers, options.items, options.repeats)
    found["kept"][1000] = stateful(1000, options.kept, options.repeats)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for workers, rows in found["batches"].items():
        print(table(f"text in, owners out: {options.items:,} items, {workers:,} workers", rows), end="\n\n")
    print(table(f"kept in Rust: {options.kept:,} items, 1,000 workers", found["kept"][1000]))


if __name__ == "__main__":
    main()
