"""Computation of the changes that the manager writes, from running workers, work pools and stored shares. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from latchwork._base.user_code import call_user
from latchwork.assignment import JobProblem, Plan, Problem, Strategy, check_plan
from latchwork.jobs.manager.strategies import Strategies

#: Items by job and worker.
Shares = Mapping[str, Mapping[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A ready worker: its relative weight, the jobs that it can run, and its labels for strategies."""

    weight: float
    jobs: frozenset[str]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReservedShare:
    """The share of a restarting worker.

    Attributes:
        worker: The worker as it was, while it is away; None once it is ready again.
        shares: Reserved items by job.
    """

    worker: WorkerView | None
    shares: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster as the manager knows it.

    Attributes:
        workers: Ready workers by ID.
        pools: All items of each job.
        shares: The stored assignment, including shares of dead workers; no empty shares.
        reserved: Shares of restarting workers.
    """

    workers: Mapping[str, WorkerView]
    pools: Mapping[str, tuple[str, ...]]
    shares: Shares
    reserved: Mapping[str, ReservedShare] = field(default_factory=dict)

    @property
    def absent_workers(self) -> dict[str, WorkerView]:
        """The restarting workers that have not returned yet, by name."""
        return {name: each.worker for name, each in self.reserved.items() if each.worker is not None}


@dataclass(frozen=True, slots=True)
class ShareChange:
    """One worker's share of one job, before and after: sorted items, empty if nothing is stored."""

    worker: str
    job: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rebalance:
    """The outcome of a rebalance.

    Attributes:
        changes: Shares to write, sorted by job, then worker.
        moves: Number of items that get another worker, including items that had none.
        failed: Jobs whose strategy raised or returned an invalid plan, with the error. Their shares are unchanged.
        unplaced: Number of items by job that no ready worker can run.
        deferred: Number of moves that a budget postpones to the next rebalance.
    """

    changes: tuple[ShareChange, ...] = ()
    moves: int = 0
    failed: Mapping[str, Exception] = field(default_factory=dict)
    unplaced: Mapping[str, int] = field(default_factory=dict)
    deferred: int = 0


def rebalance(view: ClusterView, strategies: Strategies) -> Rebalance:
    """Compute the new assignment of items to workers, and the shares to write.

    Every item that a ready worker can run gets exactly one worker. Shares of dead workers, of jobs without a pool, and
    of items outside their pool are removed. Unchanged shares are not written.
    """
    desired: dict[str, dict[str, list[str]]] = {}
    placed: dict[str, Mapping[str, str]] = {}
    failed: dict[str, Exception] = {}
    deferred = 0
    for strategy, jobs in strategies.group_by_strategy(view.pools):
        try:
            plan, shares = call_user(_place_jobs, view, strategy, jobs, placed)
            desired.update(shares)
            deferred += len(plan.deferred)
            placed.update(plan.owners)
        except Exception as error:
            failed.update(dict.fromkeys(jobs, error))
            placed.update({job: find_stored_owners(view, job, view.workers) for job in jobs})  # unchanged
    whole = {job: desired.get(job, {}) for job in {*view.shares, *desired} if job not in failed}
    changes = sorted(diff_shares(view, whole), key=lambda change: (change.job, change.worker))
    moves = sum(len(set(change.after).difference(change.before)) for change in changes)
    return Rebalance(tuple(changes), moves, failed, count_unplaced(view), deferred)


def create_job_problem(view: ClusterView, job: str) -> JobProblem:
    """Create a strategy's input for one job: its items, the workers that can run it, and the current owners.

    If an item has two stored owners, a ready one counts, otherwise the first one by name. A restarting worker is
    included as if it were running, so that only its own items move.
    """
    workers = {**view.absent_workers, **view.workers}
    able = {name: worker.weight for name, worker in sorted(workers.items()) if job in worker.jobs}
    previous = find_stored_owners(view, job, able)
    for name, reserved in view.reserved.items():
        if name in able:
            previous.update(dict.fromkeys(reserved.shares.get(job, ()), name))
    return JobProblem(job, view.pools[job], able, previous, {name: workers[name].labels for name in able})


