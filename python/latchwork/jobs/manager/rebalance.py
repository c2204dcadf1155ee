"""Decides what the manager writes, from the living workers, the work pools and the stored shares. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from latchwork.assignment import JobProblem, Plan, Problem, Strategy, check_plan
from latchwork.jobs.manager.strategies import Strategies
from latchwork.user_code import call_user

#: Job to worker to items.
Shares = Mapping[str, Mapping[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker that is ready: how much it takes relative to others, the jobs it can run, its labels for strategies."""

    weight: float
    jobs: frozenset[str]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReservedShare:
    """The share of a worker that is being restarted.

    Attributes:
        worker: as it was, while it is away; None once it is back, and among the ready ones.
        shares: job to the items that wait for it.
    """

    worker: WorkerView | None
    shares: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster as the manager knows it.

    Attributes:
        workers: the ready workers by id.
        pools: all items of each job.
        shares: what is stored as assigned, dead workers' leftovers included; no empty shares.
        reserved: the workers that are being restarted, and what waits for them.
    """

    workers: Mapping[str, WorkerView]
    pools: Mapping[str, tuple[str, ...]]
    shares: Shares
    reserved: Mapping[str, ReservedShare] = field(default_factory=dict)

    @property
    def away(self) -> dict[str, WorkerView]:
        """The workers that are being restarted and not back yet."""
        return {name: each.worker for name, each in self.reserved.items() if each.worker is not None}


@dataclass(frozen=True, slots=True)
class ShareChange:
    """One worker's share of one job, as it is stored and as it shall be: sorted items, none where nothing is stored."""

    worker: str
    job: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rebalance:
    """The outcome of one rebalance.

    Attributes:
        changes: what to write: sorted by job, then worker; empty when all is as it should be.
        moves: how many items change their worker, orphans that get one included.
        failed: jobs whose strategy raised or answered wrongly, with the error; their shares stay as they are.
        unplaced: jobs with items that no ready worker can run, with how many.
        deferred: how many more items shall move, which a budget holds back: rebalance again.
    """

    changes: tuple[ShareChange, ...] = ()
    moves: int = 0
    failed: Mapping[str, Exception] = field(default_factory=dict)
    unplaced: Mapping[str, int] = field(default_factory=dict)
    deferred: int = 0


def rebalance(view: ClusterView, strategies: Strategies) -> Rebalance:
    """Decide who shall have what, and what must be written for it.

    Every item of every pool that a ready worker can run gets exactly one worker; shares of dead workers, of jobs
    without a pool and of items that left their pool go away. Writes nothing for shares that stay.
    """
    desired: dict[str, dict[str, list[str]]] = {}
    placed: dict[str, Mapping[str, str]] = {}
    failed: dict[str, Exception] = {}
    deferred = 0
    for strategy, jobs in strategies.groups(view.pools):
        try:
            plan, shares = call_user(_placed, view, strategy, jobs, placed)
            desired.update(shares)
            deferred += len(plan.deferred)
            placed.update(plan.owners)
        except Exception as error:
            failed.update(dict.fromkeys(jobs, error))
            placed.update({job: holders_in(view, job, view.workers) for job in jobs})  # they stay where they are
    whole = {job: desired.get(job, {}) for job in {*view.shares, *desired} if job not in failed}
    changes = sorted(changes_to(view, whole), key=lambda change: (change.job, change.worker))
    moves = sum(len(set(change.after).difference(change.before)) for change in changes)
    return Rebalance(tuple(changes), moves, failed, unplaced(view), deferred)


def job_problem(view: ClusterView, job: str) -> JobProblem:
    """One job as the strategies see it. An item stored with two workers counts for a ready one, then by name.

    A worker that is being restarted is there as if it had never gone, and so are its items: nobody else's move.
    """
    workers = {**view.away, **view.workers}
    able = {name: worker.weight for name, worker in sorted(workers.items()) if job in worker.jobs}
    previous = holders_in(view, job, able)
    for name, reserved in view.reserved.items():
        if name in able:
            previous.update(dict.fromkeys(reserved.shares.get(job, ()), name))
    return JobProblem(job, view.pools[job], able, previous, {name: workers[name].labels for name in able})


def _placed(
    view: ClusterView, strategy: Strategy, jobs: Sequence[str], placed: Mapping[str, Mapping[str, str]]
) -> tuple[Plan, dict[str, dict[str, list[str]]]]:
    """The strategy's plan, and job to ready worker to items.

    What a worker that is away would have is with others as long as it is.
    """
    placed = dict(placed)  # a strategy may keep what it is given
    problem = Problem(tuple(job_problem(view, job) for job in jobs), placed)
    plan = strategy.assign(problem)
    check_plan(problem, plan)
    shares = {job: plan.by_worker(job) for job in jobs}
    away = view.away.keys() - view.workers.keys()
    guests = {job: [item for name in sorted(away) for item in shares[job].pop(name, ())] for job in jobs}
    if not any(guests.values()):
        return plan, shares
    second = Problem(tuple(_guest_problem(view, job, items) for job, items in guests.items() if items), placed)
    for_now = strategy.assign(second)
    check_plan(second, for_now)
    for part in second.jobs:
        for name, items in for_now.by_worker(part.job).items():
            shares[part.job][name] = sorted([*shares[part.job].get(name, ()), *items])
    return plan, shares


def _guest_problem(view: ClusterView, job: str, items: Sequence[str]) -> JobProblem:
    """The problem of placing the items of absent workers on ready ones until the absent ones are back."""
    able = {name: worker.weight for name, worker in sorted(view.workers.items()) if job in worker.jobs}
    holders = holders_in(view, job, able)
    previous = {item: holders[item] for item in items if item in holders}
    return JobProblem(job, tuple(items), able, previous, {name: view.workers[name].labels for name in able})


def holders_in(view: ClusterView, job: str, able: Collection[str]) -> dict[str, str]:
    """Item to worker as stored; of two workers the able one counts, then the first by name."""
    shares = view.shares.get(job, {})
    found: dict[str, str] = {}
    for worker in sorted(shares, key=lambda name: (name not in able, name), reverse=True):  # the last one wins
        found.update(dict.fromkeys(shares[worker], worker))
    return found


def changes_to(view: ClusterView, whole: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterable[ShareChange]:
    """The changes that make the stored shares of some jobs exactly these, in no order."""
    for job, shares in whole.items():
        stored = view.shares.get(job, {})
        for worker in {*stored, *shares}:
            before, after = stored.get(worker, ()), tuple(shares.get(worker, ()))
            if before != after:
                yield ShareChange(worker, job, before, after)


def order_changes(changes: Sequence[ShareChange]) -> list[ShareChange]:
    """The changes as steps that never show an item with two workers: what shrinks before what grows.

    A share that does both is written twice, first without what it loses. Each of the two parts goes worker by worker,
    so that a worker has as few transactions to follow as can be.
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


def unplaced(view: ClusterView) -> dict[str, int]:
    """Jobs with items that no ready worker can run, with how many; sorted."""
    able = frozenset[str]().union(*(worker.jobs for worker in view.workers.values()))
    return {job: len(items) for job, items in sorted(view.pools.items()) if items and job not in able}
