"""The worker part of a node: it follows which items are assigned to it, locks them, and runs jobs on them.

Benchmarks import it to take locks as a node does.
"""

from latchwork.jobs.worker.item_locks import ItemLocks, LockBatches, LockScheduler

__all__ = ["ItemLocks", "LockBatches", "LockScheduler"]
