"""A node's session, registration and candidacy, renewed after a lost session, and the cleanup by the last node.

Thread ``latchwork-member-<node>``: waits for the loss of the session and registers again until it succeeds. Runs
continue meanwhile, as long as their locks last.

The last node to close removes everything from the store except what is kept on purpose: settings, maintenance records,
the audit log, cron progress, outcomes, and requested runs. A node sets its state to ``leaving`` and rewrites
``versions/worker`` in one transaction before it checks whether others are running. Of nodes that close at the same
time, the last one to do so finds no other, and the removals of earlier ones stop. A node that joins meanwhile also
rewrites ``versions/worker`` in its first transaction, which stops the removal. Nothing else guards the removal, so the
node's session ends before anything is removed.

The keys to remove are listed once nothing of this node can write them any more: that transaction refuses all later
writes of its registration, the deletion of its ticket those of its manager. Locks are listed after it has released its
own.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.trouble_log import TroubleLog
from latchwork.errors import Closed, Conflict, LatchworkError, NodeIdInUse, SessionLost
from latchwork.jobs.job import Job
from latchwork.jobs.manager.manager import ClusterManager, ManagerCounters
from latchwork.jobs.manager.strategies import ManagerOptions
from latchwork.jobs.node.pools import PoolReader
from latchwork.jobs.node.registration import Registration
from latchwork.jobs.observer import NOBODY, Observer
from latchwork.jobs.settings import LiveSettings
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.chunked_set import commit_all
from latchwork.jobs.stored.nodes import MemberOptions, NodeRecord
from latchwork.primitives.leased import forget_free_of
from latchwork.store import Backoff, Observers, Session, Store
from latchwork.types import Check, Delete, Entry, Op

log = logging.getLogger(__name__)
#: Seconds after which the removal of assignments and work pools stops; the next leader removes the rest.
_CLEANUP_TIMEOUT_S = 60.0
_BATCH = 5_000
#: Number of keys that the last transaction removes besides the guards.
_IN_LAST = 90
#: Prefixes of the keys that the last node removes, besides locks and guards.
_RECORDS = (keys.WORKERS, keys.WORK_POOL)

_JOIN_S = 15.0
#: Seconds for a registration in progress to finish before its session is closed.
_REGISTRATION_GRACE_S = 2.0
#: Seconds beyond the session's TTL that a second node with the same ID waits for the first.
_GRACE_S = 1.0


class Departure:
    """What a node reads after it has left, in case it is the last one. Used by one thread.

    Args:
        store: The cluster's store.
        no_change_check: Check that no other node has joined or left since.
        seems_last: Whether this node seemed to be the only one just before. Then the keys to remove are listed before
            it is known that no other node stays.
    """

    def __init__(self, store: Store, no_change_check: Check, *, seems_last: bool) -> None:
        self.no_change_check = no_change_check
        self.running_nodes: Future[list[Entry]] = store.start_call("list", keys.ALIVE)
        self._store = store
        self._seems_last = seems_last
        self._listings: dict[str, Future[list[Entry]]] = {}

    def list_early(self, *prefixes: str) -> None:
        """Begin to list the keys below these prefixes if the node seems to be the last one."""
        if self._seems_last:
            with suppress(LatchworkError):  # the store is closed, which the removal reports
                self.start_listing(*prefixes)

    def start_listing(self, *prefixes: str) -> None:
        """Begin to list the keys below these prefixes, if that has not begun yet."""
        for prefix in prefixes:
            if prefix not in self._listings:
                self._listings[prefix] = self._store.start_call("list", prefix, recursive=True)

    def get_entries(self, prefix: str) -> list[Entry]:
        """Wait for the list of the keys below a prefix, and return it."""
        return self._listings[prefix].result()


def remove_cluster_state(store: Store, node_id: str, departure: Departure) -> bool:
    """Remove the cluster's remaining keys if no other node stays.

    Args:
        store: The cluster's store.
        node_id: ID of this node, which has left and no longer manages the cluster.
        departure: What this node has begun to read since it left.
    Returns:
        True if the keys were removed. False if another node stays or joins, the time ran out, or the store is
            unreachable.
    """
    try:
        found = departure.running_nodes.result()
        members = [NodeRecord.decode(entry.key.partition("/")[2], entry.value) for entry in found]
        if any(member.worker != node_id and member.state != "leaving" for member in members):
            return False
        if not _remove_keys(store, departure):
            log.info("node %s left some keys of the cluster behind because removing them took too long", node_id)
            return False
    except Conflict as error:
        log.info("node %s stops removing keys because another node has joined or left: %s", node_id, error)
        return False
    except LatchworkError as error:
        log.info("node %s leaves keys of the cluster to the next node that closes: %s", node_id, error)
        return False
    log.info("node %s was the last to leave and has removed the cluster's keys", node_id)
    return True


def _remove_keys(store: Store, departure: Departure) -> bool:
    """Remove the stored assignments, work pools, free locks and guards of the cluster.

    Returns:
        False if the time ran out before all were removed.
    """
    checks = [departure.no_change_check]  # of each transaction except those that remove locks
    departure.start_listing(*_RECORDS, keys.LOCKS)
    removals = [Delete(entry.key) for prefix in _RECORDS for entry in departure.get_entries(prefix)]
    first, last = removals[:-_IN_LAST], removals[-_IN_LAST:]  # manifests before chunks
    deadline_s = store.clock.now() + _CLEANUP_TIMEOUT_S
    for at in range(0, len(first), _BATCH):
        if store.clock.now() >= deadline_s:
            return False
        commit_all(store, checks, first[at : at + _BATCH])
    if store.clock.now() >= deadline_s:
        return False
    # The checked key is in the last transaction, so that it exists until then.
    guards = [Delete(key) for key in (keys.GUARD_POOL, keys.GUARD_ASSIGNMENT, keys.GUARD_WORKER)]
    removing = store.start_call("commit", checks, [*last, *guards])
    forget_free_of(store, departure.get_entries(keys.LOCKS))  # a lock that is acquired meanwhile stays
    removing.result()
    return True


class NodeMembership:
    """Keeps a node registered in its cluster, and lets it stand for election.

    It is owned by the job manager. ``start`` registers in the calling thread, ``close`` leaves and joins all threads.
    """

    def __init__(
        self,
        store: Store,
        jobs: Mapping[str, Job],
        options: MemberOptions,
        manager: Callable[[], ManagerOptions],
        settings: LiveSettings,
        *,
        observers: Observers[Observer] = NOBODY,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._jobs = jobs
        self._options = options
        self._manager_options = manager  # called repeatedly, because options may change
        self._settings = settings
        self._observers = observers
        settings.on_change(self._on_settings_changed)
        self.counters = ManagerCounters()
        self._since = time.time()
        self._start_id = uuid.uuid4().hex[:12]
        self._mutex = mutex()
        self._session: Session | None = None
        self._joining: Session | None = None  # of a registration in progress
        self._registration: Registration | None = None
        self._manager: ClusterManager | None = None
        self._departure: Departure | None = None
        self._trouble = TroubleLog(log)
        self._wake = Signal()
        self._closing = Signal()
        self._pools = PoolReader(options.node_id, jobs, settings, store, self.get_registration, observers=observers)
        self._thread = threading.Thread(target=self._run, name=f"latchwork-member-{options.node_id}", daemon=True)

    def start(self) -> None:
        """Wait for the settings, read the work pools, register the node, and stand for election. After a failure,
        nothing of the node is left in the store.

        Raises:
            WorkPoolFailed, InvalidJob: A work pool cannot be read.
            NodeIdInUse: Another running node has this ID.
            SessionLost: The registration ended before it was complete.
            Unavailable, OutcomeUnknown: The store did not answer.
        """
        stored = self._pools.start_reading_stored()
        with self._new_session() as session:
            self._settings.wait_ready()  # they arrive, like the stored pools, while the session is opened
            self._pools.read_all(stored)
            has_ended = session.has_ended  # while slow work pools were read
            if not has_ended:
                self._register_on(session)
        if has_ended:
            self._register()
        self._pools.start()
        self._thread.start()

    def get_registration(self) -> Registration | None:
        """Return the registration if it is complete and its session is active; otherwise None."""
        with self._mutex:
            session, registration = self._session, self._registration
        return registration if session is not None and session.state in {"active", "suspect"} else None

    @property
    def is_leader(self) -> bool:
        """True while this node manages the cluster."""
        with self._mutex:
            manager = self._manager
        return manager is not None and manager.is_leader

    @property
    def session(self) -> Session | None:
        """The current session; None before the start."""
        with self._mutex:
            return self._session

    def get_newest_session(self) -> Session | None:
        """Return the session of a registration in progress, or otherwise the current session."""
        with self._mutex:
            return self._joining or self._session

    @property
    def is_alive(self) -> bool:
        """True while the threads of the membership are running."""
        return self._thread.is_alive() and self._pools.is_alive

    def abort(self) -> None:
        """Stop waiting for the end of another node with this ID. Call ``close`` afterwards."""
        self._closing.set()
        self._wake.set()
        self._pools.abort()

    def leave(self, final_writes: Collection[Op] = ()) -> None:
        """Give up leadership and remove this node from the cluster, except that its session does not end.

        Idempotent. Callable from any thread except the membership's own. Call ``close`` afterwards.

        Args:
            final_writes: A few other writes, for the transaction with which this node leaves.
        """
        self.abort()
        if self._thread.ident is not None:
            self._thread.join(_REGISTRATION_GRACE_S)
        with self._mutex:
            joining = self._joining
        if joining is not None:
            joining.close()  # it fences every step of the registration, so no more writes succeed
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
        self._pools.close()
        with self._mutex:
            session, registration, manager = self._session, self._registration, self._manager
            self._registration = self._manager = None
        if manager is not None:
            manager.resign()  # its answer comes while this node unregisters
        departure = None
        if session is not None and registration is not None and session.state in {"active", "suspect"}:
            departure = self._unregister(registration, final_writes)
        if manager is not None:
            manager.close()
        if departure is not None:
            departure.list_early(*_RECORDS)  # now that neither this node nor its manager can write any
        with self._mutex:
            self._departure = departure or self._departure

    def close(self, *, no_runs_left: bool = True) -> None:
        """End this node's session. Call ``leave`` before.

        Idempotent. Callable from any thread except the membership's own.

        Args:
            no_runs_left: Whether all runs of this node have ended and their locks are released. Then the cluster's keys
                are removed if no other node stays.
        """
        with self._mutex:
            session = self._session
            departure, self._departure = self._departure if no_runs_left else None, None
        if session is None:
            return
        if departure is not None:
            departure.list_early(keys.LOCKS)
        session.close()
        if departure is not None:
            remove_cluster_state(self._store, self._options.node_id, departure)

    def _unregister(self, registration: Registration, final_writes: Collection[Op]) -> Departure | None:
        """Store that this node leaves. Return None if that failed."""
        node_id = self._options.node_id
        try:
            running_nodes = self._store.start_call("children", keys.ALIVE, stale_ok=True)
            no_change_check = registration.leave(final_writes)
            return Departure(self._store, no_change_check, seems_last=running_nodes.result() == [node_id])
        except LatchworkError as error:
            log.info("node %s could not unregister; the end of its session does it: %s", node_id, error)
            return None

    def _on_settings_changed(self) -> None:
        self._pools.request_check()
        with self._mutex:
            manager = self._manager
        if manager is not None:
            manager.request_check()

    def _register(self) -> None:
        """Register on a new session. Raises the errors of ``_new_session``."""
        with self._new_session() as session:
            self._register_on(session)

    @contextmanager
    def _new_session(self) -> Iterator[Session]:
        """Open a session to register on, if the node is not being closed, and close it if the registration fails.

        Raises:
            Closed: The node is closing; nothing was stored.
            SessionLost: The registration ended before it was complete.
        """
        self._refuse_closing()
        session = self._store.open_session(self._options.session_ttl_s)
        with self._mutex:
            self._joining = session
        try:
            yield session
        except Conflict as error:  # a fence of the registration, or other nodes that took the same ID and left it again
            session.close()
            raise SessionLost(
                f"the registration of node {self._options.node_id} ended before it was complete: its session ended or "
                "another client removed it; start the node again"
            ) from error
        except BaseException:
            session.close()
            raise
        finally:
            with self._mutex:
                self._joining = None

    def _refuse_closing(self) -> None:
        if self._closing.is_set():
            msg = f"node {self._options.node_id} is closing and can no longer register"
            raise Closed(msg)

    def _register_on(self, session: Session) -> None:
        self._refuse_closing()
        options = self._options
        member = NodeRecord.of_this_process(options, since=self._since, ttl_s=session.ttl_s, start=self._start_id)
        registration = Registration(self._store, session, member, self._jobs)
        registration.join(_GRACE_S, self._closing)
        stored = self._pools.start_reading_stored()
        if registration.store_available_jobs():
            stored = self._pools.start_reading_stored()
        self._pools.store_last_read_pools(registration, stored, self._refuse_closing)
        self._refuse_closing()
        registration.mark_ready()
        manager = ClusterManager(
            self._store, session, registration.member, self._manager_options, self.counters, observers=self._observers
        )
        manager.start()
        session.on_lost(self._wake.set)
        with self._mutex:
            closing = self._closing.is_set()
            if not closing:
                self._session, self._registration, self._manager = session, registration, manager
        if closing:
            manager.close()
            self._refuse_closing()
        log.info("node %s is registered with %d jobs, session %s", options.node_id, len(self._jobs), session.id)

    def _run(self) -> None:
        backoff = Backoff(0.2, 5.0)
        while not self._closing.is_set():
            self._wake.clear()
            if self.get_registration() is not None:
                backoff.reset()
                self._clock.wait(self._wake)
                continue
            if not self._closing.is_set() and not self._rejoin():
                self._clock.wait(self._closing, backoff.next_s())

    def _rejoin(self) -> bool:
        """Register again on a new session.

        Returns:
            False if the registration failed and must be retried later.
        """
        with self._mutex:
            manager, self._manager = self._manager, None
        if manager is not None:
            log.warning("node %s lost its session and registers again; its runs continue", self._options.node_id)
            manager.close()
        try:
            self._register()
        except NodeIdInUse as error:
            log.error("node %s cannot register again: %s", self._options.node_id, error)  # noqa: TRY400 - no stack needed
        except LatchworkError as error:
            self._trouble.record_failure(error, "node %s is not registered yet", self._options.node_id)
        except Exception:
            log.exception("node %s could not register", self._options.node_id)
        else:
            self._trouble.record_success("node %s is registered again", self._options.node_id)
            return True
        return False
