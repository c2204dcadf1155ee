"""The thread of an open store that finds changes, delivers them to watches and removes expired sessions.

Commits wake it at once. Those of other processes do so through ``FileSignal``, but with a pause in between while they
do not concern this process, so that they do not slow it down. Slow polls find commits that were not signaled because
the writer was killed. Without inotify, polls are frequent. A poll without changes reads a number from shared memory and
nothing from the disk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.trouble_log import TroubleLog
from latchwork.backends.base import Current, WatchCallback, WatchEvent
from latchwork.backends.delivery import DeliveringWatch
from latchwork.backends.embedded.file_signal import FileSignal
from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.errors import LatchworkError

_log = logging.getLogger(__name__)

#: Between two polls without a signal: usually, and after own commits and delivered events, as handovers come in bursts.
POLL_S = 0.035
_POLL_BUSY_S = 0.003
_BUSY_FOR_S = 0.2
#: Between two polls with a signal, and between two looks for commits of others while they do not concern this process.
_SIGNALED_POLL_S = 0.25
_GAP_S = 0.012
_CURRENT_EVERY_S = 1.0
_CLOSE_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class WatchEvents:
    """The events for all watches, from one read of the database.

    Attributes:
        token: The newest token at that time.
        next_deadline: The time at which the next session expires, or None if there are no sessions.
        events: An event or None for each watch, in order.
    """

    token: int
    next_deadline: float | None
    events: list[WatchEvent | None]


class WatchSource(Protocol):
    """The database from which the poller reads. The backend implements it."""

    #: Whether other processes commit, so that polls are needed.
    polled: bool

    def has_new_commits(self) -> bool:
        """Return whether any process may have committed a transaction since the last call."""
        ...

    def read_events(self, watches: Sequence[EmbeddedWatch], since: int, as_of: float) -> WatchEvents:
        """Read the next event of each watch: a ``Snapshot`` if the watch is new, a ``Delta`` if it has changes, else
        None.

        Args:
            watches: The watches.
            since: Token of the newest write that was reported before.
            as_of: Local clock time at which this read began.
        """
        ...

    def remove_ended_sessions(self) -> bool:
        """Remove sessions that have ended. Return False if the database was locked by another process."""
        ...


class EmbeddedWatch(DeliveringWatch):
    """A watch of a prefix. The thread of the poller delivers its events."""

    def __init__(self, prefix: str, callback: WatchCallback, drop: Callable[[EmbeddedWatch], None]) -> None:
        super().__init__(prefix, callback, drop)
        self.is_new = True
        self.last_event_at = 0.0


class Poller:
    """The thread that looks for changes and delivers them to the watches. Thread-safe.

    Args:
        source: The database.
        clock: The local clock.
        name: The name of the database for the name of the thread.
        wake: The signal that wakes the thread.
    """

    def __init__(self, source: WatchSource, clock: Clock, name: str, wake: Signal | FileSignal) -> None:
        self._source = source
        self._clock = clock
        self._wake = wake
        self._lock = mutex()
        self._watches: list[EmbeddedWatch] = []
        self._with_heartbeats: list[EmbeddedWatch] = []  # these are also notified when nothing has changed
        self._closing = False
        self._since = 0
        self._deadline: float | None = None
        self._requested_polls = 1  # counted, because the signal alone could be cleared just before the wait
        self._handled_polls = 0
        self._must_read = False
        self._must_sweep = False
        self._read_at = 0.0
        self._busy_until = 0.0
        self._trouble = TroubleLog(_log)
        self._thread = threading.Thread(target=self._run, name=f"latchwork-poll-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def watch(self, prefix: str, callback: WatchCallback, *, heartbeats: bool = True) -> EmbeddedWatch:
        """Add a watch. The thread delivers its first event at once.

        Args:
            prefix: The key prefix.
            callback: Callback for the events.
            heartbeats: Also send ``Current`` events while nothing changes.
        """
        watch = EmbeddedWatch(prefix, callback, self._forget)
        with self._lock:
            self._watches.append(watch)
            if heartbeats:
                self._with_heartbeats.append(watch)
        self.poll_soon()
        return watch

    def notify_commit(self) -> None:
        """Wake the thread after a commit of this process, if there are watches."""
        if self._watches:
            self.poll_soon()

    def poll_soon(self) -> None:
        """Make the thread look at once for changes, new watches and earlier session deadlines."""
        with self._lock:
            self._requested_polls += 1
        self._wake.set()

    def remove_ended_sessions_soon(self) -> None:
        """Make the thread remove ended sessions at once. It retries until it succeeds."""
        self._must_sweep = True
        self._wake.set()

    def close(self) -> None:
        """Close all watches and join the thread. Idempotent."""
        self._closing = True
        self._wake.set()
        for watch in list(self._watches):
            watch.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():
            self._close_signal()

    def _close_signal(self) -> None:
        if isinstance(self._wake, FileSignal):
            self._wake.close()

    def _forget(self, watch: EmbeddedWatch) -> None:
        with self._lock:
            for watches in (self._watches, self._with_heartbeats):
                if watch in watches:
                    watches.remove(watch)

    def _run(self) -> None:
        while True:
            self._wake.clear()  # before looking: what wakes the thread from here on is looked at next time
            if self._closing:  # checked after clearing, or the signal of close() could be the one that is cleared
                self._close_signal()
                return
            try:
                self._poll()
            except LatchworkError as error:
                self._report(error)
            except Exception as error:
                _log.debug("the poller failed", exc_info=True)
                self._report(error)
            self._wait()

    def _poll(self) -> None:
        requested = self._requested_polls
        as_of = self._clock.now()
        changed = self._source.has_new_commits()
        if changed or requested != self._handled_polls or self._must_read or self._is_due():
            self._must_read = True  # until it has succeeded
            if requested != self._handled_polls:
                self._busy_until = as_of + _BUSY_FOR_S
            self._read_and_deliver(as_of)
            self._must_read = False
            self._handled_polls = requested
        else:
            self._send_heartbeats(as_of)
        if self._must_sweep or self._is_due():
            self._must_sweep = not self._source.remove_ended_sessions()
            self._must_read = True
        if not self._must_sweep:  # it is True while other processes lock the database: this says nothing about writes
            self._trouble.record_success("watches are up to date again")

    def _is_due(self) -> bool:
        return self._deadline is not None and self._deadline <= self._clock.now()

    def _read_and_deliver(self, as_of: float) -> None:
        """Read the next event of each watch, and deliver it.

        Args:
            as_of: Local clock time at which the poll began.
        """
        with self._lock:
            watches = list(self._watches)
        view = self._source.read_events(watches, self._since, as_of)
        self._read_at = as_of
        self._since, self._deadline = view.token, view.next_deadline
        for watch, event in zip(watches, view.events, strict=True):
            watch.is_new = False
            if event is not None:
                self._busy_until = as_of + _BUSY_FOR_S
                watch.last_event_at = as_of
                watch.deliver(event)
        self._send_heartbeats(as_of)

    def _send_heartbeats(self, as_of: float) -> None:
        """Send a heartbeat to each watch that had no event for a while.

        Args:
            as_of: Local clock time at which the state was known to be up to date.
        """
        for watch in self._with_heartbeats.copy():
            if not watch.is_new and as_of - watch.last_event_at >= _CURRENT_EVERY_S:
                watch.last_event_at = as_of
                watch.deliver(Current(as_of))

    def _report(self, error: Exception) -> None:
        if not self._closing:
            self._trouble.record_failure(error, "watches are delayed, retrying")

    def _wait(self) -> None:
        now = self._clock.now()
        pause_s = self._pause_s(now)
        if self._deadline is not None and not self._must_sweep and not self._trouble.is_failing:
            left_s = max(0.0, self._deadline - now)
            pause_s = left_s if pause_s is None else min(pause_s, left_s)
        if isinstance(self._wake, FileSignal):
            self._wait_for_file(self._wake, now, pause_s or 0.0)
            return
        # Real time even under a virtual clock while polling: other processes do not wait for that clock.
        clock = SYSTEM_CLOCK if self._source.polled or self._trouble.is_failing else self._clock
        clock.wait(self._wake, pause_s)

    def _wait_for_file(self, wake: FileSignal, now: float, pause_s: float) -> None:
        """Wait until this process wakes the thread or another process commits.

        Commits of other processes are ignored until the minimum pause since the last read has passed.

        Args:
            wake: The signal.
            now: The current time.
            pause_s: Seconds to wait.
        """
        if not self._watches or self._trouble.is_failing:
            wake.wait(pause_s, for_commits=False)
            return
        gap_s = 0.0 if now < self._busy_until else max(0.0, min(self._read_at + _GAP_S - now, pause_s))
        if gap_s == 0.0 or not wake.wait(gap_s, for_commits=False):
            wake.wait(pause_s - gap_s, for_commits=True)

    def _pause_s(self, now: float) -> float | None:
        if self._must_sweep or self._trouble.is_failing:
            return POLL_S
        if self._must_read:
            return 0.0
        if not self._source.polled:
            return _CURRENT_EVERY_S if self._with_heartbeats else None
        if isinstance(self._wake, FileSignal):
            return _SIGNALED_POLL_S
        return _POLL_BUSY_S if now < self._busy_until else POLL_S
