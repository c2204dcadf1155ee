"""Which classes and functions have twins: the one list of them. The stub is made from it too.

A row names the class, and what is written by hand for it; all else that is public there is made.
"""

from __future__ import annotations

from dataclasses import dataclass

from latchwork import primitives
from latchwork.aio.registry import Twin
from latchwork.aio.stores import MirrorTwin, SessionTwin, SignalTwin, StoreTwin
from latchwork.primitives.fair import Side
from latchwork.store import Mirror, Session, Store, Tx, Watch
from latchwork.store.steps import Signal


@dataclass(frozen=True)
class Row:
    """One class that has a twin.

    Attributes:
        kind: the class.
        by_hand: what is written for it.
        hidden: public names that are for the SDK itself.
    """

    kind: type
    by_hand: type[Twin] = Twin
    hidden: tuple[str, ...] = ()


_HOLDS = ("abandon", "end", "error", "lose")

ROWS = (
    Row(
        Store,
        StoreTwin,
        ("begin", "answer_s", "cleanup", "connection", "late", "ready", "reopen_for", "shared", "take_over"),
    ),
    Row(Tx, hidden=("begin", "plan")),
    Row(Session, SessionTwin, ("begin", "carry", "ensure_usable", "notice_gone", "on_end", "take_back")),
    Row(Watch, hidden=("attach",)),
    Row(Mirror, MirrorTwin, ("attach",)),
    Row(Signal, SignalTwin, ("set", "clear", "call_when_set", "isSet")),
    Row(primitives.Work, hidden=("begin", "finish", "stop")),
    Row(primitives.Lock, hidden=_HOLDS),
    Row(Side, hidden=("adopt", "downgrade", "forget", "hand_to_other", "note", "of_this_thread", *_HOLDS)),
    Row(primitives.ReadWriteLock),
    Row(primitives.Semaphore, hidden=_HOLDS),
    Row(primitives.LeaderLatch, hidden=("end_soon",)),
    Row(primitives.Election),
    Row(primitives.Term),
    Row(primitives.Observer),
    Row(primitives.Barrier),
    Row(primitives.DoubleBarrier),
    Row(primitives.Group, hidden=("end_soon",)),
    Row(primitives.Queue),
    Row(primitives.PriorityQueue),
    Row(primitives.WorkQueue),
    Row(primitives.QueueClaim),
    Row(primitives.ClaimEnding),
    Row(primitives.Counter),
    Row(primitives.Sequence),
    Row(primitives.RateLimiter),
    Row(primitives.Once),
    Row(primitives.PersistentLock),
    Row(primitives.LockKeeper, hidden=("acquire_unless", "end_soon", "release_held")),
    Row(primitives.HeldLock, hidden=("end_work", "is_kept", "ownership")),
)
#: Functions that take a store first.
FUNCTIONS = (primitives.force_release, primitives.forget_free_locks, primitives.list_groups, primitives.lock_states)
