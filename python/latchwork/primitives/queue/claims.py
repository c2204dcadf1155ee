"""A taken item of a work queue; see ``taken``.

What holds while it is ours: the claim is unchanged, its session alive, and the item as we wrote it when we took it. So
of an item that is removed, or removed and put anew, while somebody has it, that one can end nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latchwork.errors import Conflict, LatchworkError, LockLost
from latchwork.primitives.queue.in_doubt import delete_claim_later
from latchwork.primitives.queue.items import Names, QueueItem, letter_op, other_letter, sort_key_op
from latchwork.primitives.queue.taken import TIMEOUT_S, Standing, Taken
from latchwork.primitives.waiting.common import check_text
from latchwork.primitives.waiting.waits import check_member
from latchwork.store.session import Session
from latchwork.store.steps import ask, driven, steps_of
from latchwork.store.store import Store
from latchwork.types import Check, Create, Delete, Entry, Op, Put


@dataclass(frozen=True, slots=True)
class Holding:
    """What claims of one backlog share.

    Attributes:
        store: where it is.
        names: its keys.
        most: attempts that an item has.
    """

    store: Store
    names: Names
    most: int


class QueueClaim(Taken):
    """One item taken from a work queue: ``with claim: handle(claim.value)``.

    The end of the ``with`` acknowledges it; an exception gives it back. Safe to share between threads.

    Attributes:
        item: as it was taken: with this attempt counted.
        value: what was put.
        attempts: how often it was taken, this time included.
    """

    def __init__(self, held: Holding, item: QueueItem, value: bytes, claim: Entry, *, session: Session) -> None:
        self.item = item
        self.value = value
        self.attempts = item.attempts
        self._held = held
        self._names = held.names
        what = f"item {item.path!r} of work queue {held.names.name!r}"
        super().__init__(held.store, claim, [item.check], session=session, what=what)

    def __repr__(self) -> str:
        return f"<QueueClaim of {self._what}, attempt {self.attempts}, {self.remaining_s():.2f}s>"

    @property
    def is_last(self) -> bool:
        """Whether the item has had all its attempts: given back, and counted, it becomes a dead letter."""
        return self.attempts >= self._held.most

    @driven
    async def ack(self, checks: Sequence[Check] = (), ops: Sequence[Op] = (), *, timeout_s: float = TIMEOUT_S) -> None:
        """The item is done: remove it, in one transaction with writes of yours if you like.

        What is written here is written once, however often the item was taken.

        Args:
            checks: must hold too.
            ops: written in the same transaction.
            timeout_s: seconds to go on trying while the server cannot be reached.
        Raises:
            LockLost: it is not ours any more, or was removed; nothing was changed.
            Conflict: one of your checks or writes did not hold; it is still ours.
            Unavailable: not done, and still ours for a while.
            OutcomeUnknown: done or not: the session ended before that could be found out.
        """
        await self._end([*self._delete(), *ops], checks, timeout_s)

    @driven
    async def release(
        self,
        why: str = "",
        *,
        count: bool = True,
        partition: str | None = None,
        ops: Sequence[Op] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Give the item back, to its old place; after the last attempt that counts, to the dead letters.

        Args:
            why: kept in the item.
            count: False: as if it had not been taken this time.
            partition: to this partition instead, to the same sort_key there.
            ops: written in the same transaction.
            timeout_s: as for ``ack``.
        Raises:
            Conflict: that partition has an item of this name; it is still ours.
            LockLost, Unavailable, OutcomeUnknown: as for ``ack``.
        """
        check_text(why, "the reason")
        if count and self.is_last:
            await steps_of(self.bury)(why or f"given back {self.attempts} times", ops, timeout_s=timeout_s)
            return
        await self._end([*self._give(why, count=count, partition=partition), *ops], (), timeout_s)

    @driven
    async def bury(self, why: str = "", ops: Sequence[Op] = (), *, timeout_s: float = TIMEOUT_S) -> None:
        """Put the item among the dead letters, whatever its attempts; with writes of yours. Errors as for ``ack``."""
        check_text(why, "the reason")
        item = self.item.given_back(why)
        letter = item.id
        while True:
            dead = letter_op(self._names, item, letter)
            try:
                await self._end([*self._delete(keep_data=True), dead, *ops], (), timeout_s)
            except Conflict:
                if await ask(self._store.get, dead.key) is None:
                    raise
                letter = other_letter(item.id)
            else:
                return

    # As parts of a transaction of the caller's, which may end several claims

    def ack_part(self, ops: Sequence[Op] = ()) -> ClaimEnding:
        """``ack`` as a part of a transaction of yours; see ``ClaimEnding``."""
        return self._part([*self._delete(), *ops])

    def release_part(self, why: str = "", *, count: bool = True, partition: str | None = None) -> ClaimEnding:
        """``release`` as a part of a transaction of yours; see ``ClaimEnding``. It makes no dead letters."""
        check_text(why, "the reason")
        return self._part(self._give(why, count=count, partition=partition))

    def _part(self, ops: Sequence[Op]) -> ClaimEnding:
        self._home.check()
        if self._is_over or self._session.remaining_s() <= 0.0:
            raise self._lost()
        return ClaimEnding(self, tuple(ops))

    def _give(self, why: str, *, count: bool, partition: str | None) -> list[Op]:
        item = self.item.given_back(why)
        stored = (item if count else item.not_taken()).to_bytes()
        if partition is None or partition == item.partition:
            return [Put(item.key, stored), Delete(self._claim.key)]
        check_member(partition, "partition")
        moved = self._names.item(partition, item.sort_key, item.id)
        sort_key = sort_key_op(self._names, partition, item.sort_key)
        return [Delete(item.key), sort_key, Create(moved, stored), Delete(self._claim.key)]

    def _delete(self, *, keep_data: bool = False) -> list[Op]:
        data = [Delete(self._names.data(self.item.data_id))] if self.item.data_id and not keep_data else []
        return [Delete(self.item.key), Delete(self._claim.key), *data]

    async def _acknowledge(self) -> None:
        await steps_of(self.ack)()

    async def _give_back(self, why: str) -> None:
        await steps_of(self.release)(why)

    async def _look(self) -> Standing:
        claim, item = await ask(self._store.get_many, [self._claim.key, self.item.key])
        is_same = item is not None and item.version == self.item.version
        if claim is not None and not is_same:  # no snapshot: our end may have landed between the reads of the two
            claim = await ask(self._store.get, self._claim.key)
        if claim is None or claim.version != self._claim.version:
            return Standing.GONE
        return Standing.OURS if is_same else Standing.REMOVED

    def _lost(self, standing: Standing = Standing.GONE) -> LockLost:
        if standing is Standing.REMOVED and not self._home.is_foreign:  # nobody else removes the claim then
            delete_claim_later(self._store, self._claim, self._session, self._what)
        return super()._lost(standing)


