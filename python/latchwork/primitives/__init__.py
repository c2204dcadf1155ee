"""Coordination primitives, one noun per file, each usable by itself above any store."""

from latchwork.primitives.fair.election import Election, Term
from latchwork.primitives.fair.latch import LeaderLatch
from latchwork.primitives.fair.leader import Candidate, Leader, Observer
from latchwork.primitives.fair.lock import Lock
from latchwork.primitives.fair.rwlock import ReadWriteLock
from latchwork.primitives.fair.semaphore import Semaphore
from latchwork.primitives.fair.tickets import Ticket
from latchwork.primitives.group.group import Group
from latchwork.primitives.group.members import GroupMember
from latchwork.primitives.group.outside import list_groups
from latchwork.primitives.group.views import View, ViewChange
from latchwork.primitives.meeting.barrier import Barrier
from latchwork.primitives.meeting.double_barrier import DoubleBarrier
from latchwork.primitives.numbers.counter import Counter
from latchwork.primitives.numbers.rate_limiter import RateLimiter
from latchwork.primitives.numbers.sequence import Sequence
from latchwork.primitives.once import Once
from latchwork.primitives.persistent.held import HeldLock
from latchwork.primitives.persistent.keeper import LockKeeper
from latchwork.primitives.persistent.lock import PersistentLock
from latchwork.primitives.persistent.outside import LockHolder, LockState, force_release, forget_free_locks, lock_states
from latchwork.primitives.queue.claims import ClaimEnding, CreateClaimed, QueueClaim
from latchwork.primitives.queue.items import QueueItem
from latchwork.primitives.queue.pages import Share
from latchwork.primitives.queue.queue import PriorityQueue, Queue
from latchwork.primitives.queue.work_queue import WorkQueue
from latchwork.primitives.waiting.work import Work

__all__ = [
    "Barrier",
    "Candidate",
    "ClaimEnding",
    "Counter",
    "CreateClaimed",
    "DoubleBarrier",
    "Election",
    "Group",
    "GroupMember",
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
    "PriorityQueue",
    "Queue",
    "QueueClaim",
    "QueueItem",
    "RateLimiter",
    "ReadWriteLock",
    "Semaphore",
    "Sequence",
    "Share",
    "Term",
    "Ticket",
    "View",
    "ViewChange",
    "Work",
    "WorkQueue",
    "force_release",
    "forget_free_locks",
    "list_groups",
    "lock_states",
]
