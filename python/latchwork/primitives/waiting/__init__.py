"""Waiting, ownership and stopping: the second public part of primitives, for the systems built on them.

Names that are not exported here are for the other parts of primitives.
"""

from latchwork._base.cancellation import StopSignal
from latchwork.primitives.waiting.common import (
    Closable,
    Deadline,
    Identity,
    ListenerQueue,
    Startable,
    check_integer,
    check_name,
    check_text,
    delay_s,
)
from latchwork.primitives.waiting.ownership import Ownership, Work
from latchwork.primitives.waiting.waits import Waiter, WaiterRegistry, check_member

__all__ = [
    "Closable",
    "Deadline",
    "Identity",
    "ListenerQueue",
    "Ownership",
    "Startable",
    "StopSignal",
    "Waiter",
    "WaiterRegistry",
    "Work",
    "check_integer",
    "check_member",
    "check_name",
    "check_text",
    "delay_s",
]
