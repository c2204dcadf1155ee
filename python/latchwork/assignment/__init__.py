"""Strategies that assign work items to workers. No I/O."""

from latchwork._core import Assignment, Board, Delta, ItemSet, Moves, RendezvousHasher
from latchwork.assignment.explain import Explanation, Reason, explain, explain_replicas
from latchwork.assignment.model import (
    JobProblem,
    Move,
    Plan,
    Problem,
    Strategy,
    Traits,
    check_plan,
    get_traits,
    plan_from_owners,
)
from latchwork.assignment.replicas import ReplicaPlan, ReplicaProblem, place_replicas
from latchwork.assignment.strategies import (
    Balanced,
    Budgeted,
    EvenlyRendezvous,
    EvenlySpread,
    Rendezvous,
    describe_strategy,
    limit_moves,
    parse_strategy,
    strategy_by_name,
)

__all__ = [
    "Assignment",
    "Balanced",
    "Board",
    "Budgeted",
    "Delta",
    "EvenlyRendezvous",
    "EvenlySpread",
    "Explanation",
    "ItemSet",
    "JobProblem",
    "Move",
    "Moves",
    "Plan",
    "Problem",
    "Reason",
    "Rendezvous",
    "RendezvousHasher",
    "ReplicaPlan",
    "ReplicaProblem",
    "Strategy",
    "Traits",
    "check_plan",
    "describe_strategy",
    "explain",
    "explain_replicas",
    "get_traits",
    "limit_moves",
    "parse_strategy",
    "place_replicas",
    "plan_from_owners",
    "strategy_by_name",
]
