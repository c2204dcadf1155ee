"""Stores the active runs of a node that have lasted at least ``MIN_RUN_S``, and how its runs have ended."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.clock import Clock
from latchwork.errors import LatchworkError
from latchwork.jobs.node.registration import Registration
from latchwork.jobs.observer import Observer, RunInfo
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.runs import JobOutcome, LiveRun, decode_outcomes, encode_active_runs, encode_outcomes
from latchwork.store import Store
from latchwork.types import Op, Put

log = logging.getLogger(__name__)

#: The first check comes after this fraction of the period, to publish the next starts early.
_FIRST_FRACTION = 0.25

#: Seconds after which an active run is reported.
MIN_RUN_S = 1.0
#: Least seconds between two writes of a node.
MIN_INTERVAL_S = 2.0
#: Seconds to wait for a write in progress at the end; a later one is refused.
_CLOSE_S = 15.0


class OutcomeSchedule:
    """Decides when run results are written next: once per period, and soon after a job begins to fail or recovers."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._was_checked = False
        self._checked_at: dict[Hashable, float] = {}
        self._in_check: frozenset[Hashable] = frozenset()
        self._transitions: dict[Hashable, float] = {}  # transitions since the last check, with their times

    def record_transition(self, transition: Hashable, now: float) -> None:
        """Record that a job has begun to fail or has recovered, so that the run results are written soon.

        Args:
            transition: A value that identifies the job and the kind of change.
            now: Current time by the monotonic clock, in seconds.
        """
        self._transitions.setdefault(transition, now)

    def due_in_s(self, now: float, period_s: float) -> float | None:
        """Return the seconds until the next write of run results; 0 or less if it is due, None if writes are disabled.

        Args:
            now: Current time by the monotonic clock, in seconds.
            period_s: Seconds between two writes; 0 disables them.
        """
        if period_s <= 0:
            return None
        if self._since is None:
            self._since = now
        at = self._since + period_s * (1.0 if self._was_checked else _FIRST_FRACTION)
        asked = (max(at, self._checked_at.get(what, -math.inf) + period_s) for what, at in self._transitions.items())
        return min([at, *asked]) - now

    def begin_write(self) -> None:
        """Record that the run results are read now for a write. Later transitions need another write."""
        self._in_check = frozenset(self._transitions)

    def finish_write(self, now: float) -> None:
        """Record that the run results that were read at ``begin_write`` have been written.

        Args:
            now: Current time by the monotonic clock, in seconds.
        """
        self._since, self._was_checked = now, True
        self._checked_at.update(dict.fromkeys(self._in_check, now))
        self._transitions = {what: at for what, at in self._transitions.items() if what not in self._in_check}


@dataclass(frozen=True, slots=True)
class ReporterSetup:
    """The functions and objects of a node that its reporter uses.

    Attributes:
        store: The cluster's store.
        registration: Returns the registration while it is complete and its session is active.
        outcomes: Returns the outcomes of all jobs.
        restore: Called once with the outcomes that this node had stored before its restart.
        outcome_period_s: Returns the seconds between two writes of outcomes; 0 disables them.
    """

    store: Store
    registration: Callable[[], Registration | None]
    outcomes: Callable[[], list[JobOutcome]]
    restore: Callable[[Iterable[JobOutcome]], None]
    outcome_period_s: Callable[[], float]


