"""Ownership in order of arrival: lock, readers and writer, semaphore, latch, election. Exports ``Side`` to ``aio``.

Everything else in here is for the package's own use.
"""

from latchwork.primitives.fair.rwlock import Side

__all__ = ["Side"]
