"""The live runs of jobs on a node: which to start and stop, a thread for each, and a watchdog that stops them in time.

``reconcile`` decides, and is pure. One rule comes first: an item is in at most one live run of this node, and a run
starts only while its locks are held. A run that was asked to stop but has not ended keeps its items and their locks. An
item whose lock was lost during a run is not locked again before that run has ended.

The watchdog asks runs to stop before their locks expire. It has its own thread, so that no call to the store can delay
it. Nothing here uses the store, and no user code is called while a mutex is held.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.lazy import lazy_getattr
from latchwork._base.trouble_log import TroubleLog
from latchwork._base.validation import deferred_result_kind
from latchwork.clock import Clock
from latchwork.errors import LatchworkError
from latchwork.jobs.cron_progress import FireTimes
from latchwork.jobs.job import Job, JobContext
from latchwork.jobs.observer import NOBODY, Observer, RunInfo
from latchwork.jobs.options import MIN_GRACE_S, Threads
from latchwork.jobs.settings import STOP_MARGIN, JobOptions
from latchwork.jobs.worker.manual_runs import PendingManualRuns
from latchwork.jobs.worker.outcomes import EndedRun, OutcomeTracker, summarize_error
from latchwork.schedules import Cron, DueTime, Instant, Jitter
from latchwork.store import Observers
from latchwork.store.driving.dedicated_loop import DedicatedLoop

log = logging.getLogger(__name__)
#: Longest wait of a cron schedule in seconds, because the wall clock may be changed.
_MAX_WAIT_S = 10.0
#: Seconds to wait before a start while the locks are about to expire.
_LOCK_WAIT_S = 0.1
#: Seconds before progress that could not be stored is stored again.
_STORE_RETRY_S = 0.5
#: Least change in seconds of a published next start, because clocks drift.
_CHANGE_S = 1.0
#: The asyncio context of async runs. It belongs to a higher layer, so it is imported lazily.
_twins = lazy_getattr("latchwork.aio", {"latchwork.aio.job_context": ("JobContext",)})
#: Seconds without runs after a schedule has raised.
SCHEDULE_PAUSE_S = 60.0

_MIN_WAIT_S = 0.01
_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a live run, from which ``reconcile`` decides: its number, its items, and whether it was asked to
    stop.
    """

    number: int
    items: frozenset[str]
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class RunActions:
    """The steps to take for the runs and locks of one job, in this order: stop, release, acquire, start.

    Attributes:
        stop: Numbers of runs to stop.
        release: Sorted items whose locks to release.
        acquire: Sorted items whose locks to acquire, none in a live run; items that are not free are awaited.
        start: Items of the runs to start: disjoint, not empty, with their locks held.
    """

    stop: tuple[int, ...] = ()
    release: tuple[str, ...] = ()
    acquire: tuple[str, ...] = ()
    start: tuple[tuple[str, ...], ...] = ()


def reconcile(
    desired: Collection[str], held: Collection[str], running: Iterable[RunState], threads: Threads
) -> RunActions:
    """Decide which runs of one job to stop and start on this node, and which locks to release and acquire.

    The caller repeats this as runs end and locks are acquired, until exactly the desired items run.

    Args:
        desired: Items that this node should run; empty when it is closing.
        held: Items whose locks this node certainly holds.
        running: Active runs, including runs that were asked to stop.
        threads: How the node's items are split into runs.
    Returns:
        The steps to take.
    """
    live = list(running)
    wanted, locked = set(desired), set(held)
    busy = frozenset[str]().union(*(run.items for run in live))
    targets = {frozenset(part): part for part in threads.split_items(wanted & locked)}
    kept = {run.items for run in live if not run.stopping and run.items in targets}
    stop = tuple(run.number for run in live if not run.stopping and run.items not in targets)
    fresh = [part for items, part in targets.items() if items not in kept and not items & busy]
    if threads.limit:
        fresh = fresh[: max(0, threads.limit - len(live))]
    return RunActions(
        stop=stop,
        release=tuple(sorted(locked - wanted - busy)),
        acquire=tuple(sorted(wanted - locked - busy)),  # a stale run must not find its item locked again
        start=tuple(fresh),
    )


