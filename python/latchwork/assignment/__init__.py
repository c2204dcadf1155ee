"""Which worker runs which work item: strategies over jobs, items and workers. No I/O at all."""

from latchwork._core import Assignment, Board, Delta, ItemSet, Moves, RendezvousHasher
from latchwork.assignment.model import JobProblem, Move, Plan, Problem, Strategy
from latchwork.assignment.plan import check_plan, plan_from_owners
from latchwork.assignment.strategies import (
    Balanced,
    EvenlyRendezvous,
    EvenlySpread,
    Rendezvous,
    strategy_by_name,
)

__all__ = [
    "Assignment",
    "Balanced",
    "Board",
    "Delta",
    "EvenlyRendezvous",
    "EvenlySpread",
    "ItemSet",
    "JobProblem",
    "Move",
    "Moves",
    "Plan",
    "Problem",
    "Rendezvous",
    "RendezvousHasher",
    "Strategy",
    "check_plan",
    "plan_from_owners",
    "strategy_by_name",
]
