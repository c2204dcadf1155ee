"""Replicas over zones: several workers per item, no two in one rack if that can be.

In this order, each exactly: every item gets as many different workers as it asks for, or all there are; its replicas
are spread over the zones within one of each other, except that a zone with fewer workers than that has it on all of
them; the sum of squared worker loads is least, each counting inversely to the worker's weight; the fewest replicas are
new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from latchwork import _core
from latchwork.assignment.model import JobProblem, Move, check_count

_MOST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ReplicaProblem:
    """One job whose items run on several workers each. The mappings are not copied: leave them alone afterwards.

    Args:
        job: the job's id.
        items: its work items, unique, in any order.
        replicas: how many workers each item asks for, at least 1.
        workers: the workers able to run it, with their weights: finite, greater than 0. May be empty.
        zones: the zone (rack, host, data centre) of each worker; empty if every worker is a zone of its own. May name
            other workers too.
        previous: item to the workers that had it; may name items and workers that are gone.
    Raises:
        ValueError: an item given twice, a bad weight, fewer than one replica or far too many, or a worker without a
            zone where others have one.
        TypeError: an id that is no str, or a number that is none.
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
        """Return a worker's zone: itself if there are no zones."""
        return self.zones[worker] if self.zones else worker


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """The workers that run the replicas of each item.

    Args:
        owners: item to workers, both in name order; every item of the problem.
        moves: replicas that are new, gone or with another worker than before, sorted by item, then by the names of
            their workers. A replica that is new has source None, one that is gone target None.
        missing: how many replicas every item lacks for want of workers.
    """

    owners: Mapping[str, tuple[str, ...]]
    moves: tuple[Move, ...]
    missing: int


def place_replicas(problem: ReplicaProblem) -> ReplicaPlan:
    """Place the replicas of a job's items. Pure, deterministic, independent of the order of its input.

    It takes memory for each pair of an item and a worker, about 100 bytes: up to some ten million pairs.

    Args:
        problem: items, workers, zones, and who had the items.
    Returns:
        The plan; of several equally good ones always the same, but perhaps not in another version.
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
    return ReplicaPlan(owners, tuple(_moves(problem, owners)), max(0, problem.replicas - len(workers)))


def _moves(problem: ReplicaProblem, owners: Mapping[str, tuple[str, ...]]) -> Iterator[Move]:
    for item in sorted(owners.keys() | problem.previous.keys()):
        before, after = set(problem.previous.get(item, ())), set(owners.get(item, ()))
        sources: list[str | None] = [*sorted(before - after)]
        targets: list[str | None] = [*sorted(after - before)]
        for at in range(max(len(sources), len(targets))):
            source = sources[at] if at < len(sources) else None
            yield Move(problem.job, item, source, targets[at] if at < len(targets) else None)
