"""Explains why a strategy places an item where it does: as a record with figures, and as a sentence.

It explains the strategy's answer to a problem, and does not consider earlier plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from latchwork._core import RendezvousHasher
from latchwork.assignment.model import JobProblem, Plan, Problem, Strategy
from latchwork.assignment.replicas import ReplicaPlan, ReplicaProblem, place_replicas
from latchwork.assignment.strategies import Budgeted, EvenlyRendezvous, Rendezvous

#: A figure of an explanation.
Fact = str | int | float | tuple[str, ...]
_RANKED = 3


class Reason(StrEnum):
    """Why an item is assigned to its worker."""

    UNPLACEABLE = "unplaceable"
    """No worker can run the job, so the item is not assigned."""
    SCORE = "score"
    """The worker scores highest for the item."""
    SCORE_WITH_ROOM = "score-with-room"
    """The worker has the highest score of the workers that were not full."""
    KEPT = "kept"
    """The worker had the item, and its share is not too large."""
    NEW = "new"
    """The item had no worker, and this one was not full."""
    OWNER_GONE = "owner-gone"
    """The previous worker was removed or cannot run the job anymore, and this one was not full."""
    OVER_SHARE = "over-share"
    """The previous worker had more than its share, and this one had less."""
    DEFERRED = "deferred"
    """It should move, but the budget holds it back."""
    CUSTOM = "custom"
    """A custom strategy chose the worker."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an item is where it is.

    Args:
        job: The item's job.
        item: The item.
        worker: Its worker; None if no worker can run it.
        previous: Its previous worker; None if there was none.
        strategy: Name of the strategy.
        reason: The reason in one word.
        facts: Figures behind the reason, by name; they depend on the reason.
        text: All of it in one or two sentences.
    """

    job: str
    item: str
    worker: str | None
    previous: str | None
    strategy: str
    reason: Reason
    facts: Mapping[str, Fact] = field(default_factory=dict)
    text: str = ""


def explain(strategy: Strategy, problem: Problem, job: str, item: str) -> Explanation:
    """Explain why a strategy assigns an item to its worker.

    It solves the whole problem again, so it takes as long as an assignment.

    Args:
        strategy: One of the four strategies, possibly `Budgeted`, or a custom one.
        problem: The problem, with the previous owners at the time when the item was assigned.
        job: The item's job.
        item: The item.
    Returns:
        The explanation; for a custom strategy only the item's worker.
    Raises:
        ValueError: The problem has no such job or item.
    """
    found = next((each for each in problem.jobs if each.job == job), None)
    if found is None:
        raise ValueError(f"the problem has no job {job!r}; name one of its jobs")
    if item not in found.items:
        raise ValueError(f"job {job!r} has no work item {item!r}; name one of its items")
    plan = strategy.assign(problem)
    if item not in plan.owners[job]:
        text = f"Nobody has {item!r}: no worker can run job {job!r}."
        return Explanation(job, item, None, found.previous.get(item), strategy.name, Reason.UNPLACEABLE, {}, text)
    return _Case(strategy, problem, found, item, plan).explain()


def explain_replicas(problem: ReplicaProblem, item: str) -> tuple[Explanation, ...]:
    """Explain why the replicas of an item are on their workers.

    Args:
        problem: The problem.
        item: The item.
    Returns:
        One explanation per worker, sorted by worker.
    Raises:
        ValueError: The problem has no such item.
    """
    if item not in problem.items:
        raise ValueError(f"job {problem.job!r} has no work item {item!r}; name one of its items")
    plan = place_replicas(problem)
    if not plan.owners[item]:
        text = f"Nobody has {item!r}: no worker can run job {problem.job!r}."
        return (Explanation(problem.job, item, None, None, "replicas", Reason.UNPLACEABLE, {}, text),)
    return tuple(_replica(problem, plan, item, worker) for worker in plan.owners[item])


@dataclass(frozen=True, slots=True)
class _Case:
    """An item that has a worker."""

    strategy: Strategy
    problem: Problem
    job: JobProblem
    item: str
    plan: Plan

    @property
    def worker(self) -> str:
        return self.plan.owners[self.job.job][self.item]

    def explain(self) -> Explanation:
        strategy: Strategy = self.strategy
        for move in self.plan.deferred:
            if (move.job, move.item) == (self.job.job, self.item):
                return self._deferred(move.target or "")
        while isinstance(strategy, Budgeted):
            strategy = strategy.strategy
        if isinstance(strategy, Rendezvous | EvenlyRendezvous):
            return self._scored(strategy)
        if strategy.name in {"evenly-spread", "balanced"}:
            return self._shared(with_total=strategy.name == "balanced")
        text = f"Strategy {strategy.name!r} gives {self.item!r} to {self.worker!r}."
        return self._because(Reason.CUSTOM, {}, text)

    def _because(self, reason: Reason, facts: Mapping[str, Fact], text: str) -> Explanation:
        previous = self.job.previous.get(self.item)
        return Explanation(self.job.job, self.item, self.worker, previous, self.strategy.name, reason, facts, text)

    def _deferred(self, target: str) -> Explanation:
        text = (
            f"{self.worker!r} keeps {self.item!r} for now, until it may go to {target!r}: "
            f"{len(self.plan.deferred)} moves are beyond the budget, and those that do most for balance go first."
        )
        return self._because(Reason.DEFERRED, {"target": target, "deferred": len(self.plan.deferred)}, text)

    def _scored(self, strategy: Rendezvous | EvenlyRendezvous) -> Explanation:
        workers = dict(self.job.workers)
        key = f"{self.job.job}:{self.item}"
        hasher = RendezvousHasher(workers, list(workers.values()), strategy.mode)
        ranking = hasher.owners(key, len(workers))
        place = ranking.index(self.worker)
        facts: dict[str, Fact] = {"key": key, "mode": strategy.mode, "ranking": tuple(ranking[: place + _RANKED])}
        scores = "scores highest, by weight," if len(set(workers.values())) > 1 else "scores highest"
        if isinstance(strategy, Rendezvous):
            behind = f"; next is {ranking[1]!r}" if len(ranking) > 1 else ""
            return self._because(Reason.SCORE, facts, f"{self.worker!r} {scores} for the key {key!r}{behind}.")
        full = tuple(ranking[:place])
        text = f"{self.worker!r} {scores} for the key {key!r} of all workers that had room"
        text += f"; {_some(full)} scored higher, but had their share by then." if full else "."
        return self._because(Reason.SCORE_WITH_ROOM, {**facts, "full": full}, text)

    def _shared(self, *, with_total: bool) -> Explanation:
        had = _count_held_items(self.job)
        previous = self.job.previous.get(self.item)
        facts: dict[str, Fact] = {"held": had[self.worker], "share": self._share(self.worker)}
        facts["quota"] = self._quota(self.worker)
        ending = ""
        if with_total:
            total = sum(list(owners.values()).count(self.worker) for owners in self.plan.owners.values())
            facts["total"], ending = total, f" Over all jobs it has {_count(total)}."
        mine = self._describe(self.worker, had)
        if previous == self.worker:
            text = f"{self.worker!r} keeps {self.item!r}: {mine}.{ending}"
            return self._because(Reason.KEPT, facts, text)
        reason, why = Reason.NEW, f"Nobody had {self.item!r}"
        if previous is not None and previous in self.job.workers:
            facts["previous_held"], facts["previous_share"] = had[previous], self._share(previous)
            reason, why = Reason.OVER_SHARE, f"{previous!r} gave {self.item!r} up: {self._describe(previous, had)}"
        elif previous is not None:
            reason, why = (
                Reason.OWNER_GONE,
                f"{previous!r}, which had {self.item!r}, cannot run {self.job.job!r} any more",
            )
        return self._because(reason, facts, f"{why}. {self.worker!r} had room: {mine}.{ending}")

    def _share(self, worker: str) -> int:
        return list(self.plan.owners[self.job.job].values()).count(worker)

    def _quota(self, worker: str) -> float:
        return len(self.job.items) * self.job.workers[worker] / sum(self.job.workers.values())

    def _describe(self, worker: str, had: Counter[str]) -> str:
        job = self.job.job
        share = f"{self._share(worker)} (quota {self._quota(worker):.4g})"
        return f"it had {_count(had[worker])} of {job!r}, and its share is {share}"


def _replica(problem: ReplicaProblem, plan: ReplicaPlan, item: str, worker: str) -> Explanation:
    before, owners = problem.previous.get(item, ()), plan.owners[item]
    zones = Counter(problem.zone_of(owner) for owner in owners)
    load = sum(worker in chosen for chosen in plan.owners.values())
    facts: dict[str, Fact] = {"zone": problem.zone_of(worker), "share": load, "zones": len(zones)}
    spread = ", ".join(f"{zone!r} {count}" for zone, count in sorted(zones.items()))
    where = f"zone {problem.zone_of(worker)!r}. Its zones: {spread}. {worker!r} has {_count(load)} of {problem.job!r}."
    gone = sorted(set(before) - set(owners))
    if worker in before:
        previous, reason, text = worker, Reason.KEPT, f"{worker!r} keeps its replica of {item!r} in {where}"
    elif any(owner in problem.workers for owner in gone):
        previous, reason = gone[0], Reason.OVER_SHARE
        text = (
            f"{_some(tuple(gone))} gave {item!r} up for the balance of zones or workers; {worker!r} has it in {where}"
        )
    elif gone:
        previous, reason = gone[0], Reason.OWNER_GONE
        text = f"{_some(tuple(gone))} cannot run {item!r} any more; {worker!r} has it in {where}"
    else:
        return Explanation(
            problem.job, item, worker, None, "replicas", Reason.NEW, facts, f"{worker!r} has a new replica in {where}"
        )
    return Explanation(problem.job, item, worker, previous, "replicas", reason, facts, text)


def _count_held_items(job: JobProblem) -> Counter[str]:
    items = set(job.items)
    return Counter(worker for item, worker in job.previous.items() if item in items and worker in job.workers)


def _count(items: int) -> str:
    return "1 item" if items == 1 else f"{items} items"


def _some(workers: tuple[str, ...]) -> str:
    named = ", ".join(repr(worker) for worker in workers[:_RANKED])
    return named if len(workers) <= _RANKED else f"{named} and {len(workers) - _RANKED} more"
