"""Alerts: channels, messages, and the sender, which runs on one master at a time."""

from typing import TYPE_CHECKING

from latchwork.spi import lazy_getattr
from latchwork_workflows.alerts.channels import KINDS, ChannelInvalid, validate_channel

if TYPE_CHECKING:
    from latchwork_workflows.alerts.sender import AlertSender
else:
    __getattr__ = lazy_getattr(__name__, {"latchwork_workflows.alerts.sender": ("AlertSender",)})

__all__ = ["KINDS", "AlertSender", "ChannelInvalid", "validate_channel"]
