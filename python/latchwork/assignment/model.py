"""Problems and plans: frozen records, what moves between two plans, and whether a plan is allowed.

A `Problem` is jobs with their items, the workers able to run each, and who had the items before. A `Plan` is who gets
them now, and how that differs. Nothing here decides anything; plans are made from owners, for strategies of any origin.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from operator import attrgetter
from typing import Literal, Protocol

from latchwork.words import short

Mode = Literal["fast", "compat"]


@dataclass(frozen=True, slots=True)
class JobProblem:
    """One job to place. The mappings are not copied: leave them alone afterwards.

    Args:
        job: the job's id.
        items: its work items, unique, in any order.
        workers: the workers able to run it, with their weights: finite, greater than 0, on one scale for all jobs of a
            problem. May be empty: then nobody can run the job.
        previous: item to the worker that had it; may name items and workers that are gone.
        labels: worker to what it says about itself, name to value; a worker that says nothing may be absent. For
            strategies of one's own: the four that come with latchwork do not look at it.
    Raises:
        ValueError: an item given twice, or a bad weight.
        TypeError: an id that is no str, or a weight that is no number.
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
            raise ValueError(f"job {self.job!r}: work item {_repeated(self.items)!r} is given twice; give it once")
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
    """All jobs that share the workers, in any order, each id once; may be empty.

    Args:
        jobs: what is to be placed.
        placed: job to item to worker: other jobs, placed already in the same round by their own strategies. For
            strategies that care how loaded the workers are; the four that come with latchwork do not look at it.
    Raises:
        ValueError: a job given twice, or to be placed and placed already.
    """

    jobs: tuple[JobProblem, ...]
    placed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ids = [job.job for job in self.jobs]
        if len(set(ids)) != len(ids):
            raise ValueError(f"job {_repeated(ids)!r} is given twice; merge its items into one")
        both = sorted(self.placed.keys() & set(ids))
        if both:
            raise ValueError(f"job {both[0]!r} is to be placed, and placed already; give it once")

    def loads(self) -> dict[str, int]:
        """Count the items that each worker has of the jobs placed already; workers without any are absent."""
        return dict(Counter(worker for owners in self.placed.values() for worker in owners.values()))


@dataclass(frozen=True, slots=True)
class Move:
    """One difference from the previous owners.

    `source` is None for an item nobody had; `target` is None for an item that is gone, or that nobody can run any more.
    """

    job: str
    item: str
    source: str | None
    target: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The owners of all items.

    Args:
        owners: job to item to worker, jobs and items in name order, every job of the problem; items that nobody can run
            are absent.
        moves: the difference from `previous`, sorted by job, then item.
        unplaced: job to the items that nobody can run, in name order; only jobs that have such.
        deferred: moves that the strategy wants too, but a budget holds back, sorted like `moves`.
    """

    owners: Mapping[str, Mapping[str, str]]
    moves: tuple[Move, ...]
    unplaced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    deferred: tuple[Move, ...] = ()

    def by_worker(self, job: str) -> dict[str, list[str]]:
        """Return the items of a job by worker: workers with at least one item, workers and items in name order.

        Raises:
            KeyError: the problem had no such job.
        """
        shares: dict[str, list[str]] = {}
        for item, worker in sorted(self.owners[job].items()):
            shares.setdefault(worker, []).append(item)
        return dict(sorted(shares.items()))


class Strategy(Protocol):
    """A way to place items; pure, deterministic and independent of the order of its input.

    A custom one needs to find only the owners: `plan_from_owners` adds the moves, and `check_plan` tells whether every
    item that can be run has an owner that can run it.
    """

    @property
    def name(self) -> str:
        """The name of the strategy in settings and messages."""
        ...

    def assign(self, problem: Problem) -> Plan:
        """Place every item that some worker can run on a worker that can run it."""
        ...


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of a strategy that a planner may rely on. The defaults hold for every strategy.

    Args:
        by_job: it places each job by itself, whoever had its items.
        looks_at_placed: its plan may depend on `Problem.placed`.
        board: the name of the `Board` that places as it does; None for none.
        max_moves: the budget of that board; None for none.
        hashing: the mode of the `RendezvousHasher` that gives each item of a job the owner that it does; None for none.
    """

    by_job: bool = False
    looks_at_placed: bool = True
    board: str | None = None
    max_moves: int | None = None
    hashing: Mode | None = None


