"""The registration of a worker: alive and ``joining``, then its jobs, then their items, then ``ready``.

Every step after the first is fenced by the first: by the session, and by the ``alive`` key as this start wrote it. So
nothing of a start that was cut off, or of a second node with the same id, lands once another start has taken over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Hashable
from dataclasses import dataclass

from latchwork.errors import Closed, Conflict, NodeIdInUse, OutcomeUnknown, WaitTimeout
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.nodes import Member
from latchwork.jobs.stored.packed import ChunkNamer, commit_all, replace
from latchwork.store import Session, Store
from latchwork.types import Absent, At, Check, Delete, Entry, Op, Put

log = logging.getLogger(__name__)

_JOIN_ATTEMPTS = 5
#: While it waits for another node to go it looks so often whether it is to close.
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class WrittenPool:
    """The pool before and after a write; without ``is_ours`` another node wrote in between, and its pool stays."""

    before: tuple[str, ...]
    version: Hashable
    is_ours: bool


def pool_version(store: Store, job: str, *, stale_ok: bool = False) -> Hashable:
    """The version of a stored work pool, to be read before the pool itself is; None for one that is absent."""
    head = store.get(keys.pool(job), stale_ok=stale_ok)
    return None if head is None else head.version


class Registration:
    """One incarnation of one node, on one session. One thread at a time."""

    def __init__(self, store: Store, session: Session, member: Member) -> None:
        self._store = store
        self._session = session
        self.member = member
        self.names = ChunkNamer(member.incarnation)
        self._alive: Entry | None = None

    @property
    def fences(self) -> list[Check]:
        """The checks of everything that this incarnation writes; only after ``join``."""
        assert self._alive is not None, "join first"
        return [self._session.fence, At(self._alive)]

    def try_join(self) -> Member | None:
        """Create the ``alive`` key as joining; return the other node when its id is taken, None when it is ours now."""
        key = keys.alive(self.member.worker)
        for attempt in range(_JOIN_ATTEMPTS):
            try:
                done = self._store.commit([Absent(key)], [Put(key, self.member.encode(), session=self._session)])
                self._alive = done.entries[0]
            except (Conflict, OutcomeUnknown):
                found = self._store.get(key)
                if found is None:  # it went away between the refusal and the look
                    if attempt + 1 == _JOIN_ATTEMPTS:
                        raise
                    continue
                other = Member.decode(self.member.worker, found.value)
                if other.incarnation != self.member.incarnation:
                    return other
                self._alive = found
            return None
        raise AssertionError

    def join(self, grace_s: float, closing: threading.Event) -> None:
        """Become alive as joining; wait for another holder of the id to go.

        It is waited for as long as its session or ours can last, whichever is longer, and the grace after that.

        Raises:
            NodeIdInUse: it stayed; the message has its host and pid.
            Closed: told to close meanwhile.
        """
        clock = self._store.clock
        key = keys.alive(self.member.worker)
        began = clock.now()
        other = self.try_join()
        if other is None:
            return
        timeout_s = max(self._session.ttl_s, other.ttl_s) + grace_s
        until = began + timeout_s
        log.info(
            "node %s: id is still held by pid %d on %s, waiting %.3g s",
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
                            f"node id {other.worker!r} is in use by pid {other.pid} on {other.host}; give this node "
                            "another id, or end that process and wait until its session has run out"
                        )
                        raise NodeIdInUse(msg) from None
                if closing.is_set():
                    msg = f"node {self.member.worker} is closing; it does not join any more"
                    raise Closed(msg)
                other = self.try_join()

    def register_jobs(self, jobs: Collection[str]) -> None:
        """Make ``available`` hold exactly these jobs; comes before the pools, see ``Leadership.cleanup`` for why."""
        me = self.member.worker
        stored = set(self._store.children(keys.available(me)))
        ops: list[Op] = [Delete(keys.available(me, job)) for job in sorted(stored - set(jobs))]
        ops += [Put(keys.available(me, job), b"{}") for job in sorted(set(jobs) - stored)]
        ops.append(Put(keys.GUARD_WORKER, b"{}"))
        commit_all(self._store, self.fences, ops)

    def write_pool(self, job: str, items: tuple[str, ...], seen: Hashable) -> WrittenPool:
        """Make a job's work pool hold exactly these items, unless another one was stored since ``seen``.

        An unchanged pool is no write. One that is absent is written in any case: what was there is gone.

        Args:
            job: the job.
            items: all its items: sorted, unique.
            seen: the version of the stored pool as it was before these items were read.
        """
        guard = Put(keys.GUARD_POOL, b"{}")
        stored, before = replace(
            self._store,
            keys.pool(job),
            items,
            checks=self.fences,
            new_name=self.names,
            ops_if_created=[guard],
            may_replace=lambda found: found.head is None or found.head.version == seen,
        )
        assert stored.head is not None
        return WrittenPool(before, stored.head.version, stored.packed.items == items)

    def has_peers(self) -> bool:
        """Whether other nodes live."""
        return any(worker != self.member.worker for worker in self._store.children(keys.ALIVE))

    def become_ready(self) -> None:
        """Tell the manager that all is registered."""
        ready = self.member.with_state("ready")
        ops = [Put(keys.alive(ready.worker), ready.encode(), session=self._session)]
        try:
            self._alive = self._store.commit(self.fences, ops).entries[0]
        except OutcomeUnknown:
            found = self._store.get(keys.alive(ready.worker))
            if found is None or found.value != ready.encode():
                raise
            self._alive = found
        self.member = ready

    def session_op(self, key: str, value: bytes | None) -> Op:
        """The operation that says something of this node which ends with its session; None takes it back."""
        return Delete(key) if value is None else Put(key, value, session=self._session)

    def write(self, ops: list[Op]) -> None:
        """Write something in this node's name, in one transaction.

        Raises:
            Conflict: another registration has taken over.
            LatchworkError: the store could not be used.
        """
        self._store.commit(self.fences, ops)

    def leave(self) -> None:
        """Say so, and delete what this node registered; its session ends next and takes the ``alive`` key with it."""
        me = self.member.worker
        self.member = self.member.with_state("leaving")
        ops = [Put(keys.alive(me), self.member.encode(), session=self._session)]
        self._alive = self._store.commit(self.fences, ops).entries[0]
        jobs = self._store.children(keys.available(me))
        commit_all(self._store, self.fences, [Delete(keys.available(me, job)) for job in jobs])
