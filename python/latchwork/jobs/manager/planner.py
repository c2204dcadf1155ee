"""Rebalances whose cost depends on what changed, not on the size of the cluster: each keeps what the last one decided.

The jobs of each strategy are one part, see ``placing``. Each part knows what the ledger has after each write; if a
write may have failed the parts are forgotten, and the next rebalance compares everything. The decisions are those of
``rebalance``, which decides itself while a node restarts; all parts begin anew after that. No network here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from latchwork.assignment import Strategy, traits_of
from latchwork.jobs.manager.placing import AskedPart, Outcome, Part, Placed, part_for
from latchwork.jobs.manager.rebalance import ClusterView, Rebalance, ShareChange, holders_in, rebalance, unplaced
from latchwork.jobs.manager.strategies import Strategies
from latchwork.user_code import call_user

log = logging.getLogger(__name__)


class Planner:
    """Decides one rebalance after another; the caller writes each before it asks for the next. One thread only."""

    def __init__(self, strategies: Strategies) -> None:
        self._strategies = strategies
        self._parts: Mapping[int, Part] = {}  # by the identity of the strategy
        self._jobs: frozenset[str] = frozenset()
        self._whole: Mapping[str, Mapping[str, tuple[str, ...]]] = {}

    def forget(self) -> None:
        """The last decision may not have been written: begin anew."""
        self._parts = {}

    def rebalance(self, view: ClusterView) -> Rebalance:
        """Decide who shall have what, and what must be written for it: as ``rebalance.rebalance``."""
        self._whole = {}
        if view.reserved:
            self.forget()
            return rebalance(view, self._strategies)
        round_ = _Round(view, self._parts, jobs_changed=self._jobs != view.pools.keys())
        for strategy, jobs in self._strategies.groups(view.pools):
            round_.place(strategy, jobs)
        self._parts, self._whole, self._jobs = round_.parts, round_.whole, frozenset(view.pools)
        no_more = [(job, workers) for job, workers in view.shares.items() if job not in view.pools]
        gone = [ShareChange(worker, job, items, ()) for job, workers in no_more for worker, items in workers.items()]
        changes = sorted([*round_.changes, *gone], key=lambda change: (change.job, change.worker))
        moves = sum(len(set(change.after).difference(change.before)) for change in changes)
        return Rebalance(tuple(changes), moves, round_.failed, unplaced(view), round_.deferred)

    def take_whole(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Take, once after each decision, the shares of jobs placed as a whole, made of the pools' strings."""
        whole, self._whole = self._whole, {}
        return whole


class _Round:
    """One rebalance: strategy by strategy, each seeing what those before it have placed."""

    def __init__(self, view: ClusterView, parts: Mapping[int, Part], *, jobs_changed: bool) -> None:
        self.parts: dict[int, Part] = {}
        self.changes: list[ShareChange] = []
        self.whole: dict[str, Mapping[str, tuple[str, ...]]] = {}
        self.failed: dict[str, Exception] = {}
        self.deferred = 0
        self._view = view
        self._before = parts
        self._moved = jobs_changed
        self._owners: dict[str, Callable[[str], Mapping[str, str]]] = {}

    def place(self, strategy: Strategy, jobs: Sequence[str]) -> None:
        """Place the jobs of one strategy; those that it fails on stay where they are."""
        view = ClusterView(self._view.workers, {job: self._view.pools[job] for job in jobs}, self._view.shares)
        try:
            outcome = call_user(self._ask, strategy, view)
        except Exception as error:
            self.failed.update(dict.fromkeys(jobs, error))
            outcome = Outcome(lambda job: holders_in(view, job, view.workers), moved=True)
        self.changes += outcome.changes
        self.whole.update(outcome.whole)
        self.deferred += outcome.deferred
        self._moved |= outcome.moved
        self._owners.update(dict.fromkeys(jobs, outcome.owners))

    def _ask(self, strategy: Strategy, view: ClusterView) -> Outcome:
        placed = self._placed if traits_of(strategy).looks_at_placed else dict[str, Mapping[str, str]]
        part = self._before.get(id(strategy)) or part_for(strategy)
        try:
            outcome = part.rebalance(view, placed, placed_moved=self._moved)
        except Exception:  # whatever Rust does not take, the strategy either takes or reports
            if isinstance(part, AskedPart):
                raise
            log.debug("what is kept cannot place these jobs, their strategy is asked", exc_info=True)
            return AskedPart(strategy).rebalance(view, placed, placed_moved=True)
        self.parts[id(strategy)] = part
        return outcome

    def _placed(self) -> Placed:
        """The items that the strategies so far have placed; a mapping of the caller's own."""
        return {job: owners(job) for job, owners in self._owners.items()}
