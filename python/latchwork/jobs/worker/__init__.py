"""A node as a worker: it follows its shares, locks their items, and runs jobs on them.

A door for benches, which take locks as a node does; how runs are started and stopped stays inside.
"""

from latchwork.jobs.worker.item_locks import ItemLocks, LockRotation, LockWork

__all__ = ["ItemLocks", "LockRotation", "LockWork"]
