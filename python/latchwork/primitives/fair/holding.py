"""What all locks of a session have in common: who holds it here, until when, and how it is released.

Nothing here knows how it is acquired: ``Lock``, both sides of ``ReadWriteLock`` and ``Semaphore`` say that.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable

from latchwork.callers import PerCaller
from latchwork.errors import Closed, ForkedProcess, LatchworkError, LockLost, OwnershipLost, WaitTimeout
from latchwork.interrupts import mutex
from latchwork.primitives.fair.tickets import QueuePosition, TicketQueue
from latchwork.primitives.waiting.common import Patience, tell
from latchwork.primitives.waiting.waits import Waiter, Waits
from latchwork.primitives.waiting.work import GuardsWork, Ownership
from latchwork.store.forks import lost_by_fork
from latchwork.store.observers import listen
from latchwork.store.session import Session
from latchwork.store.steps import Signal, driven, ending
from latchwork.store.store import Store
from latchwork.types import Fence

_log = logging.getLogger(__name__)


class Use:
    """One acquisition of a hold, which has several if it is reentrant."""

    def __init__(self, hold: Hold) -> None:
        self.hold = hold


class Hold:
    """One hold, from its acquisition until its release.

    Attributes:
        place: its ticket or lease, its session and its fence.
        owner: the lock that holds it.
        waiter: what waited for it, with a watch that is closed after the release.
        ownership: what work under it depends on.
        uses: one for each time that its thread acquired it and did not release it, the newest last.
        given_back: set once it is released or closed.
    """

    def __init__(self, place: QueuePosition, owner: SessionLock, waiter: Waiter) -> None:
        self.place = place
        self.owner = owner
        self.waiter = waiter
        self.uses = [Use(self)]
        self.given_back = Signal()
        self.ownership = Ownership.by_session(owner.what, place.fence, place.session, owner.clock, owner.error)
        self.unlisten: Callable[[], None] = lambda: None

    @property
    def is_held(self) -> bool:
        """True while it is ours for certain."""
        return self.remaining_s() > 0.0

    def remaining_s(self) -> float:
        """Seconds it is ours for certain."""
        return self.ownership.remaining_s()


class SessionLock(GuardsWork):
    """The common part of the locks of a session. Safe to share between threads; see ``Lock`` for the arguments.

    With ``several`` a thread may hold it several times, and releases each hold for itself.
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
        several: bool = False,
    ) -> None:
        self._store = store
        self.clock = store.clock
        self.what = what
        self._queue = queue
        self._waits = Waits(store, what, session)
        self._home = self._waits.home
        self._reentrant = reentrant
        self._several = several
        self._lock = mutex()
        self._holds: list[Hold] = []
        self._mine = PerCaller()
        self._listeners: dict[object, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.what} {self.remaining_s():.2f}s>"

    @driven
    async def __enter__(self) -> Fence:
        use = await self._acquire(None)
        self._entered().append(use)
        return use.hold.place.fence

    @ending
    async def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        entered = self._entered()
        use = entered.pop() if entered else self._to_release().uses[-1]  # a with that ends in another thread
        if use.hold.given_back.is_set():
            return  # released inside the block, or closed
        try:
            await use.hold.owner.end(use)
        except (OwnershipLost, ForkedProcess) as error:
            if exc_type is None:
                raise
            _log.warning("%s is not released, and its work failed: %s", self.what, error)

    @driven
    async def acquire(self, timeout_s: float | None = None) -> Fence:
        """Wait for it and return proof of ownership.

        Holding it does not stop a paused process from writing late: pass the fence to every write that matters.

        Args:
            timeout_s: seconds to wait; None waits for ever, 0 tries once. A call that the server does not answer can
                take longer, up to the store's call timeout.
        Returns:
            A fence whose ``token`` grows with each new holder.
        Raises:
            WaitTimeout: others still hold it; nothing of ours is left behind.
            SessionLost: our session ended while waiting.
            LockLost: somebody deleted our ticket while we waited.
            LatchworkError: this thread holds it already and it is not reentrant, or this is a callback.
            Unavailable, OutcomeUnknown: the server could not be reached in that time; nothing is left behind.
            Closed: it, its session or its store was closed.
            ForkedProcess: it was made by the parent of this process.
        Source:
            docs/design/locks.md.
        """
        return (await self._acquire(timeout_s)).hold.place.fence

    @ending
    async def release(self) -> None:
        """Give back what this thread holds; from a thread that holds nothing, what the object holds if that is one.

        The next can have it at once. When the server cannot be reached that goes on in the background, and the session
        ends it at the latest.

        Raises:
            LockLost: it had run out, was ended by somebody else, or is not held.
            LatchworkError: this thread holds nothing, and several others do.
        """
        self._home.check()
        await self.end(self._to_release().uses[-1])

    @ending
    async def close(self) -> None:
        """Release whatever is held through this object, and call off who waits. From any thread; twice is fine."""
        if self._home.is_foreign:
            return
        self._waits.close()
        with self._lock:
            holds = list(self._holds)
        try:
            for hold in holds:
                await self._give_back(hold)
        except BaseException:
            self.abandon()
            raise

    @property
    def fence(self) -> Fence:
        """The fence of the current hold: this thread's newest, else the object's.

        Raises:
            LockLost: it has run out, or is not held.
        """
        return self._held().place.fence

    @property
    def is_held(self) -> bool:
        """True while it is ours for certain, by our own clock. Does no I/O."""
        return self.remaining_s() > 0.0

    @property
    def lost(self) -> Signal:
        """Set when the current hold is lost, by a closed session too, not by a release; ask after each ``acquire``."""
        if self._home.is_foreign:
            return lost_by_fork()
        hold = self._current()
        return hold.ownership.lost if hold is not None else Signal()

    def remaining_s(self) -> float:
        """Seconds it is ours for certain if no further renewal succeeds; 0 when it is not. Does no I/O."""
        hold = self._current()
        return hold.remaining_s() if hold is not None else 0.0

    def on_lost(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn()`` when a hold is lost, its session lost or closed, not on release. Returns what ends that."""
        self._waits.check()
        return listen(self._listeners, fn)

    # What the subclasses say

    @abstractmethod
    async def _take(self, waiter: Waiter, patience: Patience) -> QueuePosition | None:
        """Acquire it; None, and nothing left behind, when the time is over or the waiter was called off."""

    def _before(self) -> None:
        """Refuse an acquisition that makes no sense."""

    # Acquiring

    async def _acquire(self, timeout_s: float | None) -> Use:
        self._home.check()
        again = self._again()
        if again is not None:
            use = Use(again)
            again.uses.append(use)
            return use
        self._before()
        async with self._waits.begin(timeout_s) as (waiter, patience):
            place = await self._take(waiter, patience)
            if place is None:
                self._waits.refuse_closed(waiter.session)
                raise WaitTimeout(await self._timed_out(timeout_s))
            return (await self._had(place, waiter)).uses[0]

    def _again(self) -> Hold | None:
        """This thread's hold, if it has one and may acquire it once more."""
        hold = self._of_thread()
        if hold is None or self._several:
            return None
        if self._reentrant:
            if not hold.is_held:
                raise self.error(f"{self.what} was lost since this thread acquired it; release it, then acquire again")
            return hold
        if hold.is_held:
            raise LatchworkError(f"{self.what} is held by this very thread already; release it first")
        return None

    async def _timed_out(self, timeout_s: float | None) -> str:
        holders = await self._holders_in_words()
        return f"{self.what} is held by {holders} after {timeout_s or 0.0:.3g} s; raise timeout_s, or ask them"

    async def _holders_in_words(self) -> str:
        return await self._queue.first_in_words()

    async def _had(self, place: QueuePosition, waiter: Waiter) -> Hold:
        hold = Hold(place, self, waiter)
        with self._lock:
            surplus = self._waits.is_closed
            if not surplus:
                self._holds.append(hold)
        if surplus:
            hold.ownership.end()
            await self._queue.leave(place)
            raise Closed(f"{self.what} was closed while it was being acquired; make another one")
        waiter.is_kept = True
        self._push(hold)
        hold.unlisten = place.session.on_lost(lambda: hold.owner.lose(hold), or_closed=True)
        if hold.given_back.is_set():  # closed meanwhile, which could not take the listener back
            hold.unlisten()
        _log.debug("%s is held by %s with token %d", self.what, place.ticket.key, place.fence.token)
        return hold

    # Releasing and losing

    async def end(self, use: Use) -> None:
        """Release a hold once; ``LockLost`` if it had run out, or somebody else had ended it."""
        self._home.check()
        hold = use.hold
        if use not in hold.uses:  # its `with` released inside of the block
            use = hold.uses[-1]
        if len(hold.uses) > 1:
            hold.uses = [each for each in hold.uses if each is not use]
            return
        was_held = hold.is_held
        was_there = await self._give_back(hold)
        if not (was_held and was_there):  # by our own clock, or because a third party ended it on the server
            raise self.error(f"{self.what} had run out before its release; what it protected may have been done twice")

    async def _give_back(self, hold: Hold) -> bool:
        """End it here and on the server; False if it was not there any more."""
        if not self._withdraw(hold):
            return True
        try:
            return await self._queue.leave(hold.place)
        finally:
            hold.waiter.close()  # last: the next one waits for the line above

    def _withdraw(self, hold: Hold) -> bool:
        """Hold it no more, as far as this process goes; False if that was so already."""
        with self._lock:
            was_given_back = hold.given_back.is_set()
            hold.given_back.set()
            self._holds = [each for each in self._holds if each is not hold]
        hold.unlisten()
        hold.ownership.end()
        return not was_given_back

    def abandon(self) -> None:
        """Give back all that is held through this object: here now, and on the server in the background."""
        with self._lock:
            holds = list(self._holds)
        for hold in holds:
            if self._withdraw(hold):
                hold.waiter.close()
                self._queue.leave_later(hold.place)

    def lose(self, hold: Hold) -> None:
        """Called in the session's thread for lost listeners; its work heard of it before."""
        if hold.given_back.is_set():
            return  # released just before: nobody has lost anything
        session = hold.place.session
        level, how = (logging.INFO, "was closed") if session.state == "closed" else (logging.WARNING, "is lost")
        _log.log(level, "%s is lost: its session %s %s", self.what, session.id, how)
        tell(list(self._listeners.values()), self.what)

    # Which hold

    def _entered(self) -> list[Use]:
        """The uses of this thread's ``with`` blocks."""
        entered: list[Use] = self._mine.own.setdefault("entered", [])
        return entered

    def _push(self, hold: Hold) -> None:
        self._stack().append(hold)

    def _stack(self) -> list[Hold]:
        """What this thread acquired and did not release, the newest last."""
        own = self._mine.own
        stack: list[Hold] = [hold for hold in own.get("stack", ()) if not hold.given_back.is_set()]
        own["stack"] = stack
        return stack

    def _of_thread(self) -> Hold | None:
        stack = self._stack()
        return stack[-1] if stack else None

    def _current(self) -> Hold | None:
        if self._home.is_foreign:
            return None
        hold = self._of_thread()
        if hold is None:
            with self._lock:
                hold = self._holds[-1] if self._holds else None
        return hold

    def _owned(self) -> Ownership:
        return self._held().ownership

    def _held(self) -> Hold:
        hold = self._current()
        if hold is None or not hold.is_held:
            raise self.error(f"{self.what} is not held any more by this object; stop what it protected")
        return hold

    def _to_release(self) -> Hold:
        hold = self._of_thread()
        if hold is not None:
            return hold
        with self._lock:
            holds = list(self._holds)
        if not holds:
            raise self.error(f"{self.what} is not held by this object; acquire it first")
        if len(holds) > 1:
            raise LatchworkError(
                f"{self.what}: this thread holds nothing; {len(holds)} other threads do, let them release"
            )
        return holds[0]
