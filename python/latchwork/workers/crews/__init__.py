"""Processes of any program as workers of a job, started and held by one process of each host.

It keeps to itself how one of them is held.
"""

from latchwork.workers.crews.crew import Crew
from latchwork.workers.crews.decisions import Order, SlotState

__all__ = ["Crew", "Order", "SlotState"]
