"""Writes down which runs are going on at this node: those that have lasted ``AFTER_S``.

Short runs cost no write, however many there are. A node writes one value of bounded size, at most once in ``EVERY_S``,
and nothing while the same runs go on. See docs/design/0012.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from latchwork.clock import Clock
from latchwork.errors import LatchworkError
from latchwork.interrupts import mutex
from latchwork.jobs.node.registration import Registration
from latchwork.jobs.observe.observer import Observer, RunInfo
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.activity import LiveRun, encode_activity

log = logging.getLogger(__name__)

#: A run is written down when it has lasted so long.
AFTER_S = 1.0
#: A node writes at most so often.
EVERY_S = 2.0
#: A write under way at the end is waited for so long; one that lands later is refused.
_CLOSE_S = 15.0


class RunReporter(Observer):
    """Keeps a node's key. Owned by the job manager: ``start`` and ``close``; in between it observes the runs."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._mutex = mutex()
        self._live: dict[int, tuple[float, LiveRun]] = {}  # when they began, by the clock
        self._number = 0
        self._said: frozenset[int] = frozenset()
        self._said_by: Registration | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, clock: Clock, registration: Callable[[], Registration | None]) -> None:
        """Begin to say what goes on, as whoever is registered at the time."""
        self._thread = threading.Thread(
            target=self._loop, args=(clock, registration), name=f"latchwork-reporter-{self._node_id}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Say no more; the key ends with the session. Twice is fine."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)

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

    def _loop(self, clock: Clock, registration: Callable[[], Registration | None]) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            with self._mutex:
                idle = not self._live and not self._said
            if idle:
                clock.wait(self._wake)
                continue
            wrote = self._say(registration())
            clock.wait(self._closing, EVERY_S if wrote else AFTER_S)

    def _say(self, registration: Registration | None) -> bool:
        """Write what has changed, if anything has; True when it was tried."""
        if registration is None:
            return False
        lasting = self._lasting()
        before = self._said if registration is self._said_by else frozenset[int]()  # its key went with its session
        if before == lasting.keys():
            self._said, self._said_by = before, registration
            return False
        try:
            registration.publish(keys.runs(self._node_id), encode_activity(lasting.values()) if lasting else None)
        except LatchworkError as error:
            log.debug("node %s: which runs go on is said later: %s", self._node_id, error)
        else:
            self._said, self._said_by = frozenset(lasting), registration
        return True

    def _lasting(self) -> dict[int, LiveRun]:
        until = time.monotonic() - AFTER_S
        with self._mutex:
            return {number: run for number, (began, run) in self._live.items() if began <= until}
