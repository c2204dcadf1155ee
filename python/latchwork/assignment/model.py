"""Problems and plans: immutable records, the moves between two plans, and the validity of a plan.

A `Problem` contains jobs with their items, the workers that can run each job, and the previous owners. A `Plan`
contains the new owners and the differences. This module makes no decisions. `plan_from_owners` builds plans for any
strategy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from operator import attrgetter
from typing import Literal, Protocol

from latchwork._base.text import short

Mode = Literal["fast", "compat"]


@dataclass(frozen=True, slots=True)
class JobProblem:
    """A job to place. The mappings are not copied: do not change them afterwards.

    Args:
        job: ID of the job.
        items: Its work items, unique, in any order.
        workers: Workers that can run it, with their weights: finite, greater than 0, on one scale for all jobs of a
            problem. If empty, no worker can run the job.
        previous: Previous worker of each item; may contain removed items and workers.
        labels: Labels of each worker by name; workers without labels may be absent. For custom strategies: the four
            built-in ones ignore them.
    Raises:
        ValueError: An item occurs twice, or a weight is invalid.
        TypeError: An ID is not a str, or a weight is not a number.
    """

    job: str
    items: tuple[str, ...]
    workers: Mapping[str, float]
    previous: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_ids("job id", [self.job])
        check_ids(f"job {self.job!r}: work item", self.items)
        if len(set(self.items)) != len(self.items):
            raise ValueError(f"job {self.job!r}: work item {_find_repeated(self.items)!r} is given twice; give it once")
        if not isinstance(self.workers, Mapping):
            raise TypeError(f"job {self.job!r}: workers is {short(self.workers)}; give a mapping of worker to weight")
        check_ids(f"job {self.job!r}: worker", self.workers)
        for worker, weight in self.workers.items():
            given: object = weight  # callers without a type checker pass anything
            if isinstance(given, bool) or not isinstance(given, Real):
                raise TypeError(_bad_weight(self.job, worker, weight))
            if not _is_positive(weight):
                raise ValueError(_bad_weight(self.job, worker, weight))


@dataclass(frozen=True, slots=True)
class Problem:
    """All jobs that share the workers, in any order, each ID once; may be empty.

    Args:
        jobs: Jobs to place.
        placed: Workers by job and item of other jobs that were already placed in the same round by their own
            strategies. For strategies that consider the load of the workers; the four built-in ones ignore it.
    Raises:
        ValueError: A job occurs twice, or is both to be placed and already placed.
    """

    jobs: tuple[JobProblem, ...]
    placed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ids = [job.job for job in self.jobs]
        if len(set(ids)) != len(ids):
            raise ValueError(f"job {_find_repeated(ids)!r} is given twice; merge its items into one")
        both = sorted(self.placed.keys() & set(ids))
        if both:
            raise ValueError(f"job {both[0]!r} is to be placed, and placed already; give it once")

    def loads(self) -> dict[str, int]:
        """Return how many items of the jobs in `placed` each worker has. Workers without items are left out."""
        return dict(Counter(worker for owners in self.placed.values() for worker in owners.values()))


@dataclass(frozen=True, slots=True)
class Move:
    """A difference from the previous owners.

    `source` is None for an item without a previous worker. `target` is None for an item that was removed or that no
    worker can run anymore.
    """

    job: str
    item: str
    source: str | None
    target: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The owners of all items.

    Args:
        owners: Workers by job and item, sorted by name, for every job of the problem. Items that no worker can run are
            absent.
        moves: Differences from `previous`, sorted by job, then item.
        unplaced: Sorted items that no worker can run, by job; only jobs with such items.
        deferred: Moves that a budget postpones, sorted like `moves`.
    """

    owners: Mapping[str, Mapping[str, str]]
    moves: tuple[Move, ...]
    unplaced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    deferred: tuple[Move, ...] = ()

    def by_worker(self, job: str) -> dict[str, list[str]]:
        """Return the items of a job by worker, both sorted by name. Workers without items are left out.

        Raises:
            KeyError: The problem has no such job.
        """
        shares: dict[str, list[str]] = {}
        for item, worker in sorted(self.owners[job].items()):
            shares.setdefault(worker, []).append(item)
        return dict(sorted(shares.items()))


