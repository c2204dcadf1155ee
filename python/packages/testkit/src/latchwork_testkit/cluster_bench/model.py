"""The options of the bench, its messages between processes, its figures and their goals. Pure."""

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
    """The size of the cluster, and how it is measured.

    Attributes:
        url: of the store; several processes must be able to use it.
        workers: how many.
        items: how many work items there are, over all jobs.
        jobs: how many.
        deaths: how many workers die, one after the other; fewer than there are.
        processes: how many processes the workers are spread over.
        strategies: who decides, by name; with several, jobs get them in turn.
        lock_owners: how many workers hold the locks of all their items while nothing happens; those that die do not.
        debounce_s: quiet time of the manager, in seconds.
        idle_s: seconds for which writes are counted while nothing happens.
        timeout_s: seconds for any one step.
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
        """The ids of all workers."""
        return [f"w{number:05d}" for number in range(self.workers)]

    def crews(self) -> list[list[str]]:
        """The workers of each process: dealt out round robin, so that those that die are spread."""
        ids = self.worker_ids()
        return [ids[first :: self.processes] for first in range(min(self.processes, self.workers))]

    def mortal(self) -> list[str]:
        """Those who will die, in that order."""
        return self.worker_ids()[: self.deaths]

    def lockers(self) -> list[str]:
        """Those who hold locks while nothing happens."""
        return self.worker_ids()[self.deaths :][: self.lock_owners]

    def strategy_by_job(self) -> dict[str, str]:
        """The strategy of each job; ``*`` is for all jobs that are not named."""
        named = [(job, self.strategies[n % len(self.strategies)]) for n, job in enumerate(self.job_ids())]
        return {"*": self.strategies[0], **{job: name for job, name in named if name != self.strategies[0]}}

    def job_ids(self) -> list[str]:
        """The ids of all jobs; without making a million items, which would leave memory behind."""
        return [f"job-{number:04d}" for number in range(self.jobs)]

    def pools(self) -> dict[str, tuple[str, ...]]:
        """The work items of each job: sorted; no two items are the same."""
        found = {}
        for number, job in enumerate(self.job_ids()):
            first, last = number * self.items // self.jobs, (number + 1) * self.items // self.jobs
            found[job] = tuple(f"order-{item:09d}" for item in range(first, last))
        return found


def digest(items: Iterable[str]) -> int:
    """A number that items of shares add up to, whichever share has which; one lost or doubled item changes it."""
    return sum(crc32(item.encode()) for item in items)


# What the processes tell each other.


@dataclass(frozen=True, slots=True)
class Die:
    """Order: end this worker."""

    worker: str


@dataclass(frozen=True, slots=True)
class Lock:
    """Order: those who are to hold locks take those of all their items."""


@dataclass(frozen=True, slots=True)
class Unlock:
    """Order: give them back."""


@dataclass(frozen=True, slots=True)
class Locked:
    """So many item locks are held by the workers of one process."""

    locks: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A process has done what it was told, at this time; so do all the others, of a clock that all of them share."""

    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """So many workers are registered."""

    workers: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """The items that the workers of one process have together.

    Attributes:
        at: when the last share was decoded.
        items: how many items they have.
        digest: what those add up to.
        decoded: shares decoded since the start.
    """

    at: float
    items: int
    digest: int
    decoded: int


@dataclass(frozen=True, slots=True)
class Detected:
    """The manager's process sees so many living workers, from this time on."""

    at: float
    living: int


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """The manager has done a rebalance."""

    at: float
    seconds: float
    shares: int
    moves: int
    written_bytes: int
    error: str


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of the manager's process, now and before it led."""

    before_bytes: int
    now_bytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A process cannot go on."""

    reason: str


# What was measured.


@dataclass(frozen=True, slots=True)
class Spread:
    """Some work items found their workers.

    Attributes:
        seconds: from the cause until the last worker concerned had decoded its share.
        quiet_s: how much of it the manager waited for more to come.
        rebalance_s: how much of it the manager decided and wrote.
        shares: shares written.
        moves: items that changed their worker, or got one.
        moved_bytes: the items themselves.
        written_bytes: keys and values written for it.
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
        """Bytes written for each byte of the items that moved."""
        return self.written_bytes / self.moved_bytes if self.moved_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Idle:
    """The writes while nothing happened.

    Attributes:
        seconds: for so long.
        changes: keys that changed, but for owners of locks.
        lock_owners: workers that held the locks of all their items, each under one owner.
        locks: how many locks those were.
        renewals: renewals of lock owners that were seen: at least so many were written.
        commits: transactions that the server counted; on ZooKeeper the renewals of sessions are among them.
    """

    seconds: float
    changes: int
    lock_owners: int
    locks: int
    renewals: int
    commits: int


@dataclass(slots=True)
class Figures:
    """All that was measured; None is a step that did not happen."""

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
        """A document of it, without the URL."""
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
    """One figure and its goal, at full size; smaller clusters should do better."""

    what: str
    found: float
    goal: float
    unit: str

    @property
    def met(self) -> bool:
        """Whether it is no more than it should be."""
        return self.found <= self.goal


def goals(figures: Figures) -> list[Goal]:
    """Every goal that there is a figure for. Of deaths the slowest counts, of added items the median."""
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
    """Memory that the texts of all items take, once each."""
    return sum(sys.getsizeof(item) for items in pools for item in items)


def _json(spread: Spread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    return {**{name: getattr(spread, name) for name in Spread.__slots__}, "ratio": spread.ratio}
