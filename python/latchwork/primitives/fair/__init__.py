"""Ownership in order of arrival: locks, semaphores, latches, elections. All use the queue of tickets.

`latchwork.primitives` exports the public names. ``ModeLock`` is for aio.
"""

from latchwork.primitives.fair.rwlock import ModeLock
from latchwork.primitives.fair.tickets import QueuePosition, TicketQueue, await_turn

__all__ = ["ModeLock", "QueuePosition", "TicketQueue", "await_turn"]
