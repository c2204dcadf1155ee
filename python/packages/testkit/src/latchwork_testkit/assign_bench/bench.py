"""Measures hashing and balancing on this machine, for `latchwork bench assign` and `benches/`.

The candidates run in turn, so that a slow phase of the machine affects all of them. The fastest run of each counts. The
comparison in pure Python uses only the standard library.
"""

from __future__ import annotations

import hashlib
import platform
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from latchwork._core import Assignment, ItemSet, RendezvousHasher
from latchwork.assignment import JobProblem, Problem, strategy_by_name
from latchwork_testkit.assign_bench.libraries import list_installed_libraries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# Slower candidates assign only about this number of (item, worker) pairs. Rates are compared, not times.
_COMPAT_PAIRS = 20_000_000
_PYTHON_PAIRS = 500_000
_JOBS = 10
_PLAIN = "plain assign, one thread"
_STRATEGIES = ("rendezvous", "evenly-rendezvous", "evenly-spread", "balanced")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function to time. `work` assigns `items` items."""

    name: str
    items: int
    work: Callable[[], object]


def _ignore_progress(_name: str) -> None:
    pass


def measure(
    candidates: list[Candidate], repeats: int, progress: Callable[[str], None] = _ignore_progress
) -> list[dict[str, Any]]:
    """Run each candidate several times, in turn, and return the fastest time of each.

    Args:
        candidates: The functions to time, at least one, with different names.
        repeats: Number of runs of each candidate.
        progress: Called with the name of a candidate before each of its runs.
    Returns:
        A dictionary for each candidate, in the given order: name, items, seconds and items_per_s.
    """
    least = dict.fromkeys((candidate.name for candidate in candidates), float("inf"))
    for _ in range(repeats):
        for candidate in candidates:
            progress(candidate.name)
            started = time.perf_counter()
            candidate.work()
            least[candidate.name] = min(least[candidate.name], time.perf_counter() - started)
    return [
        {"name": c.name, "items": c.items, "seconds": least[c.name], "items_per_s": c.items / least[c.name]}
        for c in candidates
    ]


def build_worker_ids_and_keys(workers: int, items: int) -> tuple[list[str], list[str]]:
    """Build worker IDs and item keys for a benchmark. Their lengths are typical in practice.

    Args:
        workers: Number of worker IDs.
        items: Number of item keys.
    """
    return [f"worker-{n:05}" for n in range(workers)], [f"job:item-{n:08}" for n in range(items)]


def build_hashing_candidates(workers: int, items: int) -> list[Candidate]:
    """Build the candidates that hash: latchwork in both modes, and a hasher in pure Python that uses the standard
    library.

    Args:
        workers: Number of workers.
        items: Number of items.
    """
    ids, keys = build_worker_ids_and_keys(workers, items)
    fast, compat = RendezvousHasher(ids), RendezvousHasher(ids, mode="compat")
    fewer, fewest = keys[: get_item_count(_COMPAT_PAIRS, workers)], keys[: get_item_count(_PYTHON_PAIRS, workers)]
    return [
        Candidate("fast", len(keys), lambda: fast.assign(keys)),
        Candidate("compat", len(fewer), lambda: compat.assign(fewer)),
        Candidate("python, blake2b", len(fewest), lambda: [_python_owner(key, ids) for key in fewest]),
    ]


def build_library_candidates(workers: int, items: int) -> list[Candidate]:
    """Build a candidate for each installed library to compare with. Slow libraries get only some of the items.

    Args:
        workers: Number of workers.
        items: Number of items.
    """
    ids, keys = build_worker_ids_and_keys(workers, items)
    found = []
    for peer in list_installed_libraries():
        work, fewer = peer.build(ids), keys[: min(items, peer.max_items(workers))]
        found.append(Candidate(peer.name, len(fewer), partial(work, fewer)))
    return found


def build_strategy_candidates(problem: Problem, suffix: str = "") -> list[Candidate]:
    """Build a candidate for each built-in assignment strategy.

    Args:
        problem: The assignment problem to solve.
        suffix: Appended to the names of the strategies.
    """
    items = sum(len(job.items) for job in problem.jobs)

    def candidate(name: str) -> Candidate:
        strategy = strategy_by_name(name)
        return Candidate(name + suffix, items, lambda: strategy.assign(problem))

    return [candidate(name) for name in _STRATEGIES]


def get_item_count(pairs: int, workers: int) -> int:
    """Return the number of items that gives about this number of (item, worker) pairs. At least 10.

    Args:
        pairs: Number of pairs.
        workers: Number of workers.
    """
    return max(10, pairs // workers)


def measure_stateful(
    workers: int, items: int, repeats: int, progress: Callable[[str], None] = _ignore_progress
) -> list[dict[str, Any]]:
    """Measure how long it takes to create and change an `Assignment`, which is kept in Rust memory, on one thread.

    Args:
        workers: Number of workers.
        items: Number of items.
        repeats: Number of runs of each operation.
        progress: Called with the name of an operation before each of its runs.
    Returns:
        A dictionary for each operation: name, items, seconds, and ratio, which is the seconds divided by those of a
            plain assign.
    """
    ids, keys = build_worker_ids_and_keys(workers, items)
    hasher, item_set = RendezvousHasher(ids), ItemSet(keys)
    weighted = RendezvousHasher(ids, [1.0 + n % 3 for n in range(workers)])
    leaving = ids[workers // 2]

    def assignment() -> Assignment:
        return hasher.assign(item_set, threads=1)

    def assignment_without_worker() -> Assignment:
        reduced = assignment()
        reduced.leave(leaving)
        return reduced

    def nothing() -> None:
        return None

    works: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        _PLAIN: (nothing, lambda _: assignment()),
        "a worker joins": (assignment_without_worker, lambda prepared: prepared.join(leaving)),
        "a worker leaves": (assignment, lambda prepared: prepared.leave(leaving)),
        "the best 3": (nothing, lambda _: hasher.owners(item_set, min(3, workers))),
        "weighted": (nothing, lambda _: weighted.assign(item_set, threads=1)),
        "evenly": (nothing, lambda _: hasher.assign_evenly(item_set, threads=1)),
        "items in: hash and intern": (nothing, lambda _: ItemSet(keys)),
        "owners out as u32": (assignment, lambda prepared: prepared.indices),
    }
    least = dict.fromkeys(works, float("inf"))
    for _ in range(repeats):
        for name, (prepare, work) in works.items():
            progress(name)
            prepared = prepare()
            started = time.perf_counter()
            work(prepared)
            least[name] = min(least[name], time.perf_counter() - started)
    return [
        {"name": name, "items": items, "seconds": seconds, "ratio": seconds / least[_PLAIN]}
        for name, seconds in least.items()
    ]


def count_progress_calls(repeats: int, extra_candidates: int = 0) -> int:
    """Return how often `run_benchmark` calls `progress`.

    Args:
        repeats: Number of runs of each candidate.
        extra_candidates: Number of candidates in addition to those of latchwork.
    """
    return repeats * (3 + extra_candidates + 8 + 2 * len(_STRATEGIES))


def run_benchmark(
    workers: int,
    items: int,
    repeats: int = 3,
    extra_candidates: Iterable[Candidate] = (),
    progress: Callable[[str], None] = _ignore_progress,
) -> dict[str, Any]:
    """Measure hashing, stateful assignments and strategies for one number of workers and items.

    Args:
        workers: Number of workers, at least 2.
        items: Number of items, at least 1.
        repeats: Number of runs of each candidate, at least 1. The fastest counts.
        extra_candidates: Candidates in addition to those of latchwork, such as other libraries.
        progress: Called with the name of what is measured next.
    Returns:
        A dictionary with workers, items, repeats, machine; `hashing`: the rows of `measure` for the hashers;
            `stateful`: the rows of `measure_stateful`; `strategies`: the rows of `measure` for all strategies, once
            without previous owners and once after a worker left, each with the number of `moves`.
    Raises:
        ValueError: A number is too small.
    """
    for name, value, least in (("workers", workers, 2), ("items", items, 1), ("repeats", repeats, 1)):
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")
    return {
        "workers": workers,
        "items": items,
        "repeats": repeats,
        "machine": describe_machine(),
        "hashing": measure([*build_hashing_candidates(workers, items), *extra_candidates], repeats, progress),
        "stateful": measure_stateful(workers, items, repeats, progress),
        "strategies": [*_measure_strategies(workers, items, repeats, progress)],
    }


def describe_machine() -> dict[str, str]:
    """Return the processor architecture, the operating system and the Python version, which the results depend on."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {"processor": platform.machine(), "system": platform.system(), "python": python}


