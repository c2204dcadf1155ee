"""A persistent lock: it outlives its process and its session for a TTL, then others may take it over.

Keys:   @locks/locks/<name>   the owner
        @locks/owners/<uuid>  its record, rewritten every third of the TTL
Holder: see ``keeper``. To hold many locks, share one keeper among them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from latchwork._base.event import Signal
from latchwork._base.execution_context import PerCaller, caller_identity
from latchwork._base.interrupts import mutex
from latchwork._base.validation import check_store
from latchwork.errors import Closed, LatchworkError, LockLost
from latchwork.primitives.leased.inspect import LockHolder, read_state
from latchwork.primitives.leased.keeper import LockKeeper
from latchwork.primitives.leased.owner import HeldLock
from latchwork.primitives.leased.protocol import clamp_ttl_s
from latchwork.primitives.leased.table import LockTable
from latchwork.primitives.waiting.arguments import check_name, check_text
from latchwork.primitives.waiting.listeners import call_listeners
from latchwork.primitives.waiting.ownership import Ownership, OwnershipHolder
from latchwork.store.forks import ForkGuard, make_lost_signal
from latchwork.store.observers import add_listener
from latchwork.store.steps import StepCoroutine, blocking, coroutine_of, shielded
from latchwork.store.store import Store
from latchwork.types import Fence

_log = logging.getLogger(__name__)


class PersistentLock(OwnershipHolder):
    """An exclusive lock that survives disconnects of its holder. Other clients get it a TTL after its holder has died.

    Construction does no I/O. Thread-safe: threads exclude each other as processes do. Not reentrant: a thread that
    holds it gets an error. Not fair: any client may get a free lock. The locks of a store are renewed together, by a
    thread that ends with the store and then releases all locks.

    Args:
        store: The store, or a namespace of it.
        name: The name of the lock, one or more key segments.
        ttl_s: Seconds that the lock outlives its last renewal. A value below 0.3 is raised to 0.3, with a logged
            warning. Ignored if ``keeper`` is given.
        keeper: The keeper that renews this lock together with others. The caller closes it. None uses one keeper for
            all locks of this store with the same TTL and label.
        owner_label: The name of the holder, shown to others. Ignored if ``keeper`` is given.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        ttl_s: float = 10.0,
        keeper: LockKeeper | None = None,
        owner_label: str = "",
    ) -> None:
        check_store(store, "a lock")
        self.name = check_name(name, "lock")
        self._store = store
        self._ttl_s = clamp_ttl_s(ttl_s, f"lock {name!r}") if keeper is None else keeper.ttl_s
        self._owner_label = check_text(owner_label, f"the owner_label of lock {name!r}")
        self._given = keeper
        self._own: LockKeeper | None = None  # once it was used
        self._lock = mutex()
        self._held: HeldLock | None = None
        self._holder: object = None  # who acquired it
        self._entered = PerCaller()  # the hold of a thread's own ``with``: it must not release another's
        self._acquiring: set[object] = set()
        self._closing = Signal()
        self._home = ForkGuard(f"lock {name!r}")
        self._lost_listeners: dict[object, Callable[[], None]] = {}
        self._failed_listeners: dict[object, Callable[[BaseException, float], None]] = {}
        self._listening = ExitStack()
        self._told: HeldLock | None = None  # the hold whose loss was reported
        self._closed = False

    def __repr__(self) -> str:
        return f"<PersistentLock {self.name!r} {self.remaining_s():.2f}s>"

    @blocking
    async def __enter__(self) -> Fence:
        held = await self._acquire(None)
        self._list_entered_locks().append(held)
        return held.fence

    @shielded
    async def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is None:
            self._home.check()
        if self._home.is_foreign:
            return
        entered = self._list_entered_locks()
        held = entered[-1] if entered else self._held  # a with may end in another thread
        if entered:
            entered.pop()
        try:
            if held is not None and not self._closed:
                await self._release(held)
        except LockLost:
            if exc_type is None:
                raise
            _log.warning("lock %r was lost while its work failed", self.name)

    @blocking
    async def acquire(self, timeout_s: float | None = None) -> Fence:
        """Wait for the lock and return its fence.

        Holding it does not prevent a paused process from writing late: pass the fence to every write that matters.

        Args:
            timeout_s: Seconds to wait. None waits forever, 0 tries once.
        Returns:
            A fence whose ``token`` is greater than that of every earlier holder.
        Raises:
            WaitTimeout: Another client still holds it.
            LatchworkError: This thread holds it already, through this object.
            Unavailable, OutcomeUnknown: The server could not be reached in time. Nothing is left behind.
            Closed: The lock, its keeper or its store was closed.
        Source:
            docs/design/locks.md.
        """
        return (await self._acquire(timeout_s)).fence

    @blocking
    async def adopt(self, owner_id: str, timeout_s: float | None = None) -> Fence:
        """Take over the lock that this process held before its restart, without waiting for its TTL.

        The caller must know that the earlier process has stopped its work. The lock passes from exactly that owner to
        us, with a new fence: writes under the old one are refused from then on. See ``LockKeeper.adopt``.

        Args:
            owner_id: The earlier owner: its stored ``owner_id``, or that of ``holder()``.
            timeout_s: Seconds to wait for an unreachable server. None waits forever, 0 tries once.
        Raises:
            LockLost: That owner no longer holds it. Acquire it.
            Unavailable, OutcomeUnknown, Closed, LatchworkError: As for ``acquire``.
        """

        async def inherit(keeper: LockKeeper) -> HeldLock:
            held = (await coroutine_of(keeper.adopt)(owner_id, [self.name], timeout_s)).get(self.name)
            if held is None:
                raise LockLost(f"lock {self.name!r} is not held by owner {owner_id!r} any more; acquire it instead")
            return held

        return (await self._acquire_with(inherit)).fence

    @shielded
    async def release(self) -> None:
        """Release the lock. Another client can acquire it at once.

        If the server cannot be reached, the release is retried in the background. A lock that cannot be released
        expires after its TTL.

        Raises:
            LockLost: It had expired, or was not held.
            ForkedProcess: The lock was created by the parent of this process.
        """
        self._home.check()
        held = self._held
        if held is None:
            raise LockLost(f"lock {self.name!r} is not held by this object; acquire it first")
        await self._release(held)

    @shielded
    async def close(self) -> None:
        """Release the lock if it is held, and make all calls that wait for it raise ``Closed``. Thread-safe and
        idempotent.
        """
        if self._home.is_foreign:
            return
        with self._lock:
            self._closed = True
        self._closing.set()
        held = self._held
        if held is not None:
            try:
                await self._release(held)
            except LockLost as error:
                _log.warning("lock %r was closed after it was lost: %s", self.name, error)
        self._stop_listening_if_unused()

    @property
    def fence(self) -> Fence:
        """The fence of the lock while this object holds it.

        Raises:
            LockLost: It has expired, or is not held.
        """
        return self._current().fence

    @property
    def owner_id(self) -> str:
        """The ID of the owner that holds the lock for this process. Store it, so that ``adopt`` can take over the lock
        after a restart.

        Raises:
            LockLost: It has expired, or is not held.
        """
        return self._current().owner_id

    @property
    def is_held(self) -> bool:
        """Whether this process certainly holds the lock, judged by its own clock."""
        held = self._held
        return held is not None and held.is_held

    @property
    def lost(self) -> Signal:
        """A signal that is set when the lock expires or is taken over. Read this property again after each
        ``acquire``.
        """
        if self._home.is_foreign:
            return make_lost_signal()
        held = self._held
        return held.lost if held is not None else Signal()

    def remaining_s(self) -> float:
        """Return for how many seconds the lock is certainly held without a further renewal. Performs no I/O.

        The result is 0 if the lock is not held.
        """
        held = self._held
        return held.remaining_s() if held is not None else 0.0

    def on_lost(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn()`` each time the lock expires or is taken over, so that the work that depends on it can stop.

        It is not called when the lock is released.

        Returns:
            A function that removes the listener.
        """
        self._check_open()
        return add_listener(self._lost_listeners, fn)

    def on_renewal_failed(self, fn: Callable[[BaseException, float], None]) -> Callable[[], None]:
        """Call ``fn(error, remaining_s)`` when a renewal of the lock fails or is not answered.

        The lock is still held for ``remaining_s`` seconds.

        Returns:
            A function that removes the listener.
        """
        self._check_open()
        return add_listener(self._failed_listeners, fn)

    @blocking
    async def holder(self) -> LockHolder | None:
        """Read from the store who holds the lock, which may be this process. Return None if it is free."""
        if self._given is not None:
            return (await coroutine_of(self._given.state)(self.name)).holder
        return (await read_state(LockTable(self._store), self.name)).holder

    def _check_open(self) -> None:
        self._home.check()
        if self._closed:
            raise Closed(f"lock {self.name!r} was closed; create another one")

    def _current(self) -> HeldLock:
        held = self._held
        if held is None or not held.is_held:
            raise LockLost(f"lock {self.name!r} is no longer held by this object; stop the work that it protected")
        return held

    def _get_ownership(self) -> Ownership:
        return self._current().ownership

    async def _acquire(self, timeout_s: float | None) -> HeldLock:
        left_s = self._store.time_left_s()
        if left_s is not None and self._given is None:  # the keeper in common knows nothing of that limit
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        return await self._acquire_with(
            lambda keeper: keeper.acquire_unless_stopped(self.name, timeout_s, self._closing)
        )

    async def _acquire_with(self, take: Callable[[LockKeeper], StepCoroutine[HeldLock]]) -> HeldLock:
        self._home.check()
        call_id, found = object(), list[HeldLock]()
        keeper = self._subscribe_to_keeper(call_id)
        try:
            found.append(await take(keeper))
        finally:
            with self._lock:
                self._acquiring.discard(call_id)
                surplus = self._closed
                if found and not surplus:
                    self._holder = caller_identity()
                    self._held = found[0]
            if not found or surplus:
                self._stop_listening_if_unused()
        if surplus:
            await coroutine_of(found[0].release)()
            raise Closed(f"lock {self.name!r} was closed while it was being acquired; create another one")
        return found[0]

    async def _release(self, held: HeldLock) -> None:
        with self._lock:
            if self._held is held:
                self._held = None
        self._stop_listening_if_unused()
        await coroutine_of(held.release)()

    def _list_entered_locks(self) -> list[HeldLock]:
        """Return the locks acquired by the ``with`` blocks that this thread is in, outermost first."""
        entered: list[HeldLock] = self._entered.values.setdefault("stack", [])
        return entered

    def _subscribe_to_keeper(self, call_id: object) -> LockKeeper:
        """Return the keeper that will hold and renew the lock, and subscribe to its reports of lost locks.

        The subscription ends when the acquisition has failed, or when the lock is released or lost.

        Args:
            call_id: Identifies the call that acquires the lock.
        """
        with self._lock:
            self._check_open()
            is_mine = self._holder == caller_identity()
            if is_mine and self._held is not None and self._held.is_held:
                raise LatchworkError(f"lock {self.name!r} is already held by this thread; release it first")
            keeper = self._given
            if keeper is None:
                keeper = self._own = self._store.shared(
                    ("lock keeper", self._ttl_s, self._owner_label), self._create_keeper
                )
            self._acquiring.add(call_id)
            self._listening.close()
            self._listening.callback(keeper.on_lost(self._notify_lost))
            self._listening.callback(keeper.on_renewal_failed(self._notify_renewal_failed))
            return keeper

    def _create_keeper(self, store: Store) -> LockKeeper:
        return LockKeeper(store, ttl_s=self._ttl_s, owner_label=self._owner_label)

    def _stop_listening_if_unused(self) -> None:
        """Stop listening to the keeper if no thread holds or acquires the lock."""
        with self._lock:
            if not self._acquiring and self._held is None:
                self._listening.close()

    def _notify_lost(self, names: tuple[str, ...]) -> None:
        held = self._held
        if self.name in names and held is not None and held is not self._told and not held.is_held:
            self._told = held
            call_listeners(list(self._lost_listeners.values()), f"lock {self.name!r}")

    def _notify_renewal_failed(self, error: BaseException, remaining_s: float) -> None:
        held = self._held
        if held is not None and held.is_unreleased:
            calls = [partial(fn, error, remaining_s) for fn in list(self._failed_listeners.values())]
            call_listeners(calls, f"lock {self.name!r}")
