"""Observers of a node: they learn about starts and ends, rebalances and reads of work pools, and ask for its figures.

An observer is called in the thread where the event happens, so it must not block. See ``store.Observers`` for one that
raises. No network here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from latchwork.store import Observers

log = logging.getLogger("latchwork.events")

NodeState = Literal["new", "starting", "started", "closing", "closed"]


@dataclass(frozen=True, slots=True)
class JobStats:
    """What one job has done on one node since it started.

    Attributes:
        runs: runs begun.
        failures: runs that raised.
        active: runs going on at this moment.
        items: items in the shares that are started now.
        threads: threads that run, or wait for their time.
        failing_items: items whose last run failed.
        consecutive_failures: runs of one item that have failed one after the other, of the item with most of them.
        last_start_s: when a run last began, in seconds since the epoch; None if none did. This and the next three also
            over a restart of the node.
        last_success_s: when one last ended well.
        last_failure_s: when one last failed.
        last_error: how that one failed, in one line.
        next_start_s: when the next run begins; None while that is not known.
    """

    runs: int = 0
    failures: int = 0
    active: int = 0
    items: int = 0
    threads: int = 0
    failing_items: int = 0
    consecutive_failures: int = 0
    last_start_s: float | None = None
    last_success_s: float | None = None
    last_failure_s: float | None = None
    last_error: str | None = None
    next_start_s: float | None = None

    @property
    def is_failing_everywhere(self) -> bool:
        """Whether the last run of each item failed."""
        return 0 < self.items <= self.failing_items


@dataclass(frozen=True, slots=True)
class NodeStats:
    """What a node has done since it started.

    Attributes:
        jobs: by job id; without the jobs that demand labels which this node does not have.
        is_manager: whether it manages the cluster at this moment.
        rebalances: rebalances it wrote as the manager.
        moves: items it moved as the manager.
        rebalance_failures: rebalances that had to be tried again.
    """

    jobs: Mapping[str, JobStats] = field(default_factory=dict)
    is_manager: bool = False
    rebalances: int = 0
    moves: int = 0
    rebalance_failures: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a node does its work.

    Attributes:
        ok: it does.
        reasons: why not, each a sentence; empty when it does.
        session: the state of its session; ``suspect`` while the store is out of reach, which is no illness yet.
        session_remaining_s: seconds its session surely lasts.
        lock_margin_s: seconds its locks surely last; None when it holds none.
        degraded: a sentence for each job of which every run fails here; a restart of the node does not help. Sorted.
    """

    ok: bool
    reasons: tuple[str, ...] = ()
    session: str = "none"
    session_remaining_s: float = 0.0
    lock_margin_s: float | None = None
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run.

    Attributes:
        node: the node's id.
        job: the job's id.
        items: its share.
        lag_s: seconds that it starts after it was due.
        fire_time_s: its fire time on a cron schedule, in seconds since the epoch.
    """

    node: str
    job: str
    items: tuple[str, ...]
    lag_s: float
    fire_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class RebalanceInfo:
    """One rebalance by this node as the manager.

    Attributes:
        node: the node's id.
        seconds: how long it took.
        shares: shares that were written; 0 when all was as it should be.
        moves: items that changed their node.
        error: why it has to be tried again; None when it went well.
        written_bytes: keys and values that were written for it.
    """

    node: str
    seconds: float
    shares: int = 0
    moves: int = 0
    error: BaseException | None = None
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """One read of a work pool.

    Attributes:
        node: the node's id.
        job: the job's id.
        seconds: how long it took.
        items: how many items it has; None when it could not be read.
    """

    node: str
    job: str
    seconds: float
    items: int | None


class ObservedNode(Protocol):
    """A node, a ``JobManager``, as observers see it: they may ask at any time, from any thread; no answer waits."""

    @property
    def node_id(self) -> str:
        """The node's id."""
        ...

    def stats(self) -> NodeStats:
        """What it has done since it started."""
        ...

    def health(self) -> Health:
        """Whether it does its work."""
        ...


class Observer:
    """Override what you want to know. Methods may be called from several threads at a time."""

    def attached(self, node: ObservedNode) -> None:
        """The node is about to start; ask it for ``stats`` and ``health`` whenever you like from now on."""

    def detached(self, node: ObservedNode) -> None:
        """The node is closed."""

    def started(self, node_id: str, seconds: float) -> None:
        """The node is registered, which took so long."""

    def closed(self, node_id: str, seconds: float) -> None:
        """The node has left, which took so long."""

    def run(self, info: RunInfo) -> AbstractContextManager[Any] | None:  # noqa: ARG002 - for those who override it
        """A run starts: the returned context manager is entered before it, and left with its exception if it raised."""
        return None

    def rebalanced(self, info: RebalanceInfo) -> None:
        """A rebalance has ended, well or not."""

    def pool_read(self, info: PoolInfo) -> None:
        """A work pool was read, or could not be."""


NOBODY = Observers[Observer]()


class EventLog(Observer):
    """Every node has one. Starts, ends and rebalances are at info, single runs at debug, failures at warning.

    A run that failed is an error, and told here only, with its traceback.
    """

    def started(self, node_id: str, seconds: float) -> None:
        """Event ``node_started``."""
        _write(logging.INFO, "node_started", node=node_id, seconds=seconds)

    def closed(self, node_id: str, seconds: float) -> None:
        """Event ``node_closed``."""
        _write(logging.INFO, "node_closed", node=node_id, seconds=seconds)

    @contextmanager
    def run(self, info: RunInfo) -> Iterator[None]:
        """Events ``run_started``, and ``run_ended`` or ``run_failed``."""
        about: dict[str, Any] = {
            "node": info.node,
            "job": info.job,
            "items": len(info.items),
            "fire_time_s": info.fire_time_s,
        }
        _write(logging.DEBUG, "run_started", **about, lag_s=info.lag_s)
        began = time.perf_counter()
        try:
            yield
        except BaseException as error:
            took_s = time.perf_counter() - began
            _write(logging.ERROR, "run_failed", raised=error, **about, seconds=took_s, error=type(error).__name__)
            raise
        _write(logging.DEBUG, "run_ended", **about, seconds=time.perf_counter() - began)

    def rebalanced(self, info: RebalanceInfo) -> None:
        """Event ``rebalanced``, or ``rebalance_failed``; none when nothing had to be written."""
        about: dict[str, Any] = {"node": info.node, "seconds": info.seconds, "shares": info.shares, "moves": info.moves}
        if info.error is not None:
            _write(logging.WARNING, "rebalance_failed", **about, error=type(info.error).__name__)
        elif info.shares:
            _write(logging.INFO, "rebalanced", **about)

    def pool_read(self, info: PoolInfo) -> None:
        """Event ``pool_read``, or ``pool_read_failed``."""
        failed = info.items is None
        level, event = (logging.WARNING, "pool_read_failed") if failed else (logging.DEBUG, "pool_read")
        _write(level, event, node=info.node, job=info.job, seconds=info.seconds, items=info.items)


def _write(level: int, event: str, *, raised: BaseException | None = None, **figures: Any) -> None:
    if log.isEnabledFor(level):
        shown = {name: round(value, 6) if isinstance(value, float) else value for name, value in figures.items()}
        shown = {name: value for name, value in shown.items() if value is not None}
        text = " ".join(f"{name}={value}" for name, value in shown.items())
        log.log(level, "%s %s", event, text, exc_info=raised, extra={"latchwork": {"event": event, **shown}})
