"""The classes and functions that have an asyncio form. ``scripts/make_aio_stub`` generates the stub from this table."""

from __future__ import annotations

from dataclasses import dataclass

from latchwork import primitives
from latchwork._base.event import Signal
from latchwork.aio.store import AsyncMirror, AsyncSession, AsyncSignal, AsyncStore
from latchwork.aio.wrapper import AsyncWrapper
from latchwork.primitives.fair import ModeLock
from latchwork.store import Mirror, Session, Store, Tx, Watch


@dataclass(frozen=True)
class Row:
    """A class that has an asyncio form.

    Attributes:
        kind: The class.
        base: The base class of the asyncio form, with its hand-written members.
        hidden: Public names that the asyncio form does not have.
    """

    kind: type
    base: type[AsyncWrapper] = AsyncWrapper
    hidden: tuple[str, ...] = ()


_HOLDS = ("abandon", "error", "on_held_lock_lost", "release_acquisition")

ROWS = (
    Row(
        Store,
        AsyncStore,
        (
            "remaining_timeout_s",
            "cleanup",
            "connection",
            "ready",
            "reopen_for",
            "shared",
            "start_call",
            "take_over",
            "timeout_error",
        ),
    ),
    Row(Tx, hidden=("build_checks_and_ops", "read_guard")),
    Row(Session, AsyncSession, ("commit", "ensure_usable", "hold_callbacks", "mark_ended", "on_end", "start")),
    Row(Watch, hidden=("attach",)),
    Row(Mirror, AsyncMirror, ("attach",)),
    Row(Signal, AsyncSignal, ("set", "clear", "call_when_set", "isSet")),
    Row(primitives.GuardedWork, hidden=("start_watching", "stop_watching", "request_stop")),
    Row(primitives.Lock, hidden=_HOLDS),
    Row(
        ModeLock,
        hidden=(
            "add_held_lock",
            "downgrade",
            "find_lock_of_thread",
            "take_from_other_mode",
            "remove_held_lock",
            "move_to_other_mode",
            *_HOLDS,
        ),
    ),
    Row(primitives.ReadWriteLock),
    Row(primitives.Semaphore, hidden=_HOLDS),
    Row(primitives.LeaderLatch, hidden=("close_in_background",)),
    Row(primitives.Election),
    Row(primitives.Term),
    Row(primitives.Observer),
    Row(primitives.Barrier),
    Row(primitives.DoubleBarrier),
    Row(primitives.Group, hidden=("close_in_background",)),
    Row(primitives.Queue),
    Row(primitives.PriorityQueue),
    Row(primitives.WorkQueue),
    Row(primitives.QueueClaim),
    Row(primitives.PreparedClaimEnd),
    Row(primitives.Counter),
    Row(primitives.Sequence),
    Row(primitives.RateLimiter),
    Row(primitives.Once),
    Row(primitives.PersistentLock),
    Row(primitives.LockKeeper, hidden=("acquire_unless_stopped", "close_in_background", "release_held")),
    Row(primitives.HeldLock, hidden=("is_unreleased", "ownership", "stop_work")),
)
#: Functions whose first argument is a store.
FUNCTIONS = (
    primitives.force_release,
    primitives.forget,
    primitives.forget_free_locks,
    primitives.list_groups,
    primitives.lock_states,
)
