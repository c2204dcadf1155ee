"""Coordination primitives, one noun per file, each usable by itself above any store."""

from latchwork.primitives.latch import Candidate, LeaderLatch
from latchwork.primitives.lock import Lock
from latchwork.primitives.lock_keeper import LockKeeper
from latchwork.primitives.lock_owner import HeldLock
from latchwork.primitives.lock_state import LockHolder, LockState, lock_states
from latchwork.primitives.persistent_lock import PersistentLock
from latchwork.primitives.tickets import Ticket
from latchwork.primitives.work import Work

__all__ = [
    "Candidate",
    "HeldLock",
    "LeaderLatch",
    "Lock",
    "LockHolder",
    "LockKeeper",
    "LockState",
    "PersistentLock",
    "Ticket",
    "Work",
    "lock_states",
]
