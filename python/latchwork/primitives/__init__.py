"""Coordination primitives. Each can be used alone on any store."""

from latchwork.primitives.barrier.barriers import Barrier, DoubleBarrier
from latchwork.primitives.fair.election import Election, Term
from latchwork.primitives.fair.latch import Candidate, Leader, LeaderLatch, Observer
from latchwork.primitives.fair.lock import Lock
from latchwork.primitives.fair.rwlock import ReadWriteLock
from latchwork.primitives.fair.semaphore import Semaphore
from latchwork.primitives.fair.tickets import Ticket
from latchwork.primitives.group.group import Group, list_groups
from latchwork.primitives.group.views import GroupMember, View, ViewChange
from latchwork.primitives.leased.inspect import LockHolder, LockState, force_release, forget_free_locks, lock_states
from latchwork.primitives.leased.keeper import LockKeeper
from latchwork.primitives.leased.lock import PersistentLock
from latchwork.primitives.leased.owner import HeldLock
from latchwork.primitives.numbers.counter import Counter
from latchwork.primitives.numbers.rate_limiter import RateLimiter
from latchwork.primitives.numbers.sequence import Sequence
from latchwork.primitives.once import Once
from latchwork.primitives.queue.claims import CreateClaimed, PreparedClaimEnd, QueueClaim
from latchwork.primitives.queue.items import QueueItem
from latchwork.primitives.queue.partition_reader import ConsumerShard
from latchwork.primitives.queue.queue import PriorityQueue, Queue
from latchwork.primitives.queue.work_queue import WorkQueue
from latchwork.primitives.removal import forget
from latchwork.primitives.waiting.ownership import GuardedWork

__all__ = [
    "Barrier",
    "Candidate",
    "ConsumerShard",
    "Counter",
    "CreateClaimed",
    "DoubleBarrier",
    "Election",
    "Group",
    "GroupMember",
    "GuardedWork",
    "HeldLock",
    "Leader",
    "LeaderLatch",
    "Lock",
    "LockHolder",
    "LockKeeper",
    "LockState",
    "Observer",
    "Once",
    "PersistentLock",
    "PreparedClaimEnd",
    "PriorityQueue",
    "Queue",
    "QueueClaim",
    "QueueItem",
    "RateLimiter",
    "ReadWriteLock",
    "Semaphore",
    "Sequence",
    "Term",
    "Ticket",
    "View",
    "ViewChange",
    "WorkQueue",
    "force_release",
    "forget",
    "forget_free_locks",
    "list_groups",
    "lock_states",
]
