"""Placement of replicas over zones: several workers per item, preferably no two in one rack.

The goals, in this order, each exactly: every item gets as many different workers as it requests, or all of them. Its
replicas are spread over the zones with a difference of at most one, except that a zone with too few workers has a
replica on all of them. The sum of squared worker loads is minimal, each weighted inversely to the worker's weight. The
number of new replicas is minimal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from latchwork import _core
from latchwork.assignment.model import JobProblem, Move, check_count

_MOST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ReplicaProblem:
    """A job whose items run on several workers each. The mappings are not copied: do not change them afterwards.

    Args:
        job: ID of the job.
        items: Its work items, unique, in any order.
        replicas: Requested number of workers per item, at least 1.
        workers: Workers that can run it, with their weights: finite, greater than 0. May be empty.
        zones: Zone (rack, host, datacenter) of each worker; if empty, every worker is its own zone. May contain other
            workers too.
        previous: Previous workers of each item; may contain removed items and workers.
    Raises:
        ValueError: An item occurs twice, a weight is invalid, the number of replicas is less than one or far too large,
            or a worker has no zone although others do.
        TypeError: An ID is not a str, or a number is not a number.
    """

    job: str
    items: tuple[str, ...]
    replicas: int
    workers: Mapping[str, float]
    zones: Mapping[str, str] = field(default_factory=dict)
    previous: Mapping[str, Collection[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        JobProblem(self.job, self.items, self.workers)
        check_count(f"job {self.job!r}: the number of replicas", self.replicas, 1)
        if self.replicas > _MOST:
            told = f"ask for at most {_MOST:,}, and for no more than there are workers"
            raise ValueError(f"job {self.job!r}: {self.replicas:,} replicas were asked for; {told}")
        lost = sorted(self.workers.keys() - self.zones.keys()) if self.zones else []
        if lost:
            raise ValueError(f"job {self.job!r}: worker {lost[0]!r} has no zone; give every worker one, or none at all")

    def zone_of(self, worker: str) -> str:
        """Return a worker's zone. Without zones, each worker is a zone of its own."""
        return self.zones[worker] if self.zones else worker


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """The workers of each item's replicas.

    Args:
        owners: Workers of each item, both sorted by name, for every item of the problem.
        moves: Replicas that are new, removed or on another worker than before, sorted by item, then by worker. A new
            replica has the source None, a removed one the target None.
        missing: Number of replicas that every item lacks because there are too few workers.
    """

    owners: Mapping[str, tuple[str, ...]]
    moves: tuple[Move, ...]
    missing: int


def place_replicas(problem: ReplicaProblem) -> ReplicaPlan:
    """Place the replicas of a job's items. Pure, deterministic, independent of the order of its input.

    It takes about 100 bytes of memory for each pair of an item and a worker, which allows some ten million pairs.

    Args:
        problem: Items, workers, zones and previous owners.
    Returns:
        The plan. Of several equally good plans it is always the same one, except in other versions.
    Source:
        docs/design/assignment.md.
    """
    workers, items = sorted(problem.workers), sorted(problem.items)
    number = {worker: n for n, worker in enumerate(workers)}
    zones = {zone: n for n, zone in enumerate(sorted({problem.zone_of(worker) for worker in workers}))}
    previous = [sorted({number[w] for w in problem.previous.get(item, ()) if w in number}) for item in items]
    placed = _core.place_replicas(
        problem.replicas,
        [zones[problem.zone_of(worker)] for worker in workers],
        [problem.workers[worker] for worker in workers],
        previous,
    )
    owners = {item: tuple(workers[n] for n in chosen) for item, chosen in zip(items, placed, strict=True)}
    return ReplicaPlan(owners, tuple(_find_moves(problem, owners)), max(0, problem.replicas - len(workers)))


def _find_moves(problem: ReplicaProblem, owners: Mapping[str, tuple[str, ...]]) -> Iterator[Move]:
    for item in sorted(owners.keys() | problem.previous.keys()):
        before, after = set(problem.previous.get(item, ())), set(owners.get(item, ()))
        sources: list[str | None] = [*sorted(before - after)]
        targets: list[str | None] = [*sorted(after - before)]
        for at in range(max(len(sources), len(targets))):
            source = sources[at] if at < len(sources) else None
            yield Move(problem.job, item, source, targets[at] if at < len(targets) else None)
