"""Measures the strategies that balance loads, in comparison with pure Python and a general flow solver.

    python benches/bench_balancing.py                          prints both tables
    python benches/bench_balancing.py --items 100000 --json    other sizes, as JSON

Both sides run in turn, and the fastest run of each counts. `EvenlySpread` is compared with `python_spread.py`, and
`Balanced` with the min-cost-flow solver of OR-Tools, which gets the smallest possible network: seats instead of items.
Without OR-Tools (see requirements.txt here) that half is left out. Both sides must find plans of equal value.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import time
from collections import Counter

from python_spread import evenly_spread_jobs

from latchwork.assignment import Board

SHAPES = ("all able", "70 % able", "5 % able", "nested")


def least(repeats, works):
    """Return the fewest seconds for each name. The functions run in turn. Each entry has a function to prepare, which
    is not timed, and one to time.
    """
    seconds = dict.fromkeys(works, float("inf"))
    for _ in range(repeats):
        for name, (prepare, work) in works.items():
            ready = prepare()
            started = time.perf_counter()
            work(ready)
            seconds[name] = min(seconds[name], time.perf_counter() - started)
    return seconds


def make_jobs(jobs, items, seed=1):
    """Return jobs of different sizes that have this number of items together."""
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, items), jobs - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, items], strict=True)]
    if jobs > 1:  # not too unequal: between half and one and a half times the mean
        mean = items // jobs
        sizes = [mean + rng.randint(-mean // 2, mean // 2) for _ in range(jobs - 1)]
        sizes.append(max(1, items - sum(sizes)))
    return {f"job-{n:04}": [f"item-{i:07}" for i in range(size)] for n, size in enumerate(sizes)}


def make_board(strategy, jobs, workers, placed=None):
    board = Board(strategy)
    for worker in workers:
        board.join(worker)
    for job, items in jobs.items():
        board.add_job(job, items, (placed or {}).get(job))
    return board


def spread_rows(workers, items, repeats):
    """Measure EvenlySpread with one job and with 1000 jobs: without previous owners, and after a worker left."""
    ids = [f"worker-{n:05}" for n in range(workers)]
    gone = ids[workers // 2]
    stay = [worker for worker in ids if worker != gone]
    rows = []
    for count in (1, 1000):
        jobs = make_jobs(count, items)
        placed = {job: owners for job, (owners, _) in evenly_spread_jobs(jobs, ids, {}).items()}

        def cold(jobs=jobs):
            return make_board("evenly-spread", jobs, ids)

        def left(jobs=jobs, placed=placed):
            board = make_board("evenly-spread", jobs, ids, placed)
            board.leave(gone)
            return board

        moved = sum(len(loose) for _, loose in evenly_spread_jobs(jobs, stay, placed).values())
        if len(left().place()) != moved:
            raise SystemExit("latchwork and the peer in Python differ in moves; run tests/assignment first")
        works = {
            "cold": {
                "latchwork": (cold, Board.place),
                "python": (lambda: None, lambda _, j=jobs: evenly_spread_jobs(j, ids, {})),
            },
            "one left": {
                "latchwork": (left, Board.place),
                "python": (lambda: None, lambda _, j=jobs, p=placed: evenly_spread_jobs(j, stay, p)),
            },
        }
        for case, both in works.items():
            seconds = least(repeats, both)
            rows.append(
                {"case": f"{count} jobs, {case}", **seconds, "factor": seconds["python"] / seconds["latchwork"]}
            )
    return rows


def who_can_run(jobs, ids, shape):
    """Return the jobs that each worker can run: all, a random part, or nested, where each job has one more worker than
    the job before.
    """
    rng = random.Random(2)
    order = list(jobs)
    if shape == "nested":
        return {worker: order[n * len(order) // len(ids) :] for n, worker in enumerate(ids)}
    share = {"all able": 1.0, "70 % able": 0.7, "5 % able": 0.05}[shape]
    return {worker: [job for job in order if rng.random() < share] for worker in ids}


def balanced_rows(workers, items, repeats, shape):
    """Measure Balanced and OR-Tools on the same problem: without previous owners, and after a worker left or joined."""
    ids = [f"worker-{n:05}" for n in range(workers)]
    jobs = make_jobs(min(1000, items // 2), items)
    can_run = who_can_run(jobs, ids, shape)

    def cold():
        board = Board("balanced")
        for job, texts in jobs.items():
            board.add_job(job, texts)
        for worker, runs in can_run.items():
            board.join(worker, jobs=runs)
        return board

    def left():
        board = cold()
        board.place()
        board.leave(ids[workers // 2])
        return board

    def joined():
        board = cold()
        board.leave(ids[workers // 2])
        board.place()
        board.join(ids[workers // 2], jobs=can_run[ids[workers // 2]])
        return board

    cases = [("cold", cold), ("one left", left), ("one joined", joined)]
    return [balanced_row(f"{shape}, {case}", make, jobs, can_run, repeats) for case, make in cases]


def balanced_row(case, make, jobs, can_run, repeats):
    board = make()
    held = {job: Counter(board.owners(job).values()) for job in jobs}
    moves = len(board.place())
    after = {job: Counter(board.owners(job).values()) for job in jobs}
    network = SeatNetwork(jobs, {worker: can_run[worker] for worker in board.workers}, held, after)
    works = {"latchwork": (make, Board.place), "ortools": (network.build, network.solve)}
    seconds = least(repeats, works)
    if network.value != network.value_of(after):
        raise SystemExit(f"latchwork and OR-Tools differ: {network.value_of(after)}, {network.value}")
    return {"case": case, **seconds, "factor": seconds["ortools"] / seconds["latchwork"], "moves": moves}


class SeatNetwork:
    """The minimum-cost flow of the seats of all jobs, for OR-Tools."""

    def __init__(self, jobs, can_run, held, after):
        """Set up the arcs as arrays."""
        import numpy as np

        self.able = {job: [] for job in jobs}
        for worker in sorted(can_run):
            for job in can_run[worker]:
                self.able[job].append(worker)
        number = {worker: n for n, worker in enumerate(sorted(can_run))}
        self.base, used = Counter(), Counter()
        tail, head, gain, supply = [], [], [], []
        for at, (job, items) in enumerate(jobs.items()):
            floor, seats = divmod(len(items), len(self.able[job]))
            supply.append(seats)
            for worker in self.able[job]:
                self.base[worker] += floor
                used[worker] += after[job][worker] - floor
                if seats:
                    tail.append(len(number) + at)
                    head.append(number[worker])
                    gain.append(held[job][worker] > floor)
        self.scale = len(tail) + 1
        sink = len(number) + len(jobs)
        costs = [-np.array(gain, dtype=np.int64)]
        for worker, node in number.items():
            units = used[worker] + 2
            tail += [node] * units
            head += [sink] * units
            costs.append((2 * (self.base[worker] + np.arange(units)) + 1) * self.scale)
        self.arcs = (np.array(tail), np.array(head), np.ones(len(tail), dtype=np.int64), np.concatenate(costs))
        self.supply = np.array([0] * len(number) + supply + [-sum(supply)])
        self.jobs, self.held, self.value = jobs, held, None

    def build(self):
        """Return a solver that contains the network."""
        import numpy as np
        from ortools.graph.python import min_cost_flow

        solver = min_cost_flow.SimpleMinCostFlow()
        solver.add_arcs_with_capacity_and_unit_cost(*self.arcs)
        solver.set_nodes_supplies(np.arange(len(self.supply)), self.supply)
        return solver

    def solve(self, solver):
        """Run the solver and store the value of its solution."""
        if solver.solve() != solver.OPTIMAL:
            raise SystemExit("OR-Tools found no solution")
        self.value = solver.optimal_cost()

    def value_of(self, after):
        """Return the cost of a placement in this network."""
        load, gains = Counter(), 0
        for job, items in self.jobs.items():
            floor, seats = divmod(len(items), len(self.able[job]))
            load.update(after[job])
            for worker in self.able[job] if seats else []:
                gains += self.held[job][worker] > floor and after[job][worker] > floor
        squares = sum(count * count - self.base[worker] ** 2 for worker, count in load.items())
        return squares * self.scale - gains


def print_table(title, rows, peer):
    print(f"\n{title}\n\n{'':28}{'latchwork':>12}{peer:>12}{'factor':>9}")
    for row in rows:
        print(f"{row['case']:28}{row['latchwork'] * 1e3:9.2f} ms{row[peer] * 1e3:9.1f} ms{row['factor']:9.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    size = (options.workers, options.items, options.repeats)
    rows = {"evenly_spread": spread_rows(*size), "balanced": []}
    if importlib.util.find_spec("ortools"):
        rows["balanced"] = [row for shape in SHAPES for row in balanced_rows(*size, shape)]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{options.workers:,} workers, {options.items:,} items, least of {options.repeats}")
    print_table("EvenlySpread", rows["evenly_spread"], "python")
    print_table("Balanced, 1000 jobs", rows["balanced"], "ortools")


if __name__ == "__main__":
    main()
