"""The four strategies, from statistical balance to exact balance with the fewest moves, and a budget of moves.

    strategy            balance                                    previous owners
    Rendezvous          statistical                                ignored: any node can compute it alone
    EvenlyRendezvous    per job within 1 of the quota              ignored
    EvenlySpread        per job within 1 of the quota              kept: the fewest moves
    Balanced            the same, then least sum of squared loads  kept: the fewest moves of those

A worker's quota is items * weight / sum of weights. All four strategies are pure and thread-safe, and their results do
not depend on the order of jobs, items or workers.

A budget limits the moves of a strategy's plan that are made at once. A move counts only if the item leaves a worker
that could keep it and may be working on it. New items, and items of removed workers, are always placed.

The best n moves minimize the remaining work: the sum, over all jobs and workers, of the squares of the items that a
worker still has to give and of those that it still has to get. Ties are broken by the squares of what each worker has
to give and to get over all jobs together. Both are exact.
"""

from __future__ import annotations

from dataclasses import replace

from latchwork import _core
from latchwork._base.text import short
from latchwork.assignment.model import (
    Mode,
    Move,
    Plan,
    Problem,
    Strategy,
    Traits,
    check_count,
    get_traits,
    plan_from_owners,
)

MODES: tuple[Mode, ...] = ("fast", "compat")


class Budgeted:
    """A strategy that moves at most a given number of items per plan.

    Repeated plans reach the result of one plan without a budget, provided that the strategy makes no unnecessary moves,
    like `EvenlySpread` and `Balanced`.

    Args:
        strategy: Decides where the items are in the end.
        max_moves: Maximum number of items that leave a worker that could keep them.
    Raises:
        ValueError: max_moves is negative.
        TypeError: max_moves is not a whole number, or strategy is not a strategy.
    """

    def __init__(self, strategy: Strategy, max_moves: int) -> None:
        if not callable(getattr(strategy, "assign", None)):
            raise TypeError(f"strategy is {short(strategy)}; give an object that has assign(problem), as Balanced()")
        check_count("max_moves", max_moves, 0)
        self.strategy = strategy
        self.max_moves = max_moves

    @property
    def name(self) -> str:
        """The name of the underlying strategy."""
        return self.strategy.name

    @property
    def traits(self) -> Traits:
        """The properties that a planner may rely on: those of the underlying strategy, and that its board can postpone
        the same moves. If the underlying strategy is `Budgeted` itself, there is no board.
        """
        below = get_traits(self.strategy)
        board = below.board if below.max_moves is None else None
        return Traits(looks_at_placed=below.looks_at_placed, board=board, max_moves=self.max_moves)

    def __repr__(self) -> str:
        return f"Budgeted({self.strategy!r}, {self.max_moves})"

    def assign(self, problem: Problem) -> Plan:
        """Assign the items as the underlying strategy does, but postpone the moves beyond the limit."""
        return limit_moves(problem, self.strategy.assign(problem), self.max_moves)


def limit_moves(problem: Problem, plan: Plan, max_moves: int) -> Plan:
    """Limit the moves of a plan to the most useful ones.

    Args:
        problem: The problem that the plan answers.
        plan: A plan of any strategy; not checked.
        max_moves: Maximum number of items that leave a worker that could keep them; at least 0.
    Returns:
        The plan, if it has no more such moves. Otherwise a plan with the most useful ones and all others in `deferred`:
            it is complete and valid, but less even than the strategy's.
    """
    check_count("max_moves", max_moves, 0)
    able = {job.job: job.workers for job in problem.jobs}
    costly = [move for move in plan.moves if move.target is not None and move.source in able[move.job]]
    if len(costly) <= max_moves:
        return plan
    made = _core.choose_moves(_number_moves(costly), max_moves)
    deferred = tuple(move for move, make in zip(costly, made, strict=True) if not make)
    owners = {job: dict(shares) for job, shares in plan.owners.items()}
    for move in deferred:
        if move.source is not None:
            owners[move.job][move.item] = move.source
    return replace(plan_from_owners(problem, owners), deferred=deferred)


def _number_moves(moves: list[Move]) -> list[tuple[int, int, int]]:
    """Return each move as the numbers of its job, its source and its target, counted in name order.

    The choice of moves therefore does not depend on the order of the input.
    """
    jobs = {job: n for n, job in enumerate(sorted({move.job for move in moves}))}
    names = {move.source or "" for move in moves} | {move.target or "" for move in moves}
    workers = {worker: n for n, worker in enumerate(sorted(names))}
    return [(jobs[move.job], workers[move.source or ""], workers[move.target or ""]) for move in moves]


