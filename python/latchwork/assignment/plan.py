"""Plans from owners, for strategies of any origin: what moves, and whether the result is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from latchwork.assignment.model import JobProblem, Move, Plan, Problem


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
