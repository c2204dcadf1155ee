"""Ownership in order of arrival: locks, semaphores, latches, elections. One mechanism, the queue of tickets, for all.

A wing of `latchwork.primitives`, which has the public names. The queue is for the systems above; ``Side`` is for aio.
"""

from latchwork.primitives.fair.rwlock import Side
from latchwork.primitives.fair.tickets import QueuePosition, TicketQueue, await_turn

__all__ = ["QueuePosition", "Side", "TicketQueue", "await_turn"]
