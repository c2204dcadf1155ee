"""A log message when a store runs out of space, and another one when it has space again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from latchwork._base.interrupts import mutex
from latchwork.errors import StoreFull

_log = logging.getLogger(__name__)


class OutOfSpaceLog:
    """Logs once that a store is out of space, and once that it has space again. Thread-safe.

    Args:
        where: Description of the store for messages.
        has_space: Called after a successful write. Returns whether there is enough space again.
    """

    def __init__(self, where: str, has_space: Callable[[], bool] = lambda: True) -> None:
        self.is_full = False
        self._where = where
        self._has_space = has_space
        self._lock = mutex()

    def record_refusal(self, error: StoreFull) -> None:
        """Record that a write failed because the store is out of space."""
        with self._lock:
            is_new, self.is_full = not self.is_full, True
        if is_new:
            _log.warning("%s is full; writes fail until space is freed: %s", self._where, error)

    def record_write(self) -> None:
        """Record that a write that needs space has succeeded. Cheap while the store has space."""
        if not self.is_full or not self._has_space():
            return
        with self._lock:
            is_new, self.is_full = self.is_full, False
        if is_new:
            _log.warning("%s has space again", self._where)
