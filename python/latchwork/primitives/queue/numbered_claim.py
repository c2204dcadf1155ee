"""A taken item of a queue; see ``taken``."""

from __future__ import annotations

from collections.abc import Sequence

from latchwork.primitives.queue.numbered_items import Item, Names
from latchwork.primitives.queue.taken import TIMEOUT_S, Taken
from latchwork.primitives.waiting.common import check_text
from latchwork.store.session import Session
from latchwork.store.steps import driven, steps_of
from latchwork.store.store import Store
from latchwork.types import Check, Create, Delete, Entry, Op, Put


class Claim(Taken):
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
        self._names = names
        self._item = item
        self._most = most
        what = f"item {item.id} of queue {names.name!r}"
        super().__init__(store, claim, (), session=session, what=what)

    def __repr__(self) -> str:
        return f"<Claim of {self._what}, attempt {self.attempts}, {self.remaining_s():.2f}s>"

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

    async def _acknowledge(self) -> None:
        await steps_of(self.ack)()

    async def _give_back(self, why: str) -> None:
        await steps_of(self.release)(why)
