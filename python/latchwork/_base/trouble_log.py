"""One warning for a lasting failure of a loop that retries, and one message when it works again."""

from __future__ import annotations

import logging
from collections.abc import Hashable

from latchwork._base.interrupts import mutex
from latchwork._base.text import reason
from latchwork.errors import ConnectFailed, LatchworkError, OutcomeUnknown, QuotaExceeded, Unavailable

#: Errors of the server, which concern all items.
_SERVER_ERRORS = (Unavailable, OutcomeUnknown, QuotaExceeded)
#: Errors that an unreachable server raises, one or the other for each call.
_UNREACHABLE = (Unavailable, ConnectFailed, OutcomeUnknown)


class TroubleLog:
    """Logs each trouble of a loop that retries once as a warning, and its end once. Thread-safe.

    Repeated failures are logged at debug level. An error of another type is another trouble. If the loop serves several
    items, so is an error of another item, unless the server is unreachable or full, which concerns all items.

    Args:
        log: The logger.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._mutex = mutex()
        self._failing: dict[Hashable, set[type[BaseException]]] = {}

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt of any item failed."""
        return bool(self._failing)

    def record_failure(
        self, error: BaseException, message: str, *values: object, item: Hashable = None, exc_info: bool = False
    ) -> None:
        """Record that an attempt failed. It will be retried.

        Args:
            error: The error. It is appended to the message.
            message: What failed, with placeholders as for ``Logger.warning``.
            values: Values of the placeholders.
            item: The item that failed, if the loop serves several items that fail independently.
            exc_info: Whether to log the stack of the error.
        """
        kind = Unavailable if type(error) in _UNREACHABLE else type(error)
        with self._mutex:
            kinds = self._failing.setdefault(item, set())
            concerned = list(self._failing.values()) if isinstance(error, _SERVER_ERRORS) else [kinds]
            is_known = any(kind in each for each in concerned)
            kinds.add(kind)
        level = logging.DEBUG if is_known else logging.WARNING
        text = error if isinstance(error, LatchworkError) else reason(error)
        self._log.log(level, f"{message}: %s", *values, text, exc_info=error if exc_info else None, stacklevel=2)

    def record_success(self, message: str, *values: object, item: Hashable = None) -> None:
        """Record that an attempt succeeded.

        Args:
            message: Logged if attempts failed before and no other item still fails.
            values: Values of the placeholders of the message.
            item: The item that succeeded.
        """
        if item in self._failing and self.forget(item):
            self._log.info(message, *values, stacklevel=2)

    def forget(self, item: Hashable) -> bool:
        """Forget an item that will not be retried.

        Returns:
            Whether it was failing and no other item is.
        """
        with self._mutex:
            return self._failing.pop(item, None) is not None and not self._failing
