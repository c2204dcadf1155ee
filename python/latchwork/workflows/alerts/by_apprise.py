"""Services that Apprise knows. It says yes or no: what a service took before a no comes again with the next try."""

from __future__ import annotations

import importlib
from typing import Any

from latchwork.workflows.alerts.channels import AppriseOptions
from latchwork.workflows.alerts.messages import Message
from latchwork.workflows.alerts.sending import NotSent
from latchwork.workflows.state.alerting import Answer


def send(message: Message, options: AppriseOptions, _at: float) -> str:
    """Send it; empty.

    Raises:
        NotSent: it was not accepted, or the library is not there.
    """
    try:
        apprise: Any = importlib.import_module("apprise")
    except ImportError:
        raise NotSent(Answer.REFUSED, "apprise is missing where masters run; run: pip install apprise") from None
    service = apprise.Apprise()
    if not service.add(options.url):
        raise NotSent(Answer.REJECTED, "apprise knows no service of this URL")
    if not service.notify(body=message.text, title=message.subject):
        raise NotSent(Answer.REFUSED, "the service did not take it; the log of apprise may say why")
    return ""
