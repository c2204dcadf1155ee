"""Who is told, and how: channels, messages, and the sender that one master at a time is.

It keeps to itself how each kind of channel is spoken to.
"""

from latchwork_workflows.alerts.channels import KINDS, ChannelInvalid, checked_channel
from latchwork_workflows.alerts.sender import Sender

__all__ = ["KINDS", "ChannelInvalid", "Sender", "checked_channel"]
