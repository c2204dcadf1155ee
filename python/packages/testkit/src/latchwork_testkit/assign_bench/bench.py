"""Times hashing and balancing on this machine, for `latchwork bench assign` and `benches/`.

Candidates take turns, so that a slow phase of the machine affects all of them. The fastest of the repeats counts. The
peer in pure Python uses only the standard library.
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
from latchwork_testkit.assign_bench.peers import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# Slower candidates place only so many pairs; their rate is what is compared.
_COMPAT_PAIRS = 20_000_000
_PYTHON_PAIRS = 500_000
_JOBS = 10
_PLAIN = "plain assign, one thread"
_STRATEGIES = ("rendezvous", "evenly-rendezvous", "evenly-spread", "balanced")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A piece of work to time: `work` places `items` items."""

    name: str
    items: int
    work: Callable[[], object]


def _silent(_what: str) -> None:
    pass


def measure(
    candidates: list[Candidate], repeats: int, progress: Callable[[str], None] = _silent
) -> list[dict[str, Any]]:
    """Time candidates, which take turns.

    Args:
        candidates: At least one, with distinct names.
        repeats: Number of runs of each; the fastest counts.
        progress: Called with the name of a candidate before each run.
    Returns:
        For each candidate, in the given order: name, items, seconds and items_per_s.
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


def names(workers: int, items: int) -> tuple[list[str], list[str]]:
    """Return worker IDs and item keys of realistic length."""
    return [f"worker-{n:05}" for n in range(workers)], [f"job:item-{n:08}" for n in range(items)]


def hashing_candidates(workers: int, items: int) -> list[Candidate]:
    """Return our hasher in both modes, and the same scheme in Python with a hash of the standard library."""
    ids, keys = names(workers, items)
    fast, compat = RendezvousHasher(ids), RendezvousHasher(ids, mode="compat")
    fewer, fewest = keys[: share(_COMPAT_PAIRS, workers)], keys[: share(_PYTHON_PAIRS, workers)]
    return [
        Candidate("fast", len(keys), lambda: fast.assign(keys)),
        Candidate("compat", len(fewer), lambda: compat.assign(fewer)),
        Candidate("python, blake2b", len(fewest), lambda: [_python_owner(key, ids) for key in fewest]),
    ]


def peers(workers: int, items: int) -> list[Candidate]:
    """Return the installed peers, each with enough of the items to measure a rate."""
    ids, keys = names(workers, items)
    found = []
    for peer in installed():
        work, fewer = peer.make(ids), keys[: min(items, peer.most_items(workers))]
        found.append(Candidate(peer.name, len(fewer), partial(work, fewer)))
    return found


def strategy_candidates(problem: Problem, suffix: str = "") -> list[Candidate]:
    """Return every strategy on the same problem."""
    items = sum(len(job.items) for job in problem.jobs)

    def candidate(name: str) -> Candidate:
        strategy = strategy_by_name(name)
        return Candidate(name + suffix, items, lambda: strategy.assign(problem))

    return [candidate(name) for name in _STRATEGIES]


def share(pairs: int, workers: int) -> int:
    """Return the number of items, at least 10, that makes about this number of pairs with the workers."""
    return max(10, pairs // workers)


def kept(workers: int, items: int, repeats: int, progress: Callable[[str], None] = _silent) -> list[dict[str, Any]]:
    """Time the creation and the changes of an assignment that is kept in Rust, on one thread.

    Returns:
        For each operation, in order: name, items, seconds, and ratio, which is the seconds divided by those of a plain
            assign.
    """
    ids, keys = names(workers, items)
    hasher, kept_items = RendezvousHasher(ids), ItemSet(keys)
    weighted = RendezvousHasher(ids, [1.0 + n % 3 for n in range(workers)])
    gone = ids[workers // 2]

    def assignment() -> Assignment:
        return hasher.assign(kept_items, threads=1)

    def without() -> Assignment:
        made = assignment()
        made.leave(gone)
        return made

    def nothing() -> None:
        return None

    works: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        _PLAIN: (nothing, lambda _: assignment()),
        "a worker joins": (without, lambda made: made.join(gone)),
        "a worker leaves": (assignment, lambda made: made.leave(gone)),
        "the best 3": (nothing, lambda _: hasher.owners(kept_items, min(3, workers))),
        "weighted": (nothing, lambda _: weighted.assign(kept_items, threads=1)),
        "evenly": (nothing, lambda _: hasher.assign_evenly(kept_items, threads=1)),
        "items in: hash and intern": (nothing, lambda _: ItemSet(keys)),
        "owners out as u32": (assignment, lambda made: made.indices),
    }
    least = dict.fromkeys(works, float("inf"))
    for _ in range(repeats):
        for name, (prepare, work) in works.items():
            progress(name)
            ready = prepare()
            started = time.perf_counter()
            work(ready)
            least[name] = min(least[name], time.perf_counter() - started)
    return [
        {"name": name, "items": items, "seconds": seconds, "ratio": seconds / least[_PLAIN]}
        for name, seconds in least.items()
    ]


def steps(repeats: int, peers: int = 0) -> int:
    """Return how often ``run`` reports progress."""
    return repeats * (3 + peers + 8 + 2 * len(_STRATEGIES))


def run(
    workers: int,
    items: int,
    repeats: int = 3,
    peers: Iterable[Candidate] = (),
    progress: Callable[[str], None] = _silent,
) -> dict[str, Any]:
    """Time everything at one size.

    Args:
        workers: Number of workers, at least 2.
        items: Number of items, at least 1.
        repeats: Number of runs of each candidate, at least 1; the fastest counts.
        peers: More hashers to compare, which take turns with ours.
        progress: Called with the name of what is timed next.
    Returns:
        workers, items, repeats, machine; `hashing`: the rows of `measure` for batches of keys; `kept`: the rows of
            `kept`; `strategies`: the rows for all strategies, without previous owners and after one worker left, each
            with `moves`.
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
        "machine": machine(),
        "hashing": measure([*hashing_candidates(workers, items), *peers], repeats, progress),
        "kept": kept(workers, items, repeats, progress),
        "strategies": [*_strategies(workers, items, repeats, progress)],
    }


