"""The worker: follows its share, and starts, stops, locks and unlocks what ``reconcile`` says.

Two threads. ``latchwork-worker-<node>`` looks at the state again whenever something changed; it touches the store.
``latchwork-guard-<node>`` touches nothing but the clock: it tells runs to stop before their locks run out, however
long the other one hangs in a call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING

from latchwork.errors import LatchworkError
from latchwork.jobs import keys
from latchwork.jobs.context import JobContext
from latchwork.jobs.item_locks import ItemLocks
from latchwork.jobs.job import Job
from latchwork.jobs.packed import BadHead, MissingChunk
from latchwork.jobs.packed_store import Stored, from_entries, read
from latchwork.jobs.reconcile import Actions, reconcile
from latchwork.jobs.runs import Counters, JobRun, JobStats, RunSetup
from latchwork.jobs.schedule import Instant

if TYPE_CHECKING:
    from latchwork.store import Mirror, Store

log = logging.getLogger(__name__)

_RETRY_S = 0.5
_JOIN_S = 5.0
#: Runs are told to stop when this part of the TTL is left of their locks.
STOP_MARGIN = 0.25


class _JobState:
    """What the worker knows of one job. Only the worker's thread writes it."""

    def __init__(self, job: Job, setup: RunSetup) -> None:
        self.job = job
        self.setup = setup
        self.runs: dict[int, JobRun] = {}
        self.dues: dict[str, float] = {}
        self.warned: set[int] = set()

    def first_due(self, items: Iterable[str]) -> float:
        """The earliest due of these items: kept ones have theirs already, new ones come after the initial delay."""
        fresh = self.job.schedule.first_due(self._now(), self.job.initial_delay_s)
        return min(self.dues.get(item, fresh) for item in items)

    def reap(self) -> None:
        """Forget the runs that have ended, and remember what their items are due for."""
        for run in [run for run in self.runs.values() if run.ended]:
            run.join()
            due = run.resume_due
            if due is None:
                due = self.job.schedule.first_due(self._now(), 0.0)
            self.dues.update(dict.fromkeys(run.items, due))
            del self.runs[run.number]
            self.warned.discard(run.number)

    def _now(self) -> Instant:
        return Instant(self.setup.clock.now(), self.setup.wall_s())


