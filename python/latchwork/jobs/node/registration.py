"""Registration of a worker: first alive and ``joining`` with its jobs, then their items, then ``ready``.

Every step after the first is fenced by the first: by the session, and by the ``alive`` key as this start has written
it. A start that was cut off, or a second node with the same ID, therefore cannot write after another start took over.
The jobs are written in one transaction with ``alive``. Those that an earlier start left behind are then removed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from latchwork._base.event import Signal
from latchwork.errors import Closed, Conflict, NodeIdInUse, OutcomeUnknown, WaitTimeout
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.chunked_set import MAX_OPS, ChunkNamer, commit_all, store_set
from latchwork.jobs.stored.nodes import NodeRecord
from latchwork.store import Session, Store
from latchwork.types import Absent, At, Check, Delete, Entry, Op, Put

log = logging.getLogger(__name__)

_JOIN_ATTEMPTS = 5
#: Seconds between checks whether to stop waiting for another node to end.
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class WrittenPool:
    """The result of a write of a work pool. Without ``is_ours``, another node wrote in between and its pool is kept."""

    before: tuple[str, ...]
    version: Hashable
    is_ours: bool


def read_pool_version(store: Store, job: str, *, stale_ok: bool = False) -> Hashable:
    """Read the version of a job's stored work pool; None if there is none. Call it before the job's pool function.

    Args:
        store: The cluster's store.
        job: ID of the job.
        stale_ok: Allow a cheaper read whose result may be outdated.
    """
    manifest = store.get(keys.work_pool_key(job), stale_ok=stale_ok)
    return None if manifest is None else manifest.version


class Registration:
    """One registration of a node on one session. Used by one thread at a time."""

    def __init__(self, store: Store, session: Session, member: NodeRecord, jobs: Collection[str] = ()) -> None:
        self._store = store
        self._session = session
        self.member = member
        self._jobs = tuple(sorted(jobs))
        self.names = ChunkNamer(member.incarnation)
        self._alive: Entry | None = None
        self._has_left = False

    @property
    def fences(self) -> list[Check]:
        """The checks that every write of this registration includes. Available after ``join``.

        Raises:
            Closed: The node has left.
        """
        assert self._alive is not None, "join first"
        if self._has_left:  # a thread that outlived its close writes nothing that the cleanup did not list
            msg = f"node {self.member.worker} has left and stores nothing more"
            raise Closed(msg)
        return [self._session.fence, At(self._alive)]

    def try_join(self) -> NodeRecord | None:
        """Try to create the key that shows that this node is running.

        Returns:
            None on success; otherwise the record of the node that already uses the ID.
        Raises:
            Conflict, OutcomeUnknown: Other clients kept creating and deleting the key.
        """
        me = self.member.worker
        key = keys.alive_key(me)
        ops = [Put(key, self.member.to_bytes(), session=self._session), Put(keys.GUARD_WORKER, b"{}")]
        ops += [Put(keys.available_job_key(me, job), b"{}") for job in self._jobs[: MAX_OPS - len(ops)]]
        for attempt in range(_JOIN_ATTEMPTS):
            try:
                done = self._store.commit([Absent(key)], ops)
                self._alive = done.entries[0]
            except (Conflict, OutcomeUnknown):
                found = self._store.get(key)
                if found is None:  # it ended between the refused write and the read
                    if attempt + 1 == _JOIN_ATTEMPTS:
                        raise
                    continue
                other = NodeRecord.decode(me, found.value)
                if other.incarnation != self.member.incarnation:
                    return other
                self._alive = found
            return None
        raise AssertionError

    def join(self, grace_s: float, closing: Signal) -> None:
        """Create the key that shows that this node is running. If another node has the same ID, wait until it ends.

        The wait lasts at most as long as the session of either node can last, plus the grace period.

        Args:
            grace_s: Grace period in seconds.
            closing: Signal that is set when this node is closing.
        Raises:
            NodeIdInUse: The other node is still running; the message has its host and process ID.
            Closed: This node is closing.
        """
        clock = self._store.clock
        key = keys.alive_key(self.member.worker)
        began = clock.now()
        other = self.try_join()
        if other is None:
            return
        timeout_s = max(self._session.ttl_s, other.ttl_s) + grace_s
        until = began + timeout_s
        log.info(
            "node %s: its ID is still in use by pid %d on %s, waiting %.3g s",
            self.member.worker,
            other.pid,
            other.host,
            timeout_s,
        )
        with self._store.mirror(key) as mirror:
            while other is not None:
                left = until - clock.now()
                try:
                    mirror.wait_until(lambda state: key not in state, min(max(0.0, left), _POLL_S))
                except WaitTimeout:
                    if left <= 0:
                        msg = (
                            f"node ID {other.worker!r} is in use by pid {other.pid} on {other.host}; give this node "
                            "another id, or end that process and wait until its session has run out"
                        )
                        raise NodeIdInUse(msg) from None
                if closing.is_set():
                    msg = f"node {self.member.worker} is closing and can no longer join"
                    raise Closed(msg)
                other = self.try_join()

    def store_available_jobs(self) -> bool:
        """Make the stored list of jobs that this node can run equal to its current jobs.

        An earlier start may have left other jobs, and ``join`` stores only as many as fit into its transaction. Call it
        before the pools are written; ``Leadership.delete_unused_pools`` explains why.

        Returns:
            True if more jobs were stored. The pools of these may have been deleted since ``join``.
        """
        me = self.member.worker
        stored = set(self._store.children(keys.available_job_key(me)))
        ops: list[Op] = [Delete(keys.available_job_key(me, job)) for job in sorted(stored.difference(self._jobs))]
        more: list[Op] = [Put(keys.available_job_key(me, job), b"{}") for job in self._jobs if job not in stored]
        ops += more
        commit_all(self._store, self.fences, [*ops, Put(keys.GUARD_WORKER, b"{}")] if ops else [])
        return bool(more)

    def write_pool(
        self, job: str, items: tuple[str, ...], seen_version: Hashable, known_manifest: Sequence[Entry | None] = ()
    ) -> WrittenPool:
        """Store the items of a job's work pool, unless another node has stored a pool since the seen version.

        An unchanged pool is not written. A missing pool is always written.

        Args:
            job: ID of the job.
            items: All items: sorted, unique.
            seen_version: Version of the stored pool before these items were read.
            known_manifest: The manifest of the stored pool if it was read already. If it has changed since, it is read
                again.
        Returns:
            The items that were stored before, and whether these items are stored now.
        """
        guard = Put(keys.GUARD_POOL, b"{}")
        stored, before = store_set(
            self._store,
            keys.work_pool_key(job),
            items,
            checks=self.fences,
            new_name=self.names,
            ops_if_created=[guard],
            may_replace=lambda stored: stored.manifest is None or stored.manifest.version == seen_version,
            known_manifest=known_manifest,
        )
        assert stored.manifest is not None
        return WrittenPool(before, stored.manifest.version, stored.chunked.items == items)

    def has_peers(self) -> bool:
        """Return whether other nodes are running."""
        return any(worker != self.member.worker for worker in self._store.children(keys.ALIVE))

    def mark_ready(self) -> None:
        """Store that the registration is complete, so that the manager assigns items to the node."""
        ready = self.member.with_state("ready")
        ops = [Put(keys.alive_key(ready.worker), ready.to_bytes(), session=self._session)]
        try:
            self._alive = self._store.commit(self.fences, ops).entries[0]
        except OutcomeUnknown:
            found = self._store.get(keys.alive_key(ready.worker))
            if found is None or found.value != ready.to_bytes():
                raise
            self._alive = found
        self.member = ready

    def build_session_op(self, key: str, value: bytes | None) -> Op:
        """Build a write that sets a key until this session ends.

        Args:
            key: The key.
            value: Its value; None deletes the key instead.
        """
        return Delete(key) if value is None else Put(key, value, session=self._session)

    def write(self, ops: list[Op]) -> None:
        """Commit these writes in one transaction, if this registration is still valid.

        Args:
            ops: The writes.
        Raises:
            Conflict: Another registration of the node has replaced this one.
            LatchworkError: The store could not be used.
        """
        self._store.commit(self.fences, ops)

    def leave(self, final_writes: Collection[Op] = ()) -> Check:
        """Store that the node is leaving, and delete the list of jobs that it can run. The session deletes its
        ``alive`` key. No other write of this registration succeeds from then on.

        Args:
            final_writes: A few other writes for the same transaction.
        Returns:
            A check that no other node has joined or left since.
        """
        checks = self.fences
        self._has_left = True  # first: the fences of other threads would name the key that is written here
        me = self.member.worker
        self.member = self.member.with_state("leaving")
        ops: list[Op] = [
            Put(keys.alive_key(me), self.member.to_bytes(), session=self._session),
            Put(keys.GUARD_WORKER, b"{}"),
            *final_writes,
        ]
        ops += [Delete(keys.available_job_key(me, job)) for job in self._jobs]
        alive, guard, *_ = self._store.commit(checks, ops[:MAX_OPS]).entries
        commit_all(self._store, [self._session.fence, At(alive)], ops[MAX_OPS:])
        return At(guard)