def build_cold_problem(workers: int, items: int) -> Problem:
    """Build an assignment problem with ten jobs and workers of equal weight. No item has an owner yet."""
    weights = dict.fromkeys(build_worker_ids_and_keys(workers, 0)[0], 1.0)
    texts = [f"item-{n:08}" for n in range(items)]
    return Problem(tuple(JobProblem(f"job-{n}", tuple(texts[n::_JOBS]), weights) for n in range(_JOBS)))


def build_problem_after_leave(problem: Problem, owners: Mapping[str, Mapping[str, str]]) -> Problem:
    """Build the assignment problem that arises when the middle worker leaves.

    Args:
        problem: The problem before.
        owners: Owner of each item before, by job. They become the previous owners.
    """
    weights = dict(problem.jobs[0].workers)
    del weights[sorted(weights)[len(weights) // 2]]
    return Problem(tuple(JobProblem(job.job, job.items, weights, owners[job.job]) for job in problem.jobs))


def _measure_strategies(
    workers: int, items: int, repeats: int, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    cold = build_cold_problem(workers, items)
    left = build_problem_after_leave(cold, strategy_by_name("balanced").assign(cold).owners)
    rows = measure(
        [*build_strategy_candidates(cold), *build_strategy_candidates(left, ", one worker left")], repeats, progress
    )
    for row in rows:
        name, _, when = row["name"].partition(",")
        row["moves"] = _count_moves(name, cold, after_worker_left=bool(when))
    return rows


def _count_moves(name: str, initial: Problem, *, after_worker_left: bool) -> int:
    """Return how many items a strategy moves to another worker.

    Args:
        name: Name of the strategy.
        initial: An assignment problem in which no item has an owner.
        after_worker_left: Let the strategy assign all items, remove a worker, and count the moves of the second
            assignment. Otherwise count those of the first.
    """
    strategy = strategy_by_name(name)
    plan = strategy.assign(initial)
    if not after_worker_left:
        return len(plan.moves)
    return len(strategy.assign(build_problem_after_leave(initial, plan.owners)).moves)


def _python_owner(key: str, workers: list[str]) -> str:
    prefix = hashlib.blake2b(key.encode(), digest_size=8)
    best, owner = b"", ""
    for worker in workers:
        hashed = prefix.copy()
        hashed.update(worker.encode())
        score = hashed.digest()
        if score > best:
            best, owner = score, worker
    return owner
