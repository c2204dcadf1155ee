"""A cancellation token for work that nothing else can stop. The work polls it, waits for it, or registers a listener.

Work that never checks it does not stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.user_code import call_user
from latchwork._base.validation import check_listener
from latchwork.clock import SYSTEM_CLOCK, Clock

_log = logging.getLogger(__name__)

StopListener = Callable[[], None]


class StopSignal:
    """A cancellation token that requests one piece of work to stop. Thread-safe.

    Args:
        what: Description of the work for log messages, such as ``job report``.
        clock: The clock for ``wait_for_stop``.
    """

    def __init__(self, what: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._what = what
        self._clock = clock
        self._is_stopped = False
        self._event: Signal | None = None  # created by the first wait, because most work ends without one
        self._mutex = mutex()
        self._listeners: dict[int, StopListener] = {}
        self._next_listener = 0
        #: Called by each ``signal_stop``, for who runs the work: quick, and raises nothing.
        self.wake: Callable[[], object] | None = None

    @property
    def should_stop(self) -> bool:
        """Whether the work was requested to stop."""
        return self._is_stopped

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until the work is requested to stop. Return False after the timeout.

        Args:
            timeout_s: Seconds to wait. None waits forever.
        """
        with self._mutex:
            if self._event is None:
                self._event = Signal()
            if self._is_stopped:
                self._event.set()
            event = self._event
        return self._clock.wait(event, timeout_s)

    def on_stop(self, listener: StopListener) -> Callable[[], None]:
        """Call ``listener`` once when the work is requested to stop, or now if it already was.

        Listeners are called in the order in which they were added, in one thread. An exception of a listener is logged.

        Returns:
            A function that removes the listener. Idempotent.
        Raises:
            TypeError: The listener is a coroutine function, or cannot be called.
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
        """Request the work to stop, and call the listeners in this thread. Idempotent."""
        self.signal_stop()
        self.call_listeners()

    def signal_stop(self) -> None:
        """Request the work to stop, without calling the listeners. No user code can block this call."""
        with self._mutex:
            self._is_stopped = True
            if self._event is not None:
                self._event.set()
        wake = self.wake
        if wake is not None:
            wake()

    def call_listeners(self) -> None:
        """Call the listeners that have not been called yet. Call this after ``signal_stop``."""
        while True:
            with self._mutex:
                if not self._listeners:
                    return
                listener = self._listeners.pop(min(self._listeners))
            self._call(listener)

    @property
    def has_listeners(self) -> bool:
        """Whether some listeners have not been called yet."""
        with self._mutex:
            return bool(self._listeners)

    def _remove(self, number: int) -> None:
        with self._mutex:
            self._listeners.pop(number, None)

    def _call(self, listener: StopListener) -> None:
        try:
            call_user(listener)
        except Exception:
            _log.exception(
                "stop listener %r of %s raised an exception; the other listeners are still called", listener, self._what
            )
