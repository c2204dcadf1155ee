"""The four strategies, from statistical balance to exact balance with the fewest moves, and a budget of moves.

    strategy            balance                                    previous owners
    Rendezvous          statistical                                ignored: any node can compute it alone
    EvenlyRendezvous    per job within 1 of the quota              ignored
    EvenlySpread        per job within 1 of the quota              kept: the fewest moves
    Balanced            the same, then least sum of squared loads  kept: the fewest moves of those

A worker's quota is items * weight / sum of weights. All four are pure and thread-safe, and their results do not depend
on the order of jobs, items or workers.

A movement budget makes a few moves of a strategy's plan at a time. A move costs only if the item leaves a worker that
could keep it, and may be at work on it. Items that are new, or whose worker is gone, are always placed.

The best n moves are those of the strategy's plan after which the least is left to do: the sum, over all jobs and
workers, of the squares of the items that a worker has still to give and of those it has still to get is least; of such
choices, the one after which the squares of what each worker has to give and to get over all jobs together are least.
Both exactly.
"""

from __future__ import annotations

from dataclasses import replace

from latchwork import _core
from latchwork.assignment.model import (
    Mode,
    Move,
    Plan,
    Problem,
    Strategy,
    Traits,
    check_count,
    plan_from_owners,
    traits_of,
)
from latchwork.words import short

MODES: tuple[Mode, ...] = ("fast", "compat")


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


class _Placing:
    """The base of the four: Rust places the items, by the name of the strategy."""

    name: str
    _mode: Mode = "fast"

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def assign(self, problem: Problem) -> Plan:
        """Place every item that some worker can run, as the class says."""
        jobs = [(job.job, job.items, dict(job.workers), dict(job.previous)) for job in problem.jobs]
        placed = _core.place(self.name, jobs, self._mode)
        return plan_from_owners(problem, {job.job: owners for job, owners in zip(problem.jobs, placed, strict=True)})


class _Hashing(_Placing):
    """The base of the two that place items by hashed scores."""

    def __init__(self, mode: Mode = "fast") -> None:
        if mode not in MODES:
            raise ValueError(f"unknown hashing mode {mode!r}; use 'fast' or 'compat'")
        self.mode = self._mode = mode

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mode={self.mode!r})"


class Rendezvous(_Hashing):
    """Every item to the worker that scores highest for the key `job:item`.

    Loads are even only statistically. A worker that joins takes only what it wins, one that leaves gives up only what
    it had. O(items * workers).

    Args:
        mode: "fast", or "compat" for the scores of `mmh3.hash64`; see `RendezvousHasher`.
    Raises:
        ValueError: unknown mode.
    """

    name = "rendezvous"

    @property
    def traits(self) -> Traits:
        """A `RendezvousHasher` of the same mode has the same owners."""
        return Traits(by_job=True, looks_at_placed=False, hashing=self.mode)


class EvenlyRendezvous(_Hashing):
    """Items in name order take the highest-scoring worker that is not full.

    Even per job, and computable without the previous owners; but one worker more or less moves more items than it must.
    O(items * workers).

    Args:
        mode: "fast" or "compat"; see `RendezvousHasher`.
    Raises:
        ValueError: unknown mode.
    """

    name = "evenly-rendezvous"
    traits = Traits(by_job=True, looks_at_placed=False)


class EvenlySpread(_Placing):
    """Even per job, with the fewest moves that allows. O(items + jobs * workers).

    Workers are even in each job; over several jobs one worker may have more than another: `Balanced` mends that.
    """

    name = "evenly-spread"
    traits = Traits(looks_at_placed=False, board=name)


class Balanced(_Placing):
    """Even per job, then the least sum of squared worker loads over all jobs, then the fewest moves: exactly.

    With weights, a worker's squared load counts inversely to its weight, which is the largest it has in any job.

    Source:
        docs/design/assignment.md.
    """

    name = "balanced"
    traits = Traits(looks_at_placed=False, board=name)


_BY_NAME: dict[str, type[Rendezvous | EvenlyRendezvous | EvenlySpread | Balanced]] = {
    strategy.name: strategy for strategy in (Rendezvous, EvenlyRendezvous, EvenlySpread, Balanced)
}


def strategy_by_name(name: str) -> Strategy:
    """Return a strategy with its default settings.

    Args:
        name: "rendezvous", "evenly-rendezvous", "evenly-spread" or "balanced".
    Raises:
        ValueError: no such strategy; the message lists the known ones.
    """
    try:
        return _BY_NAME[name]()
    except KeyError:
        known = ", ".join(repr(known) for known in _BY_NAME)
        raise ValueError(f"unknown strategy {name!r}; use one of {known}") from None


def describe_strategy(strategy: Strategy) -> str:
    """A strategy in one word, from which `described_strategy` makes it again: `rendezvous:compat`, `custom:mine`."""
    kind = _BY_NAME.get(strategy.name)
    if kind is None or type(strategy) is not kind:
        return f"custom:{strategy.name}"
    mode = getattr(strategy, "mode", MODES[0])
    return strategy.name if mode == MODES[0] else f"{strategy.name}:{mode}"


def described_strategy(word: str) -> Strategy | None:
    """The strategy that a word describes; None when it is a custom one, or none that this version knows."""
    name, _, mode = word.partition(":")
    kind = _BY_NAME.get(name)
    if kind in {Rendezvous, EvenlyRendezvous} and mode in MODES:
        return kind(mode)
    return None if kind is None or mode else kind()
