"""The four strategies: who gets which items, from statistical balance to exact balance with the fewest moves.

    strategy            balance                                    previous owners
    Rendezvous          statistical                                ignored: any node can compute it alone
    EvenlyRendezvous    per job within 1 of the quota              ignored
    EvenlySpread        per job within 1 of the quota              kept: the fewest moves
    Balanced            the same, then least sum of squared loads  kept: the fewest moves of those

A worker's quota is items * weight / sum of weights. All four are pure and safe to share between threads, and their
results do not depend on the order of jobs, items or workers.
"""

from __future__ import annotations

from latchwork import _core
from latchwork.assignment.model import Plan, Problem, Strategy
from latchwork.assignment.plan import plan_from_owners
from latchwork.assignment.traits import Mode, Traits

MODES: tuple[Mode, ...] = ("fast", "compat")


class Rendezvous:
    """Every item to the worker that scores highest for the key `job:item`.

    Loads are even only statistically. A worker that joins takes only what it wins, one that leaves gives up only what
    it had.

    Args:
        mode: "fast", or "compat" for the scores of `mmh3.hash64`; see `RendezvousHasher`.
    Raises:
        ValueError: unknown mode.
    """

    name = "rendezvous"

    def __init__(self, mode: Mode = "fast") -> None:
        self.mode = _checked_mode(mode)

    def __repr__(self) -> str:
        return f"Rendezvous(mode={self.mode!r})"

    @property
    def traits(self) -> Traits:
        """A `RendezvousHasher` of the same mode has the same owners."""
        return Traits(by_job=True, looks_at_placed=False, hashing=self.mode)

    def assign(self, problem: Problem) -> Plan:
        """Place every item by its key alone. O(items * workers)."""
        return _place(self.name, problem, self.mode)


class EvenlyRendezvous:
    """Items in name order take the highest-scoring worker that is not full.

    Even per job, and computable without the previous owners; but one worker more or less moves more items than it must.

    Args:
        mode: "fast" or "compat"; see `RendezvousHasher`.
    Raises:
        ValueError: unknown mode.
    """

    name = "evenly-rendezvous"
    traits = Traits(by_job=True, looks_at_placed=False)

    def __init__(self, mode: Mode = "fast") -> None:
        self.mode = _checked_mode(mode)

    def __repr__(self) -> str:
        return f"EvenlyRendezvous(mode={self.mode!r})"

    def assign(self, problem: Problem) -> Plan:
        """Place items by score as long as the worker has room. O(items * workers)."""
        return _place(self.name, problem, self.mode)


class EvenlySpread:
    """Even per job, with the fewest moves that allows.

    Workers are even in each job; over several jobs one worker may have more than another: `Balanced` mends that.
    """

    name = "evenly-spread"
    traits = Traits(looks_at_placed=False, board=name)

    def __repr__(self) -> str:
        return "EvenlySpread()"

    def assign(self, problem: Problem) -> Plan:
        """Place items so that each job is even and as many as possible stay. O(items + jobs * workers)."""
        return _place(self.name, problem)


class Balanced:
    """Even per job, then the least sum of squared worker loads over all jobs, then the fewest moves: exactly.

    With weights, a worker's squared load counts inversely to its weight, which is the largest it has in any job.

    Source:
        docs/design/0003-balanced-as-flow.md.
    """

    name = "balanced"
    traits = Traits(looks_at_placed=False, board=name)

    def __repr__(self) -> str:
        return "Balanced()"

    def assign(self, problem: Problem) -> Plan:
        """Place items so that jobs are even, then workers are, then as many as possible stay."""
        return _place(self.name, problem)


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


def _checked_mode(mode: Mode) -> Mode:
    if mode not in MODES:
        raise ValueError(f"unknown hashing mode {mode!r}; use 'fast' or 'compat'")
    return mode


def _place(strategy: str, problem: Problem, mode: Mode = "fast") -> Plan:
    jobs = [(job.job, job.items, dict(job.workers), dict(job.previous)) for job in problem.jobs]
    placed = _core.place(strategy, jobs, mode)
    return plan_from_owners(problem, {job.job: owners for job, owners in zip(problem.jobs, placed, strict=True)})
