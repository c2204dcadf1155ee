"""Waiting, ownership and stopping: the second public part of primitives, for the systems built on them.

Names that are not exported here are for the other parts of primitives.
"""

from latchwork._base.cancellation import StopSignal
from latchwork.primitives.waiting.arguments import check_integer, check_member, check_name, check_text
from latchwork.primitives.waiting.closable import Closable, Startable
from latchwork.primitives.waiting.deadline import Deadline, get_rank_delay_s
from latchwork.primitives.waiting.listeners import ListenerQueue
from latchwork.primitives.waiting.ownership import GuardedWork, Identity, Ownership
from latchwork.primitives.waiting.waiter import Waiter, WaiterRegistry

__all__ = [
    "Closable",
    "Deadline",
    "GuardedWork",
    "Identity",
    "ListenerQueue",
    "Ownership",
    "Startable",
    "StopSignal",
    "Waiter",
    "WaiterRegistry",
    "check_integer",
    "check_member",
    "check_name",
    "check_text",
    "get_rank_delay_s",
]