@dataclass(frozen=True, slots=True)
class RunSetup:
    """The functions and objects of a node that its runs use.

    Attributes:
        job: The job.
        options: Returns the job's effective options.
        outcomes: Records how each run ends.
        new_context: Creates the context of a run from its items, and, on a cron schedule, its fire time.
        may_run: Returns whether the locks last long enough to start. Checked right before each run, because a process
            that was frozen wakes with expired locks and a due run.
        on_end: Called in the run's thread when it has ended. It must not block.
        clock: Clock for waits.
        wall_s: Returns seconds since the epoch.
        time_to_stop_s: Returns the seconds until the run must be asked to stop so that it ends before its locks expire;
            0 or less means now.
        fire_times: Creates the stored fire times of items for cron schedules; None does not store them.
        manual_runs: Creates the pending manual runs of items; None if there are none.
        observers: Observers of the runs.
        loop: Event loop for ``async def`` functions, shared by all jobs of the node.
    """

    job: Job
    options: Callable[[], JobOptions]
    new_context: Callable[..., JobContext]
    outcomes: OutcomeTracker
    may_run: Callable[[], bool]
    on_end: Callable[[], None]
    clock: Clock
    wall_s: Callable[[], float] = time.time
    time_to_stop_s: Callable[[], float] = lambda: math.inf
    fire_times: Callable[[tuple[str, ...]], FireTimes] | None = None
    manual_runs: Callable[[tuple[str, ...]], PendingManualRuns] | None = None
    observers: Observers[Observer] = NOBODY
    loop: DedicatedLoop = field(default_factory=partial(DedicatedLoop, "latchwork-jobs"))


