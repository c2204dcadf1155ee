"""The common part of locks that are bound to a session: what this process holds, until when, and its release.

``Lock``, both modes of ``ReadWriteLock`` and ``Semaphore`` implement the acquisition.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable

from latchwork._base.event import Signal
from latchwork._base.execution_context import PerCaller
from latchwork._base.interrupts import mutex
from latchwork.errors import Closed, ForkedProcess, LatchworkError, LockLost, OwnershipLost, WaitTimeout
from latchwork.primitives.fair.tickets import QueuePosition, TicketQueue
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.listeners import call_listeners
from latchwork.primitives.waiting.ownership import Ownership, OwnershipHolder
from latchwork.primitives.waiting.waiter import Waiter, WaiterRegistry
from latchwork.store.forks import make_lost_signal
from latchwork.store.observers import add_listener
from latchwork.store.session import Session
from latchwork.store.steps import blocking, shielded
from latchwork.store.store import Store
from latchwork.types import Fence

_log = logging.getLogger(__name__)


class Acquisition:
    """One call of ``acquire``, until its release. A thread that acquires a reentrant lock several times has several
    acquisitions of one held lock.
    """

    def __init__(self, held: HeldSessionLock) -> None:
        self.held = held


class HeldSessionLock:
    """A lock that this process holds, from its acquisition to its release.

    Args:
        position: Its ticket or lease, with session and fence.
        owner: The lock object.
        waiter: The waiter that acquired it.

    Attributes:
        position: Its ticket or lease, with session and fence.
        owner: The lock object.
        waiter: The waiter that acquired it. Its watch is closed after the release.
        ownership: The ownership of the lock. Work that depends on the lock registers with it, to be stopped at its end.
        acquisitions: The acquisitions of its thread that were not released, newest last.
        released: Set when it is released or closed.
    """

    def __init__(self, position: QueuePosition, owner: SessionLock, waiter: Waiter) -> None:
        self.position = position
        self.owner = owner
        self.waiter = waiter
        self.acquisitions = [Acquisition(self)]
        self.released = Signal()
        self.ownership = Ownership.for_session(owner.what, position.fence, position.session, owner.clock, owner.error)
        self.remove_listener: Callable[[], None] = lambda: None

    @property
    def is_held(self) -> bool:
        """Whether this process certainly holds the lock now."""
        return self.remaining_s() > 0.0

    def remaining_s(self) -> float:
        """Return for how many seconds this process certainly holds the lock."""
        return self.ownership.remaining_s()


class SessionLock(OwnershipHolder):
    """The base class of locks that are bound to a session. Thread-safe.

    Args:
        store: The store.
        what: Name of the lock, for messages.
        queue: The tickets of the lock.
        session: The session of the tickets. None uses the store's primary session.
        reentrant: Whether a thread that holds the lock may acquire it again.
        allow_several: Whether a thread may hold the lock several times, each with its own ticket and release.
    """

    #: The error to raise when it is not held any more.
    error: type[OwnershipLost] = LockLost

    def __init__(
        self,
        store: Store,
        what: str,
        queue: TicketQueue,
        *,
        session: Session | None,
        reentrant: bool = False,
        allow_several: bool = False,
    ) -> None:
        self._store = store
        self.clock = store.clock
        self.what = what
        self._queue = queue
        self._waits = WaiterRegistry(store, what, session)
        self._home = self._waits.home
        self._reentrant = reentrant
        self._allows_several = allow_several
        self._lock = mutex()
        self._held: list[HeldSessionLock] = []
        self._mine = PerCaller()
        self._listeners: dict[object, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.what} {self.remaining_s():.2f}s>"

    @blocking
    async def __enter__(self) -> Fence:
        acquisition = await self._acquire(None)
        self._list_entered_acquisitions().append(acquisition)
        return acquisition.held.position.fence

    @shielded
    async def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        entered = self._list_entered_acquisitions()
        acquisition = (
            entered.pop() if entered else self._find_lock_to_release().acquisitions[-1]
        )  # a with that ends in another thread
        if acquisition.held.released.is_set():
            return  # released inside the block, or closed
        try:
            await acquisition.held.owner.release_acquisition(acquisition)
        except (OwnershipLost, ForkedProcess) as error:
            if exc_type is None:
                raise
            _log.warning("%s is not released, and its work failed: %s", self.what, error)

    @blocking
    async def acquire(self, timeout_s: float | None = None) -> Fence:
        """Wait for the lock and return its fence.

        Holding it does not prevent a paused process from writing late: pass the fence to every write that matters.

        Args:
            timeout_s: Seconds to wait. None waits forever, 0 tries once. If the server does not answer, the call may
                take longer, at most by the store's call timeout.
        Returns:
            A fence whose ``token`` is greater than that of every earlier holder.
        Raises:
            WaitTimeout: Other clients still hold it. Our ticket has been removed.
            SessionLost: Our session ended while waiting.
            LockLost: Another client deleted our ticket while we waited.
            LatchworkError: This thread holds it already and it is not reentrant, or the call is inside a callback.
            Unavailable, OutcomeUnknown: The server could not be reached in time. Nothing is left behind.
            Closed: The lock, its session or its store was closed.
            ForkedProcess: The lock was created by the parent of this process.
        Source:
            docs/design/locks.md.
        """
        return (await self._acquire(timeout_s)).held.position.fence

    @shielded
    async def release(self) -> None:
        """Release the lock that this thread holds, so that the next waiting client can acquire it.

        If this thread holds nothing and one other thread does, its lock is released. If the server cannot be reached,
        the release continues in the background. The end of the session completes it in any case.

        Raises:
            LockLost: It had expired, was ended by another client, or is not held.
            LatchworkError: This thread holds nothing, and several others do.
        """
        self._home.check()
        await self.release_acquisition(self._find_lock_to_release().acquisitions[-1])

    @shielded
    async def close(self) -> None:
        """Release all locks held through this object, and make its waiting calls raise ``Closed``. Thread-safe and
        idempotent.
        """
        if self._home.is_foreign:
            return
        self._waits.close()
        with self._lock:
            held_locks = list(self._held)
        try:
            for held in held_locks:
                await self._release_held_lock(held)
        except BaseException:
            self.abandon()
            raise

    @property
    def fence(self) -> Fence:
        """The check that the lock is still held, for the transactions of writes that depend on it.

        If this thread holds the lock, it is the fence of its last acquisition. Otherwise it is that of another thread
        of this process, which may have passed its work to this one.

        Raises:
            LockLost: The lock has expired, or is not held.
        """
        return self._require_held_lock().position.fence

    @property
    def is_held(self) -> bool:
        """Whether this process certainly holds the lock, judged by its own clock. Performs no I/O."""
        return self.remaining_s() > 0.0

    @property
    def lost(self) -> Signal:
        """A signal that is set when the lock is lost or its session is closed, but not when it is released.

        Read this property again after each ``acquire``: each acquisition has a new signal.
        """
        if self._home.is_foreign:
            return make_lost_signal()
        held = self._find_current_lock()
        return held.ownership.lost if held is not None else Signal()

    def remaining_s(self) -> float:
        """Return for how many seconds the lock is certainly held without a further renewal. Performs no I/O.

        The result is 0 if the lock is not held.
        """
        held = self._find_current_lock()
        return held.remaining_s() if held is not None else 0.0

    def on_lost(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn()`` when the lock is lost or its session is closed, but not when it is released.

        Returns:
            A function that removes the listener.
        """
        self._waits.ensure_usable()
        return add_listener(self._listeners, fn)

    # What the subclasses say

    @abstractmethod
    async def _acquire_ticket(self, waiter: Waiter, deadline: Deadline) -> QueuePosition | None:
        """Acquire the lock on the server.

        Args:
            waiter: The waiting call.
            deadline: When the wait times out.
        Returns:
            The position in the queue. None after the timeout or a cancellation; the ticket has been deleted then.
        """

    def _check_acquirable(self) -> None:
        """Raise an error if this thread cannot acquire the lock. The default allows it."""

    # Acquiring

    async def _acquire(self, timeout_s: float | None) -> Acquisition:
        self._home.check()
        again = self._find_lock_to_reenter()
        if again is not None:
            acquisition = Acquisition(again)
            again.acquisitions.append(acquisition)
            return acquisition
        self._check_acquirable()
        async with self._waits.start(timeout_s) as (waiter, deadline):
            position = await self._acquire_ticket(waiter, deadline)
            if position is None:
                self._waits.check_open(waiter.session)
                raise WaitTimeout(await self._timeout_message(timeout_s))
            return (await self._on_acquired(position, waiter)).acquisitions[0]

    def _find_lock_to_reenter(self) -> HeldSessionLock | None:
        """Return the held lock that this thread can acquire again without a request. None if it must join the queue.

        Raises:
            LatchworkError: This thread holds the lock, and the lock is not reentrant.
            OwnershipLost: This thread has lost the lock and has not released it yet.
        """
        held = self._find_lock_of_thread()
        if held is None or self._allows_several:
            return None
        if self._reentrant:
            if not held.is_held:
                raise self.error(f"{self.what} was lost since this thread acquired it; release it, then acquire again")
            return held
        if held.is_held:
            raise LatchworkError(f"{self.what} is already held by this thread; release it first")
        return None

    async def _timeout_message(self, timeout_s: float | None) -> str:
        holders = await self._describe_holders()
        return f"{self.what} is held by {holders} after {timeout_s or 0.0:.3g} s; raise timeout_s, or ask them"

    async def _describe_holders(self) -> str:
        return await self._queue.describe_first()

    async def _on_acquired(self, position: QueuePosition, waiter: Waiter) -> HeldSessionLock:
        held = HeldSessionLock(position, self, waiter)
        with self._lock:
            surplus = self._waits.is_closed
            if not surplus:
                self._held.append(held)
        if surplus:
            held.ownership.end()
            await self._queue.leave(position)
            raise Closed(f"{self.what} was closed while it was being acquired; create another one")
        waiter.is_kept = True
        self._push(held)
        held.remove_listener = position.session.on_lost(lambda: held.owner.on_held_lock_lost(held), or_closed=True)
        if held.released.is_set():  # closed meanwhile, which could not take the listener back
            held.remove_listener()
        _log.debug("%s is held by %s with token %d", self.what, position.ticket.key, position.fence.token)
        return held

    # Releasing and losing

    async def release_acquisition(self, acquisition: Acquisition) -> None:
        """Release one acquisition of the lock. The last one releases the lock.

        Raises:
            LockLost: The lock has expired or was ended by another client.
        """
        self._home.check()
        held = acquisition.held
        if acquisition not in held.acquisitions:  # its `with` released inside of the block
            acquisition = held.acquisitions[-1]
        if len(held.acquisitions) > 1:
            held.acquisitions = [each for each in held.acquisitions if each is not acquisition]
            return
        was_held = held.is_held
        was_there = await self._release_held_lock(held)
        if not (was_held and was_there):  # by our own clock, or because a third party ended it on the server
            raise self.error(
                f"{self.what} had expired before its release; the work that it protected may have been done twice"
            )

    async def _release_held_lock(self, held: HeldSessionLock) -> bool:
        """Release a held lock in this process and on the server. Return False if it had already ended on the server."""
        if not self._release_locally(held):
            return True
        try:
            return await self._queue.leave(held.position)
        finally:
            held.waiter.close()  # last: the next one waits for the line above

    def _release_locally(self, held: HeldSessionLock) -> bool:
        """Mark a held lock as released in this process, without a request. Return False if it was already released."""
        with self._lock:
            was_released = held.released.is_set()
            held.released.set()
            self._held = [each for each in self._held if each is not held]
        held.remove_listener()
        held.ownership.end()
        return not was_released

    def abandon(self) -> None:
        """Release all locks of this object: in this process now, and on the server in the background."""
        with self._lock:
            held_locks = list(self._held)
        for held in held_locks:
            if self._release_locally(held):
                held.waiter.close()
                self._queue.leave_in_background(held.position)

    def on_held_lock_lost(self, held: HeldSessionLock) -> None:
        """Report that a held lock was lost with its session. Called in a callback thread, after work was asked to
        stop.
        """
        if held.released.is_set():
            return  # released just before: nothing was lost
        session = held.position.session
        level, how = (logging.INFO, "was closed") if session.state == "closed" else (logging.WARNING, "is lost")
        _log.log(level, "%s is lost: its session %s %s", self.what, session.id, how)
        call_listeners(list(self._listeners.values()), self.what)

    # Which lock

    def _list_entered_acquisitions(self) -> list[Acquisition]:
        """Return the acquisitions of the ``with`` statements of this lock that this thread is in, outermost first."""
        entered: list[Acquisition] = self._mine.values.setdefault("entered", [])
        return entered

    def _push(self, held: HeldSessionLock) -> None:
        self._list_locks_of_thread().append(held)

    def _list_locks_of_thread(self) -> list[HeldSessionLock]:
        """Return the locks that this thread acquired and has not released, newest last."""
        own = self._mine.values
        stack: list[HeldSessionLock] = [held for held in own.get("stack", ()) if not held.released.is_set()]
        own["stack"] = stack
        return stack

    def _find_lock_of_thread(self) -> HeldSessionLock | None:
        stack = self._list_locks_of_thread()
        return stack[-1] if stack else None

    def _find_current_lock(self) -> HeldSessionLock | None:
        if self._home.is_foreign:
            return None
        held = self._find_lock_of_thread()
        if held is None:
            with self._lock:
                held = self._held[-1] if self._held else None
        return held

    def _get_ownership(self) -> Ownership:
        return self._require_held_lock().ownership

    def _require_held_lock(self) -> HeldSessionLock:
        held = self._find_current_lock()
        if held is None or not held.is_held:
            raise self.error(f"{self.what} is no longer held by this object; stop the work that it protected")
        return held

    def _find_lock_to_release(self) -> HeldSessionLock:
        held = self._find_lock_of_thread()
        if held is not None:
            return held
        with self._lock:
            held_locks = list(self._held)
        if not held_locks:
            raise self.error(f"{self.what} is not held by this object; acquire it first")
        if len(held_locks) > 1:
            raise LatchworkError(
                f"{self.what} is not held by this thread; {len(held_locks)} other threads hold it and must release it"
            )
        return held_locks[0]