class Strategy(Protocol):
    """A method to place items. It is pure, deterministic and independent of the order of its input.

    A custom strategy only needs to find the owners: `plan_from_owners` adds the moves, and `check_plan` checks that
    every item that can be run has an owner that can run it.
    """

    @property
    def name(self) -> str:
        """The name of the strategy in settings and messages."""
        ...

    def assign(self, problem: Problem) -> Plan:
        """Assign every item that any worker can run to a worker that can run it."""
        ...


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a strategy that a planner may rely on. The defaults hold for every strategy.

    Args:
        by_job: It places each job on its own, regardless of previous owners.
        looks_at_placed: Its plan may depend on `Problem.placed`.
        board: Name of the `Board` that gives the same result; None for none.
        max_moves: Budget of that board; None for none.
        hashing: Mode of the `RendezvousHasher` that gives the same owners; None for none.
    """

    by_job: bool = False
    looks_at_placed: bool = True
    board: str | None = None
    max_moves: int | None = None
    hashing: Mode | None = None


_NOTHING = Traits()


def get_traits(strategy: Strategy) -> Traits:
    """Return the `traits` that a strategy's own class defines. Those of a base class do not count, because a subclass
    may assign items differently.
    """
    found = getattr(strategy, "traits", _NOTHING) if "traits" in vars(type(strategy)) else _NOTHING
    return found if isinstance(found, Traits) else _NOTHING


def check_ids(what: str, ids: Iterable[object]) -> None:
    """Check that all IDs are of type str. Otherwise a number and its text could be taken for the same ID.

    Args:
        what: Description of the IDs, for the error message.
        ids: The IDs.
    Raises:
        TypeError: An ID is not a str.
    """
    if isinstance(ids, str):
        raise TypeError(f"one str was given where several ids are wanted, {short(ids)} as {what}; give a tuple")
    for each in ids if not set(map(type, ids)) <= {str} else ():
        if not isinstance(each, str):
            raise TypeError(f"{what} {short(each)} is of type {type(each).__name__}; it must be a str, so convert it")


def check_count(what: str, count: object, least: int) -> None:
    """Check that a count is a whole number and not too small.

    Args:
        what: Description of the count, for the error message.
        count: The count.
        least: Minimum value.
    Raises:
        TypeError: The count is not a whole number.
        ValueError: The count is too small.
    """
    if isinstance(count, bool) or not isinstance(count, Integral):
        raise TypeError(f"{what} is {short(count)}; give a whole number of at least {least}")
    if int(count) < least:
        raise ValueError(f"{what} is {count}; it must be at least {least}")


def _is_positive(weight: float) -> bool:
    try:
        return weight > 0 and math.isfinite(weight)
    except OverflowError:  # a whole number that no float can hold
        return False


def _bad_weight(job: str, worker: str, weight: object) -> str:
    told = "a weight must be a finite number greater than 0"
    return f"job {job!r}: worker {worker!r} has weight {short(weight)}; {told}"


def _find_repeated(values: Iterable[str]) -> str:
    """Return the first value that occurs more than once. There must be one."""
    return next(value for value, count in Counter(values).items() if count > 1)


def plan_from_owners(problem: Problem, owners: Mapping[str, Mapping[str, str]]) -> Plan:
    """Build a plan from the new owners of items. The owners are sorted by name and compared with the previous ones.

    The owners are not checked; see `check_plan`.

    Args:
        problem: The problem.
        owners: Workers by job and item, in any order; a job without owners may be absent.
    Returns:
        The plan, including moves and items without an owner.
    """
    ordered = {job: _sort_by_name(owners.get(job, {})) for job in sorted(_ids(problem) | owners.keys())}
    moves = _find_all_moves(problem, ordered)
    without = {job.job: _without_owner(job, ordered[job.job]) for job in problem.jobs}
    unplaced = {job: without[job] for job in sorted(without) if without[job]}
    return Plan(owners=ordered, moves=moves, unplaced=unplaced)


def check_plan(problem: Problem, plan: Plan) -> None:
    """Check that a plan is a valid answer to a problem. Its balance is not checked, because that is up to the strategy.

    Raises:
        ValueError: The plan contains a job or an item that the problem does not have, assigns an item to a worker that
            cannot run its job, leaves an item without an owner although a worker can run it, or has wrong moves.
    """
    unknown = sorted(plan.owners.keys() - _ids(problem))
    if unknown:
        raise ValueError(f"the plan places job {unknown[0]!r}, which the problem does not have; leave it out")
    for job in problem.jobs:
        _check_job(job, plan.owners.get(job.job, {}))
    if plan.moves != _find_all_moves(problem, plan.owners):
        raise ValueError("the plan's moves are not the difference from the previous owners; use plan_from_owners")


def _ids(problem: Problem) -> set[str]:
    return {job.job for job in problem.jobs}


def _sort_by_name(owners: Mapping[str, str]) -> dict[str, str]:
    """Return a copy sorted by name. This is fast if the input is sorted already."""
    names = list(owners)
    ordered = sorted(names)
    return dict(owners) if names == ordered else {name: owners[name] for name in ordered}


def _find_all_moves(problem: Problem, owners: Mapping[str, Mapping[str, str]]) -> tuple[Move, ...]:
    jobs = sorted(problem.jobs, key=attrgetter("job"))
    return tuple(move for job in jobs for move in _find_moves(job, owners.get(job.job, {})))


def _find_moves(job: JobProblem, owners: Mapping[str, str]) -> list[Move]:
    """Return the items of a job whose owner differs from the previous one, as moves in item order."""
    name, source = job.job, job.previous.get
    if not job.previous:
        moves = [Move(name, item, None, target) for item, target in owners.items()]
    else:
        moved = [item for item, target in owners.items() if source(item) != target]  # few of many
        moves = [Move(name, item, source(item), owners[item]) for item in moved]
        lost = (item for item in job.previous if item not in owners)
        moves += [Move(name, item, source(item), None) for item in lost]
    moves.sort(key=attrgetter("item"))
    return moves


def _without_owner(job: JobProblem, owners: Mapping[str, str]) -> tuple[str, ...]:
    if len(owners) == len(job.items):
        return ()
    return tuple(sorted(item for item in job.items if item not in owners))


def _check_job(job: JobProblem, owners: Mapping[str, str]) -> None:
    items = set(job.items)
    for item, worker in owners.items():
        if item not in items:
            raise ValueError(
                f"job {job.job!r}: the plan places item {item!r}, which the job does not have; leave it out"
            )
        if worker not in job.workers:
            raise ValueError(
                f"job {job.job!r}: the plan gives item {item!r} to worker {worker!r}, which cannot run the job; "
                "choose one of its workers"
            )
    missing = items - owners.keys() if job.workers else set()
    if missing:
        raise ValueError(
            f"job {job.job!r}: the plan leaves {len(missing)} items without owner, {min(missing)!r} first; "
            "give each to one of its workers"
        )
