"""Rebalances that cost what changed, not what there is: the placement is kept in Rust from one to the next.

A board has the same jobs, workers and owners as the ledger after each write. Each rebalance tells it what changed
since, and takes from it which items move. What it decides is what ``rebalance`` decides; where it cannot (a strategy
that keeps nothing, several strategies, restarts under way), ``rebalance`` is asked, and the board begins anew. No
network here.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Mapping

from latchwork.assignment import Balanced, Board, EvenlySpread
from latchwork.jobs.rebalance import (
    ClusterView,
    Rebalance,
    ShareChange,
    Strategies,
    WorkerView,
    holders_in,
    rebalance,
    unplaced,
)

log = logging.getLogger(__name__)

_Share = tuple[str, str]  # job and worker


class Planner:
    """Decides one rebalance after the other, for one who writes each before the next. One thread only."""

    def __init__(self, strategies: Strategies) -> None:
        self._strategies = strategies
        self._placement: _Placement | None = None

    def forget(self) -> None:
        """What was decided may not have been written: begin anew."""
        self._placement = None

    def rebalance(self, view: ClusterView) -> Rebalance:
        """Decide who shall have what, and what must be written for it: as ``rebalance.rebalance``."""
        name = None if view.reserved else self._board_strategy(view)
        if name is None:
            self.forget()
            return rebalance(view, self._strategies)
        if self._placement is None or self._placement.strategy != name:
            self._placement = _Placement(name)
        try:
            return self._placement.rebalance(view)
        except Exception:  # whatever the board does not take, the other way either takes or reports for its job
            log.debug("the board cannot place this cluster, it is placed anew", exc_info=True)
            self.forget()
            return rebalance(view, self._strategies)

    def take_whole(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Once after each decision: the shares of the jobs that were placed as a whole, made of the pools' strings."""
        if self._placement is None:
            return {}
        whole, self._placement.whole = self._placement.whole, {}
        return whole

    def _board_strategy(self, view: ClusterView) -> str | None:
        """The strategy of all jobs if there is one and a board knows it."""
        groups = self._strategies.groups(view.pools)
        if len(groups) == 1 and type(groups[0][0]) in {Balanced, EvenlySpread}:
            return groups[0][0].name
        return None


class _Placement:
    """A board, and what it was told of."""

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy
        self.whole: dict[str, dict[str, tuple[str, ...]]] = {}
        self._board = Board(strategy)
        self._workers: dict[str, WorkerView] = {}
        self._pools: dict[str, tuple[str, ...]] = {}

    def rebalance(self, view: ClusterView) -> Rebalance:
        touched = _Touched()
        self._take_workers(view.workers)
        fresh = self._take_pools(view, touched)
        placed = self._board.place()
        for job in placed.jobs:
            if job not in fresh:  # those are compared as a whole, and all their items move: a million, perhaps
                for _, item, source, target in placed.of(job):
                    touched.move(job, _same(self._pools[job], item), source, target)
        self.whole = {job: self._board.shares(job, view.pools[job]) for job in sorted(fresh)}
        changes = [*touched.changes(view), *self._whole_changes(view)]
        changes.sort(key=lambda change: (change.job, change.worker))
        moves = sum(len(set(change.after).difference(change.before)) for change in changes)
        return Rebalance(tuple(changes), moves, unplaced=unplaced(view))

    def _take_workers(self, workers: Mapping[str, WorkerView]) -> None:
        for name in self._workers.keys() - workers.keys():
            self._board.leave(name)
        for name, worker in workers.items():
            known = self._workers.get(name)
            if known is not None and known.jobs != worker.jobs:
                self._board.leave(name)  # and back at once: it keeps what it can still run
                known = None
            if known is None:
                self._board.join(name, worker.weight, worker.jobs)
            elif known.weight != worker.weight:
                self._board.reweigh(name, worker.weight)
        self._workers = dict(workers)

    def _take_pools(self, view: ClusterView, touched: _Touched) -> set[str]:
        """Tell the board of what changed in the pools; the jobs that are new to it."""
        for job in self._pools.keys() - view.pools.keys():
            self._board.remove_job(job)
            touched.jobs_gone.append(job)
        fresh = view.pools.keys() - self._pools.keys()
        for job in sorted(fresh):
            able = {name: worker.weight for name, worker in view.workers.items() if job in worker.jobs}
            self._board.add_job(job, view.pools[job], holders_in(view, job, able))
        for job, items in view.pools.items():
            if job not in fresh and items is not self._pools[job]:
                self._take_items(job, set(self._pools[job]), set(items), touched)
        touched.jobs_gone += [job for job in view.shares if job not in view.pools and job not in self._pools]
        self._pools = dict(view.pools)
        return set(fresh)

    def _take_items(self, job: str, before: set[str], after: set[str], touched: _Touched) -> None:
        gone = before - after
        for item in gone:
            touched.move(job, item, self._board.owner(job, item), None)
        if gone:
            self._board.remove_items(job, gone)
        if after - before:
            self._board.add_items(job, after - before)

    def _whole_changes(self, view: ClusterView) -> Iterable[ShareChange]:
        for job, shares in self.whole.items():
            stored = view.shares.get(job, {})
            for worker in {*stored, *shares}:
                before, after = stored.get(worker, ()), shares.get(worker, ())
                if before != after:
                    yield ShareChange(worker, job, before, after)


class _Touched:
    """Shares of jobs known before, and what they lose and gain."""

    def __init__(self) -> None:
        self.jobs_gone: list[str] = []
        self._lost: dict[_Share, set[str]] = {}
        self._gained: dict[_Share, set[str]] = {}

    def move(self, job: str, item: str, source: str | None, target: str | None) -> None:
        """An item changes hands; None is nobody."""
        if source is not None:
            self._lost.setdefault((job, source), set()).add(item)
        if target is not None:
            self._gained.setdefault((job, target), set()).add(item)

    def changes(self, view: ClusterView) -> Iterable[ShareChange]:
        """What that makes of the shares as they are stored."""
        for job, worker in self._lost.keys() | self._gained.keys():
            before = view.shares.get(job, {}).get(worker, ())
            kept = set(before).difference(self._lost.get((job, worker), ()))
            after = tuple(sorted(kept.union(self._gained.get((job, worker), ()))))
            if before != after:
                yield ShareChange(worker, job, before, after)
        for job in self.jobs_gone:
            for worker, items in view.shares.get(job, {}).items():
                yield ShareChange(worker, job, items, ())


def _same(items: tuple[str, ...], item: str) -> str:
    """The very string of a sorted tuple that equals this one: so that no text is kept twice."""
    at = bisect_left(items, item)
    return items[at] if at < len(items) and items[at] == item else item
