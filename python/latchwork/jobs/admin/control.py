"""Changes of a cluster's behavior, and requests for manual runs, from any process without joining the cluster.

Every change is stored and takes effect at once. It is one transaction that checks the values it was based on, so that
concurrent changes are not lost.
"""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from latchwork._base.decoding import MAX_DURATION_S, encode
from latchwork._base.event import Signal
from latchwork._base.text import utc_text
from latchwork._base.validation import check_store, is_number
from latchwork.clock import Clock
from latchwork.errors import Closed, Conflict, LatchworkError, WaitTimeout
from latchwork.jobs import settings as stored
from latchwork.jobs.cron_progress import decode_progress_records, find_newest_by_item, reset_future_progress
from latchwork.jobs.options import InvalidSetting
from latchwork.jobs.settings import Settings, read_settings
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.chunked_set import ChunkNamer, commit_all, read_set, store_set
from latchwork.jobs.stored.keys import check_id, check_item, cluster_store
from latchwork.jobs.stored.nodes import (
    MaintenanceRecord,
    NodeRecord,
    decode_maintenance_record,
    maintenance_key,
    reserved_items_key,
)
from latchwork.jobs.stored.requests import (
    AUDIT,
    MANUAL,
    MAX_REQUEST_ITEMS,
    AuditRecord,
    RunRequest,
    RunResult,
    decode_result,
    read_requested_items,
)
from latchwork.primitives import LockState, force_release, lock_states
from latchwork.store import Mirror, Store, Tx
from latchwork.types import Absent, At, Check, Create, Delete, Entry, Op

#: Seconds between checks for items that have left the pool.
_REQUEST_POLL_S = 2.0

#: Seconds between checks of the locks that a draining node still holds.
_POLL_S = 0.2


def request_run(store: Store, job: str, items: Iterable[str] | None, *, by: str, within_s: float) -> RunRequest:
    """Store a request that each of these items of a job runs once, on the node that holds its lock.

    Args:
        store: The cluster's store.
        job: ID of the job.
        items: Items to run, at most 100; None for all that exist now.
        by: Person who makes the request.
        within_s: Seconds within which runs may start on each node, counted from when the node first sees the request.
    Returns:
        The stored request.
    Raises:
        ValueError: The ID or an item is invalid, or there are more than 100 items.
    """
    listed = None if items is None else tuple(sorted({check_item(item) for item in items}))
    if listed is not None and not 1 <= len(listed) <= MAX_REQUEST_ITEMS:
        raise ValueError(f"{len(listed)} items were given; give 1 to {MAX_REQUEST_ITEMS}, or none for all")
    now = time.time()
    request = RunRequest(uuid.uuid4().hex, check_id("job", job), listed, now, now + within_s, by)
    if listed is None and (pool := read_set(store, keys.work_pool_key(job))).manifest is not None:
        namer = ChunkNamer(request.id)
        while True:
            copy, _ = store_set(store, request.items_key, pool.chunked.items, checks=[], new_name=namer)
            try:
                store.commit([copy.unchanged_check(request.items_key)], [Create(request.key, request.to_bytes())])
            except Conflict as error:
                if list(error.failed) != [copy.unchanged_check(request.items_key)]:
                    raise
                continue  # a manager took the copy for the rest of an old request, and deleted it
            return request
    store.create(request.key, request.to_bytes())
    return request


def wait_for_runs(
    store: Store, request: RunRequest, list_existing_items: Callable[[], frozenset[str]], timeout_s: float
) -> list[RunResult]:
    """Wait until each requested item has run, and delete the request.

    Args:
        store: The cluster's store.
        request: The request.
        list_existing_items: Returns the requested items that still exist.
        timeout_s: Seconds to wait.
    Returns:
        The results of the runs, sorted by node and items.
    Raises:
        WaitTimeout: Some runs have not ended. Runs that have not started are canceled.
    """
    try:
        with store.mirror(f"{MANUAL}/{request.id}") as mirror:
            _wait_until_ended(mirror, store.clock, request, list_existing_items, timeout_s)
            found = [decode_result(entry.value) for entry in store.list(request.results_prefix)]
    finally:
        delete_request(store, request)
    return sorted((each for each in found if each is not None), key=lambda each: (each.node, each.named))


