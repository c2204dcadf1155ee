"""Writes down which runs are going on at this node, those that have lasted ``MIN_RUN_S``, and how runs went.

Short runs cost no write, however many there are. A node writes values of bounded size, at most once in ``MIN_INTERVAL_S``,
and nothing while nothing changes. See docs/design/jobs.md.

It looks at outcomes once in a period. When a job turned, to failing or back to well, it looks at once; but each turn of
a job counts once in a period only, so that a job which fails every other time costs a few writes in a period.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from latchwork.clock import Clock
from latchwork.errors import LatchworkError
from latchwork.interrupts import mutex
from latchwork.jobs.node.registration import Registration
from latchwork.jobs.observer import Observer, RunInfo
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.runs import JobOutcome, LiveRun, decode_outcomes, encode_activity, encode_outcomes
from latchwork.store import Store
from latchwork.types import Op, Put

log = logging.getLogger(__name__)

#: The first look comes so much sooner than the others: then it is known when runs start next.
_FIRST_FRACTION = 0.25

#: A run is written down when it has lasted so long.
MIN_RUN_S = 1.0
#: A node writes at most so often.
MIN_INTERVAL_S = 2.0
#: A write under way at the end is waited for so long; one that lands later is refused.
_CLOSE_S = 15.0


class OutcomeSchedule:
    """Tells when to look next."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._looked = False
        self._turned_at: dict[Hashable, float] = {}
        self._taken: frozenset[Hashable] = frozenset()
        self._wanted: dict[Hashable, float] = {}  # turns since the last look, and when they came

    def turn(self, what: Hashable, now: float) -> None:
        """A job turned to something."""
        self._wanted.setdefault(what, now)

    def due_in_s(self, now: float, period_s: float) -> float | None:
        """Seconds until the next look, 0 or less when it is time; None for never."""
        if period_s <= 0:
            return None
        if self._since is None:
            self._since = now
        at = self._since + period_s * (1.0 if self._looked else _FIRST_FRACTION)
        asked = (max(at, self._turned_at.get(what, -math.inf) + period_s) for what, at in self._wanted.items())
        return min([at, *asked]) - now

    def look(self) -> None:
        """It looks from now on: what turns later is for the next look."""
        self._taken = frozenset(self._wanted)

    def done(self, now: float) -> None:
        """It looked, and what there was is written."""
        self._since, self._looked = now, True
        self._turned_at.update(dict.fromkeys(self._taken, now))
        self._wanted = {what: at for what, at in self._wanted.items() if what not in self._taken}


@dataclass(frozen=True, slots=True)
class ReportSetup:
    """The things that a reporter needs from its node.

    Attributes:
        store: the cluster's.
        registration: gives the registration while it is complete and its session lives.
        outcomes: gives how the runs of each job went.
        resume: is given, once, what this node wrote down before it was started anew.
        outcome_period_s: gives the seconds between two writes of it; 0 for none.
    """

    store: Store
    registration: Callable[[], Registration | None]
    outcomes: Callable[[], list[JobOutcome]]
    resume: Callable[[Iterable[JobOutcome]], None]
    outcome_period_s: Callable[[], float]


class RunReporter(Observer):
    """Keeps a node's two keys. Owned by the job manager: ``start`` and ``close``; in between it observes the runs."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._mutex = mutex()
        self._live: dict[int, tuple[float, LiveRun]] = {}  # when they began, by the clock
        self._number = 0
        self._reported: frozenset[int] = frozenset()
        self._reported_by: Registration | None = None
        self._pace = OutcomeSchedule()
        self._written: bytes | None = None  # of how runs went; None until it was read what is there
        self._failed = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, clock: Clock, setup: ReportSetup) -> None:
        """Begin to say what goes on, as whoever is registered at the time."""
        self._thread = threading.Thread(
            target=self._loop, args=(clock, setup), name=f"latchwork-reporter-{self._node_id}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Say how the last runs went, and no more; the key of those that go on ends with the session. Twice is fine."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)

    def turned(self, job: str, turn: str) -> None:
        """A job began to fail, or works again, or runs for the first time. Never blocks."""
        with self._mutex:
            self._pace.turn((job, turn), time.monotonic())
        self._wake.set()

    def settings_changed(self) -> None:
        """The period may be another. Never blocks."""
        self._wake.set()

    @contextmanager
    def run(self, info: RunInfo) -> Iterator[None]:
        """A run that is going on meanwhile. Touches nothing but memory."""
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

    def _loop(self, clock: Clock, setup: ReportSetup) -> None:
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
        if not self._failed and setup.outcome_period_s() > 0:  # else the store is out of reach: nobody waits for it
            self._write(setup, outcomes=True, last=True)

    def _write(self, setup: ReportSetup, *, outcomes: bool, last: bool = False) -> bool:
        """Write what has changed, if anything has; True when it was tried."""
        registration = setup.registration()
        if registration is None:
            return False
        try:
            ops: list[Op] = []
            lasting = {} if last else self._lasting_runs()
            if not last:
                ops += self._activity_ops(registration, lasting)
            if outcomes:
                with self._mutex:
                    self._pace.look()
            value = self._outcomes_value(setup) if outcomes else None
            if value is not None:
                ops.append(Put(keys.outcomes(self._node_id), value))
            if ops:
                registration.write(ops)
        except LatchworkError as error:
            log.debug("node %s: which runs go on, and how they went, is said later: %s", self._node_id, error)
            self._failed = True
            return True
        self._failed = False
        if not last:
            self._reported, self._reported_by = frozenset(lasting), registration
        if outcomes:
            self._written = self._written if value is None else value
            with self._mutex:
                self._pace.done(time.monotonic())
        return bool(ops)

    def _activity_ops(self, registration: Registration, lasting: dict[int, LiveRun]) -> list[Op]:
        before = (
            self._reported if registration is self._reported_by else frozenset[int]()
        )  # its key went with its session
        if before == lasting.keys():
            return []
        value = encode_activity(lasting.values()) if lasting else None
        return [registration.session_op(keys.runs(self._node_id), value)]

    def _outcomes_value(self, setup: ReportSetup) -> bytes | None:
        """What to write of how the runs went; None when it is there already."""
        if self._written is None:
            entry = setup.store.get(keys.outcomes(self._node_id))
            setup.resume([] if entry is None else decode_outcomes(self._node_id, entry.value))
            self._written = b"" if entry is None else entry.value
        value = encode_outcomes(setup.outcomes())
        return None if value == self._written or (not self._written and value == encode_outcomes([])) else value

    def _lasting_runs(self) -> dict[int, LiveRun]:
        until = time.monotonic() - MIN_RUN_S
        with self._mutex:
            return {number: run for number, (began, run) in self._live.items() if began <= until}
