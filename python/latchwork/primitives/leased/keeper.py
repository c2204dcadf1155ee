"""Persistent locks: they outlive their process and its session for a TTL, and one write renews any number of them.

Keys:   @locks/owners/<uuid>  one per owner, used once; TTL, label, host and PID; rewritten every third of the TTL,
                              unless it has a session
        @locks/locks/<name>   the owner; names may have several segments (``report/item-1``)
Holder: the owner in the lock, until its own deadline: the send of its last confirmed renewal + TTL.

The keeper of another system, such as a job cluster, has ``owners/`` and ``locks/`` in the tree of that system. The
decisions are in ``protocol``; docs/design/locks.md has the races.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TypeVar

from latchwork._base.event import Signal
from latchwork.errors import OutcomeUnknown, Unavailable
from latchwork.primitives.leased.acquirer import LockAcquirer
from latchwork.primitives.leased.inspect import LockState, read_state, read_states_below
from latchwork.primitives.leased.maintenance import SWEEP_PERIOD_S, KeeperMaintenance
from latchwork.primitives.leased.owner import HeldLock, SessionProvider
from latchwork.primitives.leased.protocol import LEAST_TTL_S
from latchwork.primitives.waiting.arguments import check_member, check_minimum, check_name, raise_if_in_callback
from latchwork.primitives.waiting.closable import Startable
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.store.forks import make_lost_signal
from latchwork.store.observers import add_listener, check_listener
from latchwork.store.steps import blocking, shielded
from latchwork.store.store import Store

_log = logging.getLogger(__name__)
T = TypeVar("T")


class LockKeeper(Startable):
    """Holds any number of persistent locks under one owner. Thread-safe.

    Construction does no I/O. The keeper starts with its first use, with ``start()`` or with ``with``, and then follows
    the other owners. A keeper that will compete for locks should start early, so that it need not wait for another TTL
    after the death of an owner without a session. Closing it releases everything and ends its thread.

    Locks are neither reentrant nor fair: any client may get a free lock. A lock of this keeper is held for all threads
    of the process. A keeper that lost its locks continues with a new owner.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        ttl_s: Seconds that locks outlive the last renewal; less than 0.3 is raised to that, with a logged warning.
        owner_label: The name of the holder for others.
        session: Returns a session of this process, None for none. If its TTL is at least ``ttl_s``, other clients
            treat its end as the death of the holder, and the keeper writes nothing while it holds locks.
        sweep_period_s: Seconds between two calls of ``sweep`` in the background, by one keeper of the store. None for
            never.
    """

    def __init__(
        self,
        store: Store,
        *,
        ttl_s: float = 10.0,
        owner_label: str = "",
        session: SessionProvider | None = None,
        sweep_period_s: float | None = SWEEP_PERIOD_S,
    ) -> None:
        self._core = core = KeeperMaintenance(
            store, ttl_s=ttl_s, owner_label=owner_label, session=session, sweep_period_s=sweep_period_s
        )
        self._taking = LockAcquirer(core)
        core.keeper = self
        self.ttl_s = core.ttl_s
        self._record = core.record
        self._table = core.table
        self._store = core.store
        self._clock = core.clock
        self._state = core.state
        self._home = core.fork_guard
        self._waits = core.waits

    def __repr__(self) -> str:
        return f"<LockKeeper {self._record.label!r} {len(self.held())} locks {self.remaining_s():.2f}s>"

    @shielded
    async def close(self, *, release: bool = True) -> None:
        """Close the keeper. Calls that wait for a lock raise ``Closed``. Thread-safe and idempotent.

        Args:
            release: Release all locks at once. With False they expire within 1.05 TTL, for work that may still be
                running. If the server cannot be reached, locks of a keeper with a session expire with that session.
        """
        if self._home.is_foreign:
            return
        held = self._state.close()
        if held is None:
            return
        self._core.closing.set()
        self._waits.close()
        try:
            if release:
                await self._core.release_on_server(held)
        finally:
            self._core.request_stop()
        await self._core.wait_stopped()

    def start(self) -> None:
        """Start to watch the owners of other clients' locks. Idempotent.

        Raises:
            Closed: The keeper was closed.
        """
        self._core.start()

    def close_in_background(self) -> None:
        """Release all locks and close the keeper in the background, without waiting."""
        self._core.close_in_background()

    # Acquiring and releasing

    @blocking
    async def acquire(self, name: str, timeout_s: float | None = None) -> HeldLock:
        """Wait for a lock and acquire it.

        The call continues to wait while the server is unreachable, and raises the server's error only after the
        timeout. A call in flight can take up to the store's call timeout longer.

        Args:
            name: The name of the lock, one or more key segments.
            timeout_s: Seconds to wait. None waits forever, 0 tries once.
        Returns:
            The lock, with the fence for the writes that depend on it.
        Raises:
            WaitTimeout: Another client still holds it.
            Unavailable, OutcomeUnknown: The server could not be reached in time. Nothing is left behind.
            LatchworkError: The call is inside a callback, which must not wait.
            Closed: The keeper or its store was closed.
            ForkedProcess: The keeper was created by the parent of this process.
            InvalidKey: The name cannot be a key.
        Source:
            docs/design/locks.md.
        """
        return await self._taking.acquire(name, timeout_s, Signal())

    async def acquire_unless_stopped(self, name: str, timeout_s: float | None, stop: Signal) -> HeldLock:
        """Wait for a lock and acquire it like ``acquire``, but raise ``Closed`` as soon as a signal is set.

        Args:
            name: The name of the lock.
            timeout_s: Seconds to wait. None waits forever, 0 tries once.
            stop: The signal.
        """
        return await self._taking.acquire(name, timeout_s, stop)

    @blocking
    async def try_acquire(self, name: str) -> HeldLock | None:
        """Acquire a lock if it is free. Return None if another client or another thread holds it.

        Raises:
            Unavailable: The server could not be reached.
            OutcomeUnknown: It may have been acquired; then the keeper releases it.
            Closed, InvalidKey: As for ``acquire``.
        """
        return (await self._taking.acquire_free([check_name(name, "lock")])).get(name)

    @blocking
    async def try_acquire_many(self, names: Iterable[str]) -> dict[str, HeldLock]:
        """Acquire the locks that are free, many in one transaction, without waiting.

        Each lock is acquired separately. If the server fails halfway, the locks acquired so far are returned, and the
        others can be tried again.

        Args:
            names: Names of the locks.
        Returns:
            The acquired locks by name. The others are held by other clients, or by this keeper already.
        Raises:
            Unavailable, OutcomeUnknown, Closed, InvalidKey: As for ``try_acquire``, and nothing was acquired.
        """
        return await self._taking.acquire_free([check_name(name, "lock") for name in dict.fromkeys(names)])

    @blocking
    async def adopt(
        self, owner_id: str, names: Collection[str] | None = None, timeout_s: float | None = None
    ) -> dict[str, HeldLock]:
        """Take over the locks that this process held before its restart, without waiting until they expire.

        Each lock passes from exactly the given owner to this keeper, with a new fencing token: writes with the old
        token are refused from then on. The caller must know that the earlier process has stopped its work. If it is
        still running, it reports the loss of its locks as soon as it notices.

        Args:
            owner_id: The ID of the earlier owner, which the caller has stored, or which ``holders()`` returned.
            names: Take over only these locks. None takes over all of them.
            timeout_s: Seconds to wait for an unreachable server. None waits forever, 0 tries once.

        Returns:
            The locks by name, without locks that other clients had taken over.

        Raises:
            ValueError: The ID is that of the current owner of this keeper.
            Unavailable, OutcomeUnknown: The server could not be reached in time. Locks that were taken over are in
                ``held()``. Call again for the rest.
            Closed, ForkedProcess, LatchworkError: As for ``acquire``.

        Source:
            docs/design/locks.md.
        """
        self._home.check()
        raise_if_in_callback("locks of an earlier owner", timeout_s)
        if owner_id == self.owner_id:
            raise ValueError(f"owner {owner_id!r} is that of this keeper; give the ID of an earlier process")
        deadline = Deadline(self._clock, timeout_s)
        self._core.start()
        try:
            return await self._taking.adopt(check_member(owner_id, "owner"), names, deadline)
        except (Unavailable, OutcomeUnknown):
            self._core.check_open()  # the reason why it was not tried again
            raise

    @shielded
    async def release(self, names: Iterable[str]) -> None:
        """Release locks, many in one transaction. Other clients can acquire them at once.

        If the server cannot be reached, the keeper retries in the background. Locks that it cannot release expire after
        their TTL.

        Args:
            names: Names of the locks.
        Raises:
            LockLost: Some had expired or were not held. All others are released.
        """
        self._home.check()
        found, missing = self._state.find_held_locks(list(dict.fromkeys(names)))
        await self._core.release_all(found, missing)

    def when_free(self, name: str, fn: Callable[[str], None]) -> Callable[[], None]:
        """Call ``fn(name)`` once in a callback thread when the lock looks free.

        Another client may have acquired it by then; call ``when_free`` again in that case. Waiting uses no thread, and
        names with the same first segment share one watch.

        Args:
            name: Name of the lock.
            fn: A plain function.
        Returns:
            A function that cancels the call.
        Raises:
            Closed, InvalidKey: As for ``acquire``.
            TypeError: ``fn`` is not a plain function.
        """
        call = partial(check_listener(fn), check_name(name, "lock"))
        self._core.start()
        cancel = self._waits.add_waiter(name, lambda: self._core.free_listeners.post(call))
        self._core.wake.set()
        return cancel

    # What is whose

    @blocking
    async def state(self, name: str) -> LockState:
        """Read the state of a lock."""
        return await read_state(self._table, check_name(name, "lock"))

    @blocking
    async def holders(self, below: str = "") -> list[LockState]:
        """Read the states of all held locks, sorted by name. Not a snapshot.

        Args:
            below: Only names below this one; "" for all.
        """
        return [state for state in await read_states_below(self._table, below) if state.holder is not None]

    def awaited_locks(self) -> list[str]:
        """Return the names of the locks that callers of this keeper are waiting for, sorted."""
        return self._waits.list_waiting_names()

    @blocking
    async def sweep(self) -> tuple[int, int]:
        """Remove the records of dead owners, and of locks that have been free for long. Safe at any time.

        One keeper of each store also does so regularly.

        Returns:
            The number of removed owners, and the number of removed or released locks. An owner is removed after it was
                dead for a TTL. Its locks are released. The record of a lock is removed when the lock has been free for
                at least ten minutes.
        """
        self._core.start()
        return await self._core.sweeper.sweep()

    def held(self) -> dict[str, HeldLock]:
        """Return the locks that this keeper certainly holds, by name."""
        return {} if self._home.is_foreign else self._state.get_held_locks()

    @property
    def owner_id(self) -> str | None:
        """The ID of the current owner of this keeper's locks. None before the first lock. It changes after a loss."""
        owner = self._state.current
        return owner.id if owner is not None else None

    def remaining_s(self) -> float:
        """Return for how many seconds the locks are certainly held without a further renewal. Performs no I/O.

        The result is 0 if no lock is held.
        """
        if self._home.is_foreign:
            return 0.0
        owner = self._state.current
        return owner.remaining_s() if owner is not None and owner.held else 0.0

    @property
    def lost(self) -> Signal:
        """A signal that is set when all locks that are held now are lost.

        Locks that are acquired after a loss have another signal, so read this property again.
        """
        if self._home.is_foreign:
            return make_lost_signal()
        owner = self._state.current
        return owner.lost if owner is not None else Signal()

    def set_renewal_ttl(self, seconds: float | None) -> None:
        """Renew the locks more often, as if they had this shorter TTL. Their own TTL does not change.

        This is for callers that must learn earlier that the server is unreachable. No effect after ``close``.

        Args:
            seconds: The shorter TTL in seconds; the locks are renewed every third of it. None renews them every third
                of their own TTL.
        """
        self._core.within_s = math.inf if seconds is None else check_minimum(seconds, "seconds", LEAST_TTL_S)
        self._core.wake.set()

    def on_lost(self, fn: Callable[[tuple[str, ...]], None]) -> Callable[[], None]:
        """Call ``fn(names)`` when locks expire or are taken over, so that the work that depends on them can stop.

        It is not called when locks are released.

        Returns:
            A function that removes the listener.
        """
        self._core.check_open()
        return add_listener(self._core.lost_listeners, fn)

    def on_renewal_failed(self, fn: Callable[[BaseException, float], None]) -> Callable[[], None]:
        """Call ``fn(error, remaining_s)`` when a renewal fails or is not answered.

        The locks are still held for ``remaining_s`` seconds.

        Returns:
            A function that removes the listener.
        """
        self._core.check_open()
        return add_listener(self._core.failed_listeners, fn)

    @shielded
    async def release_held(self, locks: Sequence[HeldLock]) -> None:
        """Release held locks like ``release``. A lock that was released and acquired again in the meantime is not
        released.

        Args:
            locks: The locks, as ``acquire`` returned them.
        """
        await self._core.release(locks)
