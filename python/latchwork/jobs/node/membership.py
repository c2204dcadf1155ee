"""A node's session, registration and candidacy; all of it again after a lost session; and what the last node removes.

Thread ``latchwork-member-<node>``: waits for the session to be lost, and registers again until it succeeds. Runs go on
meanwhile, as long as their locks last.

The last node to close removes everything from the store but what is kept on purpose: settings, marks of nodes, the
audit, the progress of cron schedules, how runs went, and requested runs. A node says ``leaving`` before it looks
whether others are alive, so of nodes that close at the same time the last one to say so sees that nobody stays. A node
that joins meanwhile bumps ``versions/worker`` before it writes anything else: then nothing more is removed.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from latchwork.errors import Closed, Conflict, LatchworkError, NodeIdInUse
from latchwork.interrupts import mutex
from latchwork.jobs.job import Job
from latchwork.jobs.manager.manager import Manager, ManagerCounters
from latchwork.jobs.manager.strategies import ManagerOptions
from latchwork.jobs.node.pools import PoolReader
from latchwork.jobs.node.registration import Registration
from latchwork.jobs.observer import NOBODY, Observer
from latchwork.jobs.settings import LiveSettings
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.nodes import Member, MemberOptions
from latchwork.jobs.stored.packed import commit_all
from latchwork.primitives import forget_free_locks
from latchwork.store import Backoff, Observers, Session, Store
from latchwork.types import Absent, At, Check, Delete

log = logging.getLogger(__name__)
#: A close must not take for ever: what is left after that stays, and the next leader takes care of it.
_CLEANUP_TIMEOUT_S = 60.0
_BATCH = 5_000

_JOIN_S = 15.0
#: A registration under way may come to its end by itself for so long before its session is ended.
_REGISTRATION_GRACE_S = 2.0
#: A second node with the same id waits so much longer than the session's TTL for the first to be gone.
_GRACE_S = 1.0


def remove_cluster_state(store: Store, node_id: str, fences: list[Check]) -> bool:
    """Remove what is left when no other node stays; False, and nothing removed, when one does.

    Args:
        store: the cluster's.
        node_id: this node, which has said that it leaves, and does not manage any more.
        fences: what holds as long as it is this node's turn to write.
    Raises:
        LatchworkError: the store could not be used; what is left is left.
    """
    guard = store.get(keys.GUARD_WORKER)
    unchanged: Check = Absent(keys.GUARD_WORKER) if guard is None else At(guard)
    members = [Member.decode(entry.key.partition("/")[2], entry.value) for entry in store.list(keys.ALIVE)]
    if any(member.worker != node_id and member.state != "leaving" for member in members):
        return False
    until = store.clock.now() + _CLEANUP_TIMEOUT_S
    try:
        if not _remove(store, [*fences, unchanged], until):
            log.info("node %s leaves some of what the cluster kept behind: it took too long to remove", node_id)
            return False
        guards = [keys.GUARD_POOL, keys.GUARD_ASSIGNMENT, keys.GUARD_WORKER]
        store.commit([*fences, unchanged], [Delete(key) for key in guards])
    except Conflict as error:
        log.info("node %s stops tidying up, another one has come: %s", node_id, error)
        return False
    log.info("node %s was the last to leave: what the cluster kept in the store is removed", node_id)
    return True


def _remove(store: Store, checks: list[Check], until: float) -> bool:
    """Remove shares, pools and free locks, some at a time; False when the time was over before the end."""
    left = _keys(store)
    while some := list(islice(left, _BATCH)):
        if store.clock.now() >= until:
            return False
        commit_all(store, checks, [Delete(key) for key in some])
    for job in store.children(keys.LOCKS):
        if store.clock.now() >= until:
            return False
        forget_free_locks(store, below=job)
    return True


def _keys(store: Store) -> Iterator[str]:
    """All keys of shares and pools, heads before their chunks; no listing is larger than one worker's, or one pool."""
    for prefix in (keys.WORKERS, keys.WORK_POOL):
        for name in store.children(prefix):
            yield f"{prefix}/{name}"
            yield from (entry.key for entry in store.list(f"{prefix}/{name}", recursive=True))


