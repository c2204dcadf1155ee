"""A taken item of any queue: ours until we end that, or our session ends.

The claim is a session-bound key; every end of it is one transaction on condition that the claim is unchanged and its
session alive, so of all that ever took an item at most one can end it.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from enum import Enum
from functools import partial

from latchwork.errors import Conflict, LatchworkError, LockLost, OutcomeUnknown, OwnershipLost
from latchwork.interrupts import Itself
from latchwork.primitives.waiting.common import Patience
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.primitives.waiting.work import GuardsWork, Ownership
from latchwork.store.forks import Home, lost_by_fork
from latchwork.store.observers import check_listener
from latchwork.store.session import Session
from latchwork.store.steps import OnInterrupt, Signal, ask, ending
from latchwork.store.store import Store
from latchwork.types import At, Check, Entry, Fence, Op

_log = logging.getLogger(__name__)

#: Seconds to go on trying to end a claim while the server cannot be reached.
TIMEOUT_S = 30.0


class Standing(Enum):
    """What the store says of a claim that we have had."""

    OURS = "ours"
    GONE = "gone"
    REMOVED = "removed"  # the claim is there, and its item is not the one that was taken


class Taken(GuardsWork):
    """One taken item: the end of a ``with`` acknowledges it, an exception gives it back. Safe to share between threads.

    Args:
        store: where it is.
        claim: its entry.
        checks: what holds beside that as long as the item is ours.
        session: that the claim is bound to.
        what: the item in words, for messages.
    """

    def __init__(self, store: Store, claim: Entry, checks: Sequence[Check], *, session: Session, what: str) -> None:
        self._store = store
        self._claim = claim
        self._session = session
        self._what = what
        self._home = Home(what)
        self._is_over = False
        self._is_ending = False
        self._is_doubtful = False
        self._checks = checks
        self._fence: Fence | None = None
        self._made: Ownership | None = None

    __enter__ = Itself()

    @ending
    async def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, *_: object) -> None:
        if self._is_over:
            return
        await OnInterrupt(partial(self._end_later, exc))
        if exc_type is None:
            await self._acknowledge()
            return
        try:
            await self._give_back(repr(exc))
        except LatchworkError as error:  # the failure of the work is what the caller has to see
            _log.warning("%s could not be given back, its session will: %s", self._what, error)

    def _end_later(self, exc: BaseException | None) -> None:
        """After an interrupt: go on with the end of a ``with``, unless that is over."""
        if not self._is_over and not self._home.is_foreign:
            self._store.cleanup.add(partial(self._end_quietly, exc))

    async def _end_quietly(self, exc: BaseException | None) -> None:
        try:
            await (self._acknowledge() if exc is None else self._give_back(repr(exc)))
        except LatchworkError as error:
            _log.warning("%s: what was to end it was interrupted, and then failed: %s", self._what, error)

    @abstractmethod
    async def _acknowledge(self) -> None:
        """The item is done."""

    @abstractmethod
    async def _give_back(self, why: str) -> None:
        """The item is not done."""

    @property
    def fence(self) -> Fence:
        """The check that the item is still ours, for every write that depends on it."""
        if self._fence is None:
            self._fence = self._store.fence(self._claim.created, At(self._claim), *self._checks, self._session.fence)
        return self._fence

    @property
    def session(self) -> Session:
        """The session that the claim lives by."""
        return self._session

    @property
    def is_held(self) -> bool:
        """True while it is ours for certain, by our own clock. Does no I/O."""
        return self.remaining_s() > 0.0

    @property
    def lost(self) -> Signal:
        """Set when it is lost with the session by which we hold it, also when that is closed."""
        return lost_by_fork() if self._home.is_foreign else self._ownership.lost

    def on_lost(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn()`` if it is lost with the session by which we hold it, lost or closed. Returns what ends that.

        Not when it is acknowledged or given back.
        """
        self._home.check()
        check_listener(fn)
        return self._session.on_lost(lambda: None if self._is_over else fn(), or_closed=True)

    def remaining_s(self) -> float:
        """Seconds it is ours for certain if no further renewal of the session succeeds. Does no I/O."""
        return 0.0 if self._is_over or self._is_ending else self._session.remaining_s()

    def _owned(self) -> Ownership:
        return self._ownership

    @property
    def _ownership(self) -> Ownership:
        """Made when somebody asks: most claims come to their end without."""
        if self._made is None:
            new = Ownership.by_session(self._what, self.fence, self._session, self._store.clock)
            made = self.__dict__.setdefault("_first", new)
            self._made = made
            if made is not new:  # another thread was faster
                new.end()
            if self._is_over:
                made.end()
        return self._made

    def _end_ownership(self) -> None:
        if self._made is not None:
            self._made.end()

    async def _end(self, ops: Sequence[Op], checks: Sequence[Check], timeout_s: float) -> None:
        self._home.check()
        try:
            await self._try_to_end(ops, checks, timeout_s)
        except OwnershipLost as error:
            if not self._is_doubtful:
                raise
            raise OutcomeUnknown(str(error)) from error

    async def _try_to_end(self, ops: Sequence[Op], checks: Sequence[Check], timeout_s: float) -> None:
        if self._is_over or self._session.remaining_s() <= 0.0:
            raise self._lost()
        patience = Patience(self._store.clock, timeout_s)
        await OnInterrupt(self._be_unsure)
        self._is_ending = True  # once it is written another may take the item, before we hear that it was
        try:
            with closing(Waiter(self._store, self._session)) as waiter:
                await waiter.keep_trying(lambda: self._commit(ops, checks), patience)
            self._is_over = True
        finally:
            self._is_ending = False
        self._finish()

    def _finish(self) -> None:
        """It has come to its end, by our own doing."""
        self._is_over = True
        self._is_ending = self._is_doubtful = False
        self._end_ownership()

    def _be_unsure(self) -> None:
        """After an interrupt: it may be over, which the next try finds out."""
        self._is_ending = False
        self._is_doubtful = True

    async def _commit(self, ops: Sequence[Op], checks: Sequence[Check]) -> None:
        """Commit once. While our session lives, nobody but us removes the claim."""
        try:
            await ask(self._store.commit, [self.fence, *checks], ops)
        except Conflict as error:
            standing = await self._look()
            if standing is Standing.OURS:
                raise
            self._settle(standing, error)
        except OutcomeUnknown as error:
            self._is_doubtful = True
            standing = await self._look()
            if standing is Standing.OURS or self._session.remaining_s() <= 0.0:
                raise
            self._settle(standing, error)

    async def _has_landed(self, error: LatchworkError) -> bool:
        """Whether a commit that raised this has ended it; raises if it was lost."""
        self._home.check()
        self._is_doubtful = self._is_doubtful or isinstance(error, OutcomeUnknown)
        standing = await self._look()
        if standing is Standing.OURS:
            return False
        self._settle(standing, error)
        self._finish()
        return True

    def _settle(self, standing: Standing, error: LatchworkError) -> None:
        """Return if an earlier try got through and its answer did not; raise if the item was lost."""
        if standing is Standing.GONE and self._is_doubtful and self._session.remaining_s() > 0.0:
            return
        self._is_over = True
        if standing is Standing.REMOVED:  # our end would have taken the claim along
            self._is_doubtful = False
        self._end_ownership()
        raise self._lost(standing) from error

    async def _look(self) -> Standing:
        """What the store says of the claim."""
        now = await ask(self._store.get, self._claim.key)
        return Standing.OURS if now is not None and now.version == self._claim.version else Standing.GONE

    def _lost(self, standing: Standing = Standing.GONE) -> LockLost:
        if standing is Standing.REMOVED:
            return LockLost(f"{self._what} was removed while it was ours, nothing was changed; stop the work on it")
        if self._is_doubtful:
            return LockLost(f"{self._what} is not ours any more, and whether we had ended it cannot be found out")
        return LockLost(f"{self._what} is not ours any more, nothing was changed; whoever has it now will end it")
