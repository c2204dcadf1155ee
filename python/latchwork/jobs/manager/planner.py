"""Rebalances whose cost depends on what changed, not on the size of the cluster: each keeps the last decision.

The jobs of each strategy are one part. There are three kinds, and the strategy's traits choose. A ``Board`` and an
``Assignment`` keep the placement in Rust and learn only what changed; any other strategy is called itself, unless
nothing changed that it could see. Each decides what ``rebalance`` decides.

Each part knows what the ledger has after each write; if a write may have failed the parts are forgotten, and the next
rebalance compares everything. ``rebalance`` decides itself while a node restarts; all parts start from the beginning
after that. No network here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from latchwork.assignment import (
    Assignment,
    Board,
    ItemSet,
    Plan,
    Problem,
    RendezvousHasher,
    Strategy,
    check_plan,
    traits_of,
)
from latchwork.jobs.manager.rebalance import (
    ClusterView,
    Rebalance,
    ShareChange,
    WorkerView,
    changes_to,
    holders_in,
    job_problem,
    rebalance,
    unplaced,
)
from latchwork.jobs.manager.strategies import Strategies
from latchwork.jobs.stored.followers import reuse_text
from latchwork.user_code import call_user

log = logging.getLogger(__name__)

_Share = tuple[str, str]  # job and worker
#: The workers that can run a job, with weight and labels.
_Able = dict[str, tuple[float, Mapping[str, str]]]
#: The input of a strategy for each job, without the previous owners: the pool, and the workers.
_Seen = dict[str, tuple[tuple[str, ...], _Able]]
#: Job to item to worker.
Placed = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """The outcome of one round.

    Attributes:
        owners: gives item to worker of one job, as of now; until the next round.
        changes: what to write, in no order.
        moved: whether a job came or went, or an item got another worker or none.
        deferred: how many more items shall move, which a budget holds back.
        whole: the shares of jobs that were placed as a whole, made of the pools' strings.
    """

    owners: Callable[[str], Mapping[str, str]]
    changes: tuple[ShareChange, ...] = ()
    moved: bool = False
    deferred: int = 0
    whole: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)


class StrategyPart(Protocol):
    """The jobs of one strategy. One thread only."""

    def rebalance(self, view: ClusterView, placed: Callable[[], Placed], *, placed_moved: bool) -> PartOutcome:
        """Decide.

        Args:
            view: the cluster, with the pools of these jobs only; the shares are those that the last round left.
            placed: gives what the strategies before this one have placed.
            placed_moved: whether that is not what it was in the last round.
        Raises:
            Exception: whatever the strategy raises; this part cannot be used any more.
        """
        ...


def make_part(strategy: Strategy) -> StrategyPart:
    """The kind of part that places the jobs of this strategy."""
    traits = traits_of(strategy)
    if traits.board is not None:
        return BoardPart(traits.board, traits.max_moves)
    return CustomPart(strategy) if traits.hashing is None else HashingPart(traits.hashing)


class BoardPart:
    """The jobs of a ``Board``, with the workers and the pools that it knows."""

    def __init__(self, strategy: str, max_moves: int | None = None) -> None:
        self._board = Board(strategy)
        self._max_moves = max_moves
        self._workers: dict[str, WorkerView] = {}
        self._pools: dict[str, tuple[str, ...]] = {}

    def rebalance(self, view: ClusterView, placed: Callable[[], Placed], *, placed_moved: bool) -> PartOutcome:  # noqa: ARG002 - a board does not look at it
        """Tell the board what changed, and take what moves."""
        touched = ShareMoves()
        gone = self._pools.keys() - view.pools.keys()
        self._take_workers(view.workers)
        fresh = self._take_pools(view, touched)
        moves = self._board.place(self._max_moves)
        for job in moves.jobs:
            if job not in fresh:  # those are compared as a whole, and all their items move: a million, perhaps
                for _, item, source, target in moves.of(job):
                    touched.move(job, reuse_text(self._pools[job], item), source, target)
        whole = {job: self._board.shares(job, view.pools[job]) for job in sorted(fresh)}
        changes = (*touched.changes(view), *changes_to(view, whole))
        return PartOutcome(self._board.owners, changes, bool(gone or fresh or touched), moves.deferred, whole)

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

    def _take_pools(self, view: ClusterView, touched: ShareMoves) -> set[str]:
        """Tell the board what changed in the pools; return the jobs that are new to it."""
        for job in self._pools.keys() - view.pools.keys():
            self._board.remove_job(job)
        fresh = view.pools.keys() - self._pools.keys()
        for job in sorted(fresh):
            able = {name: worker.weight for name, worker in view.workers.items() if job in worker.jobs}
            self._board.add_job(job, view.pools[job], holders_in(view, job, able))
        for job, items in view.pools.items():
            if job not in fresh and items is not self._pools[job]:
                self._take_items(job, set(self._pools[job]), set(items), touched)
        self._pools = dict(view.pools)
        return set(fresh)

    def _take_items(self, job: str, before: set[str], after: set[str], touched: ShareMoves) -> None:
        gone = before - after
        for item in gone:
            touched.move(job, item, self._board.owner(job, item), None)
        if gone:
            self._board.remove_items(job, gone)
        if after - before:
            self._board.add_items(job, after - before)


class HashingPart:
    """An ``Assignment`` for each job, which looks only at the items that a change can move."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._jobs: dict[str, _HashedJob] = {}

    def rebalance(self, view: ClusterView, placed: Callable[[], Placed], *, placed_moved: bool) -> PartOutcome:  # noqa: ARG002 - hashing does not look at it
        """Tell the assignments what changed, and take what moves."""
        touched, whole, before = ShareMoves(), dict[str, Mapping[str, tuple[str, ...]]](), self._jobs
        self._jobs = {}
        for job, items in view.pools.items():
            able = {name: worker.weight for name, worker in view.workers.items() if job in worker.jobs}
            known = before.get(job)
            if known is None or known.owners is None or not able:
                known = _HashedJob(items, able, self._hash(job, items, able))
                whole[job] = known.shares()
            else:
                _follow(job, known, items, able, touched)
            self._jobs[job] = known
        changes = (*touched.changes(view), *changes_to(view, whole))
        moved = bool(touched or changes or before.keys() != self._jobs.keys())
        return PartOutcome(lambda job: self._jobs[job].by_item(), changes, moved, 0, whole)

    def _hash(self, job: str, items: tuple[str, ...], able: Mapping[str, float]) -> Assignment | None:
        if not able:
            return None
        return RendezvousHasher(able, list(able.values()), self._mode).assign(ItemSet(items, f"{job}:"))


