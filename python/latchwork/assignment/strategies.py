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
from latchwork.assignment.model import Mode, Plan, Problem, Strategy, Traits
from latchwork.assignment.plan import plan_from_owners

MODES: tuple[Mode, ...] = ("fast", "compat")


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
        docs/design/0003-balanced-as-flow.md.
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
