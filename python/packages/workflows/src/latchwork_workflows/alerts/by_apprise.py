"""Services that Apprise knows. It says yes or no: what a service took before a no comes again with the next try."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from latchwork_workflows.alerts.channels import AppriseOptions
from latchwork_workflows.alerts.messages import Message
from latchwork_workflows.alerts.sending import NotSent
from latchwork_workflows.state.alerts import Answer

_MOST_TOLD = 500


def send(message: Message, options: AppriseOptions, _at: float) -> str:
    """Send it; empty.

    Raises:
        NotSent: it was not accepted, or the library is not there.
    """
    try:
        apprise: Any = importlib.import_module("apprise")
    except ImportError:
        why = 'apprise is missing where masters run; run: pip install "latchwork[alerts]"'
        raise NotSent(Answer.REFUSED, why) from None
    with _heard() as told:
        service = apprise.Apprise()
        if not service.add(options.url):
            raise NotSent(Answer.REJECTED, f"apprise can do nothing with this URL{_said(told)}")
        if len(service) != 1:  # one says no, and all others are told twice
            raise NotSent(Answer.REJECTED, "this is more than one URL; make a channel of each")
        result = service.notify(body=message.text, title=message.subject)
    if not result:
        logged = [each.message for each in result.logs()]
        raise NotSent(Answer.REFUSED, f"the service did not take it{_said(logged)}")
    return ""


class _Listener(logging.Handler):
    """Keeps what one thread's calls are warned of. Nothing else: what is logged for debugging has URLs in it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._thread = threading.get_ident()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self.told.append(record.getMessage())


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Collect what Apprise warns of in this thread: why it refuses a URL is in its log, and nowhere else."""
    listener, logger = _Listener(), logging.getLogger("apprise")
    logger.addHandler(listener)
    try:
        yield listener.told
    finally:
        logger.removeHandler(listener)


def _said(told: list[str]) -> str:
    return f": {' '.join(told)[:_MOST_TOLD]}" if told else ""
