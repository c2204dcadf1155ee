"""Ownership in order of arrival: locks, semaphores, latches, elections. One mechanism, the queue of tickets, for all.

A wing of `latchwork.primitives`, which has the public names; the queue itself is for the systems built on it.
"""

from latchwork.primitives.fair.tickets import Place, TicketQueue
from latchwork.primitives.fair.turns import await_turn

__all__ = ["Place", "TicketQueue", "await_turn"]
