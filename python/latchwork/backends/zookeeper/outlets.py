"""Where a watch's events go: to its sink, until it is closed."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latchwork.backends.base import Sink, WatchEvent

_log = logging.getLogger(__name__)


class Outlet:
    """As ``BackendWatch``. Safe to close from any thread; one thread at a time delivers, by the order of its hub."""

    def __init__(self, prefix: str, sink: Sink) -> None:
        self.prefix = prefix
        self.closed = False
        self._sink = sink
        self._idle = threading.Condition()
        self._deliverer: int | None = None

    def deliver(self, event: WatchEvent) -> None:
        """Hand an event to the sink, unless closed."""
        with self._idle:
            if self.closed:
                return
            self._deliverer = threading.get_ident()
        try:
            self._sink(event)
        except Exception:
            _log.exception("the receiver of watch %r failed; please report this", self.prefix)
        finally:
            with self._idle:
                self._deliverer = None
                self._idle.notify_all()

    def close(self) -> None:
        """Stop; waits for a delivery that another thread is in."""
        with self._idle:
            first = not self.closed
            self.closed = True
            while self._deliverer not in {None, threading.get_ident()}:
                self._idle.wait(1.0)
        if first:
            self._drop()

    def _drop(self) -> None:
        """Have the hub forget it."""
