"""What a node tells its observers: starts and ends, rebalances, reads of work pools. No network here.

An observer is called in the thread where the thing happens, so it must not block. See ``store.Observers`` for one that
raises.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from latchwork.jobs.observe.records import Health, NodeStats
from latchwork.store import Observers


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
