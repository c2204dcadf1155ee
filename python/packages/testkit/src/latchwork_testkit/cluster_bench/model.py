"""The options of the cluster bench, the messages between its processes, and its figures and goals. No I/O."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

#: The goals for the full size; see docs/performance.md. Times are in seconds.
_DEATH_S, _COLD_S, _ADDED_S = 2.0, 20.0, 0.1
_DEATH_RATIO, _ADDED_BYTES, _BYTES_PER_ITEM = 20.0, 100_000, 150.0


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The size of the cluster and how to measure it.

    Attributes:
        url: URL of a store that several processes can share.
        workers: Number of workers.
        items: Number of work items of all jobs together.
        jobs: Number of jobs.
        deaths: Number of workers that die, one after another. Less than `workers`.
        processes: Number of processes that run the workers.
        strategies: Names of assignment strategies. With several, the jobs use them round robin.
        lock_owners: Number of workers that hold the locks of all their items while writes are counted. Workers that die
            later are not among them.
        debounce_s: Debounce time of the manager in seconds: it waits this long for further changes before it reassigns
            items.
        idle_s: Seconds for which writes are counted while nothing changes.
        timeout_s: Maximum seconds of each step.
    """

    url: str
    workers: int = 100
    items: int = 10_000
    jobs: int = 10
    deaths: int = 3
    processes: int = 2
    strategies: tuple[str, ...] = ("balanced",)
    lock_owners: int = 20
    debounce_s: float = 0.3
    idle_s: float = 10.0
    timeout_s: float = 300.0

    def worker_ids(self) -> list[str]:
        """Return the IDs of all workers."""
        return [f"w{number:05d}" for number in range(self.workers)]

    def workers_by_process(self) -> list[list[str]]:
        """Return the worker IDs of each process. Workers are distributed round robin, so that those that die run in
        different processes.
        """
        ids = self.worker_ids()
        return [ids[first :: self.processes] for first in range(min(self.processes, self.workers))]

    def dying_workers(self) -> list[str]:
        """Return the IDs of the workers that die during the bench, in that order."""
        return self.worker_ids()[: self.deaths]

    def locking_workers(self) -> list[str]:
        """Return the IDs of the workers that hold the locks of all their items while writes are counted."""
        return self.worker_ids()[self.deaths :][: self.lock_owners]

    def strategy_by_job(self) -> dict[str, str]:
        """Return the name of the strategy of each job. The entry ``*`` is for all jobs that are not listed."""
        named = [(job, self.strategies[n % len(self.strategies)]) for n, job in enumerate(self.job_ids())]
        return {"*": self.strategies[0], **{job: name for job, name in named if name != self.strategies[0]}}

    def job_ids(self) -> list[str]:
        """Return the IDs of all jobs. Creates no items, so a process that only needs the IDs uses little memory."""
        return [f"job-{number:04d}" for number in range(self.jobs)]

    def pools(self) -> dict[str, tuple[str, ...]]:
        """Return the work items of each job, sorted. No item occurs twice."""
        found = {}
        for number, job in enumerate(self.job_ids()):
            first, last = number * self.items // self.jobs, (number + 1) * self.items // self.jobs
            found[job] = tuple(f"order-{item:09d}" for item in range(first, last))
        return found


def compute_checksum(items: Iterable[str]) -> int:
    """Return a checksum of items that does not depend on their order.

    The sum over all workers does not depend on how the items are distributed. It changes if an item is missing or
    occurs twice.
    """
    return sum(crc32(item.encode()) for item in items)


# Messages between the processes.


@dataclass(frozen=True, slots=True)
class EndWorker:
    """A command: end this worker."""

    worker: str


@dataclass(frozen=True, slots=True)
class AcquireLocks:
    """A command: acquire the locks of all items of the workers that hold locks."""


@dataclass(frozen=True, slots=True)
class ReleaseLocks:
    """A command: release the locks of `AcquireLocks`."""


@dataclass(frozen=True, slots=True)
class LocksHeld:
    """A message: the number of item locks that the workers of a process hold."""

    locks: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A message: the process has started, or has executed its last command.

    Attributes:
        at: Time on the monotonic clock, which all processes of the machine share.
    """

    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """A message: the number of workers that a process has registered so far."""

    workers: int


@dataclass(frozen=True, slots=True)
class ItemsHeld:
    """A message: the items assigned to all workers of a process together.

    Attributes:
        at: Time at which the last assignment was decoded, on the monotonic clock.
        items: Number of items.
        checksum: Checksum of the items; see `compute_checksum`.
        decoded: Number of assignments decoded since the start.
    """

    at: float
    items: int
    checksum: int
    decoded: int


@dataclass(frozen=True, slots=True)
class LiveWorkers:
    """A message: the number of live workers that the manager sees, and the time from which it sees them."""

    at: float
    count: int


@dataclass(frozen=True, slots=True)
class RebalanceReport:
    """A message: the manager has completed a rebalance, with the fields of `RebalanceInfo`."""

    at: float
    seconds: float
    assignments: int
    moves: int
    written_bytes: int
    error: str


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """A message: the memory of the manager's process before it led and now, in bytes."""

    before_bytes: int
    now_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessFailure:
    """A message: the process failed, for this reason."""

    reason: str


