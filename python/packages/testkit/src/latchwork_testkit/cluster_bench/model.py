"""The options of the bench, the messages between its processes, its figures and their goals. Pure."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

#: Longest times, in seconds, from the issue of the project that asked for this; see docs/performance.md.
_DEATH_S, _COLD_S, _ADDED_S = 2.0, 20.0, 0.1
_DEATH_RATIO, _ADDED_BYTES, _BYTES_PER_ITEM = 20.0, 100_000, 150.0


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The size of the cluster, and how to measure it.

    Attributes:
        url: URL of the store, which must support several processes.
        workers: Number of workers.
        items: Number of work items over all jobs.
        jobs: Number of jobs.
        deaths: Number of workers that die, one after the other; less than `workers`.
        processes: Number of processes for the workers.
        strategies: Names of the assignment strategies; with several, jobs use them in turn.
        lock_owners: Number of workers that hold the locks of all their items during the idle time. Workers that will
            die are not among them.
        debounce_s: Debounce time of the manager, in seconds.
        idle_s: Length of the idle time, in which writes are counted, in seconds.
        timeout_s: Maximum seconds for each step.
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
        """Return the workers of each process, assigned round robin so that dying workers are spread."""
        ids = self.worker_ids()
        return [ids[first :: self.processes] for first in range(min(self.processes, self.workers))]

    def dying_workers(self) -> list[str]:
        """Return the workers that will die, in that order."""
        return self.worker_ids()[: self.deaths]

    def locking_workers(self) -> list[str]:
        """Return the workers that hold locks during the idle time."""
        return self.worker_ids()[self.deaths :][: self.lock_owners]

    def strategy_by_job(self) -> dict[str, str]:
        """Return the strategy of each job; ``*`` stands for all jobs without an entry."""
        named = [(job, self.strategies[n % len(self.strategies)]) for n, job in enumerate(self.job_ids())]
        return {"*": self.strategies[0], **{job: name for job, name in named if name != self.strategies[0]}}

    def job_ids(self) -> list[str]:
        """Return the IDs of all jobs, without creating the items, which would leave memory behind."""
        return [f"job-{number:04d}" for number in range(self.jobs)]

    def pools(self) -> dict[str, tuple[str, ...]]:
        """Return the work items of each job, sorted. All items are distinct."""
        found = {}
        for number, job in enumerate(self.job_ids()):
            first, last = number * self.items // self.jobs, (number + 1) * self.items // self.jobs
            found[job] = tuple(f"order-{item:09d}" for item in range(first, last))
        return found


def digest(items: Iterable[str]) -> int:
    """Return a checksum of items that does not depend on which share has which. A lost or doubled item changes the
    sum.
    """
    return sum(crc32(item.encode()) for item in items)


# What the processes tell each other.


@dataclass(frozen=True, slots=True)
class Die:
    """Command: end this worker."""

    worker: str


@dataclass(frozen=True, slots=True)
class Lock:
    """Command: acquire the locks of all items of the workers that hold locks."""


@dataclass(frozen=True, slots=True)
class Unlock:
    """Command: release these locks."""


@dataclass(frozen=True, slots=True)
class Locked:
    """The number of item locks that the workers of one process hold."""

    locks: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A process has done its last command.

    Attributes:
        at: Time of the monotonic clock that all processes share.
    """

    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The number of registered workers of a process."""

    workers: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """The items of all workers of one process.

    Attributes:
        at: Time at which the last share was decoded.
        items: Number of items.
        digest: Their checksum; see `digest`.
        decoded: Number of shares decoded since the start.
    """

    at: float
    items: int
    digest: int
    decoded: int


@dataclass(frozen=True, slots=True)
class Detected:
    """The number of live workers that the manager's process sees from this time on."""

    at: float
    living: int


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """The manager has completed a rebalance."""

    at: float
    seconds: float
    shares: int
    moves: int
    written_bytes: int
    error: str


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of the manager's process, before it led and now."""

    before_bytes: int
    now_bytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A process failed for this reason."""

    reason: str


# What was measured.


@dataclass(frozen=True, slots=True)
class Spread:
    """Figures of one step in which work items got a worker.

    Attributes:
        seconds: Seconds from the cause until the last affected worker had decoded its share.
        quiet_s: Part of it in which the manager debounced.
        rebalance_s: Part of it in which the manager decided and wrote.
        shares: Number of shares written.
        moves: Number of items that got a worker or changed it.
        moved_bytes: Size of these items.
        written_bytes: Size of the keys and values written.
    """

    seconds: float
    quiet_s: float
    rebalance_s: float
    shares: int
    moves: int
    moved_bytes: int
    written_bytes: int

    @property
    def ratio(self) -> float:
        """Bytes written for each byte of the moved items."""
        return self.written_bytes / self.moved_bytes if self.moved_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Idle:
    """The writes during the idle time.

    Attributes:
        seconds: Length of the idle time.
        changes: Number of changed keys, except those of lock owners.
        lock_owners: Number of workers that held the locks of all their items, each with one owner.
        locks: Number of these locks.
        renewals: Number of observed renewals of lock owners; more may have been written.
        commits: Number of transactions that the server counted. On ZooKeeper, this includes the renewals of sessions.
    """

    seconds: float
    changes: int
    lock_owners: int
    locks: int
    renewals: int
    commits: int


@dataclass(slots=True)
class Figures:
    """All figures of a measurement; None for a step that was not done."""

    options: BenchOptions
    backend: str
    registered_s: float | None = None
    pools_s: float | None = None
    cold_start: Spread | None = None
    deaths: list[Spread] = field(default_factory=list)
    added: list[Spread] = field(default_factory=list)
    idle: Idle | None = None
    takeover_s: float | None = None
    item_bytes_in_manager: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a document, without the URL."""
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
            "idle": None if self.idle is None else {name: getattr(self.idle, name) for name in Idle.__slots__},
            "manager_bytes_per_item": self.item_bytes_in_manager,
            "goals": [
                {"what": g.what, "found": g.found, "goal": g.goal, "unit": g.unit, "met": g.met} for g in goals(self)
            ],
        }


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and its goal for the full size. Smaller clusters should do better."""

    what: str
    found: float
    goal: float
    unit: str

    @property
    def met(self) -> bool:
        """Whether the figure is at most the goal."""
        return self.found <= self.goal


def goals(figures: Figures) -> list[Goal]:
    """Return every goal for which there is a figure: the slowest death, and the median of the added items."""
    found = []
    if figures.cold_start is not None:
        found.append(Goal("cold start", figures.cold_start.seconds, _COLD_S, "s"))
    if figures.deaths:
        found.append(Goal("a worker dies", max(each.seconds for each in figures.deaths), _DEATH_S, "s"))
        ratio = max(each.ratio for each in figures.deaths)
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
        found.append(Goal("nothing happens: keys written, but for renewals", figures.idle.changes, 0.0, ""))
    return found


def text_bytes(pools: Iterable[Iterable[str]]) -> int:
    """Return the memory that the texts of all items take."""
    return sum(sys.getsizeof(item) for items in pools for item in items)


def _json(spread: Spread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    return {**{name: getattr(spread, name) for name in Spread.__slots__}, "ratio": spread.ratio}
