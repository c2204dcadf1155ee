"""Delivery of watch events to a sink until the watch is closed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from latchwork._base.execution_context import current
from latchwork._base.interrupts import condition, mutex
from latchwork.backends.base import Sink, WatchEvent
from latchwork.clock import SYSTEM_CLOCK

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 10.0


class DeliveringWatch:
    """A ``BackendWatch``. Any thread may close it. Its owner delivers from one thread at a time.

    ``drop`` is called once with the watch when it is closed.
    """

    def __init__(self, prefix: str, sink: Sink, drop: Callable[[Any], None]) -> None:
        self.prefix = prefix
        self.closed = False
        self._sink = sink
        self._drop = drop
        self._mutex = mutex()
        self._idle = condition(self._mutex)
        self._deliverer: int | None = None

    def deliver(self, event: WatchEvent) -> None:
        """Pass an event to the sink, unless the watch is closed."""
        with self._mutex:
            if self.closed:
                return
            self._deliverer = threading.get_ident()
        try:
            self._sink(event)
        except Exception:
            _log.exception("the sink of the watch on %r raised, the event is lost; please report this", self.prefix)
        finally:
            with self._mutex:
                self._deliverer = None
                self._idle.notify_all()

    def close(self) -> None:
        """Stop, and wait for a delivery in another thread. Idempotent."""
        with self._mutex:
            first, self.closed = not self.closed, True
        if first:
            self._drop(self)
        if current() is not None:  # an event loop must not wait; the store drops what comes after a close
            return
        deadline = SYSTEM_CLOCK.now() + _CLOSE_TIMEOUT_S
        with self._mutex:
            while self._deliverer not in {None, threading.get_ident()}:
                if not SYSTEM_CLOCK.wait_condition(self._idle, deadline - SYSTEM_CLOCK.now()):
                    _log.error("the sink of the watch on %r did not return in %.0f s", self.prefix, _CLOSE_TIMEOUT_S)
                    break
