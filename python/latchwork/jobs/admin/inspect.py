"""The state of a cluster, read from any process without joining it. Writes nothing, starts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from latchwork.checks import check_store
from latchwork.errors import LatchworkError
from latchwork.jobs.manager.strategies import decode_strategies_note
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.keys import cluster_store, refuse_old_cluster
from latchwork.jobs.stored.nodes import NODES, Member, NodeMark, decode_marks
from latchwork.jobs.stored.packed import set_from_entries_or_read
from latchwork.jobs.stored.runs import ActiveRuns, JobOutcome, RunError, decode_activity, decode_outcomes
from latchwork.primitives import LeaderLatch, LockHolder, lock_states
from latchwork.store import Store
from latchwork.types import Entry


class UnknownJob(LatchworkError, LookupError):
    """No job of this id is known to the cluster; the message lists the known ones."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A living node.

    Attributes:
        node_id: its id.
        member: what it says about itself: state, host, pid, since when.
        is_manager: whether it manages the cluster.
        jobs: the jobs it can run: sorted.
        assigned: its share by job: sorted items, no empty shares.
    """

    node_id: str
    member: Member
    is_manager: bool
    jobs: tuple[str, ...]
    assigned: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class LockView:
    """A work item's lock that somebody holds.

    Attributes:
        job: the job.
        item: the work item.
        holder: who holds it; it may be dead already, and the lock is then taken over when it has run out.
        token: the fencing token of the holder.
        since_s: when the holder took it, in seconds since the epoch by the holder's clock; None when nobody said.
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
        job_id: its id.
        items: how many work items it has.
        nodes: the living nodes that can run it: sorted.
        unmet_labels: the living nodes that have the job and cannot run it, each with the labels it would need. If no node
            can run it its items are not known either.
        assigned: item to node; items nobody can run are absent.
        running: item to the node that its lock names, which may be gone by now; see ``locked``.
        since_s: item to when that node took its lock, in seconds since the epoch by the node's clock.
        active: the runs that are going on, node by node, as far as they have lasted a second; at most about 5 s old.
        outcomes: how its runs went, node by node, also at nodes that have gone: as of their last write, which comes
            soon when a job begins to fail, and else once in ``outcome_period_s``.
        locked: item to the living node that holds its lock, and so may run it: a run may be going on, or wait for its
            time. During a hand-over this is the old one.
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
        """True when a run of it is going on that has lasted a second; false for one that waits for its time."""
        return bool(self.active)

    @property
    def active_items(self) -> int:
        """How many items are worked on at this moment, by runs that have lasted a second."""
        return sum(each.items for each in self.active)

    @property
    def active_since_s(self) -> float | None:
        """When the oldest run that is going on began, in seconds since the epoch; None when there is none."""
        return min((each.since_s for each in self.active), default=None)

    @property
    def last_start_s(self) -> float | None:
        """When a run of it last began anywhere, in seconds since the epoch; None if that is not known."""
        return max((each.last_start_s for each in self.outcomes if each.last_start_s is not None), default=None)

    @property
    def last_success_s(self) -> float | None:
        """When a run of it last ended well anywhere; None if that is not known."""
        return max((each.last_success_s for each in self.outcomes if each.last_success_s is not None), default=None)

    @property
    def last_error(self) -> RunError | None:
        """How a run of it last failed anywhere; None if none is known."""
        errors = [each.last_error for each in self.outcomes if each.last_error is not None]
        return max(errors, key=lambda error: error.at_s, default=None)

    @property
    def consecutive_failures(self) -> int:
        """How many runs of one item have failed one after the other: of the item with most; 0 when none fails."""
        return max((each.consecutive_failures for each in self._current()), default=0)

    @property
    def failing_items(self) -> int:
        """How many items there are whose last run failed."""
        return sum(each.failing_items for each in self._current())

    @property
    def failing(self) -> tuple[RunError, ...]:
        """The last failures of such items, up to 10 of each node, those with most in a row first."""
        found = [error for each in self._current() for error in each.failing]
        return tuple(sorted(found, key=lambda error: (-error.consecutive_failures, -error.at_s, error.item)))

    @property
    def next_start_s(self) -> float | None:
        """When it runs next, as far as its nodes knew at their last write; may be past."""
        return min((each.next_start_s for each in self._current() if each.next_start_s is not None), default=None)

    def _current(self) -> list[JobOutcome]:
        """The outcomes that tell of now: of its living nodes; with none of those, the last ones there are."""
        return [each for each in self.outcomes if each.node in self.nodes or not self.nodes]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster at about one moment; no snapshot, its parts are read one after the other.

    Attributes:
        manager: the id of the node that manages, None between two.
        candidates: the ids of the nodes that stand for election, the manager first.
        nodes: the living nodes, by id, sorted.
        pools: all work items by job: sorted; jobs sorted.
        leftovers: ids of nodes that are gone and still have a share; the next rebalance takes it from them.
        locks: the locks that are held, sorted by job and item.
        marks: the nodes that are drained, or being restarted, whether they live or not.
        strategies: by which strategy the items of a job were last placed: job id, or ``*`` for all other jobs, to its
            name; ``custom:`` is before that of a custom one. Empty when nothing was placed yet.
        active: the runs that are going on, as far as they have lasted a second, sorted by job and node. What a node
            says ends with its session: one that is cut off may still run.
        outcomes: how the runs of each job went at each node, sorted by job and node.
    """

    manager: str | None
    candidates: tuple[str, ...]
    nodes: Mapping[str, NodeView]
    pools: Mapping[str, tuple[str, ...]]
    leftovers: tuple[str, ...]
    locks: tuple[LockView, ...]
    marks: Mapping[str, NodeMark] = field(default_factory=dict)
    strategies: Mapping[str, str] = field(default_factory=dict)
    active: tuple[ActiveRuns, ...] = ()
    outcomes: tuple[JobOutcome, ...] = ()

    def holder_lives(self, lock: LockView) -> bool:
        """Whether the process that holds a lock lives as a node; else nobody holds it, and it runs out by itself."""
        node = self.nodes.get(lock.holder.label)
        return node is not None and (node.member.host, node.member.pid) == (lock.holder.host, lock.holder.pid)

    def job(self, job_id: str) -> JobState:
        """One job: where its items are, who holds their locks, which runs are going on and since when.

        Raises:
            UnknownJob: the cluster does not know it; the message lists what it knows.
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
            locked={lock.item: lock.holder.label for lock in locks if self.holder_lives(lock)},
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
        """Every job that has a work pool, sorted by id."""
        return [self.job(job_id) for job_id in self.pools]