def _wait_until_ended(
    mirror: Mirror,
    clock: Clock,
    request: RunRequest,
    list_existing_items: Callable[[], frozenset[str]],
    timeout_s: float,
) -> None:
    """Wait until the run of each requested item has ended. From time to time, list the items that still exist."""
    until = clock.now() + timeout_s

    def have_ended(state: Mapping[str, Entry]) -> bool:
        return items <= _find_ended_items(request, state)

    while True:
        items = list_existing_items()
        try:
            mirror.wait_until(have_ended, max(0.0, min(_REQUEST_POLL_S, until - clock.now())))
        except WaitTimeout:
            if clock.now() < until:
                continue
            ended = items & _find_ended_items(request, mirror.snapshot())
            raise WaitTimeout(
                f"after {timeout_s:g} s {len(ended)} of {len(items)} items of job {request.job} have had "
                "their run; runs that have not started are canceled; wait longer, or look at `latchwork why`"
            ) from None
        return


def delete_request(store: Store, request: RunRequest) -> None:
    """Delete a request for a manual run. Runs that have not started are canceled.

    If the store is unreachable, nothing is deleted, and the request expires later by itself.
    """
    try:
        store.delete(request.key)
        store.delete_tree(f"{MANUAL}/{request.id}")
    except Closed:
        raise
    except LatchworkError:
        return  # it expires by itself


def _find_ended_items(request: RunRequest, state: Mapping[str, Entry]) -> frozenset[str]:
    below = f"{request.progress_prefix}/{request.job}/"
    records = decode_progress_records(
        (entry for key, entry in state.items() if key.startswith(below)), request.job, request.progress_prefix
    )
    newest = find_newest_by_item(record for record, _ in records)
    return frozenset(
        item for item, (_, fired) in newest.items() if fired.running is None and fired.through >= request.at_s
    )


class UnknownNode(LatchworkError, LookupError):
    """No node with this ID is running in the cluster; the message lists the running ones."""


class LockNotHeld(LatchworkError, LookupError):
    """No node holds the lock."""


