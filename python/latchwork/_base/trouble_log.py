"""One warning for a lasting failure of a loop that retries, and one message when it works again."""

from __future__ import annotations

import logging

from latchwork._base.interrupts import mutex


class TroubleLog:
    """Logs the first of several failures in a row as a warning, the others at debug level, and the next success once.

    Thread-safe.

    Args:
        log: The logger.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.is_failing = False
        self._log = log
        self._lock = mutex()

    def record_failure(self, message: str, *values: object, exc_info: bool = False) -> None:
        """Record that an attempt failed. The arguments are those of ``Logger.warning``."""
        with self._lock:
            is_new, self.is_failing = not self.is_failing, True
        self._log.log(logging.WARNING if is_new else logging.DEBUG, message, *values, exc_info=exc_info, stacklevel=2)

    def record_success(self, message: str, *values: object) -> None:
        """Record that an attempt succeeded. The message is logged only after a failure."""
        with self._lock:
            was_failing, self.is_failing = self.is_failing, False
        if was_failing:
            self._log.info(message, *values, stacklevel=2)