def inspect(store: Store, *, namespace: str | None = None) -> ClusterState | None:
    """Read the state of a cluster. Safe anywhere, at any time; costs one listing of each part of it.

    Args:
        store: the store, opened with the cluster's root.
        namespace: the cluster's namespace below it, as given to its job managers.
    Returns:
        The state; None when there is no cluster here, not even a trace of one.
    Raises:
        LatchworkError: there is a cluster of an older version here, outside of ``@jobs``.
    """
    check_store(store, "inspect")
    given, store = store, cluster_store(store, namespace)
    alive = store.list(keys.ALIVE)
    pools = _by_job(store, keys.WORK_POOL, store.list(keys.WORK_POOL, recursive=True))
    registered = store.list(keys.WORKERS, recursive=True)
    if not alive and not pools and not registered:
        refuse_old_cluster(given, namespace)
        return None
    candidates = tuple(candidate.node_id for candidate in LeaderLatch(store, keys.LEADER, node_id="-").candidates())
    manager = candidates[0] if candidates else None
    members = [Member.decode(entry.key.partition("/")[2], entry.value) for entry in alive]
    shares, available = _shares(store, registered), _by_worker(registered, "available")
    nodes = {
        member.worker: NodeView(
            node_id=member.worker,
            member=member,
            is_manager=member.worker == manager,
            jobs=tuple(sorted(entry.key.split("/", 3)[3] for entry in available.get(member.worker, ()))),
            assigned=shares.get(member.worker, {}),
        )
        for member in members
    }
    return ClusterState(
        manager=manager,
        candidates=candidates,
        nodes=nodes,
        pools=pools,
        leftovers=tuple(sorted(set(shares) - set(nodes))),
        locks=_locks(store),
        marks=decode_marks(store.list(NODES)),
        strategies=decode_strategies_note(store.get(keys.GUARD_ASSIGNMENT)),
        active=_active(store),
        outcomes=_outcomes(store),
    )


def _by_worker(registered: Iterable[Entry], kind: Literal["available", "assigned"]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in registered:
        parts = entry.key.split("/", 3)
        if len(parts) == 4 and parts[2] == kind:  # anything else was put there by somebody else
            found.setdefault(parts[1], []).append(entry)
    return found


def _shares(store: Store, registered: Iterable[Entry]) -> dict[str, dict[str, tuple[str, ...]]]:
    parts = _by_worker(registered, "assigned")
    found = {worker: _by_job(store, keys.assigned(worker), part) for worker, part in parts.items()}
    return {worker: {job: items for job, items in jobs.items() if items} for worker, jobs in found.items()}


def _by_job(store: Store, prefix: str, entries: Iterable[Entry]) -> dict[str, tuple[str, ...]]:
    """The sets whose heads are directly below the prefix, by job, sorted."""
    by_key = {entry.key: entry for entry in entries}
    names = sorted(name for key in by_key if "/" not in (name := key[len(prefix) + 1 :]))
    return {name: set_from_entries_or_read(store, f"{prefix}/{name}", by_key).packed.items for name in names}


def _active(store: Store) -> tuple[ActiveRuns, ...]:
    found = [
        each for entry in store.list(keys.RUNS) for each in decode_activity(entry.key.partition("/")[2], entry.value)
    ]
    return tuple(sorted(found, key=lambda each: (each.job, each.node)))


def _outcomes(store: Store) -> tuple[JobOutcome, ...]:
    entries = store.list(keys.OUTCOMES)
    found = [each for entry in entries for each in decode_outcomes(entry.key.partition("/")[2], entry.value)]
    return tuple(sorted(found, key=lambda each: (each.job, each.node)))


def _locks(store: Store) -> tuple[LockView, ...]:
    found = []
    for state in lock_states(store):
        if state.holder is not None:
            try:
                job, item = keys.split_lock_name(state.name)
            except ValueError:
                continue  # another program wrote it
            found.append(LockView(job, item, state.holder, state.token, state.since_s))
    return tuple(sorted(found, key=lambda lock: (lock.job, lock.item)))
