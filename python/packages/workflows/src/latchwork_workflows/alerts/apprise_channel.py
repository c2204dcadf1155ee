"""Sends alerts through Apprise, which only reports success or failure. A retry may repeat a partly sent message."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from latchwork_workflows.alerts.channels import AppriseOptions
from latchwork_workflows.alerts.delivery import NotSent
from latchwork_workflows.alerts.messages import Message
from latchwork_workflows.state.alerts import SendResult

_MAX_TOLD = 500


def send(message: Message, options: AppriseOptions, _at: float) -> str:
    """Send a message through Apprise.

    Returns:
        An empty string, because Apprise does not report refused recipients.
    Raises:
        NotSent: The service did not accept the message, or Apprise is not installed.
    """
    try:
        apprise: Any = importlib.import_module("apprise")
    except ImportError:
        why = 'apprise is missing where masters run; run: pip install "latchwork[alerts]"'
        raise NotSent(SendResult.REFUSED, why) from None
    with _capture_warnings() as warnings:
        service = apprise.Apprise()
        if not service.add(options.url):
            raise NotSent(SendResult.REJECTED, f"Apprise does not support this URL{_warning_text(warnings)}")
        if len(service) != 1:  # if one failed, a retry would send to all others twice
            raise NotSent(SendResult.REJECTED, "this is more than one URL; create one channel for each")
        result = service.notify(body=message.text, title=message.subject)
    if not result:
        logged = [each.message for each in result.logs()]
        raise NotSent(SendResult.REFUSED, f"the service rejected it{_warning_text(logged)}")
    return ""


class _Listener(logging.Handler):
    """Collects the warnings of one thread. Debug messages are left out because they contain URLs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._thread = threading.get_ident()
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self.warnings.append(record.getMessage())


@contextmanager
def _capture_warnings() -> Iterator[list[str]]:
    """Collect the warnings that Apprise logs in this thread. Nothing else says why a URL is refused."""
    listener, logger = _Listener(), logging.getLogger("apprise")
    logger.addHandler(listener)
    try:
        yield listener.warnings
    finally:
        logger.removeHandler(listener)


def _warning_text(warnings: list[str]) -> str:
    return f": {' '.join(warnings)[:_MAX_TOLD]}" if warnings else ""
