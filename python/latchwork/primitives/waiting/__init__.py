"""Waiting, ownership and stopping: the second public part of primitives, for the systems built on them.

Names that are not exported here are for the other parts of primitives.
"""

from latchwork._base.cancellation import StopSignal
from latchwork.primitives.waiting.common import (
    Announcer,
    Closable,
    Deadline,
    Identity,
    Startable,
    check_name,
    check_text,
    check_whole,
    delay_s,
)
from latchwork.primitives.waiting.waits import Waiter, Waits, check_member
from latchwork.primitives.waiting.work import Ownership, Work

__all__ = [
    "Announcer",
    "Closable",
    "Deadline",
    "Identity",
    "Ownership",
    "Startable",
    "StopSignal",
    "Waiter",
    "Waits",
    "Work",
    "check_member",
    "check_name",
    "check_text",
    "check_whole",
    "delay_s",
]
