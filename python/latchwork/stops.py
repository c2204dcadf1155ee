"""A request to stop, for work that cannot be ended from outside: work polls it, waits for it, or listens.

Nothing here talks to a server. Not promised: that work which never looks ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from latchwork.checks import check_listener
from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.interrupts import mutex
from latchwork.user_code import call_user

_log = logging.getLogger(__name__)

StopListener = Callable[[], None]


class StopSignal:
    """Tells one piece of work to stop, once and for good. Safe to share between threads.

    Args:
        what: the work in words, for log lines: ``job report``.
        clock: what ``wait_stop`` waits on.
    """

    def __init__(self, what: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._what = what
        self._clock = clock
        self._is_stopped = False
        self._event: threading.Event | None = None  # made when somebody waits: most work ends without
        self._mutex = mutex()
        self._listeners: dict[int, StopListener] = {}
        self._next_listener = 0
        #: Called by each ``signal_stop``, for who runs the work: quick, and raises nothing.
        self.wake: Callable[[], object] | None = None

    @property
    def should_stop(self) -> bool:
        """True from the moment the work was told to stop."""
        return self._is_stopped

    def wait_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until the work is told to stop: True then, False when the time is over; None waits for ever."""
        with self._mutex:
            if self._event is None:
                self._event = threading.Event()
            if self._is_stopped:
                self._event.set()
            event = self._event
        return self._clock.wait(event, timeout_s)

    def on_stop(self, listener: StopListener) -> Callable[[], None]:
        """Have ``listener`` called once when the work is told to stop, at once if it was already.

        Listeners are called in the order they were added, on one thread; one that raises is logged and stops no other.

        Returns:
            A function that removes the listener; twice is fine.
        Raises:
            TypeError: it is no plain function.
        """
        check_listener(listener)
        with self._mutex:
            number = self._next_listener
            self._next_listener += 1
            late = self._is_stopped
            if not late:
                self._listeners[number] = listener
        if late:
            self._call(listener)
        return lambda: self._remove(number)

    def stop(self) -> None:
        """Tell the work to stop and call the listeners, in this thread. Twice is fine."""
        self.signal_stop()
        self.call_listeners()

    def signal_stop(self) -> None:
        """Tell the work to stop without calling listeners; never blocks on user code."""
        with self._mutex:
            self._is_stopped = True
            if self._event is not None:
                self._event.set()
        wake = self.wake
        if wake is not None:
            wake()

    def call_listeners(self) -> None:
        """Call the listeners that were not called yet; only after ``signal_stop``."""
        while True:
            with self._mutex:
                if not self._listeners:
                    return
                listener = self._listeners.pop(min(self._listeners))
            self._call(listener)

    @property
    def has_listeners(self) -> bool:
        """True while a listener waits to be called."""
        with self._mutex:
            return bool(self._listeners)

    def _remove(self, number: int) -> None:
        with self._mutex:
            self._listeners.pop(number, None)

    def _call(self, listener: StopListener) -> None:
        try:
            call_user(listener)
        except Exception:
            _log.exception("stop listener %r of %s raised; the others are called", listener, self._what)
