"""Delivery of watch events to a callback until the watch is closed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from latchwork._base.event import Signal
from latchwork._base.execution_context import current_task_caller
from latchwork._base.interrupts import mutex
from latchwork.backends.base import WatchCallback, WatchEvent
from latchwork.clock import SYSTEM_CLOCK

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 10.0


class DeliveringWatch:
    """A ``BackendWatch`` that passes events to its callback until it is closed. Any thread may close it.

    Its owner must deliver events from one thread at a time.

    Args:
        prefix: The watched prefix.
        callback: Callback for the events.
        drop: Called once with the watch when it is closed.
    """

    def __init__(self, prefix: str, callback: WatchCallback, drop: Callable[[Any], None]) -> None:
        self.prefix = prefix
        self.closed = False
        self._callback = callback
        self._drop = drop
        self._mutex = mutex()
        self._idle: Signal | None = None  # for a close that waits
        self._deliverer: int | None = None

    def deliver(self, event: WatchEvent) -> None:
        """Call the watch's callback with an event. Does nothing if the watch is closed."""
        with self._mutex:
            if self.closed:
                return
            self._deliverer = threading.get_ident()
        try:
            self._callback(event)
        except Exception:
            _log.exception(
                "the callback of the watch on %r raised an exception, the event is lost; please report this",
                self.prefix,
            )
        finally:
            with self._mutex:
                self._deliverer = None
                idle = self._idle
            if idle is not None:
                idle.set()

    def close(self) -> None:
        """Stop the watch, and wait until a callback that runs in another thread has returned. Idempotent."""
        with self._mutex:
            first, self.closed = not self.closed, True
        if first:
            self._drop(self)
        if current_task_caller() is not None:  # an event loop must not wait; the store drops what comes after a close
            return
        with self._mutex:
            if self._deliverer in {None, threading.get_ident()}:
                return
            idle = self._idle = self._idle or Signal()
        if not SYSTEM_CLOCK.wait(idle, _CLOSE_TIMEOUT_S):
            _log.error("the callback of the watch on %r did not return within %.0f s", self.prefix, _CLOSE_TIMEOUT_S)
