"""Runs the jobs on the items assigned to this node: starts, stops, locks and unlocks what ``reconcile`` decides.

It has two threads. ``latchwork-worker-<node>`` checks the state after every change and uses the store.
``latchwork-watchdog-<node>`` uses only the clock: it asks runs to stop before their locks expire, even if the other
thread hangs in a call.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.trouble_log import TroubleLog
from latchwork.errors import LatchworkError
from latchwork.jobs.cron_progress import CronProgress, FireTimes
from latchwork.jobs.job import Job, JobContext
from latchwork.jobs.observer import NOBODY, JobStats, Observer
from latchwork.jobs.settings import JobOptions, LiveSettings
from latchwork.jobs.stored.caches import AssignmentCache
from latchwork.jobs.stored.nodes import damage_report_key
from latchwork.jobs.stored.runs import JobOutcome
from latchwork.jobs.worker.item_locks import LOCK_BATCH, ItemLocks, LockBatches, LockScheduler, RunLocks
from latchwork.jobs.worker.manual_runs import ManualRuns, PendingManualRuns
from latchwork.jobs.worker.outcomes import OnTransition, OutcomeTracker
from latchwork.jobs.worker.runs import (
    SCHEDULE_PAUSE_S,
    JobRun,
    RunActions,
    RunSetup,
    RunWatchdog,
    compute_stop_margin_s,
    reconcile,
)
from latchwork.primitives import HeldLock
from latchwork.schedules import DueTime, Instant, WallClock
from latchwork.store import Observers, Session, Store
from latchwork.store.driving.dedicated_loop import DedicatedLoop

log = logging.getLogger(__name__)

_RETRY_S = 0.5
#: Additional seconds for a call to the store that is in progress at the end of the close timeout.
_GRACE_S = 2.0
#: Seconds between checks whether the close timeout was shortened.
_JOIN_POLL_S = 0.5
#: Seconds for which the worker acquires locks before the next full check, without and with a pending event.
_FILL_S = 1.0
_FILL_BUSY_S = 0.2
#: Seconds between two reports of damaged assignments to the manager.
_REPORT_S = 5.0
#: Least duration of that phase as a multiple of the last check, which is slow with very many items.
_FILL_PER_CHECK = 3.0


class LocalJob:
    """The options, runs and due times of one job on this node. Only the worker's thread changes it.

    Attributes:
        options: Its options as of the last check.
        outcomes: Statistics of its runs.
        enabled: Whether it may run, as of the last check.
        runs: Live runs by number, including stopping ones.
        warned: Numbers of runs that were reported for not stopping.
        is_acquiring: Whether more of its locks are being acquired.
    """

    def __init__(
        self, job: Job, options: JobOptions, node: str = "", on_transition: OnTransition = lambda _job, _turn: None
    ) -> None:
        self.job = job
        self.options = options
        self.enabled = True
        self.outcomes = OutcomeTracker(job.id, node, on_transition)
        self.runs: dict[int, JobRun] = {}
        self.warned: set[int] = set()
        self.is_acquiring = False
        self._dues: dict[str, DueTime] = {}
        self._paused_until = -math.inf

    def apply_options(self, options: JobOptions, *, enabled: bool) -> None:
        """Use these options from now on. If they have changed, active runs compute their next start again.

        Args:
            options: Effective options of the job.
            enabled: Whether the job may run.
        """
        self.enabled = enabled
        if options != self.options:
            log.info("job %s: options changed to %s", self.job.id, options)
            self.options = options
            for run in self.runs.values():
                run.reschedule()

    def find_first_due(self, items: Iterable[str], now: Instant) -> DueTime:
        """Return the time at which a new run with these items is due: the earliest due time of its items.

        Items that ran before keep their due time, and new ones start after the initial delay.

        Args:
            items: Items of the new run.
            now: Current time.
        """
        options = self.options
        fresh = DueTime.first(options.schedule, now, options.initial_delay_s, random.random())
        dues = (self._dues.get(item, fresh).with_schedule(options.schedule, options.initial_delay_s) for item in items)
        return min(dues, key=lambda due: due.at + due.jitter_fraction * options.jitter_s)

    def remove_ended_runs(self, now: Instant) -> list[JobRun]:
        """Remove the runs that have ended, and remember when their items are due next.

        Args:
            now: Current time.
        Returns:
            The removed runs.
        """
        ended = [run for run in self.runs.values() if run.ended]
        for run in ended:
            del self.runs[run.number]
            self.warned.discard(run.number)
            self._remember_due_times(run, now)
        return ended

    def forget_other_due_times(self, kept_items: frozenset[str]) -> None:
        """Forget the due times of all items except these."""
        for item in [item for item in self._dues if item not in kept_items]:
            del self._dues[item]

    def pause(self, now: Instant, seconds: float) -> None:
        """Start no runs of this job for some time.

        Args:
            now: Current time.
            seconds: Length of the pause.
        """
        self._paused_until = now.mono_s + seconds

    def remaining_pause_s(self, now: Instant) -> float:
        """Return the seconds until runs may start again; 0 if they may start now."""
        return max(0.0, self._paused_until - now.mono_s)

    def may_start(self, now: Instant) -> bool:
        """Return whether runs of this job may start now.

        They may not start during a pause. If the number of threads is limited, they wait until all locks have been
        tried.

        Args:
            now: Current time.
        """
        return self.remaining_pause_s(now) <= 0 and not (self.is_acquiring and self.options.threads.limit)

    def _remember_due_times(self, run: JobRun, now: Instant) -> None:
        due = run.resume_due
        try:
            if due is None:
                due = DueTime(self.options.schedule.first_due(now, 0.0), self.options.schedule, now)
        except BaseException:  # an error of a user's schedule must not stop the other jobs
            log.exception("job %s is paused here for %.3g s because its schedule raised", self.job.id, SCHEDULE_PAUSE_S)
            self.pause(now, SCHEDULE_PAUSE_S)
            for item in run.items:
                self._dues.pop(item, None)
            return
        self._dues.update(dict.fromkeys(run.items, due))


class JobWorker:
    """Runs jobs on the items assigned to this node. Owned by the job manager; ``close`` ends and joins its threads."""

    def __init__(
        self,
        store: Store,
        node_id: str,
        jobs: Mapping[str, Job],
        settings: LiveSettings,
        *,
        observers: Observers[Observer] = NOBODY,
        on_transition: OnTransition = lambda _job, _turn: None,
        session: Callable[[], Session | None],
        context_store: Store,
        wall: WallClock,
    ) -> None:
        self._store = store
        self._context_store = context_store
        self._clock = store.clock
        self._wall = wall
        self._node_id = node_id
        self._trouble = TroubleLog(log)
        self._wake = Signal()
        self._get_session = session
        self.locks = ItemLocks(store, node_id, settings.node.lock_ttl_s, self._wake.set, session)
        self._settings = settings
        self._observers = observers
        self._lock_scheduler = LockScheduler()
        self._progress = {job_id: CronProgress(store, job_id) for job_id in jobs}
        self._states = {
            job_id: LocalJob(job, settings.options(job_id), node_id, on_transition) for job_id, job in jobs.items()
        }
        self._manual_runs = ManualRuns(store, node_id)
        self._loop_of_runs = DedicatedLoop(f"latchwork-jobs-{node_id}")
        self._numbers = count(1)
        self._mutex = mutex()
        self._live: dict[int, JobRun] = {}
        self._ending: tuple[JobRun, ...] = ()  # removed, but with a thread that is still running
        self._assignments: AssignmentCache | None = None
        self._report_at = -math.inf
        self._closing = Signal()
        self._close_by = math.inf
        self._closer: JobRun | None = None
        self._has_locks_left = False
        self._may_leave = Signal()  # set while closing, once no run is left and few locks are, or the thread has ended
        self._guard = RunWatchdog(node_id, self._list_live_runs, on_stop=self._wake.set, clock=self._clock)
        self._thread = threading.Thread(target=self._loop, name=f"latchwork-worker-{node_id}", daemon=True)

    def watch(self) -> None:
        """Start to watch the keys that the runs depend on, without waiting. Call it before ``start``, as early as
        possible.
        """
        self.locks.start()
        self._assignments = AssignmentCache(self._store, self._node_id, self._wake.set)
        self._manual_runs.start(self._on_requests_changed)

    def start(self) -> None:
        """Wait until the items of this node are known, and start the threads that run them. The settings must be
        known.
        """
        assert self._assignments is not None, "watch first"
        self._assignments.wait_ready()
        for job_id, state in self._states.items():
            state.options = self._settings.options(job_id)
        self._settings.on_change(self._on_settings_changed)
        self._on_settings_changed()
        self._guard.thread.start()
        self._thread.start()

    def stats(self) -> dict[str, JobStats]:
        """Return the statistics of each job on this node, by job ID."""
        runs = self._group_runs_by_job()
        return {
            job_id: state.outcomes.get_stats(
                sum(len(run.items) for run in runs[job_id]), len(runs[job_id]), _find_next_start_s(runs[job_id])
            )
            for job_id, state in self._states.items()
        }

    def collect_outcomes(self) -> list[JobOutcome]:
        """Return the run results of each job on this node, in the form in which they are stored."""
        runs = self._group_runs_by_job()
        return [state.outcomes.get_outcome(_find_next_start_s(runs[job_id])) for job_id, state in self._states.items()]

    def add_earlier_outcomes(self, earlier: Iterable[JobOutcome]) -> None:
        """Add the run results that this node had stored before it was restarted."""
        for each in earlier:
            if each.job in self._states:
                self._states[each.job].outcomes.add_earlier_outcome(each)

    def _group_runs_by_job(self) -> dict[str, list[JobRun]]:
        runs: dict[str, list[JobRun]] = {job_id: [] for job_id in self._states}
        for run in self._list_live_runs():
            runs[run.job_id].append(run)
        return runs

    @property
    def is_alive(self) -> bool:
        """True while both threads of the worker are running."""
        return self._thread.is_alive() and self._guard.thread.is_alive()

    def find_stuck_jobs(self) -> list[str]:
        """Find the jobs with runs that are still active ``stop_timeout_s`` after they were asked to stop. Return their
        IDs.
        """
        late_s = self._settings.node.stop_timeout_s
        return sorted({run.job_id for run in self._list_live_runs() if run.stopping and run.stopping_for_s >= late_s})

    def find_future_progress(self) -> dict[str, float]:
        """Find the jobs whose recorded fire times are in the future. Return the number of seconds by job ID."""
        by_job = self._group_runs_by_job().items()
        found = {job_id: max((run.ahead_s for run in runs), default=0.0) for job_id, runs in by_job}
        return {job_id: seconds for job_id, seconds in found.items() if seconds}

    def list_damaged_assignments(self) -> dict[str, str]:
        """Return why the stored items of this node are not readable in full, by job ID."""
        return {} if self._assignments is None else self._assignments.list_damaged()

    def remaining_lock_time_s(self) -> float | None:
        """Return the seconds until the first of this node's locks may expire without another renewal; None without
        locks.
        """
        return self.locks.remaining_s() if any(self.locks.get_held_locks().values()) else None

    def _on_settings_changed(self) -> None:
        self.locks.set_renewal_ttl(self._settings.node.disconnect_grace_s)
        self._guard.request_check()
        self._apply_settings_to_runs()
        self._wake.set()

    def _on_requests_changed(self) -> None:
        for run in self._list_live_runs():
            run.reschedule()

    def _apply_settings_to_runs(self) -> None:
        """Stop the runs of disabled jobs. Let the runs of other jobs compute their next start again if their options
        have changed.

        This is done in the thread that reports the change, because the worker's own thread may be waiting for the
        store.
        """
        for run in self._list_live_runs():
            if not self._settings.is_enabled(run.job_id):
                run.stop()
            elif self._settings.options(run.job_id) != self._states[run.job_id].options:
                run.reschedule()

    def _get_stop_margin_s(self) -> float:
        return compute_stop_margin_s(self.locks.ttl_s, self._settings.node.disconnect_grace_s)

    def stop_runs(self, timeout_s: float) -> None:
        """Ask all runs to stop, and wait for them. Idempotent; callable from any thread.

        The locks of ended runs are released meanwhile. The last ones, if they are few, may still be released after the
        return. A call from within a run does not wait for that run.

        Args:
            timeout_s: Seconds to wait, which ``shorten_close`` can shorten.
        """
        self.shorten_close(timeout_s)
        self._closing.set()
        runs = self._list_live_runs()  # complete, because none is added while closing
        self._closer = next((run for run in runs if run.is_current_thread), self._closer)
        for run in runs:
            run.stop()
        self._guard.finish()
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._join(self._may_leave.wait, lambda: self._thread.is_alive() and not self._may_leave.is_set(), _GRACE_S)

    def close(self, timeout_s: float) -> list[str]:
        """Stop all runs as ``stop_runs`` does, release their locks, and end all threads. Idempotent; callable from any
        thread.

        The locks of runs that did not stop expire by themselves.

        Args:
            timeout_s: Seconds to wait, which ``shorten_close`` can shorten.
        Returns:
            The jobs with runs that did not stop.
        """
        self.stop_runs(timeout_s)
        runs = self._list_live_runs()
        for thread in (self._thread, self._guard.thread):
            if thread.is_alive() and thread is not threading.current_thread():
                self._join(thread.join, thread.is_alive, _GRACE_S)
        for run in {*runs, *self._ending} - {self._closer}:
            self._join(run.join, lambda run=run: run.has_threads)  # type: ignore[misc]
        self._loop_of_runs.close(max(_GRACE_S, self._close_by - self._clock.now()))
        stuck_jobs = sorted({run.job_id for run in runs if not run.ended})
        self._close_locks(stuck_jobs)
        self._manual_runs.close()
        if self._assignments is not None:
            self._assignments.close()
        return stuck_jobs

    def shorten_close(self, timeout_s: float) -> None:
        """Reduce the time for which a ``close`` in progress waits for runs.

        Args:
            timeout_s: Maximum seconds to wait from now.
        """
        self._close_by = min(self._close_by, self._clock.now() + timeout_s)
        self._wake.set()

    def _join(self, join: Callable[[float], object], is_alive: Callable[[], bool], grace_s: float = 0.0) -> None:
        while is_alive() and (left_s := self._close_by + grace_s - self._clock.now()) > 0.0:
            join(min(left_s, _JOIN_POLL_S))

    def _close_locks(self, stuck_jobs: list[str]) -> None:
        left = sum(map(len, self.locks.get_held_locks().values()))
        late = left > LOCK_BATCH and self._clock.now() >= self._close_by
        if late and not stuck_jobs:
            log.warning("node %s: no time is left to release %d locks, which will expire", self._node_id, left)
        try:
            self.locks.close(release=not stuck_jobs and not late)
        except LatchworkError as error:
            log.warning("node %s: locks could not be released and will expire: %s", self._node_id, error)

    def _loop(self) -> None:
        try:
            while True:
                self._wake.clear()
                closing = self._closing.is_set()
                delay_s, failed = self._try_reconcile(closing)
                if closing and self._is_finished():
                    return
                # After a failure only closing shortens the pause, because an outage causes many events.
                self._clock.wait(self._closing if failed and not closing else self._wake, delay_s)
        finally:
            self._may_leave.set()

    def _is_finished(self) -> bool:
        if self._clock.now() >= self._close_by:
            return True
        return not self._has_locks_left and not self._has_runs_left()

    def _has_runs_left(self) -> bool:
        """Return whether runs are active, besides the one that closes this worker."""
        return any(run is not self._closer for run in self._list_live_runs())

    def _try_reconcile(self, closing: bool) -> tuple[float | None, bool]:
        try:
            delay_s = self._reconcile_all(closing)
        except LatchworkError as error:
            self._trouble.record_failure(error, "node %s: retrying in %.1f s", self._node_id, _RETRY_S)
        except Exception:
            log.exception("node %s: the worker failed, retrying", self._node_id)
        else:
            self._trouble.record_success("node %s: its worker works again", self._node_id)
            return delay_s, False
        return _RETRY_S, True

    def _reconcile_all(self, closing: bool) -> float | None:
        """Compare the node's runs and locks with the items assigned to it, and take the next steps: start or stop runs,
        acquire or release locks.

        Args:
            closing: Whether the node is closing, so that it should run nothing.
        Returns:
            The seconds until the next check if no event comes first; None to wait for an event.
        """
        began = self._clock.now()
        desired = {} if closing or self._assignments is None else self._assignments.read_items(self._states)
        held = self.locks.get_held_locks()
        planned = []
        for job_id, state in self._states.items():
            state.apply_options(self._settings.options(job_id), enabled=self._settings.is_enabled(job_id))
        for job_id, state in self._states.items():  # without I/O first, so that nothing delays a stop
            planned.append((state, self._update_runs(state, frozenset(desired.get(job_id, ())), held.get(job_id, {}))))
        if closing and not self._has_runs_left() and sum(map(len, held.values())) <= LOCK_BATCH:
            self._may_leave.set()  # with more locks, other nodes would try too many that are not released yet
        again = self._update_locks(planned, self._clock.now() - began, closing=closing)
        self._has_locks_left = closing and again
        if again:
            self._wake.set()
        if closing:
            return max(0.01, self._close_by - self._clock.now())
        self._report_damaged_assignments()
        return self._next_check_s()

    def _report_damaged_assignments(self) -> None:
        """Ask the manager to write the damaged assignments of this node again, at most once in ``_REPORT_S`` seconds.

        Without the pause, an assignment that another program damages again and again would be written all the time.
        """
        now, session, damaged = self._clock.now(), self._get_session(), self.list_damaged_assignments()
        if damaged and session is not None and now >= self._report_at:
            self._report_at = now + _REPORT_S
            for job_id in sorted(damaged):
                self._store.put(damage_report_key(self._node_id, job_id), b"", session=session)

    def _next_check_s(self) -> float | None:
        now = self._now()
        waits = [
            remaining_pause_s
            for state in self._states.values()
            if (remaining_pause_s := state.remaining_pause_s(now)) > 0
        ]
        if self.list_damaged_assignments():
            waits.append(max(_RETRY_S, self._report_at - self._clock.now()))
        if self._is_lock_at_risk() or any(run.has_pending_listeners for run in self._list_live_runs()):
            waits.append(_RETRY_S)
        stuck_s = self._warn_of_stuck_runs()
        return min(waits if stuck_s is None else [*waits, stuck_s], default=None)

    def _update_runs(self, state: LocalJob, assigned: frozenset[str], held: Mapping[str, HeldLock]) -> RunActions:
        """Stop and start the runs of one job as ``reconcile`` decides.

        Args:
            state: The job.
            assigned: Items of the job that this node should run.
            held: Locks of the job that this node holds, by item.
        Returns:
            All steps, because the caller releases and acquires the locks.
        """
        self._remove_ended(state)
        wanted = assigned if state.enabled else frozenset[str]()
        actions = reconcile(wanted, held, [run.state for run in state.runs.values()], state.options.threads)
        for number in actions.stop:
            state.runs[number].stop()
        for run in state.runs.values():
            if run.has_pending_listeners:
                run.stop()
        state.forget_other_due_times(assigned)  # kept for a disabled job, which continues where it was
        if not self._closing.is_set():
            state.outcomes.forget_moved_items(assigned)
        if state.may_start(self._now()) and not self._is_lock_at_risk():
            for items in actions.start:
                if not self._start_run(state, items, held):
                    break
        return actions

    def _remove_ended(self, state: LocalJob) -> None:
        ended = state.remove_ended_runs(self._now())
        self._ending = tuple(run for run in (*self._ending, *ended) if run.has_threads)
        with self._mutex:
            for run in ended:
                self._live.pop(run.number, None)

    def _update_locks(self, planned: list[tuple[LocalJob, RunActions]], last_check_s: float, *, closing: bool) -> bool:
        """Release and acquire locks of all jobs for about a second.

        Args:
            planned: The steps for each job.
            last_check_s: Seconds that the last check took.
            closing: Whether the node is closing.
        Returns:
            True if everything should be checked again at once.
        """
        works = []
        for state, actions in planned:
            state.is_acquiring = False
            self.locks.release_forced_locks(
                state.job.id, frozenset[str]().union(*(run.state.items for run in state.runs.values()))
            )
            works.append(LockBatches(self.locks, state.job.id, actions.release, actions.acquire))
        began = self._clock.now()

        def may_continue(done: LockBatches) -> bool:
            if not done.remaining_batches:
                self._wake.set()  # it may start
            return self._should_continue(began, last_check_s, closing=closing)

        taken = self._lock_scheduler.process_batches(works, may_continue)
        for (state, _), work in zip(planned, works, strict=True):
            state.is_acquiring = work.has_acquisitions
        return taken or any(work.remaining_batches for work in works)

    def _should_continue(self, began: float, last_check_s: float, *, closing: bool) -> bool:
        """Return whether to handle more locks before everything is checked again.

        Args:
            began: Time at which the worker began to handle locks.
            last_check_s: Seconds that the last check took.
            closing: Whether the node is closing.
        """
        now = self._clock.now()
        if closing:
            return now < self._close_by and now - began < _FILL_S
        if self._closing.is_set():
            return False
        busy_s = min(_FILL_S, max(_FILL_BUSY_S, _FILL_PER_CHECK * last_check_s))
        return now - began < (busy_s if self._wake.is_set() else _FILL_S)

    def _start_run(self, state: LocalJob, items: tuple[str, ...], held: Mapping[str, HeldLock]) -> bool:
        """Start a run with these items of a job, whose locks are held.

        Args:
            state: The job.
            items: Items of the run.
            held: Locks of the job that this node holds, by item.
        Returns:
            False if runs of this job must be started later.
        """
        locks = RunLocks(state.job.id, {item: held[item] for item in items})
        try:
            due = state.find_first_due(items, self._now())
        except BaseException:  # an error of a user's schedule must not stop the other jobs
            log.exception(
                "job %s is paused here for %.3g s because its schedule raised", state.job.id, SCHEDULE_PAUSE_S
            )
            state.pause(self._now(), SCHEDULE_PAUSE_S)
            return False
        run = JobRun(next(self._numbers), items, self._create_run_setup(state, locks), due)
        with self._mutex:
            # Checked with the mutex held: closing and disabling stop every run in _live.
            if self._closing.is_set() or not self._settings.is_enabled(state.job.id):
                return False
            self._live[run.number] = run
        state.runs[run.number] = run
        try:
            run.start()
        except Exception as error:  # no thread could be started
            log.error("job %s: a run cannot start, retrying in %.1f s: %s", run.job_id, _RETRY_S, error)  # noqa: TRY400
            state.pause(self._now(), _RETRY_S)
            return False
        self._guard.request_check()
        log.debug("job %s: run %d starts with %d items on node %s", run.job_id, run.number, len(items), self._node_id)
        return True

    def _list_live_runs(self) -> list[JobRun]:
        """Return all active runs, including runs that were asked to stop."""
        with self._mutex:
            return list(self._live.values())

    def _now(self) -> Instant:
        return Instant(self._clock.now(), self._wall.now())

    def _is_lock_at_risk(self) -> bool:
        """Return whether this node holds locks that may expire before a run could stop."""
        return 0 < self.locks.remaining_s() <= self._get_stop_margin_s()

    def _warn_of_stuck_runs(self) -> float | None:
        stopping = [(state, run) for state in self._states.values() for run in state.runs.values() if run.stopping]
        timeout_s = self._settings.node.stop_timeout_s
        for state, run in stopping:
            if run.stopping_for_s >= timeout_s and run.number not in state.warned:
                state.warned.add(run.number)
                log.warning(
                    "job %s: run %d has not stopped %.0f s after it was asked to; it keeps its %d locks until then",
                    run.job_id,
                    run.number,
                    run.stopping_for_s,
                    len(run.items),
                )
        return max(_RETRY_S, timeout_s) if stopping else None

    def _create_run_setup(self, state: LocalJob, locks: RunLocks) -> RunSetup:
        return RunSetup(
            job=state.job,
            new_context=lambda items, fire_time_s=None: JobContext(
                items,
                job_id=state.job.id,
                node_id=self._node_id,
                remaining_s=locks.remaining_s,
                fence=locks.fence,
                store=self._context_store.within(locks.remaining_s),
                clock=self._clock,
                fire_time_s=fire_time_s,
            ),
            outcomes=state.outcomes,
            may_run=lambda: locks.time_to_stop_s(self._get_stop_margin_s()) > 0.0,
            on_end=self._wake.set,
            clock=self._clock,
            wall_s=self._wall.now,
            time_to_stop_s=lambda: locks.time_to_stop_s(self._get_stop_margin_s()),
            options=lambda: self._settings.options(state.job.id),
            observers=self._observers,
            loop=self._loop_of_runs,
            manual_runs=lambda items: PendingManualRuns(self._manual_runs, state.job.id, locks.get_item_locks(items)),
            fire_times=lambda items: FireTimes(self._progress[state.job.id], locks.get_item_locks(items)),
        )


def _find_next_start_s(runs: Iterable[JobRun]) -> float | None:
    return min((at_s for run in runs if (at_s := run.next_start_s) is not None), default=None)
