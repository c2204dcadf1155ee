"""Incremental rebalances: the cost depends on the number of changes, not on the size of the cluster.

The jobs of each strategy have one planner, which keeps the last decision. There are three kinds of planners, chosen by
the strategy's traits. A ``Board`` and an ``Assignment`` keep the placement in Rust and receive only changes. Any other
strategy is called itself, unless nothing that it can see has changed. Each planner decides what ``rebalance`` decides.

Each planner knows which assignments are stored after each write. If a write may have failed, the planners are dropped,
and the next rebalance compares everything. While a node is restarting, ``rebalance`` itself decides, and all planners
start again afterwards. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from latchwork._base.user_code import call_user
from latchwork.assignment import (
    Assignment,
    Board,
    ItemSet,
    Plan,
    Problem,
    RendezvousHasher,
    Strategy,
    check_plan,
    get_traits,
)
from latchwork.jobs.manager.rebalance import (
    AssignmentChange,
    ClusterView,
    Rebalance,
    WorkerView,
    count_unplaced,
    create_job_problem,
    diff_assignments,
    find_stored_owners,
    rebalance,
)
from latchwork.jobs.manager.strategies import Strategies
from latchwork.jobs.stored.caches import reuse_string

log = logging.getLogger(__name__)

_WorkerJob = tuple[str, str]  # job and worker
#: Workers that can run a job, with weight and labels.
_AbleWorkers = dict[str, tuple[float, Mapping[str, str]]]
#: A strategy's input for each job, without the previous owners: the pool and the workers.
_StrategyInput = dict[str, tuple[tuple[str, ...], _AbleWorkers]]
#: Workers by job and item.
Placed = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class PlacementOutcome:
    """The result of one rebalance for the jobs of one strategy.

    Attributes:
        owners: Returns the worker of each item of a job; valid until the next rebalance.
        changes: Changed assignments to write, in no particular order.
        moved: Whether a job was added or removed, or an item changed its worker.
        deferred: Number of moves that a move limit postpones.
        first_assignments: Items by job and worker, for jobs that were assigned for the first time. They use the string
            objects of the work pools.
    """

    owners: Callable[[str], Mapping[str, str]]
    changes: tuple[AssignmentChange, ...] = ()
    moved: bool = False
    deferred: int = 0
    first_assignments: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)


class StrategyPlanner(Protocol):
    """Assigns the items of the jobs of one strategy to workers. Not thread-safe."""

    def rebalance(self, view: ClusterView, placed: Callable[[], Placed], *, placed_changed: bool) -> PlacementOutcome:
        """Assign the items of these jobs to workers, and return the changes.

        Args:
            view: The cluster, with the pools of these jobs only; the assignments are those after the last rebalance.
            placed: Returns the items that earlier strategies have assigned in this rebalance: their workers by job and
                item.
            placed_changed: Whether the result of ``placed`` has changed since the last rebalance.
        Returns:
            The changed assignments, and a function that returns the worker of each item.
        Raises:
            Exception: The strategy's error; this planner cannot be used anymore.
        """
        ...


def create_strategy_planner(strategy: Strategy) -> StrategyPlanner:
    """Create the planner that suits a strategy: with a ``Board``, with hash assignments, or one that calls the
    strategy.
    """
    traits = get_traits(strategy)
    if traits.board is not None:
        return BoardPlanner(traits.board, traits.max_moves)
    return CustomPlanner(strategy) if traits.hashing is None else HashingPlanner(traits.hashing)


class BoardPlanner:
    """Assigns the items of one strategy's jobs with a ``Board`` in Rust, to which it reports changes only."""

    def __init__(self, strategy: str, max_moves: int | None = None) -> None:
        self._board = Board(strategy)
        self._max_moves = max_moves
        self._workers: dict[str, WorkerView] = {}
        self._pools: dict[str, tuple[str, ...]] = {}

    def rebalance(self, view: ClusterView, placed: Callable[[], Placed], *, placed_changed: bool) -> PlacementOutcome:  # noqa: ARG002 - a board does not look at it
        """Report changed workers and pools to the board, and return the moves of items. See ``StrategyPlanner``."""
        item_moves = ItemMoves()
        removed_jobs = self._pools.keys() - view.pools.keys()
        self._update_workers(view.workers)
        new_jobs = self._update_pools(view, item_moves)
        moves = self._board.place(self._max_moves)
        for job in moves.jobs:
            if job not in new_jobs:  # new jobs are compared as a whole, because all of their items move
                for _, item, source, target in moves.of(job):
                    item_moves.record_move(job, reuse_string(self._pools[job], item), source, target)
        first = {job: self._board.shares(job, view.pools[job]) for job in sorted(new_jobs)}
        changes = (*item_moves.list_changes(view), *diff_assignments(view, first))
        moved = bool(removed_jobs or new_jobs or item_moves)
        return PlacementOutcome(self._board.owners, changes, moved, moves.deferred, first)

    def _update_workers(self, workers: Mapping[str, WorkerView]) -> None:
        """Add, remove and update the board's workers, so that it has exactly the given ones."""
        for name in self._workers.keys() - workers.keys():
            self._board.leave(name)
        for name, worker in workers.items():
            known = self._workers.get(name)
            if known is not None and known.jobs != worker.jobs:
                self._board.leave(name)  # and join again, which keeps the items that it can still run
                known = None
            if known is None:
                self._board.join(name, worker.weight, worker.jobs)
            elif known.weight != worker.weight:
                self._board.reweigh(name, worker.weight)
        self._workers = dict(workers)

    def _update_pools(self, view: ClusterView, item_moves: ItemMoves) -> set[str]:
        """Add new and changed work pools to the board, and remove those that no longer exist.

        Args:
            view: The cluster.
            item_moves: Collects the items that leave their workers.
        Returns:
            The jobs that are new to the board.
        """
        for job in self._pools.keys() - view.pools.keys():
            self._board.remove_job(job)
        new_jobs = view.pools.keys() - self._pools.keys()
        for job in sorted(new_jobs):
            able = {name: worker.weight for name, worker in view.workers.items() if job in worker.jobs}
            self._board.add_job(job, view.pools[job], find_stored_owners(view, job, able))
        for job, items in view.pools.items():
            if job not in new_jobs and items is not self._pools[job]:
                self._update_items(job, set(self._pools[job]), set(items), item_moves)
        self._pools = dict(view.pools)
        return set(new_jobs)

    def _update_items(self, job: str, before: set[str], after: set[str], item_moves: ItemMoves) -> None:
        removed, added = before - after, after - before
        for item in removed:
            item_moves.record_move(job, item, self._board.owner(job, item), None)
        if removed:
            self._board.remove_items(job, removed)
        if added:
            self._board.add_items(job, added)