def machine() -> dict[str, str]:
    """Return the processor architecture, system and Python, on which the figures depend."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {"processor": platform.machine(), "system": platform.system(), "python": python}


def cold_problem(workers: int, items: int) -> Problem:
    """Return a problem of several jobs, with workers of equal weight and no previous owners."""
    able = dict.fromkeys(names(workers, 0)[0], 1.0)
    texts = [f"item-{n:08}" for n in range(items)]
    return Problem(tuple(JobProblem(f"job-{n}", tuple(texts[n::_JOBS]), able) for n in range(_JOBS)))


def after_leaving(problem: Problem, owners: Mapping[str, Mapping[str, str]]) -> Problem:
    """Return the problem after the middle worker has left."""
    able = dict(problem.jobs[0].workers)
    del able[sorted(able)[len(able) // 2]]
    return Problem(tuple(JobProblem(job.job, job.items, able, owners[job.job]) for job in problem.jobs))


def _strategies(workers: int, items: int, repeats: int, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    cold = cold_problem(workers, items)
    left = after_leaving(cold, strategy_by_name("balanced").assign(cold).owners)
    rows = measure([*strategy_candidates(cold), *strategy_candidates(left, ", one worker left")], repeats, progress)
    for row in rows:
        name, _, when = row["name"].partition(",")
        row["moves"] = _moves(name, cold, left=bool(when))
    return rows


def _moves(name: str, cold: Problem, *, left: bool) -> int:
    """Return the number of moves of a strategy, starting from its own placement."""
    strategy = strategy_by_name(name)
    plan = strategy.assign(cold)
    return len(strategy.assign(after_leaving(cold, plan.owners)).moves if left else plan.moves)


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