class JobRun:
    """A thread that runs some items of a job repeatedly on schedule until it is asked to stop. Thread-safe.

    Attributes:
        number: Unique number on this node.
        items: Its items, sorted.
        resume_due: When its items are due: the awaited time, or the past if it was interrupted; None if unknown.
        next_start_s: Next start in seconds since the epoch; None while running and after the end.
    """

    def __init__(self, number: int, items: tuple[str, ...], setup: RunSetup, first_due: DueTime) -> None:
        self.number = number
        self.items = items
        self._members = frozenset(items)
        self._setup = setup
        self._due = first_due
        self._created = Instant(setup.clock.now(), setup.wall_s())
        self._fire_times = None if setup.fire_times is None else setup.fire_times(items)
        self._manual_runs = None if setup.manual_runs is None else setup.manual_runs(items)
        self._retry_manual_s = math.inf
        self._trouble = TroubleLog(log)
        self._stop = Signal()
        self._recheck = Signal()  # set on a stop, and when the schedule may have changed
        self._ended = Signal()
        self._mutex = mutex()
        self._context: JobContext | None = None
        self._unnotified: JobContext | None = None
        self._notifier: threading.Thread | None = None
        self.resume_due: DueTime | None = None
        self.next_start_s: float | None = None
        self._stopped_at: float | None = None
        self._thread = threading.Thread(
            target=self._run_thread, name=f"latchwork-run-{setup.job.id}-{number}", daemon=True
        )

    @property
    def job_id(self) -> str:
        """The ID of the job."""
        return self._setup.job.id

    def start(self) -> None:
        """Start the thread that calls the job on its schedule.

        Raises:
            RuntimeError: No thread could be started. The run counts as ended, and its items stay due.
        """
        try:
            self._thread.start()
        except BaseException:
            self.resume_due = self._due
            self._ended.set()
            raise

    def stop(self) -> None:
        """Ask the run to stop, and call its stop listeners in a separate thread. Returns at once. Idempotent.

        If no thread can be started for the listeners, the next call tries again.
        """
        with self._mutex:
            if not self._stop.is_set():
                self._stop.set()
                self._recheck.set()
                self._stopped_at = self._setup.clock.now()
                if self._context is not None:
                    self._context.stop_signal.signal_stop()
                    self._unnotified = self._context
            context, self._unnotified = self._unnotified, None
        if context is not None and context.stop_signal.has_listeners:
            self._notify(context)

    def reschedule(self) -> None:
        """Make the run compute its next start again, because the job's options may have changed."""
        self._recheck.set()

    @property
    def ahead_s(self) -> float:
        """The seconds by which the recorded fire times of its items are in the future; 0 if they are not."""
        return 0.0 if self._fire_times is None else self._fire_times.ahead_s

    @property
    def state(self) -> RunState:
        """The state of the run, from which ``reconcile`` decides."""
        return RunState(self.number, self._members, self._stop.is_set())

    @property
    def stopping(self) -> bool:
        """True once the run was asked to stop."""
        return self._stop.is_set()

    @property
    def has_pending_listeners(self) -> bool:
        """True if stop listeners were not called because no thread could be started. Then call ``stop`` again."""
        return self._unnotified is not None

    def time_to_stop_s(self) -> float:
        """Return the seconds until the run must be asked to stop, so that it ends before its locks expire; 0 or less
        for now.
        """
        return self._setup.time_to_stop_s()

    @property
    def has_threads(self) -> bool:
        """True while a thread of the run is alive. A thread that calls stop listeners may outlive the run."""
        return any(thread is not None and thread.is_alive() for thread in (self._thread, self._notifier))

    @property
    def is_current_thread(self) -> bool:
        """True if the calling thread is the run's own thread or calls one of its stop listeners."""
        return threading.current_thread() in {self._thread, self._notifier} or self._setup.loop.is_inside(self)

    @property
    def ended(self) -> bool:
        """True once the run has ended."""
        return self._ended.is_set()

    @property
    def stopping_for_s(self) -> float:
        """The seconds since the run was asked to stop; 0 if it was not."""
        return 0.0 if self._stopped_at is None else self._setup.clock.now() - self._stopped_at

    def join(self, timeout_s: float) -> None:
        """Wait until the run's threads have ended. If the caller is one of these threads, that thread is left out.

        Args:
            timeout_s: Maximum seconds to wait.
        """
        until = self._setup.clock.now() + timeout_s
        for thread in (self._thread, self._notifier):
            if thread is not None and thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, until - self._setup.clock.now()))

    def _notify(self, context: JobContext) -> None:
        name = f"latchwork-stop-{self._setup.job.id}-{self.number}"
        self._notifier = threading.Thread(target=context.stop_signal.call_listeners, name=name, daemon=True)
        try:
            self._notifier.start()
        except Exception as error:  # no thread could be started; the run itself was signaled
            log.error("job %s: stop listeners of run %d will be called later: %s", self.job_id, self.number, error)  # noqa: TRY400
            self._notifier = None
            self._unnotified = context

    def _run_thread(self) -> None:
        try:
            self._loop()
        except BaseException:  # a user's schedule may raise: log it, and do not restart at once
            log.exception("job %s is paused here for %.3g s because its schedule raised", self.job_id, SCHEDULE_PAUSE_S)
            self._setup.clock.wait(self._stop, SCHEDULE_PAUSE_S)
        finally:
            self.next_start_s = None
            self._ended.set()
            self._setup.on_end()

    def _loop(self) -> None:
        while not self._stop.is_set():
            self._recheck.clear()  # cleared before the options are read, so that no change is missed
            if self._manual_runs is not None and self._try_manual_run(self._manual_runs):
                continue
            options = self._setup.options()
            if self._fire_times is not None and isinstance(options.schedule, Cron):
                self._run_if_fire_time(self._fire_times, options.schedule, options)
            else:
                self._run_if_due(options)
        if self._fire_times is not None:
            self._fire_times.undo_start()
        self.resume_due = self._due

    def _try_manual_run(self, manual_runs: PendingManualRuns) -> bool:
        """Start the next requested manual run, if there is one, and wait for its end.

        Args:
            manual_runs: The manual runs that are still to do.
        Returns:
            False if no manual run is pending, or if it cannot run now.
        """
        self._retry_manual_s = math.inf
        try:
            run = manual_runs.find_next_run()
            if run is not None and self._setup.may_run():
                run.record_start()
        except LatchworkError as error:
            self._trouble.record_failure(
                error, "job %s: a manual run cannot start, retrying", self.job_id, item="manual"
            )
            self._retry_manual_s = _STORE_RETRY_S
            return False
        self._trouble.record_success("job %s: run %d can start again", self.job_id, self.number, item="manual")
        if run is None:
            return False
        if not self._setup.may_run():
            self._setup.clock.wait(self._stop, _LOCK_WAIT_S)
            return True
        log.info("job %s: manual run of %d items, requested by %s", self.job_id, len(run.items), run.request.by)
        ended = self._call_job(self._setup.new_context(run.items), 0.0)
        if ended is not None and not self._stop.is_set():  # otherwise it was interrupted, and stays marked as started
            manual_runs.record_end(run, ended.error)
        return True

    def _run_if_due(self, options: JobOptions) -> None:
        """Call the job if it is due. Otherwise wait for a limited time."""
        self._due = self._due.with_schedule(options.schedule, options.initial_delay_s)
        left = self._due.remaining_s(self._now(), options.jitter_s)
        if left > 0:
            self._pause(left)
        elif not self._setup.may_run():
            self._setup.clock.wait(self._stop, _LOCK_WAIT_S)
        else:
            self._call_job(self._setup.new_context(self.items), -left)
            if not self._stop.is_set():  # otherwise it was interrupted, and is due at once
                self._due = self._due.after(self._now(), random.random())

    def _run_if_fire_time(self, times: FireTimes, cron: Cron, options: JobOptions) -> None:
        """Call the job if its next fire time has come. Otherwise wait for a limited time.

        The start is stored before the job is called, and the end after it.

        Args:
            times: Fire times of the run's items.
            cron: The current schedule.
            options: Effective options of the job.
        """
        try:
            since_s = self._created.wall_s + (options.initial_delay_s or 0.0)
            jitter = Jitter.from_name(options.jitter_s, f"{self.job_id}/{self.items[0]}")
            changed_s = options.schedule_since_s
            step = times.find_next_step(cron, self._now().wall_s, since_s, changed_s=changed_s, jitter=jitter)
            left = step.wait_s
            if left > 0:
                self._pause(left)
                return
            if not self._setup.may_run():
                self._setup.clock.wait(self._stop, _LOCK_WAIT_S)
                return
            times.record_start(step)
        except LatchworkError as error:
            self._trouble.record_failure(error, "job %s: run %d cannot start, retrying", self.job_id, self.number)
            self._setup.clock.wait(self._stop, _STORE_RETRY_S)
            return
        self._trouble.record_success("job %s: run %d can start again", self.job_id, self.number)
        while not self._setup.may_run():  # the write was slow, or the process was frozen during it
            if self._setup.clock.wait(self._stop, _LOCK_WAIT_S):
                return
        if self._call_job(self._setup.new_context(step.items, step.at), -left) is not None:
            times.confirm_start()
            if not self._stop.is_set():  # otherwise it was interrupted, and stays marked as started
                times.record_end(step)

    def _pause(self, seconds: float) -> None:
        at_s = self._setup.wall_s() + seconds
        if self.next_start_s is None or abs(at_s - self.next_start_s) > _CHANGE_S:
            self.next_start_s = at_s
        if not self._stop.is_set():  # checked after the clear, so that no later event is missed
            self._setup.clock.wait(self._recheck, min(seconds, _MAX_WAIT_S, self._retry_manual_s))

    def _call_job(self, context: JobContext, lag_s: float) -> EndedRun | None:
        """Call the job once, and return its result. Return None if the run was asked to stop before the call.

        Args:
            context: Argument for the job.
            lag_s: Seconds between the due time and now.
        """
        setup = self._setup
        with self._mutex:
            if self._stop.is_set():
                return None
            self._context = context
        self.next_start_s = None
        setup.outcomes.record_start(setup.wall_s())
        error: str | None = None
        try:
            info = RunInfo(context.node_id, setup.job.id, context.items, lag_s, context.fire_time_s)
            with setup.observers.surround("run", info):
                self._call(context)
        except BaseException as raised:  # also SystemExit: a run must not end the node or its own schedule
            error = summarize_error(raised)
            log.debug("job %s runs again at its next time", setup.job.id)  # the event log reports the failure
        finally:
            ended = EndedRun(context.items, setup.wall_s(), error, context.should_stop)
            setup.outcomes.record_end(ended)
            with self._mutex:
                self._context = None
        return ended

    def _call(self, context: JobContext) -> None:
        job = self._setup.job
        if job.is_async:
            given = _twins("JobContext").wrap(context)
            self._setup.loop.run(partial(job.run, given), context.on_stop, caller=self)
            return
        returned = deferred_result_kind(job.run(context))
        if returned is not None:
            raise TypeError(f"run returned {returned}, which never runs; use an async def function, or await it in one")

    def _now(self) -> Instant:
        return Instant(self._setup.clock.now(), self._setup.wall_s())


