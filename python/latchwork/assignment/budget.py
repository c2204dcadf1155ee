"""A movement budget: a strategy's plan, a few moves at a time.

A move costs only if the item leaves a worker that could keep it, and may be at work on it. Items that are new, or whose
worker is gone, are always placed.

The best n moves are those of the strategy's plan after which the least is left to do: the sum, over all jobs and
workers, of the squares of the items that a worker has still to give and of those it has still to get is least; of such
choices, the one after which the squares of what each worker has to give and to get over all jobs together are least.
Both exactly.
"""

from __future__ import annotations

from dataclasses import replace

from latchwork import _core
from latchwork.assignment.model import Move, Plan, Problem, Strategy, Traits, check_count, traits_of
from latchwork.assignment.plan import plan_from_owners
from latchwork.records import short


class Budgeted:
    """A strategy that moves at most so many items per plan.

    Plans that are followed one after the other come to where one plan without a budget would be, provided that the
    strategy moves no more than it must, as `EvenlySpread` and `Balanced` do.

    Args:
        strategy: decides where the items shall be in the end.
        max_moves: how many items at most leave a worker that could keep them.
    Raises:
        ValueError: max_moves is negative.
        TypeError: max_moves is no whole number, or strategy is none.
    """

    def __init__(self, strategy: Strategy, max_moves: int) -> None:
        if not callable(getattr(strategy, "assign", None)):
            raise TypeError(f"strategy is {short(strategy)}; give an object that has assign(problem), as Balanced()")
        check_count("max_moves", max_moves, 0)
        self.strategy = strategy
        self.max_moves = max_moves

    @property
    def name(self) -> str:
        """The name of the strategy below."""
        return self.strategy.name

    @property
    def traits(self) -> Traits:
        """A board of the strategy below can hold back the same moves; a board of another budget cannot."""
        below = traits_of(self.strategy)
        board = below.board if below.max_moves is None else None
        return Traits(looks_at_placed=below.looks_at_placed, board=board, max_moves=self.max_moves)

    def __repr__(self) -> str:
        return f"Budgeted({self.strategy!r}, {self.max_moves})"

    def assign(self, problem: Problem) -> Plan:
        """Place the items as the strategy does, and hold back what is beyond the budget."""
        return limit_moves(problem, self.strategy.assign(problem), self.max_moves)


def limit_moves(problem: Problem, plan: Plan, max_moves: int) -> Plan:
    """Make at most so many moves of a plan, the best ones.

    Args:
        problem: what the plan answers.
        plan: from any strategy; not checked.
        max_moves: how many items at most leave a worker that could keep them; at least 0.
    Returns:
        The plan, if it has no more such moves. Else one with the best of them and all others in `deferred`: it is total
        and allowed, but not as even as the strategy wants.
    """
    check_count("max_moves", max_moves, 0)
    able = {job.job: job.workers for job in problem.jobs}
    costly = [move for move in plan.moves if move.target is not None and move.source in able[move.job]]
    if len(costly) <= max_moves:
        return plan
    made = _core.choose_moves(_numbered(costly), max_moves)
    deferred = tuple(move for move, make in zip(costly, made, strict=True) if not make)
    owners = {job: dict(shares) for job, shares in plan.owners.items()}
    for move in deferred:
        if move.source is not None:
            owners[move.job][move.item] = move.source
    return replace(plan_from_owners(problem, owners), deferred=deferred)


def _numbered(moves: list[Move]) -> list[tuple[int, int, int]]:
    """Jobs and workers by number, in name order, so that the choice does not depend on the order of the input."""
    jobs = {job: n for n, job in enumerate(sorted({move.job for move in moves}))}
    names = {move.source or "" for move in moves} | {move.target or "" for move in moves}
    workers = {worker: n for n, worker in enumerate(sorted(names))}
    return [(jobs[move.job], workers[move.source or ""], workers[move.target or ""]) for move in moves]