class HashingPlanner:
    """Keeps one hash ``Assignment`` for each job, which visits only the items that a change can move."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._jobs: dict[str, _HashedJob] = {}

    def rebalance(self, view: ClusterView, placed: Callable[[], Placed], *, placed_changed: bool) -> PlacementOutcome:  # noqa: ARG002 - hashing does not look at it
        """Report changed workers and items to the hash assignments, and return the moves of items. See
        ``StrategyPlanner``.
        """
        item_moves, before = ItemMoves(), self._jobs
        first: dict[str, Mapping[str, tuple[str, ...]]] = {}
        self._jobs = {}
        for job, items in view.pools.items():
            able = {name: worker.weight for name, worker in view.workers.items() if job in worker.jobs}
            known = before.get(job)
            if known is None or known.owners is None or not able:
                known = _HashedJob(items, able, self._create_assignment(job, items, able))
                first[job] = known.list_items_by_worker()
            else:
                _update_assignment(job, known, items, able, item_moves)
            self._jobs[job] = known
        changes = (*item_moves.list_changes(view), *diff_assignments(view, first))
        moved = bool(item_moves or changes or before.keys() != self._jobs.keys())
        return PlacementOutcome(lambda job: self._jobs[job].list_owners(), changes, moved, 0, first)

    def _create_assignment(self, job: str, items: tuple[str, ...], able: Mapping[str, float]) -> Assignment | None:
        if not able:
            return None
        return RendezvousHasher(able, list(able.values()), self._mode).assign(ItemSet(items, f"{job}:"))


@dataclass(slots=True)
class _HashedJob:
    """One job and its hash assignment, which is None if no worker can run the job."""

    items: tuple[str, ...]
    able: Mapping[str, float]
    owners: Assignment | None

    def list_items_by_worker(self) -> dict[str, tuple[str, ...]]:
        """Return the sorted items of each worker that has any."""
        by_worker = {} if self.owners is None else self.owners.by_worker()
        return {worker: tuple(sorted(items)) for worker, items in by_worker.items() if items}

    def list_owners(self) -> dict[str, str]:
        """Return the worker of each item."""
        return {} if self.owners is None else self.owners.to_dict()


def _update_assignment(
    job: str, hashed: _HashedJob, items: tuple[str, ...], able_workers: Mapping[str, float], item_moves: ItemMoves
) -> None:
    """Apply changed workers and items to the hash assignment of one job, and record the moves.

    If an item moves several times, one move is recorded, from its first to its last worker.

    Args:
        job: ID of the job.
        hashed: The job's assignment, which is updated.
        items: All items of the job.
        able_workers: Weight of each worker that can run the job.
        item_moves: Collects the moves.
    """
    owners, before = hashed.owners, hashed.able
    assert owners is not None
    old, new = (set(hashed.items), set(items)) if items is not hashed.items else (set[str](), set[str]())
    steps = [owners.remove_items(old - new)] if old - new else []
    steps += [owners.join(name, able_workers[name]) for name in sorted(able_workers.keys() - before.keys())]
    steps += [
        owners.leave(name) for name in sorted(before.keys() - able_workers.keys())
    ]  # after joins, because the last one cannot leave
    steps += [
        owners.reweigh(name, able_workers[name])
        for name in before
        if able_workers.get(name, before[name]) != before[name]
    ]
    steps += [owners.add_items(new - old)] if new - old else []
    moves: dict[str, tuple[str | None, str | None]] = {}
    for item, source, target in chain.from_iterable(steps):
        moves[item] = (moves[item][0] if item in moves else source, target)
    for item, (source, target) in moves.items():
        if source != target:
            item_moves.record_move(job, item, source, target)
    hashed.items, hashed.able = items, able_workers


class CustomPlanner:
    """Calls a strategy again when any part of its input has changed.

    If the strategy assigns each job independently and ignores the current owners, it is called for changed jobs only.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._by_job = get_traits(strategy).by_job
        self._last_input: _StrategyInput = {}
        self._settled = False  # it had nothing to move last time

    def rebalance(self, view: ClusterView, placed: Callable[[], Placed], *, placed_changed: bool) -> PlacementOutcome:
        """Call the strategy, and return the moves of items. See ``StrategyPlanner``.

        The strategy is not called if its input is unchanged and its last call moved nothing.
        """
        current = {job: (items, _able_workers(view, job)) for job, items in view.pools.items()}
        before = self._last_input
        to_assign = [
            job
            for job, (items, able) in current.items()
            if (known := before.get(job)) is None or items is not known[0] or able != known[1]
        ]
        if not self._by_job and (to_assign or current.keys() != before.keys() or placed_changed or not self._settled):
            to_assign = list(current)
        problem = Problem(tuple(create_job_problem(view, job) for job in to_assign), placed() if to_assign else {})
        plan = self._strategy.assign(problem) if to_assign else Plan({}, ())
        if not self._by_job:
            check_plan(problem, plan)
        item_moves, new_jobs = ItemMoves(), current.keys() - before.keys()
        for move in plan.moves:
            if move.job not in new_jobs:
                item_moves.record_move(move.job, move.item, move.source, move.target)
        first = {job: _group_by_worker(view.pools[job], plan.owners[job]) for job in sorted(new_jobs)}
        changes = (*item_moves.list_changes(view), *diff_assignments(view, first))
        self._last_input, self._settled = current, not plan.moves and not plan.deferred
        moved = bool(item_moves) or current.keys() != before.keys()

        def owners(job: str) -> Mapping[str, str]:
            return plan.owners[job] if job in plan.owners else find_stored_owners(view, job, view.workers)

        return PlacementOutcome(owners, changes, moved, len(plan.deferred), first)


