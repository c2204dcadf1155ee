"""Joining a job: the next id, or the one that this worker had before; and what each write of it checks.

It keeps to itself how many that join at once take turns.
"""

from latchwork.workers.membership.joining import Joining
from latchwork.workers.membership.seat import Seat, check_key, standing_of

__all__ = ["Joining", "Seat", "check_key", "standing_of"]
