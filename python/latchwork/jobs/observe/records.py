"""A node's state, its counters and its health, as it tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

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
        in_a_row: runs of one item that have failed one after the other, of the item with most of them.
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
    in_a_row: int = 0
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
