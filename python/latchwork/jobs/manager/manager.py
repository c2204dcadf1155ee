"""The manager part of a node: follows the running nodes and the work pools, and stores the assignment while elected.

Thread ``latchwork-manager-<node>``, one per session of the node: it stands for election as long as the session lasts.
All writes check the leader's fence, so that a manager that was frozen cannot write after it wakes. It rebalances after
a burst of events, and runs periodic cleanups.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from latchwork._base.event import Signal
from latchwork._base.trouble_log import TroubleLog
from latchwork.errors import LatchworkError, OwnershipLost
from latchwork.jobs.manager.leadership import Leadership
from latchwork.jobs.manager.rebalance import Rebalance
from latchwork.jobs.manager.restarts import RestartTracker
from latchwork.jobs.manager.strategies import ManagerOptions
from latchwork.jobs.observer import NOBODY, Observer, RebalanceInfo
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.caches import PoolCache
from latchwork.jobs.stored.nodes import NODES, NodeRecord
from latchwork.primitives import LeaderLatch
from latchwork.store import Backoff, Observers, Session, Store

log = logging.getLogger(__name__)
_TASK_RETRY_S = 30.0
#: Latest first execution in a term, in seconds, so that tasks also run if leaders change often.
_FIRST_TASK_S = 600.0

_RETRY_S = 0.5
_JOIN_S = 5.0
_TRIM_MOVES = 50_000


class Debouncer:
    """Decides when to act on a burst of events: when the events pause, or after a maximum delay. No I/O. Not
    thread-safe.
    """

    def __init__(self, quiet_s: float, max_delay_s: float) -> None:
        self.set_delays(quiet_s, max_delay_s)
        self._first_event_at: float | None = None
        self._last_event_at = 0.0
        self._not_before = 0.0

    def set_delays(self, quiet_s: float, max_delay_s: float) -> None:
        """Set the delays, which also apply to events that were recorded before.

        Args:
            quiet_s: Seconds without an event after which the action is due.
            max_delay_s: Maximum seconds from the first event to the action.
        """
        self._quiet_s = quiet_s
        self._max_delay_s = max(quiet_s, max_delay_s)

    def record_event(self, now: float) -> None:
        """Record an event, which makes the action due after the delays.

        Args:
            now: Current time by the monotonic clock, in seconds.
        """
        self._first_event_at = now if self._first_event_at is None else self._first_event_at
        self._last_event_at = now

    def schedule_retry(self, now: float, delay_s: float) -> None:
        """Make the action due again after a delay, because it has failed.

        Args:
            now: Current time by the monotonic clock, in seconds.
            delay_s: Minimum seconds until the action is due.
        """
        self.record_event(now)
        self._not_before = now + delay_s

    def due_in_s(self, now: float) -> float | None:
        """Return the seconds until the action is due; None if no event was recorded."""
        if self._first_event_at is None:
            return None
        due_at = min(self._last_event_at + self._quiet_s, self._first_event_at + self._max_delay_s)
        return max(0.0, max(due_at, self._not_before) - now)

    def clear_events(self) -> None:
        """Forget the recorded events, because the action starts now."""
        self._first_event_at = None
        self._not_before = 0.0


@dataclass(slots=True)
class _PeriodicTask:
    """A task that the leader repeats; a period of 0 disables it."""

    name: str
    execute: Callable[[Leadership], None]
    period_s: float
    counted_from: float  # start of the term, or of the last execution
    has_run: bool = False
    retry_at: float | None = None
    trouble: TroubleLog = field(default_factory=lambda: TroubleLog(log))

    @property
    def next_at(self) -> float:
        if self.retry_at is not None:
            return self.retry_at
        return self.counted_from + (self.period_s if self.has_run else min(self.period_s, _FIRST_TASK_S))


class PeriodicTasks:
    """The periodic tasks of one term of leadership. Not thread-safe."""

    def __init__(self, options: ManagerOptions, now: float) -> None:
        self._cleanup = _PeriodicTask("cleanup", lambda term: term.delete_unused_pools(), options.cleanup_period_s, now)
        self._sweep = _PeriodicTask(
            "sweep", lambda term: term.delete_expired_records(self._outcome_keep_s), options.sweep_period_s, now
        )
        self._outcome_keep_s = options.outcome_keep_s

    def set_periods(self, options: ManagerOptions) -> None:
        """Set the periods of all tasks, counted from the last execution of each."""
        self._cleanup.period_s = options.cleanup_period_s
        self._sweep.period_s = options.sweep_period_s
        self._outcome_keep_s = options.outcome_keep_s

    def due_in_s(self, now: float) -> float | None:
        """Return the seconds until the next task is due; None if all are disabled."""
        return min((max(0.0, task.next_at - now) for task in self._active()), default=None)

    def run_due(self, now: float, term: Leadership) -> None:
        """Run the tasks that are due. A failed task is logged and retried soon.

        Args:
            now: Current time by the monotonic clock, in seconds.
            term: The term of leadership in which the tasks run.
        """
        for task in self._active():
            if task.next_at <= now:
                task.counted_from, task.has_run, task.retry_at = now, True, None
                try:
                    task.execute(term)
                except LatchworkError as error:
                    task.retry_at = now + min(task.period_s, _TASK_RETRY_S)
                    task.trouble.record_failure(error, "%s failed, retrying in %.3g s", task.name, task.retry_at - now)
                else:
                    task.trouble.record_success("%s works again", task.name)

    def _active(self) -> list[_PeriodicTask]:
        return [task for task in (self._cleanup, self._sweep) if task.period_s > 0]


@dataclass(slots=True)
class ManagerCounters:
    """Counters of a node's manager over all sessions. Written by one thread."""

    rebalances: int = 0
    moves: int = 0
    failures: int = 0


