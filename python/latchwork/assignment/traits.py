"""What a strategy says of itself, for a planner that goes on from its last plan instead of making a whole one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from latchwork.assignment.model import Strategy

Mode = Literal["fast", "compat"]


@dataclass(frozen=True, slots=True)
class Traits:
    """What a planner may rely on. The defaults rely on nothing: they hold for every strategy.

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