@dataclass(slots=True)
class _HashedJob:
    """One job as its assignment knows it; without an assignment when nobody is able to run it."""

    items: tuple[str, ...]
    able: Mapping[str, float]
    owners: Assignment | None

    def shares(self) -> dict[str, tuple[str, ...]]:
        shares = {} if self.owners is None else self.owners.by_worker()
        return {worker: tuple(sorted(items)) for worker, items in shares.items() if items}

    def by_item(self) -> dict[str, str]:
        return {} if self.owners is None else self.owners.to_dict()


def _follow(
    job: str, known: _HashedJob, items: tuple[str, ...], able: Mapping[str, float], touched: ShareMoves
) -> None:
    """Bring an assignment up to date. An item may move several times; its first source and its last target count."""
    owners, before = known.owners, known.able
    assert owners is not None
    old, new = (set(known.items), set(items)) if items is not known.items else (set[str](), set[str]())
    steps = [owners.remove_items(old - new)] if old - new else []
    steps += [owners.join(name, able[name]) for name in sorted(able.keys() - before.keys())]
    steps += [owners.leave(name) for name in sorted(before.keys() - able.keys())]  # after joins: the last one cannot go
    steps += [owners.reweigh(name, able[name]) for name in before if able.get(name, before[name]) != before[name]]
    steps += [owners.add_items(new - old)] if new - old else []
    moves: dict[str, tuple[str | None, str | None]] = {}
    for item, source, target in chain.from_iterable(steps):
        moves[item] = (moves[item][0] if item in moves else source, target)
    for item, (source, target) in moves.items():
        if source != target:
            touched.move(job, item, source, target)
    known.items, known.able = items, able