def _place_jobs(
    view: ClusterView, strategy: Strategy, jobs: Sequence[str], placed_before: Mapping[str, Mapping[str, str]]
) -> tuple[Plan, dict[str, dict[str, list[str]]]]:
    """Let a strategy assign the items of its jobs to workers. Items of absent restarting workers go to other workers
    temporarily.

    Args:
        view: The cluster.
        strategy: The strategy.
        jobs: IDs of its jobs.
        placed_before: Workers that the previous strategies have chosen, by job and item.
    Returns:
        The strategy's plan, and the items of each ready worker by job.
    Raises:
        ValueError: The strategy returned an invalid plan.
    """
    placed = dict(placed_before)  # the strategy may keep the mapping
    problem = Problem(tuple(create_job_problem(view, job) for job in jobs), placed)
    plan = strategy.assign(problem)
    check_plan(problem, plan)
    shares = {job: plan.by_worker(job) for job in jobs}
    away = view.absent_workers.keys() - view.workers.keys()
    guests = {job: [item for name in sorted(away) for item in shares[job].pop(name, ())] for job in jobs}
    if not any(guests.values()):
        return plan, shares
    second = Problem(
        tuple(_create_substitute_problem(view, job, items) for job, items in guests.items() if items), placed
    )
    for_now = strategy.assign(second)
    check_plan(second, for_now)
    for part in second.jobs:
        for name, items in for_now.by_worker(part.job).items():
            shares[part.job][name] = sorted([*shares[part.job].get(name, ()), *items])
    return plan, shares


def _create_substitute_problem(view: ClusterView, job: str, items: Sequence[str]) -> JobProblem:
    """Create a strategy's input for the items of restarting workers, which other workers run in the meantime.

    Args:
        view: The cluster.
        job: ID of the job.
        items: The items of this job that need a temporary worker.
    """
    able = {name: worker.weight for name, worker in sorted(view.workers.items()) if job in worker.jobs}
    holders = find_stored_owners(view, job, able)
    previous = {item: holders[item] for item in items if item in holders}
    return JobProblem(job, tuple(items), able, previous, {name: view.workers[name].labels for name in able})


def find_stored_owners(view: ClusterView, job: str, able_workers: Collection[str]) -> dict[str, str]:
    """Return the worker of each item of a job according to the stored shares.

    If two workers have an item, a worker that can run the job counts, otherwise the first one by name.

    Args:
        view: The cluster.
        job: ID of the job.
        able_workers: Workers that can run the job.
    """
    shares = view.shares.get(job, {})
    found: dict[str, str] = {}
    for worker in sorted(shares, key=lambda name: (name not in able_workers, name), reverse=True):  # the last one wins
        found.update(dict.fromkeys(shares[worker], worker))
    return found


def diff_shares(view: ClusterView, target: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterable[ShareChange]:
    """Generate the changes that turn the stored shares of some jobs into the target shares, in no particular order.

    Args:
        view: The cluster with the stored shares.
        target: Items by job and worker, for the jobs to compare.
    """
    for job, shares in target.items():
        stored = view.shares.get(job, {})
        for worker in {*stored, *shares}:
            before, after = stored.get(worker, ()), tuple(shares.get(worker, ()))
            if before != after:
                yield ShareChange(worker, job, before, after)


def order_changes(changes: Sequence[ShareChange]) -> list[ShareChange]:
    """Order changes so that no item is ever stored for two workers: first the shares that shrink, then those that grow.

    A share that loses some items and gets others is written twice, first without the lost items. Both halves are sorted
    by worker, so that each worker has to read few transactions.
    """
    shrinks, grows = [], []
    for change in changes:
        before, after = set(change.before), set(change.after)
        if after <= before:
            shrinks.append(change)
        elif before <= after:
            grows.append(change)
        else:
            kept = tuple(item for item in change.before if item in after)
            shrinks.append(ShareChange(change.worker, change.job, change.before, kept))
            grows.append(ShareChange(change.worker, change.job, kept, change.after))
    for part in (shrinks, grows):
        part.sort(key=lambda change: (change.worker, change.job))
    return shrinks + grows


def count_unplaced(view: ClusterView) -> dict[str, int]:
    """Count the items that no ready worker can run. Return the number of items by job, sorted, without jobs that have
    none.
    """
    able = frozenset[str]().union(*(worker.jobs for worker in view.workers.values()))
    return {job: len(items) for job, items in sorted(view.pools.items()) if items and job not in able}