class ClaimEnding:
    """The end of a claim as a part of a transaction of yours, which may end many: one commit instead of many.

    Make it, put ``checks`` and ``ops`` into a transaction, and commit that; then call ``committed``. When it was
    refused, or its outcome is unknown, ask ``landed``. Until one of these is called the claim says that it is not held,
    because once the transaction is written another may have the item; ``given_up`` takes that back.

    Attributes:
        checks: that the item is ours.
        ops: what ends the claim.
    """

    def __init__(self, claim: QueueClaim, ops: tuple[Op, ...]) -> None:
        self.checks: tuple[Check, ...] = (claim.fence,)
        self.ops = ops
        self._claim = claim
        claim._is_ending = True  # noqa: SLF001 - both are this file's

    def __repr__(self) -> str:
        return f"<ClaimEnding of {self._claim!r}>"

    def committed(self) -> None:
        """The transaction was committed: the claim is over."""
        self._claim._finish()  # noqa: SLF001

    def given_up(self) -> None:
        """The transaction was not sent, or was certainly refused: the claim is ours as before."""
        self._claim._is_ending = False  # noqa: SLF001

    @driven
    async def landed(self, error: LatchworkError) -> bool:
        """Look whether the transaction got through, after a ``Conflict`` or ``OutcomeUnknown``.

        Args:
            error: what the commit raised.
        Returns:
            True: it did, and the claim is over. False: it did not, and the claim is still ours; after
            ``OutcomeUnknown`` it may land yet, so send the same transaction again, which is written once.
        Raises:
            LockLost: the item is not ours any more, or was removed.
            Unavailable: that could not be found out.
        """
        return await self._claim._has_landed(error)  # noqa: SLF001