# Figures.


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The figures of a step in which work items were assigned to workers.

    Attributes:
        seconds: Seconds from the cause until the last affected worker had decoded its assignment.
        quiet_s: Part of `seconds` in which the manager waited for further changes (debounce).
        rebalance_s: Part of `seconds` in which the manager computed and wrote the assignment.
        assignments: Number of assignments that were written.
        moves: Number of items that were assigned to a worker or to another worker.
        moved_bytes: Size of these items in bytes.
        written_bytes: Size of all keys and values that were written, in bytes.
    """

    seconds: float
    quiet_s: float
    rebalance_s: float
    assignments: int
    moves: int
    moved_bytes: int
    written_bytes: int

    @property
    def write_amplification(self) -> float:
        """Bytes written to the store for each byte of the moved items. 0 if no item moved."""
        return self.written_bytes / self.moved_bytes if self.moved_bytes else 0.0


@dataclass(frozen=True, slots=True)
class IdleFigures:
    """The writes that were counted while nothing changed in the cluster.

    Attributes:
        seconds: Seconds for which writes were counted.
        changes: Number of keys that changed, without the keys of lock owners.
        lock_owners: Number of workers that held the locks of all their items. Each has one lock owner.
        locks: Number of these locks.
        renewals: Number of renewals of lock owners that a watch reported. There may have been more.
        commits: Number of transactions that the server counted. On ZooKeeper, renewals of sessions are included.
    """

    seconds: float
    changes: int
    lock_owners: int
    locks: int
    renewals: int
    commits: int


@dataclass(slots=True)
class Figures:
    """The figures of all steps of a bench. A step that was not measured has None or an empty list."""

    options: BenchOptions
    backend: str
    registered_s: float | None = None
    pools_s: float | None = None
    cold_start: StepFigures | None = None
    deaths: list[StepFigures] = field(default_factory=list)
    added: list[StepFigures] = field(default_factory=list)
    idle: IdleFigures | None = None
    takeover_s: float | None = None
    item_bytes_in_manager: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the figures and their goals as a dictionary for JSON. The URL of the store is left out."""
        options = self.options
        return {
            "backend": self.backend,
            "workers": options.workers,
            "items": options.items,
            "jobs": options.jobs,
            "strategies": list(options.strategies),
            "debounce_s": options.debounce_s,
            "registered_s": self.registered_s,
            "pools_s": self.pools_s,
            "cold_start": _json(self.cold_start),
            "deaths": [_json(each) for each in self.deaths],
            "takeover_s": self.takeover_s,
            "added": [_json(each) for each in self.added],
            "idle": None if self.idle is None else {name: getattr(self.idle, name) for name in IdleFigures.__slots__},
            "manager_bytes_per_item": self.item_bytes_in_manager,
            "goals": [
                {"what": g.what, "found": g.found, "goal": g.goal, "unit": g.unit, "met": g.is_met}
                for g in compare_with_goals(self)
            ],
        }


@dataclass(frozen=True, slots=True)
class Goal:
    """A measured figure and its goal, which is for the full size. Smaller clusters should do better.

    Attributes:
        what: What was measured.
        found: The measured figure.
        goal: The greatest value that meets the goal.
        unit: Unit of both.
    """

    what: str
    found: float
    goal: float
    unit: str

    @property
    def is_met(self) -> bool:
        """Whether the figure is not greater than the goal."""
        return self.found <= self.goal


def compare_with_goals(figures: Figures) -> list[Goal]:
    """Return each measured figure with its goal. Figures that were not measured are left out.

    If several workers died, the slowest case counts. If several items were added, the median counts.
    """
    found = []
    if figures.cold_start is not None:
        found.append(Goal("cold start", figures.cold_start.seconds, _COLD_S, "s"))
    if figures.deaths:
        found.append(Goal("a worker dies", max(each.seconds for each in figures.deaths), _DEATH_S, "s"))
        ratio = max(each.write_amplification for each in figures.deaths)
        found.append(Goal("a worker dies: written for each moved byte", ratio, _DEATH_RATIO, "x"))
    if figures.added:
        seconds = statistics.median(each.seconds - each.quiet_s for each in figures.added)
        found.append(Goal("an item is added", seconds, _ADDED_S, "s"))
        written = max(each.written_bytes for each in figures.added)
        found.append(Goal("an item is added: written", written, _ADDED_BYTES, "bytes"))
    if figures.item_bytes_in_manager is not None:
        per_item = figures.item_bytes_in_manager
        found.append(Goal("memory of the manager for each item, beyond its text", per_item, _BYTES_PER_ITEM, "bytes"))
    if figures.idle is not None:
        found.append(Goal("idle: keys written, without renewals", figures.idle.changes, 0.0, ""))
    return found


def count_text_bytes(pools: Iterable[Iterable[str]]) -> int:
    """Return the memory that the strings of all items take, in bytes.

    Args:
        pools: The items of each job.
    """
    return sum(sys.getsizeof(item) for items in pools for item in items)


def _json(spread: StepFigures | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    return {**{name: getattr(spread, name) for name in StepFigures.__slots__}, "ratio": spread.write_amplification}