class _CoreStrategy:
    """Base class of the four strategies: Rust places the items, given the name of the strategy."""

    name: str
    _mode: Mode = "fast"

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def assign(self, problem: Problem) -> Plan:
        """Assign every item that any worker can run, by the method that the class describes."""
        jobs = [(job.job, job.items, dict(job.workers), dict(job.previous)) for job in problem.jobs]
        placed = _core.place(self.name, jobs, self._mode)
        return plan_from_owners(problem, {job.job: owners for job, owners in zip(problem.jobs, placed, strict=True)})


class _HashingStrategy(_CoreStrategy):
    """Base class of the two strategies that place items by hash scores."""

    def __init__(self, mode: Mode = "fast") -> None:
        if mode not in MODES:
            raise ValueError(f"unknown hashing mode {mode!r}; use 'fast' or 'compat'")
        self.mode = self._mode = mode

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mode={self.mode!r})"


class Rendezvous(_HashingStrategy):
    """Assigns every item to the worker with the highest score for the key `job:item`.

    Loads are balanced only statistically. A new worker takes only the items that it wins, and a removed one gives up
    only its own. O(items * workers).

    Args:
        mode: "fast", or "compat" for the scores of `mmh3.hash64`; see `RendezvousHasher`.
    Raises:
        ValueError: The mode is unknown.
    """

    name = "rendezvous"

    @property
    def traits(self) -> Traits:
        """The properties that a planner may rely on: a `RendezvousHasher` of the same mode gives the same owners."""
        return Traits(by_job=True, looks_at_placed=False, hashing=self.mode)


class EvenlyRendezvous(_HashingStrategy):
    """Assigns items in name order to the worker with the highest score that is not full.

    Balanced per job, and computable without the previous owners, but a change of the workers moves more items than
    necessary. O(items * workers).

    Args:
        mode: "fast" or "compat"; see `RendezvousHasher`.
    Raises:
        ValueError: The mode is unknown.
    """

    name = "evenly-rendezvous"
    traits = Traits(by_job=True, looks_at_placed=False)


class EvenlySpread(_CoreStrategy):
    """Balanced per job with the fewest possible moves. O(items + jobs * workers).

    Workers are balanced in each job. Over several jobs one worker may have more than another, which `Balanced` avoids.
    """

    name = "evenly-spread"
    traits = Traits(looks_at_placed=False, board=name)


class Balanced(_CoreStrategy):
    """Balanced per job, then the least sum of squared worker loads over all jobs, then the fewest moves: exactly.

    With weights, a worker's squared load counts inversely to its greatest weight in any job.

    Source:
        docs/design/assignment.md.
    """

    name = "balanced"
    traits = Traits(looks_at_placed=False, board=name)


_BY_NAME: dict[str, type[Rendezvous | EvenlyRendezvous | EvenlySpread | Balanced]] = {
    strategy.name: strategy for strategy in (Rendezvous, EvenlyRendezvous, EvenlySpread, Balanced)
}


def strategy_by_name(name: str) -> Strategy:
    """Create the strategy with this name, with its default settings.

    Args:
        name: "rendezvous", "evenly-rendezvous", "evenly-spread" or "balanced".
    Raises:
        ValueError: There is no such strategy; the message lists the known ones.
    """
    try:
        return _BY_NAME[name]()
    except KeyError:
        known = ", ".join(repr(known) for known in _BY_NAME)
        raise ValueError(f"unknown strategy {name!r}; use one of {known}") from None


def describe_strategy(strategy: Strategy) -> str:
    """Describe a strategy in one word, such as `rendezvous:compat` or `custom:mine`, which `parse_strategy` can
    decode.
    """
    kind = _BY_NAME.get(strategy.name)
    if kind is None or type(strategy) is not kind:
        return f"custom:{strategy.name}"
    mode = getattr(strategy, "mode", MODES[0])
    return strategy.name if mode == MODES[0] else f"{strategy.name}:{mode}"


def parse_strategy(word: str) -> Strategy | None:
    """Create the strategy that a word of `describe_strategy` stands for. Return None for a custom or unknown
    strategy.
    """
    name, _, mode = word.partition(":")
    kind = _BY_NAME.get(name)
    if kind in {Rendezvous, EvenlyRendezvous} and mode in MODES:
        return kind(mode)
    return None if kind is None or mode else kind()