class RunReporter(Observer):
    """An observer of runs that stores the active runs of a node and the results of its runs, from ``start`` to
    ``close``.
    """

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._mutex = mutex()
        self._live: dict[int, tuple[float, LiveRun]] = {}  # with their start by the monotonic clock
        self._number = 0
        self._reported: frozenset[int] = frozenset()
        self._reported_by: Registration | None = None
        self._pace = OutcomeSchedule()
        self._written: bytes | None = None  # the stored outcomes; None until they were read
        self._setup: ReporterSetup | None = None
        self._wake = Signal()
        self._closing = Signal()
        self._thread: threading.Thread | None = None

    def start(self, clock: Clock, setup: ReporterSetup) -> None:
        """Start the thread that stores the active runs and the run results.

        Args:
            clock: Clock for waits.
            setup: The functions and objects of the node.
        """
        self._setup = setup
        self._thread = threading.Thread(
            target=self._loop, args=(clock, setup), name=f"latchwork-reporter-{self._node_id}", daemon=True
        )
        self._thread.start()

    def close(self) -> Sequence[Op]:
        """Stop the thread, and return the writes that store the last run results. The node commits them when it leaves.

        The key of the active runs is deleted with the session. Nothing is returned if the stored results could not be
        read, because the new results must be combined with them.
        """
        self._closing.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)
        setup = self._setup
        return [] if setup is None or self._written is None else self._build_outcome_ops(setup)

    def on_transition(self, job: str, transition: str) -> None:
        """Record that a job began to fail, recovered, or ran for the first time. Never blocks.

        Args:
            job: ID of the job.
            transition: ``failing``, ``recovered`` or ``started``.
        """
        with self._mutex:
            self._pace.record_transition((job, transition), time.monotonic())
        self._wake.set()

    def on_settings_changed(self) -> None:
        """Wake the thread, because the period of writes may have changed. Never blocks."""
        self._wake.set()

    @contextmanager
    def run(self, info: RunInfo) -> Iterator[None]:
        """Return a context manager that records a run as active while it is entered. Does no I/O."""
        live = LiveRun(info.job, info.items, time.time())
        with self._mutex:
            self._number = number = self._number + 1
            was_idle = not self._live
            self._live[number] = (time.monotonic(), live)
        if was_idle:
            self._wake.set()
        try:
            yield
        finally:
            with self._mutex:
                del self._live[number]

    def _loop(self, clock: Clock, setup: ReporterSetup) -> None:
        with suppress(LatchworkError):  # read again before the first write
            self._restore_outcomes(setup)
        while not self._closing.is_set():
            self._wake.clear()
            with self._mutex:
                idle = not self._live and not self._reported
                due_s = self._pace.due_in_s(time.monotonic(), setup.outcome_period_s())
            if idle and (due_s is None or due_s > 0):
                clock.wait(self._wake, due_s)
                continue
            wrote = self._write(setup, outcomes=due_s is not None and due_s <= 0)
            clock.wait(self._closing, MIN_INTERVAL_S if wrote else MIN_RUN_S)

    def _write(self, setup: ReporterSetup, *, outcomes: bool) -> bool:
        """Write the active runs, and the run results if they are due. Write only what has changed.

        Args:
            setup: The functions and objects of the node.
            outcomes: Whether the run results are due.
        Returns:
            True if a write was tried.
        """
        registration = setup.registration()
        if registration is None:
            return False
        try:
            lasting = self._list_lasting_runs()
            ops = self._build_activity_ops(registration, lasting)
            results: list[Put] = []
            if outcomes:
                with self._mutex:
                    self._pace.begin_write()
                self._restore_outcomes(setup)
                results = self._build_outcome_ops(setup)
            if ops or results:
                registration.write([*ops, *results])
        except LatchworkError as error:
            log.debug("node %s: reports are delayed: %s", self._node_id, error)
            return True
        self._reported, self._reported_by = frozenset(lasting), registration
        if outcomes:
            self._written = results[0].value if results else self._written
            with self._mutex:
                self._pace.finish_write(time.monotonic())
        return bool(ops or results)

    def _build_activity_ops(self, registration: Registration, lasting: dict[int, LiveRun]) -> list[Op]:
        before = (
            self._reported if registration is self._reported_by else frozenset[int]()
        )  # the key ended with its session
        if before == lasting.keys():
            return []
        value = encode_active_runs(lasting.values()) if lasting else None
        return [registration.build_session_op(keys.active_runs_key(self._node_id), value)]

    def _restore_outcomes(self, setup: ReporterSetup) -> None:
        """Read the run results that this node had stored before it was restarted. They are read only once."""
        if self._written is None and setup.outcome_period_s() > 0:
            entry = setup.store.get(keys.outcomes_key(self._node_id))
            setup.restore([] if entry is None else decode_outcomes(self._node_id, entry.value))
            self._written = b"" if entry is None else entry.value

    def _build_outcome_ops(self, setup: ReporterSetup) -> list[Put]:
        """Return the write that stores the run results. Return no write if they are already stored, or storing is
        disabled.
        """
        value = encode_outcomes(setup.outcomes())
        is_same = value == self._written or (not self._written and value == encode_outcomes([]))
        return [] if is_same or setup.outcome_period_s() <= 0 else [Put(keys.outcomes_key(self._node_id), value)]

    def _list_lasting_runs(self) -> dict[int, LiveRun]:
        until = time.monotonic() - MIN_RUN_S
        with self._mutex:
            return {number: run for number, (began, run) in self._live.items() if began <= until}
