"""A taken item: ours until we acknowledge it, give it back, or our session ends.

The claim is a session-bound key; every end of it is one transaction on condition that the claim is unchanged and its
session alive, so of all that ever took an item at most one can end it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from latchwork.errors import Conflict, LatchworkError, LockLost, OutcomeUnknown
from latchwork.primitives.queue.items import Item, Names
from latchwork.primitives.waiting.common import Patience, check_text
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.primitives.waiting.work import GuardsWork, Ownership
from latchwork.store.driving.background import Background
from latchwork.store.forks import Home, lost_by_fork
from latchwork.store.observers import check_listener
from latchwork.store.session import Session
from latchwork.store.steps import OnInterrupt, Signal, ask, driven, ending, steps_of
from latchwork.store.store import Store
from latchwork.types import At, Check, Create, Delete, Entry, Fence, Op, Put

_log = logging.getLogger(__name__)

#: Seconds to go on trying to end a claim while the server cannot be reached.
TIMEOUT_S = 30.0


class Claim(GuardsWork):
    """One item taken from a queue: ``with queue.take() as claim: handle(claim.value)``.

    The end of the ``with`` acknowledges it; an exception gives it back. Safe to share between threads.

    Attributes:
        id: of the item.
        value: what was put.
        attempts: how often the item was taken, this time included.
        priority: 0 to 9.
    """

    def __init__(
        self, store: Store, names: Names, item: Item, value: bytes, claim: Entry, *, session: Session, most: int
    ) -> None:
        self.id = item.id
        self.value = value
        self.attempts = item.attempts
        self.priority = item.priority
        self._store = store
        self._names = names
        self._item = item
        self._claim = claim
        self._session = session
        self._most = most
        self._what = f"item {item.id} of queue {names.name!r}"
        self._home = Home(self._what)
        self._is_over = False
        self._is_ending = False
        self._is_doubtful = False
        fence = store.fence(claim.created, At(claim), session.fence)
        self._ownership = Ownership.by_session(self._what, fence, session, store.clock)

    def __repr__(self) -> str:
        return f"<Claim of {self._what}, attempt {self.attempts}, {self.remaining_s():.2f}s>"

    def __enter__(self) -> Claim:
        return self

    @ending
    async def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, *_: object) -> None:
        if self._is_over:
            return
        await OnInterrupt(partial(self._end_later, exc))
        if exc_type is None:
            await steps_of(self.ack)()
            return
        try:
            await steps_of(self.release)(repr(exc))
        except LatchworkError as error:  # the failure of the work is what the caller has to see
            _log.warning("%s could not be given back, its session will: %s", self._what, error)

    def _end_later(self, exc: BaseException | None) -> None:
        """After an interrupt: go on with the end of a ``with``, unless that is over."""
        if not self._is_over and not self._home.is_foreign:
            Background(partial(self._end_quietly, exc), f"latchwork-claims-{self._names.name}")

    async def _end_quietly(self, exc: BaseException | None) -> None:
        try:
            await (steps_of(self.ack)() if exc is None else steps_of(self.release)(repr(exc)))
        except LatchworkError as error:
            _log.warning("%s: what was to end it was interrupted, and then failed: %s", self._what, error)

    @property
    def fence(self) -> Fence:
        """The check that the item is still ours, for every write that depends on it."""
        return self._ownership.fence

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
        return 0.0 if self._is_over or self._is_ending else self._ownership.remaining_s()

    def _owned(self) -> Ownership:
        return self._ownership

    @driven
    async def ack(self, checks: Sequence[Check] = (), ops: Sequence[Op] = (), *, timeout_s: float = TIMEOUT_S) -> None:
        """The item is done: remove it, in one transaction with writes of yours if you like.

        What is written here is written once, however often the item was taken.

        Args:
            checks: must hold too.
            ops: written in the same transaction.
            timeout_s: seconds to go on trying while the server cannot be reached.
        Raises:
            LockLost: it is not ours any more, and nothing was changed: it will be, or was, done by another.
            Conflict: one of your checks or writes did not hold; it is still ours.
            Unavailable: not done, and still ours for a while.
            OutcomeUnknown: done or not: the session ended before that could be found out.
        """
        await self._end([*self._delete(), *ops], checks, timeout_s)

    @driven
    async def release(self, why: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        """Give the item back, to its old place; after the last attempt, to the dead letters. Errors as for ``ack``."""
        check_text(why, "the reason")
        if self.attempts >= self._most:
            await steps_of(self.bury)(why or f"given back {self.attempts} times", timeout_s=timeout_s)
            return
        item = self._item.given_back(why)
        await self._end([Put(self._names.item(self.id), item.to_bytes()), Delete(self._claim.key)], (), timeout_s)

    @driven
    async def bury(self, why: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        """Put the item among the dead letters, whatever its attempts. Errors as for ``ack``."""
        check_text(why, "the reason")
        letter = Create(self._names.letter(self.id), self._item.given_back(why).to_bytes())
        await self._end([*self._delete(keep_data=True), letter], (), timeout_s)

    def _delete(self, *, keep_data: bool = False) -> list[Op]:
        data = [Delete(self._names.data(self._item.data_id))] if self._item.data_id and not keep_data else []
        return [Delete(self._names.item(self.id)), Delete(self._claim.key), *data]

    async def _end(self, ops: Sequence[Op], checks: Sequence[Check], timeout_s: float) -> None:
        self._home.check()
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
        self._ownership.end()

    def _be_unsure(self) -> None:
        """After an interrupt: it may be over, which the next try finds out."""
        self._is_ending = False
        self._is_doubtful = True

    async def _commit(self, ops: Sequence[Op], checks: Sequence[Check]) -> None:
        """Commit once. While our session lives, nobody but us removes the claim."""
        try:
            await ask(self._store.commit, [self.fence, *checks], ops)
        except Conflict as error:
            if await self._is_there():
                raise
            if self._is_doubtful and self._session.remaining_s() > 0.0:
                return  # an earlier try got through, its answer did not
            self._is_over = True
            self._ownership.end()
            raise self._lost() from error
        except OutcomeUnknown:
            self._is_doubtful = True
            if await self._is_there() or self._session.remaining_s() <= 0.0:
                raise

    async def _is_there(self) -> bool:
        now = await ask(self._store.get, self._claim.key)
        return now is not None and now.version == self._claim.version

    def _lost(self) -> LockLost:
        return LockLost(f"{self._what} is not ours any more, nothing was changed; whoever has it now will end it")
