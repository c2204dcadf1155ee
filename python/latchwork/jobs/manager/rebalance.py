"""Computation of the changes that the manager writes, from running workers, work pools and stored assignments. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from latchwork._base.user_code import call_user
from latchwork.assignment import JobProblem, Plan, Problem, Strategy, check_plan
from latchwork.jobs.manager.strategies import Strategies

#: Items by job and worker.
Assignments = Mapping[str, Mapping[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A ready worker: its relative weight, the jobs that it can run, and its labels for strategies."""

    weight: float
    jobs: frozenset[str]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReservedItems:
    """The items that are reserved for a restarting worker.

    Attributes:
        worker: The worker as it was, while it is away; None once it is ready again.
        by_job: Reserved items by job.
    """

    worker: WorkerView | None
    by_job: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster as the manager knows it.

    Attributes:
        workers: Ready workers by ID.
        pools: All items of each job.
        assignments: The stored items by job and worker, including those of dead workers; no empty ones.
        reserved: Items of restarting workers, by worker.
    """

    workers: Mapping[str, WorkerView]
    pools: Mapping[str, tuple[str, ...]]
    assignments: Assignments
    reserved: Mapping[str, ReservedItems] = field(default_factory=dict)

    @property
    def absent_workers(self) -> dict[str, WorkerView]:
        """The restarting workers that have not returned yet, by name."""
        return {name: items.worker for name, items in self.reserved.items() if items.worker is not None}


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """The items that one worker has of one job, before and after: sorted, empty if nothing is stored."""

    worker: str
    job: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rebalance:
    """The outcome of a rebalance.

    Attributes:
        changes: Changed assignments to write, sorted by job, then worker.
        moves: Number of items that get another worker, including items that had none.
        failed: Jobs whose strategy raised or returned an invalid plan, with the error. Their assignments are unchanged.
        unplaced: Number of items by job that no ready worker can run.
        deferred: Number of moves that a budget postpones to the next rebalance.
    """

    changes: tuple[AssignmentChange, ...] = ()
    moves: int = 0
    failed: Mapping[str, Exception] = field(default_factory=dict)
    unplaced: Mapping[str, int] = field(default_factory=dict)
    deferred: int = 0


def rebalance(view: ClusterView, strategies: Strategies) -> Rebalance:
    """Assign the items of all jobs to workers, and compute which stored assignments must change.

    Every item that a ready worker can run gets exactly one worker. Assignments of dead workers, of jobs without a pool,
    and of items outside their pool are removed. Unchanged assignments are not written.
    """
    desired: dict[str, dict[str, list[str]]] = {}
    placed: dict[str, Mapping[str, str]] = {}
    failed: dict[str, Exception] = {}
    deferred = 0
    for strategy, jobs in strategies.group_by_strategy(view.pools):
        try:
            plan, assignments = call_user(_place_jobs, view, strategy, jobs, placed)
            desired.update(assignments)
            deferred += len(plan.deferred)
            placed.update(plan.owners)
        except Exception as error:
            failed.update(dict.fromkeys(jobs, error))
            placed.update({job: find_stored_owners(view, job, view.workers) for job in jobs})  # unchanged
    whole = {job: desired.get(job, {}) for job in {*view.assignments, *desired} if job not in failed}
    changes = sorted(diff_assignments(view, whole), key=lambda change: (change.job, change.worker))
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
            previous.update(dict.fromkeys(reserved.by_job.get(job, ()), name))
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
    assignments = {job: plan.by_worker(job) for job in jobs}
    absent = view.absent_workers.keys() - view.workers.keys()
    displaced = {job: [item for name in sorted(absent) for item in assignments[job].pop(name, ())] for job in jobs}
    if not any(displaced.values()):
        return plan, assignments
    substitute_problem = Problem(
        tuple(_create_substitute_problem(view, job, items) for job, items in displaced.items() if items), placed
    )
    substitute_plan = strategy.assign(substitute_problem)
    check_plan(substitute_problem, substitute_plan)
    for part in substitute_problem.jobs:
        for name, items in substitute_plan.by_worker(part.job).items():
            assignments[part.job][name] = sorted([*assignments[part.job].get(name, ()), *items])
    return plan, assignments


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
    """Return the worker of each item of a job according to the stored assignments.

    If two workers have an item, a worker that can run the job counts, otherwise the first one by name.

    Args:
        view: The cluster.
        job: ID of the job.
        able_workers: Workers that can run the job.
    """
    assignments = view.assignments.get(job, {})
    found: dict[str, str] = {}
    for worker in sorted(
        assignments, key=lambda name: (name not in able_workers, name), reverse=True
    ):  # the last one wins
        found.update(dict.fromkeys(assignments[worker], worker))
    return found


def diff_assignments(
    view: ClusterView, target: Mapping[str, Mapping[str, Sequence[str]]]
) -> Iterable[AssignmentChange]:
    """Generate the changes that turn the stored assignments of some jobs into the target assignments, in any order.

    Args:
        view: The cluster with the stored assignments.
        target: Items by job and worker, for the jobs to compare.
    """
    for job, assignments in target.items():
        stored = view.assignments.get(job, {})
        for worker in {*stored, *assignments}:
            before, after = stored.get(worker, ()), tuple(assignments.get(worker, ()))
            if before != after:
                yield AssignmentChange(worker, job, before, after)


def order_changes(changes: Sequence[AssignmentChange]) -> list[AssignmentChange]:
    """Order changes so that no item is ever stored for two workers: first the assignments that lose items, then those
    that get some.

    An assignment that loses some items and gets others is written twice, first without the lost items. Both halves are
    sorted by worker, so that each worker has to read few transactions.
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
            shrinks.append(AssignmentChange(change.worker, change.job, change.before, kept))
            grows.append(AssignmentChange(change.worker, change.job, kept, change.after))
    for part in (shrinks, grows):
        part.sort(key=lambda change: (change.worker, change.job))
    return shrinks + grows


def count_unplaced(view: ClusterView) -> dict[str, int]:
    """Count the items that no ready worker can run. Return the number of items by job, sorted, without jobs that have
    none.
    """
    able = frozenset[str]().union(*(worker.jobs for worker in view.workers.values()))
    return {job: len(items) for job, items in sorted(view.pools.items()) if items and job not in able}