def get_current_user() -> str:
    """Return the user and host of this process, as ``user@host``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


class Control:
    """Changes the settings and nodes of one cluster, and requests manual runs. Construction does no I/O. Thread-safe.

    Args:
        store: The store, opened with the cluster's root.
        namespace: Namespace of the cluster, as given to its job managers.
        by: Author that is stored with each change; by default user and host.
    """

    def __init__(self, store: Store, *, namespace: str | None = None, by: str | None = None) -> None:
        check_store(store, "Control")
        self._store = cluster_store(store, namespace)
        self._by = by

    def settings(self) -> Settings:
        """Read all settings of the cluster. Invalid settings are logged and treated as not set."""
        return read_settings(self._store)

    def disable_all(self) -> None:
        """Disable all jobs on all nodes, including jobs that are enabled individually. Active runs are asked to stop
        within about a second.
        """
        self.change_cluster(all_disabled=True)

    def enable_all(self) -> None:
        """Undo ``disable_all``. Each job runs again if it is enabled individually or by default."""
        self.change_cluster(all_disabled=None)

    def set_default_enabled(self, enabled: bool | None) -> None:
        """Set whether jobs run that are neither enabled nor disabled individually.

        Args:
            enabled: Whether these jobs run; None restores the initial default, which is True.
        """
        self.change_cluster(default_enabled=enabled)

    def disable(self, job: str) -> None:
        """Disable one job on all nodes. The job need not exist yet.

        Its active runs are asked to stop, and its items stay assigned to their nodes.
        """
        self.change_job(job, enabled=False)

    def enable(self, job: str) -> None:
        """Enable one job, even if jobs are disabled by default. The job still does not run while ``disable_all`` is in
        effect.
        """
        self.change_job(job, enabled=True)

    def reset_settings(self, job: str) -> None:
        """Delete all settings of a job, so that the options from its code and the default apply."""
        self._store.delete(_job_key(job))

    def change_job(self, job: str, **settings: Any) -> None:
        """Set options of one job for all nodes; None restores the option from code.

        Args:
            job: ID of the job; it need not exist yet.
            settings: Fields of ``JobSettings``.
        Raises:
            InvalidSetting: A setting is unknown or invalid; nothing is changed.
        """
        self._change_settings(_job_key(job), stored.JobSettings.__dataclass_fields__, settings)

    def change_cluster(self, **settings: Any) -> None:
        """Set options of the cluster; None restores the option from code.

        Args:
            settings: Fields of ``ClusterSettings``.
        Raises:
            InvalidSetting: A setting is unknown or invalid; nothing is changed.
        """
        self._change_settings(stored.CLUSTER, stored.ClusterSettings.__dataclass_fields__, settings)

    def drain(self, node: str) -> None:
        """Move a node's items to other nodes, and give the node no items until ``undrain``. The node stays drained when
        it restarts.

        If a restart of the node was announced, the announcement is canceled: its items are given to the other nodes
        permanently.
        """
        self._store_maintenance_record(MaintenanceRecord(check_id("node", node), "drained"))
        entry = self._store.get(maintenance_key(node))
        record = None if entry is None else decode_maintenance_record(node, entry.value)
        if entry is not None and record is not None and record.state == "drained":
            self._delete_reserved_items(node, At(entry))

    def announce_restart(self, node: str, *, timeout_s: float = 300.0) -> None:
        """Move a node's items to other nodes until the node has restarted. Then the node gets exactly those items back,
        and no other items move.

        The node counts as restarted when its process has started again, not when it registers again after a lost
        session. A second announcement restarts the timeout. The announcement has no effect on a drained node.

        Args:
            node: A running node.
            timeout_s: Seconds for which its items are reserved. Afterwards they are given to the other nodes
                permanently.
        Raises:
            UnknownNode: No such node is running; the message lists the running ones.
            InvalidSetting: ``timeout_s`` is invalid.
        """
        if not is_number(timeout_s, 0.0) or timeout_s > MAX_DURATION_S:
            raise InvalidSetting(f"timeout_s is {timeout_s!r}; give a number of seconds from 0 to {MAX_DURATION_S:g}")
        entry = self._store.get(keys.alive_key(check_id("node", node)))
        if entry is None:
            running = ", ".join(self._store.children(keys.ALIVE)) or "none"
            raise UnknownNode(f"node {node!r} is not running in this cluster; running nodes: {running}")
        member = NodeRecord.decode(node, entry.value)
        self._store_maintenance_record(
            MaintenanceRecord(
                node, "restarting", incarnation=member.incarnation, start=member.start, timeout_s=timeout_s
            )
        )

    def undrain(self, node: str) -> bool:
        """Let a drained node get items again, or cancel an announced restart.

        Returns:
            False if the node was neither drained nor restarting.
        """
        found = self._store.delete(maintenance_key(check_id("node", node)))
        self._delete_reserved_items(node, Absent(maintenance_key(node)))
        return found

    def wait_drained(self, node: str, timeout_s: float | None = None) -> None:
        """Wait until a node has no items and holds no locks, so that it can be stopped without a gap.

        Args:
            node: ID of the node.
            timeout_s: Seconds to wait; None waits forever.
        Raises:
            WaitTimeout: The node still has items or holds locks; the message says which.
        """
        clock = self._store.clock
        until = None if timeout_s is None else clock.now() + timeout_s
        with self._store.mirror(keys.assignment_key(node)) as assigned:
            assigned.wait_until(lambda state: not state, timeout_s)
        while True:
            locks = lock_states(self._store)
            held = [state.name for state in locks if state.holder is not None and state.holder.label == node]
            if not held:
                return
            left_s = math.inf if until is None else until - clock.now()
            if left_s <= 0:
                more = f" and {len(held) - 1} more" if len(held) > 1 else ""
                raise WaitTimeout(
                    f"node {node} has no items but is still running {held[0]}{more} after {timeout_s:g} s; "
                    "wait longer, or check that its runs react to should_stop"
                )
            clock.wait(Signal(), min(left_s, _POLL_S))

    def force_release(self, job: str, item: str, *, reason: str) -> AuditRecord:
        """Release an item's lock by force, and record in the audit log who did it and why.

        A running node that holds the lock stops its run, and every fenced write of that run is refused from now on. The
        item may start elsewhere before that run has stopped, so make sure that an overlap does no harm.

        Args:
            job: ID of the job.
            item: The work item.
            reason: Reason for the audit log.
        Returns:
            The record in the audit log.
        Raises:
            LockNotHeld: No node holds the lock.
            Conflict: The holder has just changed; try again.
        """
        name = keys.lock_name(check_id("job", job), keys.check_item(item))
        at = datetime.now(UTC)
        record: list[AuditRecord] = []

        def written_down(before: LockState) -> list[Op]:
            when = utc_text(at.timestamp())
            by = self._by or get_current_user()
            record.append(AuditRecord(job, item, before.token, str(before.holder), by, when, reason))
            return [Create(f"{AUDIT}/{at.timestamp():017.6f}-{uuid.uuid4().hex[:8]}", record[0].to_bytes())]

        before = force_release(self._store, name, also=written_down)
        if before is None:
            raise LockNotHeld(f"the lock of item {item!r} of job {job} is free; nothing was changed")
        return record[0]

    def run_now(self, job: str, items: Iterable[str] | None = None, *, within_s: float = 3600.0) -> RunRequest:
        """Request that each of a job's items runs once in the cluster, on the node that holds its lock.

        The requested run waits for an active run of the item, because two runs of an item never overlap. The schedule
        is not affected. An interrupted run is repeated. This call returns at once; ``wait_for_runs`` waits for the
        results.

        Args:
            job: ID of the job.
            items: Items to run, at most 100. None for all items that the job has now; if no node has the job yet, for
                the items that the job gets first.
            within_s: Seconds within which runs may start on each node, counted from when the node first sees the
                request.
        Returns:
            The request, for ``wait_for_runs``.
        Raises:
            ValueError: The ID or an item is invalid, or there are too many items.
        """
        return request_run(self._store, job, items, by=self._by or get_current_user(), within_s=within_s)

    def reset_progress(self, job: str) -> dict[str, float]:
        """Reset recorded fire times of a job that are more than a minute in the future to the current time.

        They were recorded by a node whose clock was ahead, and they prevent the items from starting until that time.
        The nodes of the job notice the change within 10 s. A fire time that was started early, because of the wrong
        clock, may start a second time.

        Args:
            job: ID of the job.
        Returns:
            For each item that was reset, the future fire time that was recorded, in seconds since the epoch.
        """
        return reset_future_progress(self._store, check_id("job", job), time.time())

    def wait_for_runs(self, request: RunRequest, timeout_s: float) -> list[RunResult]:
        """Wait until each item of a request has run, return the results, and delete the request.

        Args:
            request: Result of ``run_now``.
            timeout_s: Seconds to wait.
        Returns:
            The results of the runs, sorted by node and items.
        Raises:
            WaitTimeout: Some runs have not ended. Runs that have not started are canceled.
        """

        def list_existing_items() -> frozenset[str]:
            pool = frozenset(read_set(self._store, keys.work_pool_key(request.job)).chunked.items)
            return pool if meant is None else pool & meant

        meant = read_requested_items(self._store, request)
        return wait_for_runs(self._store, request, list_existing_items, timeout_s)

    def _store_maintenance_record(self, record: MaintenanceRecord) -> None:
        key = maintenance_key(record.node)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        signed = replace(record, by=self._by or get_current_user(), at=at)

        def write(tx: Tx) -> None:
            found = tx.get(key)
            before = None if found is None else decode_maintenance_record(record.node, found.value)
            after = signed.merge_with_stored(before)
            if after != before:
                tx.put(key, after.to_bytes())

        self._store.transact(write)

    def _delete_reserved_items(self, node: str, unchanged_record: Check) -> None:
        """Delete the items that are reserved for a restarting node, unless its maintenance record has changed.

        Args:
            node: ID of the node.
            unchanged_record: Check that the node's maintenance record is unchanged.
        """
        below = self._store.list(reserved_items_key(node), recursive=True)
        with contextlib.suppress(Conflict):
            commit_all(self._store, [unchanged_record], [Delete(each.key) for each in below])

    def _change_settings(self, key: str, known: dict[str, Any], settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            if name not in known:
                raise InvalidSetting(f"setting {name!r} is not known; known settings are {', '.join(known)}")
            if value is not None:
                settings[name] = stored.encode_setting(name, value)

        def write(tx: Tx) -> None:
            before = tx.get(key)
            document = {} if before is None else _parse_stored(key, before.value)
            document.update(settings)
            document = {name: value for name, value in document.items() if value is not None and name != "changed"}
            if document:
                at = utc_text(datetime.now(UTC).timestamp())
                document["changed"] = {"by": self._by or get_current_user(), "at": at}
                tx.put(key, encode(document))
            elif before is not None:
                tx.delete(key)

        self._store.transact(write)


def _job_key(job: str) -> str:
    try:
        return f"{stored.JOBS}/{check_id('job', job)}"
    except ValueError as error:
        raise InvalidSetting(str(error)) from None


def _parse_stored(key: str, value: bytes) -> dict[str, Any]:
    try:
        return stored.parse_document(value)
    except InvalidSetting as error:
        raise InvalidSetting(
            f"{key} cannot be changed because its value was not written by latchwork: {error}"
        ) from None
