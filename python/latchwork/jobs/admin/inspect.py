"""Reads the state of a cluster from any process without joining it. Writes nothing and starts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from latchwork._base.validation import check_store
from latchwork.errors import LatchworkError
from latchwork.jobs.manager.strategies import decode_strategies
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.chunked_set import StoredSet, decode_or_read_set
from latchwork.jobs.stored.keys import cluster_store
from latchwork.jobs.stored.nodes import NODES, MaintenanceRecord, NodeRecord, decode_maintenance_records
from latchwork.jobs.stored.runs import ActiveRuns, JobOutcome, RunError, decode_active_runs, decode_outcomes
from latchwork.primitives import LeaderLatch, LockHolder, lock_states
from latchwork.store import Store
from latchwork.types import Entry


class UnknownJob(LatchworkError, LookupError):
    """The cluster knows no job with this ID; the message lists the known ones."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A running node.

    Attributes:
        node_id: ID of the node.
        member: Its published record: state, host, process ID, start time.
        is_manager: Whether it manages the cluster.
        jobs: Sorted jobs that it can run.
        assigned: Sorted items that are assigned to it, by job; only jobs with items.
        damaged: Why its stored items are not readable in full, by job.
    """

    node_id: str
    member: NodeRecord
    is_manager: bool
    jobs: tuple[str, ...]
    assigned: Mapping[str, tuple[str, ...]]
    damaged: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LockView:
    """A held lock of a work item.

    Attributes:
        job: ID of the job.
        item: The work item.
        holder: Holder of the lock. It may be dead already; the lock is then taken over after it has expired.
        token: Fencing token of the holder.
        since_s: Time of acquisition in seconds since the epoch by the holder's clock; None if unknown.
    """

    job: str
    item: str
    holder: LockHolder
    token: int
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as the cluster knows it.

    Attributes:
        job_id: ID of the job.
        items: Number of work items.
        nodes: Sorted running nodes that can run it.
        assigned: Node of each item; items that no node can run are absent.
        running: Node that the lock of each item names, which may be dead by now; see ``locked``.
        unmet_labels: Running nodes that have the job but cannot run it, with the missing labels. If no node can run it,
            its items are unknown, too.
        since_s: Time at which that node locked the item, in seconds since the epoch by the node's clock.
        active: Active runs by node, if they have lasted at least a second; at most about 5 s old.
        outcomes: Results of its runs by node, including removed nodes, as last written: soon after a job begins to
            fail, otherwise once per ``outcome_period_s``.
        locked: Running node that holds the lock of each item, and may be running it or waiting for its time. While an
            item moves, this is the previous node.
    """

    job_id: str
    items: int
    nodes: tuple[str, ...]
    assigned: Mapping[str, str]
    running: Mapping[str, str]
    unmet_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    since_s: Mapping[str, float] = field(default_factory=dict)
    active: tuple[ActiveRuns, ...] = ()
    outcomes: tuple[JobOutcome, ...] = ()
    locked: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_running(self) -> bool:
        """True if the job has an active run that has lasted at least a second."""
        return bool(self.active)

    @property
    def active_items(self) -> int:
        """The number of items in the active runs that started at least one second ago."""
        return sum(each.items for each in self.active)

    @property
    def active_since_s(self) -> float | None:
        """The start of the oldest active run in seconds since the epoch; None if there is none."""
        return min((each.since_s for each in self.active), default=None)

    @property
    def last_start_s(self) -> float | None:
        """The time of the last start of a run on any node, in seconds since the epoch; None if unknown."""
        return max((each.last_start_s for each in self.outcomes if each.last_start_s is not None), default=None)

    @property
    def last_success_s(self) -> float | None:
        """The time at which the last successful run on any node ended, in seconds since the epoch; None if unknown."""
        return max((each.last_success_s for each in self.outcomes if each.last_success_s is not None), default=None)

    @property
    def last_error(self) -> RunError | None:
        """The last failure of a run on any node; None if none is known."""
        errors = [each.last_error for each in self.outcomes if each.last_error is not None]
        return max(errors, key=lambda error: error.at_s, default=None)

    @property
    def consecutive_failures(self) -> int:
        """The largest number of consecutive failed runs of one item; 0 if none is failing."""
        return max((each.consecutive_failures for each in self._list_current_outcomes()), default=0)

    @property
    def failing_items(self) -> int:
        """The number of items whose last run failed."""
        return sum(each.failing_items for each in self._list_current_outcomes())

    @property
    def failing(self) -> tuple[RunError, ...]:
        """The last failures of failing items, at most 10 per node, sorted by the number of consecutive failures,
        highest first.
        """
        found = [error for each in self._list_current_outcomes() for error in each.failing]
        return tuple(sorted(found, key=lambda error: (-error.consecutive_failures, -error.at_s, error.item)))

    @property
    def next_start_s(self) -> float | None:
        """The time of the next start of a run in seconds since the epoch, as last reported by the nodes; it may be in
        the past.
        """
        return min(
            (each.next_start_s for each in self._list_current_outcomes() if each.next_start_s is not None), default=None
        )

    def _list_current_outcomes(self) -> list[JobOutcome]:
        """Return the run results of the running nodes that have the job. If there are none, return the results of all
        nodes.
        """
        return [each for each in self.outcomes if each.node in self.nodes or not self.nodes]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state of a cluster. It is not a snapshot: its parts are read one after the other.

    Attributes:
        manager: ID of the managing node; None between two managers.
        candidates: IDs of the nodes that stand for election, the manager first.
        nodes: Running nodes, sorted by ID.
        pools: Sorted work items by job; jobs sorted.
        leftovers: IDs of removed nodes that still have assigned items until the next rebalance.
        locks: Held locks, sorted by job and item.
        maintenance: Drained and restarting nodes, whether they are running or not.
        strategies: Name of the strategy that last placed the items of a job, by job ID, or ``*`` for all other jobs.
            Custom strategies begin with ``custom:``. Empty if nothing was placed yet.
        active: Active runs that have lasted at least a second, sorted by job and node. A node's report ends with its
            session; a node that is cut off may still be running.
        outcomes: Results of each job's runs on each node, sorted by job and node.
    """

    manager: str | None
    candidates: tuple[str, ...]
    nodes: Mapping[str, NodeView]
    pools: Mapping[str, tuple[str, ...]]
    leftovers: tuple[str, ...]
    locks: tuple[LockView, ...]
    maintenance: Mapping[str, MaintenanceRecord] = field(default_factory=dict)
    strategies: Mapping[str, str] = field(default_factory=dict)
    active: tuple[ActiveRuns, ...] = ()
    outcomes: tuple[JobOutcome, ...] = ()

    def is_holder_running(self, lock: LockView) -> bool:
        """Return whether the process that holds a lock is a running node. If not, the lock expires by itself."""
        node = self.nodes.get(lock.holder.label)
        return node is not None and (node.member.host, node.member.pid) == (lock.holder.host, lock.holder.pid)

    def job(self, job_id: str) -> JobState:
        """Return the state of one job: the nodes of its items, the holders of their locks, and the active runs.

        Raises:
            UnknownJob: The cluster does not know the job; the message lists the known ones.
        """
        known = sorted(
            set(self.pools).union(*((*node.jobs, *node.member.unmet_labels) for node in self.nodes.values()))
        )
        if job_id not in known:
            msg = f"job {job_id!r} is not known to this cluster; known are: {', '.join(known) or 'none'}"
            raise UnknownJob(msg)
        locks = [lock for lock in self.locks if lock.job == job_id]
        return JobState(
            job_id=job_id,
            items=len(self.pools.get(job_id, ())),
            nodes=tuple(node_id for node_id, node in self.nodes.items() if job_id in node.jobs),
            assigned={item: node_id for node_id, node in self.nodes.items() for item in node.assigned.get(job_id, ())},
            running={lock.item: lock.holder.label for lock in locks},
            locked={lock.item: lock.holder.label for lock in locks if self.is_holder_running(lock)},
            unmet_labels={
                node_id: node.member.unmet_labels[job_id]
                for node_id, node in self.nodes.items()
                if job_id in node.member.unmet_labels
            },
            since_s={lock.item: lock.since_s for lock in locks if lock.since_s is not None},
            active=tuple(each for each in self.active if each.job == job_id),
            outcomes=tuple(each for each in self.outcomes if each.job == job_id),
        )

    def jobs(self) -> list[JobState]:
        """Return the state of every job that has a work pool, sorted by ID."""
        return [self.job(job_id) for job_id in self.pools]


def inspect(store: Store, *, namespace: str | None = None) -> ClusterState | None:
    """Read the state of a cluster without joining it. Each part of the state is read with one listing.

    Args:
        store: The store, opened with the cluster's root.
        namespace: Namespace of the cluster, as given to its job managers.
    Returns:
        The state; None if the store contains no cluster.
    """
    check_store(store, "inspect")
    store = cluster_store(store, namespace)
    alive = store.list(keys.ALIVE)
    found_pools = _read_sets_by_job(store, keys.WORK_POOL, store.list(keys.WORK_POOL, recursive=True))
    pools = {job: found.chunked.items for job, found in found_pools.items()}
    registered = store.list(keys.WORKERS, recursive=True)
    if not alive and not pools and not registered:
        return None
    candidates = tuple(candidate.node_id for candidate in LeaderLatch(store, keys.LEADER, node_id="-").candidates())
    manager = candidates[0] if candidates else None
    members = [NodeRecord.decode(entry.key.partition("/")[2], entry.value) for entry in alive]
    assignments, available = _read_assignments(store, registered), _group_by_worker(registered, "available")
    nodes = {
        member.worker: NodeView(
            node_id=member.worker,
            member=member,
            is_manager=member.worker == manager,
            jobs=tuple(sorted(entry.key.split("/", 3)[3] for entry in available.get(member.worker, ()))),
            assigned={job: found.chunked.items for job, found in own.items() if found.chunked.items},
            damaged={job: found.damage for job, found in own.items() if found.damage},
        )
        for member in members
        for own in [assignments.get(member.worker, {})]
    }
    return ClusterState(
        manager=manager,
        candidates=candidates,
        nodes=nodes,
        pools=pools,
        leftovers=tuple(sorted(set(assignments) - set(nodes))),
        locks=_read_locks(store),
        maintenance=decode_maintenance_records(store.list(NODES)),
        strategies=decode_strategies(store.get(keys.GUARD_ASSIGNMENT)),
        active=_read_active_runs(store),
        outcomes=_read_outcomes(store),
    )


def _group_by_worker(registered: Iterable[Entry], kind: Literal["available", "assigned"]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in registered:
        parts = entry.key.split("/", 3)
        if len(parts) == 4 and parts[2] == kind:  # ignore keys of other programs
            found.setdefault(parts[1], []).append(entry)
    return found


def _read_assignments(store: Store, registered: Iterable[Entry]) -> dict[str, dict[str, StoredSet]]:
    parts = _group_by_worker(registered, "assigned")
    return {worker: _read_sets_by_job(store, keys.assignment_key(worker), part) for worker, part in parts.items()}


def _read_sets_by_job(store: Store, prefix: str, entries: Iterable[Entry]) -> dict[str, StoredSet]:
    """Decode the sets of items whose keys are directly below a prefix.

    Args:
        store: The cluster's store, to read sets that have changed meanwhile.
        prefix: Prefix of the keys, which end in the job IDs.
        entries: Entries below the prefix.
    Returns:
        The set of each job.
    """
    by_key = {entry.key: entry for entry in entries}
    names = sorted(name for key in by_key if "/" not in (name := key[len(prefix) + 1 :]))
    return {name: decode_or_read_set(store, f"{prefix}/{name}", by_key) for name in names}


def _read_active_runs(store: Store) -> tuple[ActiveRuns, ...]:
    found = [
        each for entry in store.list(keys.RUNS) for each in decode_active_runs(entry.key.partition("/")[2], entry.value)
    ]
    return tuple(sorted(found, key=lambda each: (each.job, each.node)))


def _read_outcomes(store: Store) -> tuple[JobOutcome, ...]:
    entries = store.list(keys.OUTCOMES)
    found = [each for entry in entries for each in decode_outcomes(entry.key.partition("/")[2], entry.value)]
    return tuple(sorted(found, key=lambda each: (each.job, each.node)))


def _read_locks(store: Store) -> tuple[LockView, ...]:
    found = []
    for state in lock_states(store):
        if state.holder is not None:
            try:
                job, item = keys.split_lock_name(state.name)
            except ValueError:
                continue  # not a key of latchwork
            found.append(LockView(job, item, state.holder, state.token, state.since_s))
    return tuple(sorted(found, key=lambda lock: (lock.job, lock.item)))
