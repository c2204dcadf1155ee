"""The job manager: the object that an application embeds. It contains a worker and, while elected, the manager."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Self

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.signals import on_end_signals
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import Closed, LatchworkError
from latchwork.jobs.cron_progress import describe_future_progress
from latchwork.jobs.job import Job, check_jobs
from latchwork.jobs.manager.strategies import ManagerOptions, Strategies, StrategyOption
from latchwork.jobs.node.membership import NodeMembership
from latchwork.jobs.node.run_reporter import ReporterSetup, RunReporter
from latchwork.jobs.observer import EventLog, Health, JobStats, NodeState, NodeStats, Observer
from latchwork.jobs.options import InvalidSetting, ManagerRows, document_options, get_option_values
from latchwork.jobs.settings import NODE_DEFAULTS, SESSION_TTL_S, LiveSettings, NodeOptions, create_node_options
from latchwork.jobs.stored.caches import describe_damaged_assignment
from latchwork.jobs.stored.keys import check_id, cluster_store
from latchwork.jobs.stored.nodes import MemberOptions
from latchwork.jobs.worker.worker import JobWorker
from latchwork.schedules import WallClock
from latchwork.store import Observers, Session, Store, connect
from latchwork.store import session_ttl_s as ttl_s

log = logging.getLogger(__name__)
#: Maximum number of jobs with unmet labels in a node's record, which all nodes follow.
_MAX_UNMET = 50


@document_options(NodeOptions)
class JobManager:
    """A node of a cluster: runs its jobs on the items assigned to it, and manages the cluster when elected.

    Nodes of one cluster use the same store, root and namespace. They may have different jobs; a node gets items only of
    its own jobs. Construction does no I/O. Thread-safe.

    A run that ignores ``should_stop`` does not end. Its items stay locked until it does, or until this process has
    ended and its locks have expired.

    The rows of ``latchwork.jobs.options`` describe the options that are numbers or labels. At run time they are part of
    this docstring.

    Args:
        store: The store, which is not closed, or a URL to open one with.
        node_id: 1 to 120 characters of ``A-Za-z0-9._-``, unique among the running nodes of the cluster.
        jobs: Jobs that this node can run; may be empty for a node that only manages.
        strategy: ``balanced``, ``evenly-spread``, ``evenly-rendezvous``, ``rendezvous`` or an object; or a mapping from
            job ID to one of these, with ``*`` for all other jobs. The elected node's strategies count.
        namespace: Key prefix below the store's root; None for none. Each cluster has its own namespace.
        observers: Observers that are notified of events: ``PrometheusMetrics()``, ``Tracing()``, your own.
    Raises:
        InvalidJob: A job is invalid, or two jobs have the same ID.
        ValueError: An option is invalid; the message names it.
        InvalidURL: The URL is invalid.
    """

    def __init__(
        self,
        store: Store | str,
        node_id: str,
        jobs: Iterable[Job] | Job,
        *,
        strategy: StrategyOption | Mapping[str, StrategyOption] = "balanced",
        namespace: str | None = None,
        session_ttl_s: float | None = NODE_DEFAULTS.session_ttl_s,
        lock_ttl_s: float = NODE_DEFAULTS.lock_ttl_s,
        weight: float = NODE_DEFAULTS.weight,
        labels: Mapping[str, str] | None = None,
        debounce_s: float = NODE_DEFAULTS.debounce_s,
        debounce_max_s: float = NODE_DEFAULTS.debounce_max_s,
        cleanup_period_s: float = NODE_DEFAULTS.cleanup_period_s,
        sweep_period_s: float = NODE_DEFAULTS.sweep_period_s,
        outcome_keep_s: float = NODE_DEFAULTS.outcome_keep_s,
        stop_timeout_s: float = NODE_DEFAULTS.stop_timeout_s,
        close_timeout_s: float = NODE_DEFAULTS.close_timeout_s,
        disconnect_grace_s: float | None = NODE_DEFAULTS.disconnect_grace_s,
        outcome_period_s: float = NODE_DEFAULTS.outcome_period_s,
        observers: Iterable[Observer] = (),
    ) -> None:
        """Check all arguments. Nothing is started."""
        given = {**locals(), "labels": labels or {}, "session_ttl_s": ttl_s(store, session_ttl_s, SESSION_TTL_S)}
        self.node_id = check_id("node", node_id)
        self._jobs = check_jobs(jobs)
        self._store_or_url = store
        self._namespace = namespace
        self._options = create_node_options(given)
        self._lacks = find_missing_labels(self._jobs, self._options.labels)
        for job_id, missing in self._lacks.items():
            log.info("node %s gets no items of job %s because of missing labels: %s", node_id, job_id, missing)
        self._able = {job_id: job for job_id, job in self._jobs.items() if job_id not in self._lacks}
        self._strategies = Strategies(strategy)
        self._wall = WallClock()
        self._settings = LiveSettings(self._able, self._options, self._wall.now)
        self._reporter = RunReporter(self.node_id)
        self._observers = Observers((EventLog(), self._reporter, *observers), kind=Observer, error=InvalidSetting)
        self._mutex = mutex()
        self._state: NodeState = "new"
        self._ending = Signal()
        self._was_ended = False  # by a signal or a close, before the start failed
        self._close_s: float | None = None
        self._settled = Signal()  # set when a start has finished, successfully or not
        self._starter: threading.Thread | None = None
        self._closed = Signal()
        self._store: Store | None = None
        self._owned: Store | None = None
        self._worker: JobWorker | None = None
        self._membership: NodeMembership | None = None

    def __repr__(self) -> str:
        return f"<JobManager {self.node_id} {self._state}, jobs {', '.join(self._jobs) or 'none'}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> NodeState:
        """The state: ``new``, ``starting``, ``started``, ``closing`` or ``closed``."""
        return self._state

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs of this node, in the given order."""
        return tuple(self._jobs.values())

    @property
    def is_manager(self) -> bool:
        """True while this node manages the cluster."""
        membership = self._membership
        return membership is not None and membership.is_leader

    def stats(self) -> NodeStats:
        """Return statistics of this node and its jobs since the start."""
        worker, membership = self._worker, self._membership
        if worker is None or membership is None:
            return NodeStats({job_id: JobStats() for job_id in self._able})
        done = membership.counters
        return NodeStats(worker.stats(), membership.is_leader, done.rebalances, done.moves, done.failures)

    def health(self) -> Health:
        """Return whether this node is working, for health probes. Does no I/O, so it answers even if the store is
        unreachable.
        """
        worker, membership = self._worker, self._membership
        session = membership.session if membership is not None else None
        if self._state != "started" or worker is None or membership is None or session is None:
            return Health(False, (f"the node is {self._state}",))
        stuck = worker.find_stuck_jobs()
        checks = {
            f"the session is {session.state}": session.state in {"active", "suspect"},
            "the node is not registered": membership.get_registration() is not None,
            "a thread of the node has died": worker.is_alive and membership.is_alive,
            f"runs do not stop: {', '.join(stuck)}": not stuck,
        }
        reasons = tuple(reason for reason, good in checks.items() if not good)
        degraded = [
            f"every run of job {job_id} fails: {each.last_error}"
            for job_id, each in sorted(worker.stats().items())
            if each.is_failing_everywhere
        ]
        degraded += [
            describe_future_progress(job_id, seconds)
            for job_id, seconds in sorted(worker.find_future_progress().items())
        ]
        degraded += [
            describe_damaged_assignment(self.node_id, job_id, damage)
            for job_id, damage in sorted(worker.list_damaged_assignments().items())
        ]
        if self._wall.jumped_s:
            degraded.append(f"the wall clock has jumped by {self._wall.jumped_s:.0f} s; schedules do not follow it yet")
        degraded += self._store.server_notices if self._store is not None else ()
        limits = session.remaining_s(), worker.remaining_lock_time_s()
        return Health(not reasons, reasons, session.state, *limits, tuple(degraded))

    def start(self) -> Self:
        """Join the cluster, and start to run the items that are assigned to the node. Returns once the node is
        registered.

        Raises:
            NodeIdInUse: Another running node has this ID. This node has waited for it as long as either session can
                last, plus 1 s.
            WorkPoolFailed, InvalidJob: A work pool cannot be read; the stored pool is kept.
            SessionLost: The registration ended before it was complete, for example because the process was suspended.
            InvalidURL, BackendNotInstalled, ConnectFailed, Unavailable: The store cannot be opened or used.
            Closed: The node was started before; create another one.
        """
        with self._mutex:
            if self._state != "new":
                msg = f"node {self.node_id} was started before; create another JobManager"
                raise Closed(msg)
            self._state = "starting"
            self._starter = threading.current_thread()
        log.info("node %s is starting with jobs %s", self.node_id, ", ".join(self._jobs) or "none")
        if not self._jobs:
            log.warning("node %s has no jobs: it can manage the cluster but runs nothing", self.node_id)
        began = time.monotonic()
        self._observers.notify("attached", self)
        try:
            self._start()
        except BaseException:
            self._was_ended = self._ending.is_set()  # before this close sets it
            self._settled.set()
            self.close()
            raise
        with self._mutex:
            closing = self._state != "starting"
            self._state = self._state if closing else "started"
        self._settled.set()
        log.info("node %s is started", self.node_id)
        self._observers.notify("started", self.node_id, time.monotonic() - began)
        return self

    def run_forever(self) -> None:
        """Start the node if necessary, run until SIGTERM, SIGINT or a call of ``close``, and then close the node.

        The first signal closes the node, or ends a start in progress cleanly. After the second signal, ``close`` no
        longer waits for runs. A third signal has the effect that it had before this call. In a thread other than the
        main thread, signals are not handled.
        """
        with on_end_signals(self._end, partial(self.close, 0.0)):
            try:
                if self._state == "new":
                    self.start()
                SYSTEM_CLOCK.wait(self._ending)
            except LatchworkError as error:
                if not self._was_ended:
                    raise
                log.info("node %s was stopped while it started: %s", self.node_id, error)
            finally:
                self.close()

    def _end(self) -> None:
        self._ending.set()
        if self._membership is not None:
            self._membership.abort()

    def close(self, timeout_s: float | None = None) -> None:
        """Stop the runs gracefully, release the locks, and leave the cluster. The last node removes the cluster's keys.

        Idempotent; callable from any thread. A second call with a shorter timeout shortens the first one.

        Args:
            timeout_s: Seconds to wait for runs that do not stop; their locks then expire by themselves. None uses
                ``close_timeout_s``.
        """
        with self._mutex:
            first = self._state not in {"closing", "closed"}
            self._state = "closing" if first else self._state
            if timeout_s is not None:
                self._close_s = timeout_s if self._close_s is None else min(self._close_s, timeout_s)
        self._end()
        if not first:
            if timeout_s is not None and self._worker is not None:
                self._worker.shorten_close(timeout_s)
            self._closed.wait(self._close_timeout_s + 30.0)
            return
        try:
            if self._starter not in {None, threading.current_thread()}:
                # A start in progress on another thread ends by itself now, unless a work pool hangs.
                self._settled.wait(self._close_timeout_s)
            self._close()
        finally:
            self._state = "closed"
            self._closed.set()

    @property
    def _close_timeout_s(self) -> float:
        return self._settings.node.close_timeout_s if self._close_s is None else self._close_s

    def _newest_session(self) -> Session | None:
        membership = self._membership
        return membership.get_newest_session() if membership is not None else None

    def _start(self) -> None:
        if isinstance(self._store_or_url, str):
            self._owned = connect(self._store_or_url)
        store = self._owned if self._owned is not None else self._store_or_url
        assert not isinstance(store, str)
        context_store = store.namespace(self._namespace) if self._namespace else store
        self._store = cluster_store(context_store)
        self._settings.watch(self._store)
        worker = JobWorker(
            self._store,
            self.node_id,
            self._able,
            self._settings,
            observers=self._observers,
            on_transition=self._reporter.on_transition,
            session=self._newest_session,
            context_store=context_store,
            wall=self._wall,
        )
        # Jobs that it cannot run are published too, so that the cluster knows them.
        own, unmet_labels = self._options, {job_id: self._lacks[job_id] for job_id in sorted(self._lacks)[:_MAX_UNMET]}
        self._worker = worker
        self._membership = NodeMembership(
            self._store,
            self._able,
            MemberOptions(self.node_id, own.effective_session_ttl_s, own.weight, own.labels, unmet_labels),
            lambda: self._manager_options(worker),
            self._settings,
            observers=self._observers,
        )
        worker.watch()
        self._membership.start()
        self._reporter.start(
            self._store.clock,
            ReporterSetup(
                self._store,
                self._membership.get_registration,
                worker.collect_outcomes,
                worker.add_earlier_outcomes,
                lambda: self._settings.node.outcome_period_s,
            ),
        )
        self._settings.on_change(self._reporter.on_settings_changed)
        worker.start()

    def _manager_options(self, worker: JobWorker) -> ManagerOptions:
        """Return the current options for managing the cluster. Settings of the cluster may change them."""
        now = get_option_values(ManagerRows, self._settings.node)
        return ManagerOptions(strategies=self._strategies, sweep=worker.locks.sweep, **now)

    def _close(self) -> None:
        log.info("node %s is closing", self.node_id)
        clock = self._store.clock if self._store is not None else None
        began = clock.now() if clock is not None else 0.0
        timeout_s = self._close_timeout_s
        stuck: list[str] = []
        if self._worker is not None:
            self._worker.stop_runs(timeout_s)
        last_results = self._reporter.close()
        if self._membership is not None:
            self._membership.leave(last_results)  # while the last locks are released
        if self._worker is not None:
            stuck = self._worker.close(timeout_s)
            for job_id in stuck:
                log.error(
                    "job %s did not stop within %.3g s: the locks of node %s will expire; "
                    "make the job check should_stop",
                    job_id,
                    timeout_s,
                    self.node_id,
                )
        if self._membership is not None:
            self._membership.close(no_runs_left=not stuck)
        self._settings.close()
        if self._owned is not None:
            try:
                self._owned.close()
            except LatchworkError as error:
                log.warning("node %s: the store did not close cleanly: %s", self.node_id, error)
        took_s = clock.now() - began if clock is not None else 0.0
        log.info("node %s is closed, it took %.3f s", self.node_id, took_s)
        self._observers.notify("closed", self.node_id, took_s)
        self._observers.notify("detached", self)


def find_missing_labels(jobs: Mapping[str, Job], labels: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Find the jobs that a node cannot run because it lacks required labels.

    Args:
        jobs: Jobs of the node, by ID.
        labels: Labels of the node.
    Returns:
        The missing labels and their values, by job ID.
    """
    found = {
        job_id: {name: value for name, value in job.requires.items() if labels.get(name) != value}
        for job_id, job in jobs.items()
    }
    return {job_id: missing for job_id, missing in found.items() if missing}