class ItemMoves:
    """Collects the items that each worker loses and gets in one rebalance."""

    def __init__(self) -> None:
        self._lost: dict[_WorkerJob, set[str]] = {}
        self._gained: dict[_WorkerJob, set[str]] = {}

    def record_move(self, job: str, item: str, source: str | None, target: str | None) -> None:
        """Record that an item moves from one worker to another.

        Args:
            job: ID of the job.
            item: The item.
            source: Worker that loses the item; None if it had no worker.
            target: Worker that gets the item; None if it gets no worker.
        """
        if source is not None:
            self._lost.setdefault((job, source), set()).add(item)
        if target is not None:
            self._gained.setdefault((job, target), set()).add(item)

    def list_changes(self, view: ClusterView) -> Iterable[AssignmentChange]:
        """Generate the changes of stored assignments that result from the recorded moves."""
        for job, worker in self._lost.keys() | self._gained.keys():
            before = view.assignments.get(job, {}).get(worker, ())
            kept = set(before).difference(self._lost.get((job, worker), ()))
            after = tuple(sorted(kept.union(self._gained.get((job, worker), ()))))
            if before != after:
                yield AssignmentChange(worker, job, before, after)

    def __bool__(self) -> bool:
        return bool(self._lost or self._gained)


def _able_workers(view: ClusterView, job: str) -> _AbleWorkers:
    return {name: (worker.weight, worker.labels) for name, worker in view.workers.items() if job in worker.jobs}