def compute_stop_margin_s(lock_ttl_s: float, disconnect_grace_s: float | None) -> float:
    """Return how many seconds before its locks expire a run is asked to stop.

    Args:
        lock_ttl_s: Seconds that locks last after the last confirmed renewal.
        disconnect_grace_s: Seconds that runs may continue after the last confirmed renewal; None for as long as the
            locks allow.
    """
    least_s = lock_ttl_s * STOP_MARGIN
    if disconnect_grace_s is None:
        return least_s
    return max(least_s, lock_ttl_s - max(MIN_GRACE_S, disconnect_grace_s))


class RunWatchdog:
    """A thread that asks runs to stop before their locks expire. Thread-safe.

    Args:
        node_id: ID of the node, for the thread's name and log lines.
        runs: Returns the live runs; called in the watchdog's thread.
        on_stop: Called after runs were asked to stop. It must not block.
        clock: Clock for waits.
    """

    def __init__(
        self,
        node_id: str,
        runs: Callable[[], Iterable[JobRun]],
        *,
        on_stop: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._runs = runs
        self._on_stop = on_stop
        self._clock = clock
        self._wake = Signal()
        self._finishing = Signal()
        self.thread = threading.Thread(target=self._loop, name=f"latchwork-watchdog-{node_id}", daemon=True)

    def request_check(self) -> None:
        """Make the thread check all runs now, because a run was added or the stop margin has changed."""
        self._wake.set()

    def finish(self) -> None:
        """End the thread as soon as every run has ended or was asked to stop. Call it when no more runs will be
        added.
        """
        self._finishing.set()
        self._wake.set()

    def _loop(self) -> None:
        while True:
            self._wake.clear()
            finishing = self._finishing.is_set()
            try:
                wait_s = self.check()
            except Exception:  # otherwise runs could outlive their locks
                log.exception("node %s: the watchdog of the runs failed, retrying", self._node_id)
                wait_s = _RETRY_S
            if finishing and wait_s is None:
                return
            self._clock.wait(self._wake, wait_s)

    def check(self) -> float | None:
        """Ask runs to stop whose locks expire soon.

        Returns:
            The seconds until the next check; None without runs.
        """
        spare = [(run.time_to_stop_s(), run) for run in self._runs() if not run.ended and not run.stopping]
        doomed = [run for spare_s, run in spare if spare_s <= 0.0]
        if doomed:
            log.error(
                "node %s: the locks of %d runs could not be renewed in time: the runs are asked to stop",
                self._node_id,
                len(doomed),
            )
            for run in doomed:
                run.stop()
            self._on_stop()
            return _MIN_WAIT_S
        nearest_s = min((spare_s for spare_s, _ in spare), default=None)
        return None if nearest_s is None else max(_MIN_WAIT_S, nearest_s)
