"""Plans from owners, for strategies of any origin: what moves, and whether the result is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
    ordered = {job: dict(sorted(owners.get(job, {}).items())) for job in sorted(_ids(problem) | owners.keys())}
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


def _all_moves(problem: Problem, owners: Mapping[str, Mapping[str, str]]) -> tuple[Move, ...]:
    moves = [move for job in problem.jobs for move in _moves(job, owners.get(job.job, {}))]
    moves.sort(key=lambda move: (move.job, move.item))
    return tuple(moves)


def _moves(job: JobProblem, owners: Mapping[str, str]) -> Iterator[Move]:
    source, target = job.previous.get, owners.get  # few of many items move
    for item in [item for item in job.items if source(item) != target(item)]:
        yield Move(job.job, item, source(item), target(item))
    if job.previous:
        for item in job.previous.keys() - set(job.items):
            yield Move(job.job, item, job.previous[item], None)


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
