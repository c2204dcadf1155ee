"""Observers of a node, which are notified of starts, ends, rebalances and pool reads, and may ask for statistics.

An observer is called in the thread where the event happens, so it must not block. See ``store.Observers`` about
exceptions. No I/O.
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
    """Statistics of one job on one node since the node started.

    Attributes:
        runs: Number of started runs.
        failures: Number of runs that raised.
        active: Number of active runs.
        items: Number of items in the current runs.
        threads: Number of threads that run or wait for their time.
        failing_items: Number of items whose last run failed.
        consecutive_failures: Largest number of consecutive failed runs of one item.
        last_start_s: Last start in seconds since the epoch; None if there was none. This and the next three values are
            kept over a restart of the node.
        last_success_s: Last success.
        last_failure_s: Last failure.
        last_error: Error of the last failure, in one line.
        next_start_s: Next start; None if unknown.
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
        """Whether the last run of every item failed."""
        return 0 < self.items <= self.failing_items


@dataclass(frozen=True, slots=True)
class NodeStats:
    """Statistics of a node since it started.

    Attributes:
        jobs: Statistics by job ID, without jobs whose required labels this node does not have.
        is_manager: Whether it currently manages the cluster.
        rebalances: Number of rebalances that it wrote as the manager.
        moves: Number of items that it moved as the manager.
        rebalance_failures: Number of rebalances that had to be retried.
    """

    jobs: Mapping[str, JobStats] = field(default_factory=dict)
    is_manager: bool = False
    rebalances: int = 0
    moves: int = 0
    rebalance_failures: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a node is working.

    Attributes:
        ok: Whether it is working.
        reasons: Why not, in sentences; empty if it is.
        session: State of its session; ``suspect`` while the store is unreachable, which does not yet count as
            unhealthy.
        session_remaining_s: Seconds for which its session certainly lasts.
        lock_margin_s: Seconds for which its locks certainly last; None without locks.
        degraded: A sentence for each job whose runs all fail here, sorted. A restart of the node does not help.
    """

    ok: bool
    reasons: tuple[str, ...] = ()
    session: str = "none"
    session_remaining_s: float = 0.0
    lock_margin_s: float | None = None
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run.

    Attributes:
        node: ID of the node.
        job: ID of the job.
        items: Items of the run.
        lag_s: Seconds between its due time and its start.
        fire_time_s: Its fire time on a cron schedule, in seconds since the epoch.
    """

    node: str
    job: str
    items: tuple[str, ...]
    lag_s: float
    fire_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class RebalanceInfo:
    """A rebalance by this node as the manager.

    Attributes:
        node: ID of the node.
        seconds: Duration.
        assignments: Number of written assignments, one per node and job; 0 if nothing had to change.
        moves: Number of items that moved to another node.
        error: Error that requires a retry; None if it succeeded.
        written_bytes: Bytes of written keys and values.
    """

    node: str
    seconds: float
    assignments: int = 0
    moves: int = 0
    error: BaseException | None = None
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """A read of a work pool.

    Attributes:
        node: ID of the node.
        job: ID of the job.
        seconds: Duration.
        items: Number of items; None if the read failed.
    """

    node: str
    job: str
    seconds: float
    items: int | None


class ObservedNode(Protocol):
    """A node as observers see it. It may be queried at any time, from any thread, without waiting."""

    @property
    def node_id(self) -> str:
        """The ID of the node."""
        ...

    def stats(self) -> NodeStats:
        """Return statistics of the node since its start."""
        ...

    def health(self) -> Health:
        """Return whether the node is working."""
        ...


class Observer:
    """Base class for observers: override the events of interest. Methods may be called from several threads at once."""

    def attached(self, node: ObservedNode) -> None:
        """Called before the node starts. Its ``stats`` and ``health`` may be queried from now on."""

    def detached(self, node: ObservedNode) -> None:
        """Called when the node is closed."""

    def started(self, node_id: str, seconds: float) -> None:
        """Called when the node is registered. ``seconds`` is the time that it took."""

    def closed(self, node_id: str, seconds: float) -> None:
        """Called when the node has left the cluster. ``seconds`` is the time that it took."""

    def run(self, info: RunInfo) -> AbstractContextManager[Any] | None:  # noqa: ARG002 - for those who override it
        """Called before a run.

        Returns:
            A context manager that is entered before the run, and exited after it with the run's exception, if any. None
                for no context manager.
        """
        return None

    def rebalanced(self, info: RebalanceInfo) -> None:
        """Called after a rebalance, successful or not."""

    def pool_read(self, info: PoolInfo) -> None:
        """Called after a read of a work pool, successful or not."""


NOBODY = Observers[Observer]()


class EventLog(Observer):
    """Logs events of every node: starts, ends and rebalances as info, runs as debug, failures as warnings.

    A failed run is logged as an error with its traceback, and only here.
    """

    def started(self, node_id: str, seconds: float) -> None:
        """Log the event ``node_started``."""
        _log_event(logging.INFO, "node_started", node=node_id, seconds=seconds)

    def closed(self, node_id: str, seconds: float) -> None:
        """Log the event ``node_closed``."""
        _log_event(logging.INFO, "node_closed", node=node_id, seconds=seconds)

    @contextmanager
    def run(self, info: RunInfo) -> Iterator[None]:
        """Return a context manager that logs the events ``run_started``, and ``run_ended`` or ``run_failed``."""
        about: dict[str, Any] = {
            "node": info.node,
            "job": info.job,
            "items": len(info.items),
            "fire_time_s": info.fire_time_s,
        }
        _log_event(logging.DEBUG, "run_started", **about, lag_s=info.lag_s)
        began = time.perf_counter()
        try:
            yield
        except BaseException as error:
            took_s = time.perf_counter() - began
            _log_event(logging.ERROR, "run_failed", raised=error, **about, seconds=took_s, error=type(error).__name__)
            raise
        _log_event(logging.DEBUG, "run_ended", **about, seconds=time.perf_counter() - began)

    def rebalanced(self, info: RebalanceInfo) -> None:
        """Log the event ``rebalanced`` or ``rebalance_failed``; nothing if no assignment had to be written."""
        about: dict[str, Any] = {
            "node": info.node,
            "seconds": info.seconds,
            "assignments": info.assignments,
            "moves": info.moves,
        }
        if info.error is not None:
            _log_event(logging.WARNING, "rebalance_failed", **about, error=type(info.error).__name__)
        elif info.assignments:
            _log_event(logging.INFO, "rebalanced", **about)

    def pool_read(self, info: PoolInfo) -> None:
        """Log the event ``pool_read`` or ``pool_read_failed``."""
        failed = info.items is None
        level, event = (logging.WARNING, "pool_read_failed") if failed else (logging.DEBUG, "pool_read")
        _log_event(level, event, node=info.node, job=info.job, seconds=info.seconds, items=info.items)


def _log_event(level: int, event: str, *, raised: BaseException | None = None, **figures: Any) -> None:
    if log.isEnabledFor(level):
        shown = {name: round(value, 6) if isinstance(value, float) else value for name, value in figures.items()}
        shown = {name: value for name, value in shown.items() if value is not None}
        text = " ".join(f"{name}={value}" for name, value in shown.items())
        log.log(level, "%s %s", event, text, exc_info=raised, extra={"latchwork": {"event": event, **shown}})
