"""Decides what a worker starts, stops, locks and unlocks, from the desired items and the live runs. Pure.

One rule above all: an item is in at most one live run of this node, and only while its lock is held when the run
starts. A run that was told to stop but has not ended keeps its items, and their locks, until it has; an item whose lock
was lost under a run is not locked again before that run has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from latchwork.jobs.options.kinds import Threads


@dataclass(frozen=True, slots=True)
class Running:
    """One live run of a job on this node, and whether it was told to stop; its number is unique on this node."""

    number: int
    items: frozenset[str]
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class Actions:
    """The steps for one job, in this order: stop, release, acquire, start.

    Attributes:
        stop: the numbers of runs.
        release: the items whose locks to give up: sorted.
        acquire: items whose locks to ask for: sorted, in no live run; those that are not free now are waited for.
        start: the shares of the runs to start: disjoint, not empty, locks held.
    """

    stop: tuple[int, ...] = ()
    release: tuple[str, ...] = ()
    acquire: tuple[str, ...] = ()
    start: tuple[tuple[str, ...], ...] = ()


def reconcile(desired: Collection[str], held: Collection[str], running: Iterable[Running], threads: Threads) -> Actions:
    """The steps that bring one job on this node closer to its share.

    Applied again and again as runs end and locks come, it ends with exactly the desired items running.

    Args:
        desired: the items this node shall run; empty when it is closing.
        held: the items whose locks this node holds for sure.
        running: the live runs, those told to stop included.
        threads: how the share is cut into runs.
    """
    live = list(running)
    wanted, locked = set(desired), set(held)
    busy = frozenset[str]().union(*(run.items for run in live))
    targets = {frozenset(part): part for part in threads.slices(wanted & locked)}
    kept = {run.items for run in live if not run.stopping and run.items in targets}
    stop = tuple(run.number for run in live if not run.stopping and run.items not in targets)
    fresh = [part for items, part in targets.items() if items not in kept and not items & busy]
    if threads.limit:
        fresh = fresh[: max(0, threads.limit - len(live))]
    return Actions(
        stop=stop,
        release=tuple(sorted(locked - wanted - busy)),
        acquire=tuple(sorted(wanted - locked - busy)),  # a stale run must not see its item locked anew
        start=tuple(fresh),
    )