class NodeMembership:
    """Owned by the job manager. ``start`` registers in the calling thread, ``close`` leaves and joins all threads."""

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
        self._manager_options = manager  # asked again and again: they may change at any time
        self._settings = settings
        self._observers = observers
        settings.on_change(self._settings_changed)
        self.counters = ManagerCounters()
        self._since = time.time()
        self._start_id = uuid.uuid4().hex[:12]
        self._mutex = mutex()
        self._session: Session | None = None
        self._joining: Session | None = None  # that of a registration under way
        self._registration: Registration | None = None
        self._manager: Manager | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._pools = PoolReader(options.node_id, jobs, settings, store, self.registration, observers=observers)
        self._thread = threading.Thread(target=self._run, name=f"latchwork-member-{options.node_id}", daemon=True)

    def start(self) -> None:
        """Read the pools, join, register, stand for election; nothing is left behind when it fails.

        Raises:
            WorkPoolFailed, InvalidJob: a work pool cannot be read.
            NodeIdInUse: another live node has this id.
            Unavailable, OutcomeUnknown: the store did not answer.
        """
        self._pools.read_all()
        self._register()
        self._pools.start()
        self._thread.start()

    def registration(self) -> Registration | None:
        """The registration while it is complete and its session lives."""
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
        """The session of the moment; None before the start."""
        with self._mutex:
            return self._session

    def newest_session(self) -> Session | None:
        """The same, or that of a registration under way."""
        with self._mutex:
            return self._joining or self._session

    @property
    def is_alive(self) -> bool:
        """True while its threads live."""
        return self._thread.is_alive() and self._pools.is_alive

    def abort(self) -> None:
        """Wait no longer for another node of this id; ``close`` follows."""
        self._closing.set()
        self._wake.set()
        self._pools.abort()

    def close(self, *, no_runs_left: bool = True) -> None:
        """Resign, unregister, end the session last. From any thread but its own; twice is fine.

        Args:
            no_runs_left: no run of this node goes on: if no other node stays, nothing is left behind.
        """
        self.abort()
        if self._thread.ident is not None:
            self._thread.join(_REGISTRATION_GRACE_S)
        with self._mutex:
            joining = self._joining
        if joining is not None:
            joining.close()  # every step of the registration is fenced by it: nothing more of it lands
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
        self._pools.close()
        with self._mutex:
            session, registration, manager = self._session, self._registration, self._manager
            self._registration = self._manager = None
        if manager is not None:
            manager.close()
        if session is None:
            return
        if registration is not None and session.state in {"active", "suspect"}:
            try:
                registration.leave()
                if no_runs_left:
                    remove_cluster_state(self._store, self._options.node_id, registration.fences)
            except LatchworkError as error:
                log.info(
                    "node %s could not unregister, or remove_cluster_state up; the others, or the next start, will do it: %s",
                    self._options.node_id,
                    error,
                )
        session.close()

    def _settings_changed(self) -> None:
        self._pools.look()
        with self._mutex:
            manager = self._manager
        if manager is not None:
            manager.look()

    def _register(self) -> None:
        """Register on a new session, step by step, unless told to close between two steps.

        Raises:
            Closed: told to close; nothing is left behind.
        """
        self._refuse_closing()
        session = self._store.open_session(self._options.session_ttl_s)
        with self._mutex:
            self._joining = session
        try:
            self._register_on(session)
        except BaseException:
            session.close()
            raise
        finally:
            with self._mutex:
                self._joining = None

    def _refuse_closing(self) -> None:
        if self._closing.is_set():
            msg = f"node {self._options.node_id} is closing; it does not register any more"
            raise Closed(msg)

    def _register_on(self, session: Session) -> None:
        options = self._options
        member = Member.of_this_process(options, since=self._since, ttl_s=session.ttl_s, start=self._start_id)
        registration = Registration(self._store, session, member)
        registration.join(_GRACE_S, self._closing)
        registration.register_jobs(self._jobs)
        self._pools.register_on(registration, self._refuse_closing)
        self._refuse_closing()
        registration.become_ready()
        manager = Manager(
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
            if self.registration() is not None:
                backoff.reset()
                self._clock.wait(self._wake)
                continue
            if not self._closing.is_set() and not self._rejoin():
                self._clock.wait(self._closing, backoff.next_s())

    def _rejoin(self) -> bool:
        """Register anew on a new session; False when it has to be tried again."""
        with self._mutex:
            manager, self._manager = self._manager, None
        if manager is not None:
            log.warning("node %s lost its session and registers anew; its runs go on meanwhile", self._options.node_id)
            manager.close()
        try:
            self._register()
        except NodeIdInUse as error:
            log.error("node %s cannot come back: %s", self._options.node_id, error)  # noqa: TRY400 - no stack needed
        except LatchworkError as error:
            log.warning("node %s is not registered yet: %s", self._options.node_id, error)
        except Exception:
            log.exception("node %s could not register", self._options.node_id)
        else:
            return True
        return False