class CustomPart:
    """A strategy that is asked again when something changed that it can see; its last input is kept.

    Nothing else is kept: the previous owners are in the shares. A strategy that places each job by itself, whoever had
    its items, is asked about changed jobs only.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._by_job = traits_of(strategy).by_job
        self._seen: _Seen = {}
        self._settled = False  # it did not want anything else the last time

    def rebalance(self, view: ClusterView, placed: Callable[[], Placed], *, placed_moved: bool) -> PartOutcome:
        """Ask, unless the strategy would see what it saw the last time, and had nothing to move then."""
        seen, before = {job: (items, _able(view, job)) for job, items in view.pools.items()}, self._seen
        asked = [job for job in seen if not _is_same(seen[job], before.get(job))]
        if not self._by_job and (asked or seen.keys() != before.keys() or placed_moved or not self._settled):
            asked = list(seen)
        problem = Problem(tuple(job_problem(view, job) for job in asked), placed() if asked else {})
        plan = self._strategy.assign(problem) if asked else Plan({}, ())
        if not self._by_job:
            check_plan(problem, plan)
        touched, fresh = ShareMoves(), seen.keys() - before.keys()
        for move in plan.moves:
            if move.job not in fresh:
                touched.move(move.job, move.item, move.source, move.target)
        whole = {job: _shares(view.pools[job], plan.owners[job]) for job in sorted(fresh)}
        changes = (*touched.changes(view), *changes_to(view, whole))
        self._seen, self._settled = seen, not plan.moves and not plan.deferred
        moved = bool(touched) or seen.keys() != before.keys()

        def owners(job: str) -> Mapping[str, str]:
            return plan.owners[job] if job in plan.owners else holders_in(view, job, view.workers)

        return PartOutcome(owners, changes, moved, len(plan.deferred), whole)


class ShareMoves:
    """Shares of jobs known before, and what they lose and gain."""

    def __init__(self) -> None:
        self._lost: dict[_Share, set[str]] = {}
        self._gained: dict[_Share, set[str]] = {}

    def move(self, job: str, item: str, source: str | None, target: str | None) -> None:
        """An item changes hands; None is nobody."""
        if source is not None:
            self._lost.setdefault((job, source), set()).add(item)
        if target is not None:
            self._gained.setdefault((job, target), set()).add(item)

    def changes(self, view: ClusterView) -> Iterable[ShareChange]:
        """The changes that these moves make to the stored shares."""
        for job, worker in self._lost.keys() | self._gained.keys():
            before = view.shares.get(job, {}).get(worker, ())
            kept = set(before).difference(self._lost.get((job, worker), ()))
            after = tuple(sorted(kept.union(self._gained.get((job, worker), ()))))
            if before != after:
                yield ShareChange(worker, job, before, after)

    def __bool__(self) -> bool:
        return bool(self._lost or self._gained)


def _is_same(now: tuple[tuple[str, ...], _Able], before: tuple[tuple[str, ...], _Able] | None) -> bool:
    return before is not None and now[0] is before[0] and now[1] == before[1]


def _able(view: ClusterView, job: str) -> _Able:
    return {name: (worker.weight, worker.labels) for name, worker in view.workers.items() if job in worker.jobs}


def _shares(items: tuple[str, ...], owners: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Worker to sorted items, made of the very strings given."""
    found: dict[str, list[str]] = {}
    for item in items:
        if item in owners:
            found.setdefault(owners[item], []).append(item)
    return {worker: tuple(sorted(share)) for worker, share in found.items()}


class Planner:
    """Decides one rebalance after another; the caller writes each before it asks for the next. One thread only."""

    def __init__(self, strategies: Strategies) -> None:
        self._strategies = strategies
        self._parts: Mapping[int, StrategyPart] = {}  # by the identity of the strategy
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

    def __init__(self, view: ClusterView, parts: Mapping[int, StrategyPart], *, jobs_changed: bool) -> None:
        self.parts: dict[int, StrategyPart] = {}
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
            outcome = PartOutcome(lambda job: holders_in(view, job, view.workers), moved=True)
        self.changes += outcome.changes
        self.whole.update(outcome.whole)
        self.deferred += outcome.deferred
        self._moved |= outcome.moved
        self._owners.update(dict.fromkeys(jobs, outcome.owners))

    def _ask(self, strategy: Strategy, view: ClusterView) -> PartOutcome:
        placed = self._placed if traits_of(strategy).looks_at_placed else dict[str, Mapping[str, str]]
        part = self._before.get(id(strategy)) or make_part(strategy)
        try:
            outcome = part.rebalance(view, placed, placed_moved=self._moved)
        except Exception:  # whatever Rust does not take, the strategy either takes or reports
            if isinstance(part, CustomPart):
                raise
            log.debug("what is kept cannot place these jobs, their strategy is asked", exc_info=True)
            return CustomPart(strategy).rebalance(view, placed, placed_moved=True)
        self.parts[id(strategy)] = part
        return outcome

    def _placed(self) -> Placed:
        """The items that the strategies so far have placed; a mapping of the caller's own."""
        return {job: owners(job) for job, owners in self._owners.items()}
