"""The work of the manager during one term of leadership, and its cache of the cluster's state.

Every write checks the fence of the leadership. There are no threads and no waits here: the manager decides when.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from latchwork._base.text import reason
from latchwork.errors import Conflict
from latchwork.jobs.cron_progress import delete_obsolete_progress
from latchwork.jobs.manager.assignment_store import AssignmentStore
from latchwork.jobs.manager.planner import Planner
from latchwork.jobs.manager.rebalance import ClusterView, Rebalance, WorkerView
from latchwork.jobs.manager.restarts import RestartTracker
from latchwork.jobs.manager.strategies import ManagerOptions, encode_strategies
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.caches import PoolCache
from latchwork.jobs.stored.chunked_set import commit_all, find_orphaned_chunks
from latchwork.jobs.stored.nodes import NodeRecord, list_damage_reports
from latchwork.jobs.stored.requests import delete_expired_requests, delete_old_audit_records
from latchwork.jobs.stored.runs import delete_old_outcomes
from latchwork.schedules import WallClock
from latchwork.store import Mirror, Store
from latchwork.types import Absent, At, Delete, Fence, Op, Put

log = logging.getLogger(__name__)


class Leadership:
    """Reads the cluster, computes assignments and writes them during one term of leadership. Not thread-safe.

    Attributes:
        restarts: Drained and restarting nodes.
        is_loaded: Whether the stored assignment was read and is still valid.
    """

    def __init__(
        self,
        store: Store,
        own_record: NodeRecord,
        fence: Fence,
        *,
        alive: Mirror,
        nodes: Mirror,
        pools: PoolCache,
        restarts: RestartTracker,
        options: ManagerOptions,
    ) -> None:
        self.restarts = restarts
        self._store = store
        self._fence = fence
        self._alive = alive
        self._nodes = nodes
        self._pools = pools
        self._options = options
        self._wall_clock = WallClock(store.clock)  # so that a clock that is briefly wrong removes nothing
        self._assignment = AssignmentStore(
            store, f"{own_record.incarnation}.{fence.token}", encode_strategies(options.strategies.describe())
        )
        self._planner = Planner(options.strategies)
        self.is_loaded = False
        self._decoded_members: dict[str, tuple[object, NodeRecord]] = {}  # with the version of the entry
        self._runnable_jobs: dict[str, tuple[str, frozenset[str]]] = {}  # by worker, with its incarnation
        self._unplaced: Mapping[str, int] = {}
        self._unmet: frozenset[str] = frozenset()
        self._versions: frozenset[str] = frozenset()

    @property
    def written_bytes(self) -> int:
        """The bytes of keys and values of the assignment that were written in this term."""
        return self._assignment.written_bytes

    def discard_cache(self) -> None:
        """Discard everything that was read from the store, so that the next rebalance reads it again. Call it after a
        failure.
        """
        self.is_loaded = False
        self._planner.reset()
        self._runnable_jobs.clear()

    def rebalance(self) -> Rebalance:
        """Read what has changed, compute the assignment of items to workers, and write the differences.

        If a node has reported that its stored items are damaged, read everything again. The damaged assignment then
        counts as empty and is written again.

        Returns:
            The changes, and the jobs that could not be assigned.
        Raises:
            Conflict: Leadership is lost, or the stored assignment has changed: call ``discard_cache`` and try again.
        """
        reports = list_damage_reports(self._nodes.snapshot())
        if reports:
            self.discard_cache()
        was_loaded = self.is_loaded
        if not was_loaded:
            registered = [member for member in self._list_members().values() if member.state == "ready"]
            self._assignment.load(
                self._fence
            )  # after reading the ready members, so that their registrations are included
            self._runnable_jobs = {
                member.worker: (member.incarnation, self._assignment.get_runnable_jobs(member.worker))
                for member in registered
            }
            self.is_loaded = True
        members = self._list_members()
        self._warn_of_mixed_versions(members)
        ready = self._list_ready_workers(members)
        assignments = self._assignment.get_assignments()
        self.restarts.reserve_items(ready, assignments)
        records = self.restarts.list_maintenance_records()
        workers = {
            name: worker for name, worker in ready.items() if self.restarts.may_have_items(records.get(name), members)
        }
        view = ClusterView(
            workers, self._pools.read_pools(), assignments, self.restarts.list_reserved_items(records, workers)
        )
        result = self._planner.rebalance(view)
        self._assignment.reuse_strings(self._planner.pop_first_assignments())
        self._log_result(result, self._find_missing_labels(members, ready))
        if result.changes:
            started = self._store.clock.now()
            self._assignment.write(result.changes, self._fence)
            log.info(
                "rebalanced: %d items move, %d assignments of %d workers written in %.3f s",
                result.moves,
                len(result.changes),
                len(workers),
                self._store.clock.now() - started,
            )
        if not was_loaded:
            self._assignment.delete_empty_assignments(self._fence)
        commit_all(self._store, [self._fence], [Delete(key) for key in reports])
        if not result.failed:
            self.restarts.delete_finished_records(records, workers)
        self._delete_dead_workers(members)
        return result

    def delete_unused_pools(self) -> None:
        """Delete the work pools of jobs that no running worker can run, and abandoned chunks of other pools.

        A worker that registers at the same time rewrites ``versions/worker`` before it checks the pools. Therefore
        either this deletion is refused, or the worker finds no pool and writes it.
        """
        guard = self._store.get(keys.GUARD_WORKER)
        same_workers = Absent(keys.GUARD_WORKER) if guard is None else At(guard)
        members = [
            NodeRecord.decode(entry.key.partition("/")[2], entry.value) for entry in self._store.list(keys.ALIVE)
        ]
        able = {job for member in members for job in self._store.children(keys.available_job_key(member.worker))}
        running_incarnations = {member.incarnation for member in members}
        for job, chunks in sorted(self._pools.list_chunk_keys().items()):
            key = keys.work_pool_key(job)
            manifest = self._store.get(key)
            if manifest is not None and job not in able:
                log.info("job %s loses its work pool because no running worker can run it", job)
                ops: list[Op] = [Delete(key), Put(keys.GUARD_POOL, b"{}")]
                self._store.commit([self._fence, same_workers, At(manifest)], ops)
                manifest = None
            orphans = find_orphaned_chunks(key, chunks, manifest, running_incarnations)
            same_manifest = Absent(key) if manifest is None else At(manifest)
            # ``same_workers`` here too: chunks of a worker that is just registering have no manifest yet
            commit_all(self._store, [self._fence, same_workers, same_manifest], [Delete(key) for key in orphans])

    def delete_expired_records(self, outcome_keep_s: float) -> None:
        """Delete the locks of dead nodes, and expired cron progress, requests, audit records and run results.

        Args:
            outcome_keep_s: Seconds for which the run results of a removed node are kept.
        """
        self._options.sweep()
        delete_obsolete_progress(self._store, self._pools.read_pools(), [self._fence])
        delete_old_audit_records(self._store, [self._fence])
        now_s = self._wall_clock.now()
        delete_expired_requests(self._store, now_s, [self._fence])
        delete_old_outcomes(self._store, self._list_members(), now_s - outcome_keep_s, [self._fence])

    def _list_members(self) -> dict[str, NodeRecord]:
        """Return the records of all running nodes by ID. Only changed records are decoded."""
        decoded = {}
        for key, entry in self._alive.snapshot().items():
            worker = key.partition("/")[2]
            known = self._decoded_members.get(worker)
            if known is None or known[0] != entry.version:
                known = (entry.version, NodeRecord.decode(worker, entry.value))
            decoded[worker] = known
        self._decoded_members = decoded
        return {worker: member for worker, (_, member) in decoded.items()}

    def _list_ready_workers(self, members: Mapping[str, NodeRecord]) -> dict[str, WorkerView]:
        """Return the ready workers by ID. The jobs of a new worker are read from the store."""
        workers = {}
        for member in members.values():
            if member.state == "ready":
                known = self._runnable_jobs.get(member.worker)
                if known is None or known[0] != member.incarnation:
                    known = (member.incarnation, self._assignment.load_runnable_jobs(member.worker))
                    self._runnable_jobs[member.worker] = known
                workers[member.worker] = WorkerView(member.weight, known[1], member.labels)
        return workers

    def _delete_dead_workers(self, running_workers: Collection[str]) -> None:
        """Delete the stored lists of the jobs that dead workers could run. A worker that is running again keeps its
        list.

        Args:
            running_workers: IDs of the running workers.
        """
        for worker in sorted(self._assignment.find_stored_workers().difference(running_workers)):
            try:
                self._assignment.delete_worker_jobs(worker, self._fence)
            except Conflict:
                if not self._store.get(keys.alive_key(worker)):
                    raise
                log.debug("worker %s returned before its keys were deleted", worker)

    def _warn_of_mixed_versions(self, members: Mapping[str, NodeRecord]) -> None:
        """Log one warning if nodes of different latchwork versions are in the cluster, because they may be
        incompatible.
        """
        versions = frozenset(member.version for member in members.values())
        if len(versions) > 1 and versions != self._versions:
            by_version = {
                version: sorted(member.worker for member in members.values() if member.version == version)
                for version in versions
            }
            listing = "; ".join(
                f"{version or 'unknown'}: {', '.join(nodes)}" for version, nodes in sorted(by_version.items())
            )
            log.warning(
                "nodes of different latchwork versions share this cluster: %s; finish the upgrade soon", listing
            )
        self._versions = versions

    def _find_missing_labels(
        self, members: Mapping[str, NodeRecord], ready: Mapping[str, WorkerView]
    ) -> dict[str, str]:
        """Find the jobs that no ready node can run because of missing labels.

        Args:
            members: All running nodes.
            ready: Nodes that may get items.
        Returns:
            A description of one node with missing labels, by job ID.
        """
        able = {job for worker in ready.values() for job in worker.jobs}
        unmet_labels = sorted(
            ((job, m.worker, dict(miss)) for m in members.values() for job, miss in m.unmet_labels.items()), key=str
        )
        unmet: dict[str, str] = {}
        for job, worker, missing in unmet_labels:
            if job not in able:
                unmet.setdefault(job, f"node {worker} has it but lacks the required labels: {missing}")
        return unmet

    def _log_result(self, result: Rebalance, unmet: Mapping[str, str]) -> None:
        for job, error in result.failed.items():
            log.error("strategy of job %s failed, so its assignment is unchanged: %s", job, reason(error))
        for job, items in result.unplaced.items():
            if job not in self._unplaced:
                why = f"; {unmet[job]}" if job in unmet else ""
                log.warning("job %s: no ready worker can run its %d items%s", job, items, why)
        for job in sorted(unmet.keys() - self._unmet - result.unplaced.keys()):
            log.warning("job %s runs nowhere: %s", job, unmet[job])
        self._unplaced, self._unmet = result.unplaced, frozenset(unmet)