_NOTHING = Traits()


def traits_of(strategy: Strategy) -> Traits:
    """The `traits` of a strategy whose own class has them. A subclass inherits none: it may place otherwise."""
    found = getattr(strategy, "traits", _NOTHING) if "traits" in vars(type(strategy)) else _NOTHING
    return found if isinstance(found, Traits) else _NOTHING


def check_ids(what: str, ids: Iterable[object]) -> None:
    """``TypeError`` for ids that are no str: a number and its text would be one id to some, and two to others."""
    if isinstance(ids, str):
        raise TypeError(f"one str was given where several ids are wanted, {short(ids)} as {what}; give a tuple")
    for each in ids if not set(map(type, ids)) <= {str} else ():
        if not isinstance(each, str):
            raise TypeError(f"{what} {short(each)} is of type {type(each).__name__}; it must be a str, so convert it")


def check_count(what: str, count: object, least: int) -> None:
    """``TypeError`` for a count that is no whole number, ``ValueError`` for one that is too small."""
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


def _repeated(values: Iterable[str]) -> str:
    """Return the first value that is there more than once."""
    return next(value for value, count in Counter(values).items() if count > 1)


def plan_from_owners(problem: Problem, owners: Mapping[str, Mapping[str, str]]) -> Plan:
    """Make a plan of owners: put them in name order, and find what differs from the previous ones.

    It does not check them: `check_plan` does.

    Args:
        problem: what was asked.
        owners: job to item to worker, in any order; a job without owners may be absent.
    Returns:
        The plan, complete with moves and with the items that got no owner.
    """
    ordered = {job: _in_name_order(owners.get(job, {})) for job in sorted(_ids(problem) | owners.keys())}
    moves = _all_moves(problem, ordered)
    without = {job.job: _without_owner(job, ordered[job.job]) for job in problem.jobs}
    unplaced = {job: without[job] for job in sorted(without) if without[job]}
    return Plan(owners=ordered, moves=moves, unplaced=unplaced)


def check_plan(problem: Problem, plan: Plan) -> None:
    """Check that a plan answers a problem. Balance is not checked: it is the strategy's own matter.

    Raises:
        ValueError: the plan names a job or an item that the problem has not, gives an item to a worker that cannot run
            its job, leaves an item without owner that some worker can run, or its moves are not the difference.
    """
    unknown = sorted(plan.owners.keys() - _ids(problem))
    if unknown:
        raise ValueError(f"the plan places job {unknown[0]!r}, which the problem does not have; leave it out")
    for job in problem.jobs:
        _check_job(job, plan.owners.get(job.job, {}))
    if plan.moves != _all_moves(problem, plan.owners):
        raise ValueError("the plan's moves are not the difference from the previous owners; use plan_from_owners")


def _ids(problem: Problem) -> set[str]:
    return {job.job for job in problem.jobs}


def _in_name_order(owners: Mapping[str, str]) -> dict[str, str]:
    """A copy. Names alone are put in order, which costs little where they are: pairs of a million take a second."""
    names = list(owners)
    ordered = sorted(names)
    return dict(owners) if names == ordered else {name: owners[name] for name in ordered}


def _all_moves(problem: Problem, owners: Mapping[str, Mapping[str, str]]) -> tuple[Move, ...]:
    jobs = sorted(problem.jobs, key=attrgetter("job"))
    return tuple(move for job in jobs for move in _moves(job, owners.get(job.job, {})))


def _moves(job: JobProblem, owners: Mapping[str, str]) -> list[Move]:
    """In item order. Owners mostly are in that order, which sorting then only confirms."""
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