class Worker:
    """Runs this node's share of its jobs. Owned by the job manager; ``close`` ends and joins its threads."""

    def __init__(self, store: Store, node_id: str, jobs: Mapping[str, Job], *, lock_ttl_s: float) -> None:
        self._store = store
        self._clock = store.clock
        self._node_id = node_id
        self._wake = threading.Event()
        self._guard_wake = threading.Event()
        self.locks = ItemLocks(store, node_id, lock_ttl_s, self._wake.set)
        self._margin_s = lock_ttl_s * STOP_MARGIN
        self._states = {job_id: _JobState(job, self._setup(job)) for job_id, job in jobs.items()}
        self._numbers = count(1)
        self._mutex = threading.Lock()
        self._live: tuple[JobRun, ...] = ()
        self._mirror: Mirror | None = None
        self._decoded: dict[str, tuple[object, Stored]] = {}
        self._closing = threading.Event()
        self._finished = threading.Event()
        self._close_by = 0.0
        self._stop_warning_s = 30.0
        self._threads = [
            threading.Thread(target=self._loop, name=f"latchwork-worker-{node_id}", daemon=True),
            threading.Thread(target=self._guard, name=f"latchwork-guard-{node_id}", daemon=True),
        ]

    def follow_owners(self) -> None:
        """Follow who holds locks from now on, so that a takeover needs no new TTL; the earlier the better."""
        self.locks.start()

    def start(self) -> None:
        """Follow the share from now on."""
        self._mirror = self._store.mirror(keys.assigned(self._node_id))
        self._mirror.on_change(lambda _batch: self._wake.set())
        for thread in self._threads:
            thread.start()

    def stats(self) -> dict[str, JobStats]:
        """What each job has done here, by job id."""
        with self._mutex:
            live = self._live
        items = dict.fromkeys(self._states, 0)
        for run in live:
            items[run.job_id] += len(run.items)
        return {job_id: state.setup.counters.stats(items[job_id]) for job_id, state in self._states.items()}

    def close(self, timeout_s: float) -> list[str]:
        """Tell all runs to stop, wait so long for them, give their locks back. From any thread; twice is fine.

        Returns:
            The jobs that have runs which did not stop; their locks are left to run out.
        """
        self._close_by = self._clock.now() + timeout_s
        self._closing.set()
        self._wake.set()
        started = [thread for thread in self._threads if thread.ident is not None]
        if threading.current_thread() not in self._threads:
            for thread in started:
                thread.join(timeout_s + _JOIN_S)
        stuck = sorted({run.job_id for run in self._live if not run.ended})
        try:
            self.locks.close(release=not stuck)
        except LatchworkError as error:
            log.warning("node %s: locks could not be given back, they run out by themselves: %s", self._node_id, error)
        if self._mirror is not None:
            self._mirror.close()
        return stuck

    def _loop(self) -> None:
        try:
            while True:
                self._wake.clear()
                delay_s = self._try_step()
                if self._closing.is_set() and self._is_over():
                    return
                self._clock.wait(self._wake, delay_s)
        finally:
            self._finished.set()
            self._guard_wake.set()

    def _is_over(self) -> bool:
        return not self._live or self._clock.now() >= self._close_by

    def _try_step(self) -> float | None:
        try:
            return self._step()
        except LatchworkError as error:
            log.warning("node %s: trying again in %.1f s: %s", self._node_id, _RETRY_S, error)
        except Exception:
            log.exception("node %s: the worker failed and tries again", self._node_id)
        return _RETRY_S

    def _step(self) -> float | None:
        """Bring every job closer to its share; seconds until it must be looked at again without an event."""
        closing = self._closing.is_set()
        desired = {} if closing else self._desired()
        held = self.locks.held()
        planned = []
        for job_id, state in self._states.items():  # first all that needs no store: nothing may delay a stop
            state.reap()
            planned.append((job_id, self._apply(state, desired.get(job_id, ()), held.get(job_id, {}))))
        self._publish()
        again = [self._lock(job_id, actions) for job_id, actions in planned]
        if any(again):
            self._wake.set()
        if closing:
            return max(0.01, self._close_by - self._clock.now())
        return _RETRY_S if self._at_risk() else self._warn_of_stuck()

    def _apply(self, state: _JobState, desired: Iterable[str], held: Mapping[str, object]) -> Actions:
        """Stop and start what needs to be; what is left to do is the locks."""
        wanted = frozenset(desired)
        actions = reconcile(wanted, held, [run.view for run in state.runs.values()], state.job.threads)
        for number in actions.stop:
            state.runs[number].stop()
        for item in [item for item in state.dues if item not in wanted]:
            del state.dues[item]
        if not self._at_risk():
            for items in actions.start:
                self._start(state, items)
        return actions

    def _lock(self, job_id: str, actions: Actions) -> bool:
        """Release and acquire; True when new locks make another look worth while at once."""
        if actions.release:
            self.locks.release(job_id, actions.release)
        return self.locks.want(job_id, actions.acquire)

    def _start(self, state: _JobState, items: tuple[str, ...]) -> None:
        run = JobRun(next(self._numbers), items, state.setup, state.first_due(items))
        state.runs[run.number] = run
        self._publish()
        run.start()
        self._guard_wake.set()
        log.debug("job %s: run %d starts with %d items on node %s", run.job_id, run.number, len(items), self._node_id)

    def _publish(self) -> None:
        with self._mutex:
            self._live = tuple(run for state in self._states.values() for run in state.runs.values())

    def _desired(self) -> dict[str, tuple[str, ...]]:
        """The share as stored, of the jobs this node has."""
        assert self._mirror is not None
        found = {}
        for job_id in self._states:
            key = keys.assigned(self._node_id, job_id)
            head = self._mirror.get(key)
            if head is None:
                self._decoded.pop(job_id, None)
                continue
            known = self._decoded.get(job_id)
            if known is None or known[0] != head.version:
                known = self._decoded[job_id] = (head.version, self._decode(key))
            found[job_id] = known[1].packed.items
        return found

    def _decode(self, key: str) -> Stored:
        assert self._mirror is not None
        try:
            return from_entries(key, self._mirror)
        except (MissingChunk, BadHead):  # the mirror shows keys one by one, and may be behind: ask the store
            return read(self._store, key)

    def _at_risk(self) -> bool:
        """True while locks are held that may run out before a run could stop."""
        return 0 < self.locks.remaining_s() <= self._margin_s

    def _warn_of_stuck(self) -> float | None:
        stopping = [(state, run) for state in self._states.values() for run in state.runs.values() if run.view.stopping]
        for state, run in stopping:
            if run.stopping_for_s >= self._stop_warning_s and run.number not in state.warned:
                state.warned.add(run.number)
                log.warning(
                    "job %s: run %d has not stopped %.0f s after it was told to; it keeps its %d locks until it does",
                    run.job_id,
                    run.number,
                    run.stopping_for_s,
                    len(run.items),
                )
        return self._stop_warning_s if stopping else None

    def _guard(self) -> None:
        while not self._finished.is_set():
            self._guard_wake.clear()
            self._clock.wait(self._guard_wake, self._guard_once())

    def _guard_once(self) -> float | None:
        """Stop what would outlive its locks; seconds until it must be looked at again."""
        running = [run for run in self._live if not run.ended]
        if not running:
            return None
        left_s = self.locks.remaining_s()
        if left_s > self._margin_s:
            return max(0.01, left_s - self._margin_s)
        active = [run for run in running if not run.view.stopping]
        if active:
            log.error(
                "node %s: the locks of %d runs last %.2f s more and could not be renewed: the runs are told to stop",
                self._node_id,
                len(active),
                left_s,
            )
        for run in active:
            run.stop()
        self._wake.set()
        return self._margin_s / 2

    def _setup(self, job: Job) -> RunSetup:
        return RunSetup(
            job=job,
            new_context=self._new_context(job.id),
            counters=Counters(),
            may_run=lambda: self.locks.remaining_s() > self._margin_s,
            on_end=self._wake.set,
            clock=self._store.clock,
            wall_s=time.time,
        )

    def _new_context(self, job_id: str) -> Callable[[tuple[str, ...]], JobContext]:
        return lambda items: JobContext(
            items,
            job_id=job_id,
            node_id=self._node_id,
            remaining_s=self.locks.remaining_s,
            fence=lambda item: self.locks.fence(job_id, item),
            store=self._store,
            clock=self._clock,
        )
