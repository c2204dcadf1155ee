"""One persistent lock: it outlives its process and its session for a TTL, then others may take it over.

Keys:   locks/<name>      who holds it
        owners/<uuid>     its owner, rewritten every third of the TTL
Holder: see ``keeper``; to hold many locks, share one keeper among them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from latchwork.errors import Closed, LatchworkError, LockLost
from latchwork.interrupts import mutex
from latchwork.primitives.persistent.held import HeldLock
from latchwork.primitives.persistent.keeper import LockKeeper
from latchwork.primitives.persistent.outside import LockHolder, state_of
from latchwork.primitives.persistent.protocol import LOCKS_PREFIX, OWNERS_PREFIX, raised_ttl_s
from latchwork.primitives.persistent.table import LockTable
from latchwork.primitives.waiting.common import check_name, check_text, lost_by_fork, tell
from latchwork.primitives.waiting.work import GuardsWork, Ownership
from latchwork.store.forks import Home
from latchwork.store.observers import listen
from latchwork.store.steps import Steps, driven, run, steps_of
from latchwork.store.store import Store
from latchwork.types import Fence

_log = logging.getLogger(__name__)


class PersistentLock(GuardsWork):
    """An exclusive lock that its holder keeps through disconnects, and that others get after its TTL when it dies.

    Construction does no I/O. Safe to share between threads: they exclude each other as processes do. Not reentrant: a
    thread that holds it gets an error when it asks again. Not fair: whoever notices first takes a free lock. Used with
    ``with`` it acquires and releases, any number of times; otherwise call ``close()`` in the end, which also ends the
    thread that renews (the end of the store does so too).

    Args:
        store: the store, or a namespace of it.
        name: the lock's name: one or more key segments.
        ttl_s: seconds the lock outlives its last renewal; less than 0.3 is raised to that, with a logged warning.
            Ignored when a keeper is given.
        keeper: renews this lock together with others; it stays the caller's. None makes one for this lock alone.
        owner_label: what others see when they ask who holds it; ignored when a keeper is given.
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
        self.name = check_name(name, "lock")
        self._store = store
        self._ttl_s = raised_ttl_s(ttl_s, f"lock {name!r}") if keeper is None else keeper.ttl_s
        self._owner_label = check_text(owner_label, f"the owner_label of lock {name!r}")
        self._given = keeper
        self._own: LockKeeper | None = None
        self._lock = mutex()
        self._held: HeldLock | None = None
        self._holder_thread = 0
        self._entered = threading.local()  # the hold of a thread's own ``with``: it must not release another's
        self._acquiring = 0
        self._home = Home(f"lock {name!r}")
        self._lost_listeners: dict[object, Callable[[], None]] = {}
        self._failed_listeners: dict[object, Callable[[BaseException, float], None]] = {}
        self._listening = ExitStack()
        self._closed = False

    def __repr__(self) -> str:
        return f"<PersistentLock {self.name!r} {self.remaining_s():.2f}s>"

    def __enter__(self) -> Fence:
        self._home.check()
        try:
            held = run(self._acquire(None))
        except BaseException:
            run(self._end_keeper(only_idle=True))
            raise
        self._entered.held = held
        return held.fence

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is None:
            self._home.check()
        if self._home.is_foreign:
            return
        held: HeldLock | None = getattr(self._entered, "held", self._held)  # a with may end in another thread
        try:
            if held is not None and not self._closed:
                run(self._release(held))
        except LockLost:
            if exc_type is None:
                raise
            _log.warning("lock %r was lost while its work failed", self.name)
        finally:
            run(self._end_keeper(only_idle=True))

    @driven
    async def acquire(self, timeout_s: float | None = None) -> Fence:
        """Wait for the lock and return proof of ownership.

        Holding the lock does not stop a paused process from writing late: pass the fence to every write that matters.

        Args:
            timeout_s: seconds to wait; None waits for ever, 0 tries once.
        Returns:
            A fence whose ``token`` grows with each new holder.
        Raises:
            WaitTimeout: still held by another.
            LatchworkError: this thread holds it already, through this object.
            Unavailable, OutcomeUnknown: the server could not be reached in that time; nothing is left behind.
            Closed: the lock, its keeper or its store was closed.
        Source:
            docs/design/0006.
        """
        return (await self._acquire(timeout_s)).fence

    @driven
    async def adopt(self, owner_id: str, timeout_s: float | None = None) -> Fence:
        """Take the lock over from our own process before its restart, at once, without waiting for its TTL to end.

        The caller has to know that the earlier process has stopped its work. The lock passes from exactly that owner
        to us, with a new fence: writes under the old one are refused from then on. See ``LockKeeper.adopt``.

        Args:
            owner_id: the earlier owner: its ``owner_id``, kept by the caller, or that of ``holder()``.
            timeout_s: seconds to wait for a server that cannot be reached; None waits for ever, 0 tries once.
        Raises:
            LockLost: that owner does not hold it any more; acquire it.
            Unavailable, OutcomeUnknown, Closed, LatchworkError: as for ``acquire``.
        """

        async def inherit(keeper: LockKeeper) -> HeldLock:
            held = (await steps_of(keeper.adopt)(owner_id, [self.name], timeout_s)).get(self.name)
            if held is None:
                raise LockLost(f"lock {self.name!r} is not held by owner {owner_id!r} any more; acquire it instead")
            return held

        return (await self._have(inherit)).fence

    @driven
    async def release(self) -> None:
        """Give the lock back; somebody else can have it at once.

        When the server cannot be reached its keeper goes on trying, and the lock runs out at the latest.

        Raises:
            LockLost: it had run out, or was not held.
            ForkedProcess: it was made by the parent of this process.
        """
        self._home.check()
        held = self._held
        if held is None:
            raise LockLost(f"lock {self.name!r} is not held by this object; acquire it first")
        await self._release(held)

    @driven
    async def close(self) -> None:
        """Release the lock if it is held, and end its own keeper. From any thread; twice is fine."""
        if self._home.is_foreign:
            return
        with self._lock:
            self._closed = True
            held, self._held = self._held, None
        if held is not None and self._given is not None:
            try:
                await steps_of(held.release)()
            except LockLost as error:
                _log.warning("lock %r was closed after it was lost: %s", self.name, error)
        await self._end_keeper()

    @property
    def fence(self) -> Fence:
        """The fence of the current hold.

        Raises:
            LockLost: it has run out, or is not held.
        """
        return self._current().fence

    @property
    def owner_id(self) -> str:
        """The id of the owner of the current hold. If it is stored, ``adopt`` can take the lock over after a restart.

        Raises:
            LockLost: it has run out, or is not held.
        """
        return self._current().owner_id

    @property
    def is_held(self) -> bool:
        """True while the lock is ours for certain, by our own clock."""
        held = self._held
        return held is not None and held.is_held

    @property
    def lost(self) -> threading.Event:
        """Set when the current hold runs out; ask again after each ``acquire``."""
        if self._home.is_foreign:
            return lost_by_fork()
        held = self._held
        return held.lost if held is not None else threading.Event()

    def remaining_s(self) -> float:
        """Seconds the lock is ours for certain if no further renewal succeeds; 0 when it is not. Does no I/O."""
        held = self._held
        return held.remaining_s() if held is not None else 0.0

    def on_lost(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn()`` each time a hold runs out or is taken over: stop what it protected. Not on release.

        Returns a function that ends that.
        """
        self._refuse_closed()
        return listen(self._lost_listeners, fn)

    def on_prolong_failed(self, fn: Callable[[BaseException, float], None]) -> Callable[[], None]:
        """Call ``fn(error, remaining_s)`` when a renewal of the hold fails, or is not answered; it is ours that long.

        Returns a function that ends that.
        """
        self._refuse_closed()
        return listen(self._failed_listeners, fn)

    @driven
    async def holder(self) -> LockHolder | None:
        """Who holds it as last written, this process included; None if nobody. Takes nothing."""
        if self._given is not None:
            return (await steps_of(self._given.state)(self.name)).holder
        return (await state_of(LockTable(self._store, OWNERS_PREFIX, LOCKS_PREFIX), self.name)).holder

    def _refuse_closed(self) -> None:
        self._home.check()
        if self._closed:
            raise Closed(f"lock {self.name!r} was closed; make another one")

    def _current(self) -> HeldLock:
        held = self._held
        if held is None or not held.is_held:
            raise LockLost(f"lock {self.name!r} is not held any more by this object; stop what it protected")
        return held

    def _owned(self) -> Ownership:
        return self._current().ownership

    async def _acquire(self, timeout_s: float | None) -> HeldLock:
        return await self._have(lambda keeper: steps_of(keeper.acquire)(self.name, timeout_s))

    async def _have(self, take: Callable[[LockKeeper], Steps[HeldLock]]) -> HeldLock:
        self._home.check()
        keeper = self._keeper_for_use()
        held: HeldLock | None = None
        try:
            held = await take(keeper)
        finally:
            with self._lock:
                self._acquiring -= 1
                surplus = self._closed
                if held is not None and not surplus:
                    self._held = held
                    self._holder_thread = threading.get_ident()
        if surplus:
            await steps_of(held.release)()
            raise Closed(f"lock {self.name!r} was closed while it was being acquired; make another one")
        return held

    async def _release(self, held: HeldLock) -> None:
        with self._lock:
            if self._held is held:
                self._held = None
        await steps_of(held.release)()

    def _keeper_for_use(self) -> LockKeeper:
        """The keeper, counted as in use until the acquisition has ended."""
        with self._lock:
            self._refuse_closed()
            is_mine = self._holder_thread == threading.get_ident()
            if is_mine and self._held is not None and self._held.is_held:
                raise LatchworkError(f"lock {self.name!r} is held by this very thread already; release it first")
            keeper = self._given or self._own
            if keeper is None:
                keeper = self._own = LockKeeper(self._store, ttl_s=self._ttl_s, owner_label=self._owner_label)
            self._listening.close()
            self._listening.callback(keeper.on_lost(self._lost))
            self._listening.callback(keeper.on_prolong_failed(self._prolong_failed))
            self._acquiring += 1
            return keeper

    def _lost(self, names: tuple[str, ...]) -> None:
        if self.name in names and self._held is not None:
            tell(list(self._lost_listeners.values()), f"lock {self.name!r}")

    def _prolong_failed(self, error: BaseException, remaining_s: float) -> None:
        if self._held is not None:
            calls = [partial(fn, error, remaining_s) for fn in list(self._failed_listeners.values())]
            tell(calls, f"lock {self.name!r}")

    async def _end_keeper(self, *, only_idle: bool = False) -> None:
        """Stop listening, and end the keeper if it is ours; a later ``acquire`` makes another.

        With ``only_idle`` this does nothing while another thread holds the lock through it, or acquires it.
        """
        with self._lock:
            if only_idle and (self._acquiring > 0 or self._held is not None):
                return
            keeper, self._own = self._own, None
            self._listening.close()
        if keeper is not None:
            await steps_of(keeper.close)()