class ClusterManager:
    """Stands for election on one session, and manages the cluster while elected. ``close`` resigns and joins the
    thread.
    """

    def __init__(
        self,
        store: Store,
        session: Session,
        own_record: NodeRecord,
        options: Callable[[], ManagerOptions],
        counters: ManagerCounters,
        *,
        observers: Observers[Observer] = NOBODY,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._own_record = own_record
        self._options = options  # called repeatedly, because options may change
        self._counters = counters
        self._observers = observers
        self._trouble = TroubleLog(log)
        self._wake = Signal()
        self._changed = Signal()
        self._closing = Signal()
        self._latch = LeaderLatch(store, keys.LEADER, node_id=own_record.worker, session=session)
        self._latch.on_elected(self._wake.set)
        self._latch.on_revoked(self._wake.set)
        self._thread = threading.Thread(target=self._run, name=f"latchwork-manager-{own_record.worker}", daemon=True)

    @property
    def is_leader(self) -> bool:
        """Whether this node manages the cluster."""
        return self._latch.is_leader

    def start(self) -> None:
        """Start a thread that stands for election and manages the cluster while elected. Does not wait for the
        election.
        """
        self._latch.start()
        self._thread.start()

    def request_check(self) -> None:
        """Make the manager's thread check the options again, because they may have changed. Never blocks."""
        self._wake.set()

    def resign(self) -> None:
        """Stop managing, and give up leadership in the background.

        Idempotent. Callable from any thread except the manager's own.
        """
        self._closing.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
        self._latch.close_in_background()

    def close(self) -> None:
        """Give up leadership, and wait until that is stored.

        Idempotent. Callable from any thread except the manager's own.
        """
        self.resign()
        self._latch.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            if self._latch.is_leader:
                try:
                    self._lead()
                except LatchworkError as error:
                    self._trouble.record_failure(error, "manager on node %s restarts", self._own_record.worker)
                    self._clock.wait(self._closing, _RETRY_S)
                except Exception:
                    log.exception("manager on node %s failed unexpectedly and restarts", self._own_record.worker)
                    self._clock.wait(self._closing, _RETRY_S)
            elif not self._closing.is_set():
                self._clock.wait(self._wake)

    def _lead(self) -> None:
        fence = self._latch.fence
        log.info("node %s now manages the cluster, fence token %d", self._own_record.worker, fence.token)
        with (
            self._store.mirror(keys.ALIVE) as alive,
            self._store.mirror(keys.WORK_POOL, values=False) as pools,
            self._store.mirror(NODES) as nodes,
        ):
            for mirror in (alive, pools, nodes):
                mirror.on_change(lambda _batch: self._on_change())
            restarts = RestartTracker(self._store, nodes, fence, self._own_record.incarnation)
            pool_cache = PoolCache(self._store, pools)
            term = Leadership(
                self._store,
                self._own_record,
                fence,
                alive=alive,
                nodes=nodes,
                pools=pool_cache,
                restarts=restarts,
                options=self._options(),
            )
            self._manage(term)
        log.info("node %s no longer manages the cluster", self._own_record.worker)

    def _on_change(self) -> None:
        self._changed.set()
        self._wake.set()

    def _manage(self, term: Leadership) -> None:
        options = self._options()
        debouncer = Debouncer(options.debounce_s, options.debounce_max_s)
        periodic_tasks = PeriodicTasks(options, self._clock.now())
        backoff = Backoff(_RETRY_S, 10.0)
        debouncer.record_event(self._clock.now())
        while True:
            self._wake.clear()  # cleared before the checks, so that later events shorten the wait
            if not self._latch.is_leader or self._closing.is_set():
                return
            now = self._clock.now()
            options = self._options()
            debouncer.set_delays(options.debounce_s, options.debounce_max_s)
            periodic_tasks.set_periods(options)
            if self._changed.is_set():
                self._changed.clear()
                debouncer.record_event(now)
            due_s = debouncer.due_in_s(now)
            if due_s is not None and due_s <= 0:
                debouncer.clear_events()
                if self._rebalance_and_trim(term):
                    backoff.reset()
                else:
                    debouncer.schedule_retry(self._clock.now(), backoff.next_s())
                continue
            periodic_tasks.run_due(now, term)
            if term.restarts.detect_new_timeout(now):
                debouncer.record_event(now)
                continue
            waits = (due_s, periodic_tasks.due_in_s(self._clock.now()), term.restarts.due_in_s(self._clock.now()))
            self._clock.wait(self._wake, min((wait for wait in waits if wait is not None), default=None))

    def _rebalance_and_trim(self, term: Leadership) -> bool:
        """Rebalance once. After a large change, also return freed memory to the operating system.

        Args:
            term: The current term of leadership.
        Returns:
            False if the rebalance must be retried.
        """
        moved, is_first = self._counters.moves, not term.is_loaded
        done = self._rebalance(term)
        if is_first or self._counters.moves - moved >= _TRIM_MOVES:
            trim_memory()
        return done

    def _rebalance(self, term: Leadership) -> bool:
        """Rebalance once, and report the result to observers.

        Args:
            term: The current term of leadership.
        Returns:
            False if the rebalance must be retried.
        """
        began, written = self._clock.now(), term.written_bytes
        try:
            result = term.rebalance()
        except OwnershipLost:
            raise
        except LatchworkError as error:
            self._counters.failures += 1
            self._trouble.record_failure(error, "rebalance failed, retrying")
            self._notify_observers(began, Rebalance(), error, term.written_bytes - written)
            term.discard_cache()
            return False
        self._trouble.record_success("manager on node %s works again", self._own_record.worker)
        self._counters.rebalances += bool(result.changes)
        self._counters.moves += result.moves
        self._notify_observers(began, result, next(iter(result.failed.values()), None), term.written_bytes - written)
        if result.deferred and result.changes:
            self._on_change()  # continue with the moves that the budget has postponed
        return not result.failed

    def _notify_observers(
        self, began: float, result: Rebalance, error: BaseException | None, written_bytes: int
    ) -> None:
        took_s = self._clock.now() - began
        self._observers.notify(
            "rebalanced",
            RebalanceInfo(self._own_record.worker, took_s, len(result.changes), result.moves, error, written_bytes),
        )


def trim_memory() -> bool:
    """Return freed memory to the operating system, which takes some milliseconds.

    Loading or reassigning a large cluster needs much memory for a short time. The freed blocks lie between blocks in
    use, and the C library does not return them by itself.

    Returns:
        True if memory was returned; False if none was, or if the C library has no such function.
    """
    trim = _malloc_trim()
    return trim is not None and bool(trim(0))


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return the function of the GNU C library that returns freed memory; None with another C library."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim
