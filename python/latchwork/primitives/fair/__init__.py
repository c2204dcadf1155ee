"""Ownership in order of arrival: locks, semaphores, latches, elections. All use the queue of tickets.

`latchwork.primitives` exports the public names. ``Side`` is for aio.
"""

from latchwork.primitives.fair.rwlock import Side
from latchwork.primitives.fair.tickets import QueuePosition, TicketQueue, await_turn

__all__ = ["QueuePosition", "Side", "TicketQueue", "await_turn"]
