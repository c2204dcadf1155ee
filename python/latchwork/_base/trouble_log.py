"""One warning for a lasting failure of a loop that retries, and one message when it works again."""

from __future__ import annotations

import logging


class TroubleLog:
    """Logs the first of several failures in a row as a warning, the others at debug level, and the next success once.

    For one thread at a time.

    Args:
        log: The logger.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.is_failing = False
        self._log = log

    def record_failure(self, message: str, *values: object, exc_info: bool = False) -> None:
        """Record that an attempt failed. The arguments are those of ``Logger.warning``."""
        level = logging.DEBUG if self.is_failing else logging.WARNING
        self.is_failing = True
        self._log.log(level, message, *values, exc_info=exc_info, stacklevel=2)

    def record_success(self, message: str, *values: object) -> None:
        """Record that an attempt succeeded. The message is logged only after a failure."""
        if self.is_failing:
            self.is_failing = False
            self._log.info(message, *values, stacklevel=2)