def _group_by_worker(items: tuple[str, ...], owners: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the sorted items of each worker, reusing the given string objects to save memory.

    Args:
        items: Items of a job.
        owners: Worker of each item; items without a worker may be absent.
    """
    found: dict[str, list[str]] = {}
    for item in items:
        if item in owners:
            found.setdefault(owners[item], []).append(item)
    return {worker: tuple(sorted(assignment)) for worker, assignment in found.items()}


class Planner:
    """Computes one rebalance after another from the changes since the last one. Not thread-safe.

    The caller writes the result of each rebalance before the next one.
    """

    def __init__(self, strategies: Strategies) -> None:
        self._strategies = strategies
        self._planners: Mapping[int, StrategyPlanner] = {}  # by the identity of the strategy
        self._jobs: frozenset[str] = frozenset()
        self._first_assignments: Mapping[str, Mapping[str, tuple[str, ...]]] = {}

    def reset(self) -> None:
        """Forget all earlier decisions, because the last one may not have been written."""
        self._planners = {}

    def rebalance(self, view: ClusterView) -> Rebalance:
        """Assign the items of all jobs to workers, and compute which stored assignments must change.

        The result equals that of ``rebalance.rebalance``, but only changed jobs, workers and items are examined.
        """
        self._first_assignments = {}
        if view.reserved:
            self.reset()
            return rebalance(view, self._strategies)
        round_ = _RebalanceRound(view, self._planners, jobs_changed=self._jobs != view.pools.keys())
        for strategy, jobs in self._strategies.group_by_strategy(view.pools):
            round_.place_jobs(strategy, jobs)
        self._planners, self._first_assignments = round_.planners, round_.first_assignments
        self._jobs = frozenset(view.pools)
        removals = [
            AssignmentChange(worker, job, items, ())
            for job, workers in view.assignments.items()
            if job not in view.pools
            for worker, items in workers.items()
        ]
        changes = sorted([*round_.changes, *removals], key=lambda change: (change.job, change.worker))
        moves = sum(len(set(change.after).difference(change.before)) for change in changes)
        return Rebalance(tuple(changes), moves, round_.failed, count_unplaced(view), round_.deferred)

    def pop_first_assignments(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Return the items by job and worker for the jobs that the last rebalance assigned for the first time.

        They use the string objects of the work pools. A second call returns nothing.
        """
        first, self._first_assignments = self._first_assignments, {}
        return first


class _RebalanceRound:
    """One rebalance, strategy by strategy. Each strategy sees the workers that the previous ones have chosen."""

    def __init__(self, view: ClusterView, planners: Mapping[int, StrategyPlanner], *, jobs_changed: bool) -> None:
        self.planners: dict[int, StrategyPlanner] = {}
        self.changes: list[AssignmentChange] = []
        self.first_assignments: dict[str, Mapping[str, tuple[str, ...]]] = {}
        self.failed: dict[str, Exception] = {}
        self.deferred = 0
        self._view = view
        self._previous_planners = planners
        self._moved = jobs_changed
        self._owners: dict[str, Callable[[str], Mapping[str, str]]] = {}

    def place_jobs(self, strategy: Strategy, jobs: Sequence[str]) -> None:
        """Assign the items of one strategy's jobs to workers. If the strategy fails, the items stay where they are.

        Args:
            strategy: The strategy.
            jobs: IDs of its jobs.
        """
        view = ClusterView(self._view.workers, {job: self._view.pools[job] for job in jobs}, self._view.assignments)
        try:
            outcome = call_user(self._call_strategy, strategy, view)
        except Exception as error:
            self.failed.update(dict.fromkeys(jobs, error))
            outcome = PlacementOutcome(lambda job: find_stored_owners(view, job, view.workers), moved=True)
        self.changes += outcome.changes
        self.first_assignments.update(outcome.first_assignments)
        self.deferred += outcome.deferred
        self._moved |= outcome.moved
        self._owners.update(dict.fromkeys(jobs, outcome.owners))

    def _call_strategy(self, strategy: Strategy, view: ClusterView) -> PlacementOutcome:
        placed = self._list_owners_so_far if get_traits(strategy).looks_at_placed else dict[str, Mapping[str, str]]
        planner = self._previous_planners.get(id(strategy)) or create_strategy_planner(strategy)
        try:
            outcome = planner.rebalance(view, placed, placed_changed=self._moved)
        except Exception:  # the strategy handles or reports what Rust refuses
            if isinstance(planner, CustomPlanner):
                raise
            log.debug("cached placement failed, calling the strategy", exc_info=True)
            return CustomPlanner(strategy).rebalance(view, placed, placed_changed=True)
        self.planners[id(strategy)] = planner
        return outcome

    def _list_owners_so_far(self) -> Placed:
        """Return a new mapping with the worker of each item that the strategies so far have assigned, by job and
        item.
        """
        return {job: owners(job) for job, owners in self._owners.items()}
