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
    """One call of ``acquire``. A thread that acquires a reentrant lock again gets another acquisition of the same
    hold.
    """

    def __init__(self, hold: Hold) -> None:
        self.hold = hold


class Hold:
    """A lock that this process holds, from its acquisition to its release.

    Args:
        position: Its ticket or lease, with session and fence.
        owner: The lock object.
        waiter: The waiter that acquired it.

    Attributes:
        position: Its ticket or lease, with session and fence.
        owner: The lock object.
        waiter: The waiter that acquired it. Its watch is closed after the release.
        ownership: The proof of ownership for work that depends on the lock.
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
        allow_several: Whether a thread may hold the lock several times, and must release each hold separately.
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
        self._holds: list[Hold] = []
        self._mine = PerCaller()
        self._listeners: dict[object, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.what} {self.remaining_s():.2f}s>"

    @blocking
    async def __enter__(self) -> Fence:
        acquisition = await self._acquire(None)
        self._acquisitions_of_with_blocks().append(acquisition)
        return acquisition.hold.position.fence

    @shielded
    async def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        entered = self._acquisitions_of_with_blocks()
        acquisition = (
            entered.pop() if entered else self._hold_to_release().acquisitions[-1]
        )  # a with that ends in another thread
        if acquisition.hold.released.is_set():
            return  # released inside the block, or closed
        try:
            await acquisition.hold.owner.release_acquisition(acquisition)
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
        return (await self._acquire(timeout_s)).hold.position.fence

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
        await self.release_acquisition(self._hold_to_release().acquisitions[-1])

    @shielded
    async def close(self) -> None:
        """Release all locks held through this object, and make its waiting calls raise ``Closed``. Thread-safe and
        idempotent.
        """
        if self._home.is_foreign:
            return
        self._waits.close()
        with self._lock:
            holds = list(self._holds)
        try:
            for hold in holds:
                await self._release_hold(hold)
        except BaseException:
            self.abandon()
            raise

    @property
    def fence(self) -> Fence:
        """The fence of the lock that this thread acquired last, or that of another thread if this one holds nothing.

        Raises:
            LockLost: The lock has expired, or is not held.
        """
        return self._require_hold().position.fence

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
        hold = self._current_hold()
        return hold.ownership.lost if hold is not None else Signal()

    def remaining_s(self) -> float:
        """Return for how many seconds the lock is certainly held without a further renewal. Performs no I/O.

        The result is 0 if the lock is not held.
        """
        hold = self._current_hold()
        return hold.remaining_s() if hold is not None else 0.0

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
        again = self._reentrant_hold()
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

    def _reentrant_hold(self) -> Hold | None:
        """Return what this thread holds already, if it may acquire the lock again. None if a new acquisition is needed.

        Raises:
            LatchworkError: This thread holds the lock, and the lock is not reentrant.
        """
        hold = self._hold_of_thread()
        if hold is None or self._allows_several:
            return None
        if self._reentrant:
            if not hold.is_held:
                raise self.error(f"{self.what} was lost since this thread acquired it; release it, then acquire again")
            return hold
        if hold.is_held:
            raise LatchworkError(f"{self.what} is already held by this thread; release it first")
        return None

    async def _timeout_message(self, timeout_s: float | None) -> str:
        holders = await self._describe_holders()
        return f"{self.what} is held by {holders} after {timeout_s or 0.0:.3g} s; raise timeout_s, or ask them"

    async def _describe_holders(self) -> str:
        return await self._queue.describe_first()

    async def _on_acquired(self, position: QueuePosition, waiter: Waiter) -> Hold:
        hold = Hold(position, self, waiter)
        with self._lock:
            surplus = self._waits.is_closed
            if not surplus:
                self._holds.append(hold)
        if surplus:
            hold.ownership.end()
            await self._queue.leave(position)
            raise Closed(f"{self.what} was closed while it was being acquired; create another one")
        waiter.is_kept = True
        self._push(hold)
        hold.remove_listener = position.session.on_lost(lambda: hold.owner.on_hold_lost(hold), or_closed=True)
        if hold.released.is_set():  # closed meanwhile, which could not take the listener back
            hold.remove_listener()
        _log.debug("%s is held by %s with token %d", self.what, position.ticket.key, position.fence.token)
        return hold

    # Releasing and losing

    async def release_acquisition(self, acquisition: Acquisition) -> None:
        """Release one acquisition of the lock. The last one releases the lock.

        Raises:
            LockLost: The lock has expired or was ended by another client.
        """
        self._home.check()
        hold = acquisition.hold
        if acquisition not in hold.acquisitions:  # its `with` released inside of the block
            acquisition = hold.acquisitions[-1]
        if len(hold.acquisitions) > 1:
            hold.acquisitions = [each for each in hold.acquisitions if each is not acquisition]
            return
        was_held = hold.is_held
        was_there = await self._release_hold(hold)
        if not (was_held and was_there):  # by our own clock, or because a third party ended it on the server
            raise self.error(
                f"{self.what} had expired before its release; the work that it protected may have been done twice"
            )

    async def _release_hold(self, hold: Hold) -> bool:
        """Release a held lock in this process and on the server. Return False if it had already ended on the server."""
        if not self._end_hold_locally(hold):
            return True
        try:
            return await self._queue.leave(hold.position)
        finally:
            hold.waiter.close()  # last: the next one waits for the line above

    def _end_hold_locally(self, hold: Hold) -> bool:
        """End a held lock in this process only. Return False if it had already ended."""
        with self._lock:
            was_released = hold.released.is_set()
            hold.released.set()
            self._holds = [each for each in self._holds if each is not hold]
        hold.remove_listener()
        hold.ownership.end()
        return not was_released

    def abandon(self) -> None:
        """Release all locks of this object: in this process now, and on the server in the background."""
        with self._lock:
            holds = list(self._holds)
        for hold in holds:
            if self._end_hold_locally(hold):
                hold.waiter.close()
                self._queue.leave_in_background(hold.position)

    def on_hold_lost(self, hold: Hold) -> None:
        """Report that a held lock was lost with its session. Called in a callback thread, after work was asked to
        stop.
        """
        if hold.released.is_set():
            return  # released just before: nothing was lost
        session = hold.position.session
        level, how = (logging.INFO, "was closed") if session.state == "closed" else (logging.WARNING, "is lost")
        _log.log(level, "%s is lost: its session %s %s", self.what, session.id, how)
        call_listeners(list(self._listeners.values()), self.what)

    # Which hold

    def _acquisitions_of_with_blocks(self) -> list[Acquisition]:
        """Return the acquisitions made by the ``with`` blocks that this thread is in, outermost first."""
        entered: list[Acquisition] = self._mine.values.setdefault("entered", [])
        return entered

    def _push(self, hold: Hold) -> None:
        self._holds_of_thread().append(hold)

    def _holds_of_thread(self) -> list[Hold]:
        """Return the locks that this thread acquired and has not released, newest last."""
        own = self._mine.values
        stack: list[Hold] = [hold for hold in own.get("stack", ()) if not hold.released.is_set()]
        own["stack"] = stack
        return stack

    def _hold_of_thread(self) -> Hold | None:
        stack = self._holds_of_thread()
        return stack[-1] if stack else None

    def _current_hold(self) -> Hold | None:
        if self._home.is_foreign:
            return None
        hold = self._hold_of_thread()
        if hold is None:
            with self._lock:
                hold = self._holds[-1] if self._holds else None
        return hold

    def _get_ownership(self) -> Ownership:
        return self._require_hold().ownership

    def _require_hold(self) -> Hold:
        hold = self._current_hold()
        if hold is None or not hold.is_held:
            raise self.error(f"{self.what} is no longer held by this object; stop the work that it protected")
        return hold

    def _hold_to_release(self) -> Hold:
        hold = self._hold_of_thread()
        if hold is not None:
            return hold
        with self._lock:
            holds = list(self._holds)
        if not holds:
            raise self.error(f"{self.what} is not held by this object; acquire it first")
        if len(holds) > 1:
            raise LatchworkError(
                f"{self.what} is not held by this thread; {len(holds)} other threads hold it and must release it"
            )
        return holds[0]
