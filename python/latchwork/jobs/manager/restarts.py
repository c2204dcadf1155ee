"""Drained and restarting nodes, as the leader sees them: which nodes get no items, and which items are reserved."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from latchwork.errors import Conflict
from latchwork.jobs.manager.rebalance import Assignments, ReservedItems, WorkerView
from latchwork.jobs.stored.chunked_set import ChunkNamer, commit_all, read_set, store_set
from latchwork.jobs.stored.nodes import (
    MaintenanceRecord,
    NodeRecord,
    decode_maintenance_record,
    decode_maintenance_records,
    group_reserved_keys,
    maintenance_key,
    reserved_items_key,
)
from latchwork.store import Mirror, Store
from latchwork.types import Absent, At, Check, Delete, Entry, Fence, Put

log = logging.getLogger(__name__)


class RestartTracker:
    """The drained and restarting nodes during one term of leadership. Not thread-safe.

    Args:
        store: The cluster's store.
        nodes: Mirror of the maintenance records.
        fence: The leader's fence, checked by every write.
        tag: Unique part of the names of written chunks.
    """

    def __init__(self, store: Store, nodes: Mirror, fence: Fence, tag: str) -> None:
        self._store = store
        self._nodes = nodes
        self._fence = fence
        self._names = ChunkNamer(f"{tag}.{fence.token}r")
        self._first_seen: dict[str, tuple[str, float]] = {}  # announcement and time, by node
        self._reserved: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {}
        self._written: dict[str, MaintenanceRecord] = {}  # own writes that the mirror may not show yet
        self._detected_timeouts: set[str] = set()  # announcements

    def list_maintenance_records(self) -> dict[str, MaintenanceRecord]:
        """Return the maintenance records of drained and restarting nodes, by node. Restarts whose timeout has passed
        are left out.
        """
        now = self._store.clock.now()
        found = decode_maintenance_records(self._nodes.snapshot().values())
        for node, record in found.items():
            if record.state == "restarting" and self._first_seen.get(node, ("", 0.0))[0] != _announcement_id(record):
                self._first_seen[node] = (_announcement_id(record), now)
        for node in self._first_seen.keys() - found.keys():
            del self._first_seen[node]
        return {node: record for node, record in found.items() if not self._is_past_timeout(record, now)}

    def may_have_items(self, record: MaintenanceRecord | None, members: Mapping[str, NodeRecord]) -> bool:
        """Return whether a ready node may get items. A node that is drained or about to restart may not.

        Args:
            record: Maintenance record of the node; None if it has none.
            members: Records of all running nodes.
        """
        if record is None or record.state != "restarting":
            return record is None
        member = members[record.node]
        return not record.is_awaiting_restart(member.incarnation, member.start)

    def reserve_items(self, ready: Mapping[str, WorkerView], assignments: Assignments) -> None:
        """Store the current items of nodes whose restart was announced, before these items move to other nodes.

        Args:
            ready: Nodes that may get items.
            assignments: The stored items by job and worker.
        Raises:
            Conflict: Leadership is lost, or the maintenance record has changed: try again.
        """
        for node, shown in self.list_maintenance_records().items():
            if shown.state != "restarting" or self._get_latest_record(shown).is_reserved:
                continue
            entry = self._store.get(
                maintenance_key(node)
            )  # the mirror may be outdated, and reserved items must be kept
            record = None if entry is None else decode_maintenance_record(node, entry.value)
            if entry is None or record is None or record.state != "restarting":
                continue
            if record.is_reserved:
                self._written[node] = record
                continue
            assigned = {job: workers[node] for job, workers in assignments.items() if node in workers}
            stale = set(self._store.children(reserved_items_key(node))) - set(assigned)
            checks: list[Check] = [self._fence, At(entry)]  # so that nothing is stored for a removed record
            for job in sorted({*assigned, *stale}):
                store_set(
                    self._store,
                    reserved_items_key(node, job),
                    assigned.get(job, ()),
                    checks=checks,
                    new_name=self._names,
                )
            worker = ready.get(node, WorkerView(1.0, frozenset(assigned)))
            done = record.with_reserved_items(worker.weight, tuple(sorted(worker.jobs)), worker.labels)
            self._store.commit(checks, [Put(maintenance_key(node), done.to_bytes())])
            self._reserved[node] = (_announcement_id(record), assigned)
            self._written[node] = done
            log.info("node %s is restarting: its %d items are reserved", node, sum(map(len, assigned.values())))

    def list_reserved_items(
        self, records: Mapping[str, MaintenanceRecord], workers: Mapping[str, WorkerView]
    ) -> dict[str, ReservedItems]:
        """Return the items that are reserved for each restarting node, by node. The node gets them back after the
        restart.

        Args:
            records: Result of ``list_maintenance_records``.
            workers: Nodes that may get items now.
        """
        found = {}
        for node, shown in records.items():
            record = self._get_latest_record(shown)
            if record.state == "restarting" and record.weight is not None:
                away = None if node in workers else WorkerView(record.weight, frozenset(record.jobs), record.labels)
                found[node] = ReservedItems(away, self._read_reserved_items(record))
        return found

    def delete_finished_records(
        self, records: Mapping[str, MaintenanceRecord], workers: Mapping[str, WorkerView]
    ) -> None:
        """Delete the maintenance records of nodes that have restarted, and of restarts whose timeout has passed.

        Reserved items whose maintenance record was removed or replaced are deleted, too.

        Args:
            records: Result of ``list_maintenance_records``.
            workers: Nodes that may get items now.
        """
        entries = self._nodes.snapshot()
        found = decode_maintenance_records(entries.values())
        below = group_reserved_keys(entries)
        for node in sorted({*found, *below}):
            record, entry = found.get(node), entries.get(maintenance_key(node))
            try:
                if record is None or record.state != "restarting":
                    self._delete_reserved_items(node, below.get(node, []), entry)
                elif entry is not None and (node not in records or node in workers):
                    if node not in records:
                        log.warning(
                            "node %s did not return within %.3g s: its items are distributed", node, record.timeout_s
                        )
                    self._store.commit([self._fence, At(entry)], [Delete(entry.key)])
                    self._delete_reserved_items(node, below.get(node, []), None)
            except Conflict:
                log.debug("the maintenance record of node %s has changed, checking it again", node)

    def _delete_reserved_items(self, node: str, below: Sequence[str], record: Entry | None) -> None:
        same = Absent(maintenance_key(node)) if record is None else At(record)
        commit_all(self._store, [self._fence, same], [Delete(key) for key in below])

    def detect_new_timeout(self, now: float) -> bool:
        """Return whether the timeout of any restart has passed since the last call. Each restart counts once.

        Args:
            now: Current time by the monotonic clock, in seconds.
        """
        late = {
            _announcement_id(record) for record in self._list_open_restarts() if self._is_past_timeout(record, now)
        } - self._detected_timeouts
        self._detected_timeouts |= late
        return bool(late)

    def due_in_s(self, now: float) -> float | None:
        """Return the seconds until the next timeout of a restart; None if no node is restarting.

        Args:
            now: Current time by the monotonic clock, in seconds.
        """
        waits = [self._first_seen[record.node][1] + record.timeout_s - now for record in self._list_open_restarts()]
        return min((max(0.0, wait) for wait in waits), default=None)

    def _list_open_restarts(self) -> list[MaintenanceRecord]:
        """Return the announced restarts whose timeout has not been detected yet."""
        found = decode_maintenance_records(self._nodes.snapshot().values())
        records = [
            record for record in found.values() if record.state == "restarting" and record.node in self._first_seen
        ]
        return [record for record in records if _announcement_id(record) not in self._detected_timeouts]

    def _is_past_timeout(self, record: MaintenanceRecord, now: float) -> bool:
        return record.state == "restarting" and now >= self._first_seen[record.node][1] + record.timeout_s

    def _get_latest_record(self, record: MaintenanceRecord) -> MaintenanceRecord:
        """Return this process's own write of the same announcement, if it is newer than the mirror's record."""
        written = self._written.get(record.node)
        return written if written is not None and _announcement_id(written) == _announcement_id(record) else record

    def _read_reserved_items(self, record: MaintenanceRecord) -> dict[str, tuple[str, ...]]:
        known = self._reserved.get(record.node)
        if known is None or known[0] != _announcement_id(record):
            jobs = self._store.children(reserved_items_key(record.node))
            by_job = {job: read_set(self._store, reserved_items_key(record.node, job)).chunked.items for job in jobs}
            known = self._reserved[record.node] = (_announcement_id(record), by_job)
        return known[1]


def _announcement_id(record: MaintenanceRecord) -> str:
    """Return a text that distinguishes this announcement of a restart from others of the same node."""
    return f"{record.incarnation} {record.at} {record.by}"
