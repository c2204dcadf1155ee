"""Coordination primitives, one noun per file, each usable by itself above any store."""

from latchwork.primitives.barrier import Barrier
from latchwork.primitives.counter import Counter
from latchwork.primitives.double_barrier import DoubleBarrier
from latchwork.primitives.election import Election, Leader, Observer, Term
from latchwork.primitives.group import Group
from latchwork.primitives.group_views import GroupMember, View, ViewChange
from latchwork.primitives.latch import Candidate, LeaderLatch
from latchwork.primitives.lock import Lock
from latchwork.primitives.lock_keeper import LockKeeper
from latchwork.primitives.lock_owner import HeldLock
from latchwork.primitives.lock_state import LockHolder, LockState, force_release, forget_free_locks, lock_states
from latchwork.primitives.once import Once
from latchwork.primitives.persistent_lock import PersistentLock
from latchwork.primitives.priority_queue import PriorityQueue
from latchwork.primitives.queue import Queue
from latchwork.primitives.queue_claim import Claim
from latchwork.primitives.queue_items import Item
from latchwork.primitives.rate_limiter import RateLimiter
from latchwork.primitives.rwlock import ReadWriteLock
from latchwork.primitives.semaphore import Semaphore
from latchwork.primitives.sequence import Sequence
from latchwork.primitives.tickets import Ticket
from latchwork.primitives.work import Work

__all__ = [
    "Barrier",
    "Candidate",
    "Claim",
    "Counter",
    "DoubleBarrier",
    "Election",
    "Group",
    "GroupMember",
    "HeldLock",
    "Item",
    "Leader",
    "LeaderLatch",
    "Lock",
    "LockHolder",
    "LockKeeper",
    "LockState",
    "Observer",
    "Once",
    "PersistentLock",
    "PriorityQueue",
    "Queue",
    "RateLimiter",
    "ReadWriteLock",
    "Semaphore",
    "Sequence",
    "Term",
    "Ticket",
    "View",
    "ViewChange",
    "Work",
    "force_release",
    "forget_free_locks",
    "lock_states",
]
