"""A backlog: a queue of named items, in partitions and sort_keys, of which every step can be a part of a caller's
transaction.

Keys:   see ``items``
Order:  partitions as the taker lists them; in a partition by sort_key, in a sort_key by id, as text. Puts wait for
        nobody: the key that
        those into one sort_key share is written without a condition.
Claim:  a session-bound key for the item. When its taker dies the claim vanishes, and the item is where it was.

docs/design/0019 has the steps, the races, and why a partition is never read as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from latchwork.checks import check_store
from latchwork.errors import Conflict, KeyExists, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.primitives.queue.claims import Holding, QueueClaim
from latchwork.primitives.queue.handing import CreateClaimed
from latchwork.primitives.queue.items import Names, QueueItem, check_inline, check_place, new_number, sort_key_op
from latchwork.primitives.queue.pages import Share, check_partitions
from latchwork.primitives.queue.records import Records
from latchwork.primitives.queue.stored import INLINE_BYTES, check_payload
from latchwork.primitives.queue.taking import Accept, Extra, Taking, Wish, everything, no_share, nothing_more
from latchwork.primitives.queue.waiting import IsFree, Wait, Waiting
from latchwork.primitives.waiting.common import Identity, check_name, check_text, check_whole
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.primitives.waiting.waits import Waits, check_member
from latchwork.store.session import Session
from latchwork.store.steps import Steps, ask, driven
from latchwork.store.store import Store
from latchwork.types import Absent, Check, Create, Delete, Op


class WorkQueue(Records):
    """Named items of bytes, in partitions, that takers claim: ``backlog.put("any", "s1", "task-7", b"...")`` here,
    ``for claim in backlog.try_take(["any"], limit=8): ...`` there.

    Every item is taken at least once, and by one at a time as far as fences reach: a taker that has lost its claim can
    end nothing. Construction does no I/O. Safe to share between threads and processes.

    A partition is what somebody takes from; a sort_key is a part of it, so that no request is as long as the
    partition. Put some
    hundred items into one, and begin another then, or after some seconds: items in sort_keys of their own cost a take
    one
    look each. Both come into being with their first item, and go when a taker finds them empty. A name is one segment
    of a key.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the key below which all is stored.
        max_attempts: an item taken that often, and not acknowledged, becomes a dead letter; as the taker says.
        session: the session that claims live by; it stays the caller's. None takes the store's primary session.
        label: what others see when they ask who has taken what.
    """

    def __init__(
        self, store: Store, name: str, *, max_attempts: int = 5, session: Session | None = None, label: str = ""
    ) -> None:
        check_store(store, "a work queue")
        self.name = check_name(name, "work queue")
        if not check_whole(max_attempts, "max_attempts") >= 1:
            raise ValueError(f"max_attempts must be at least 1, not {max_attempts!r}")
        what, names, identity = f"work queue {name!r}", Names(name), Identity()
        check_text(label, f"the label of {what}")
        held = Holding(store, names, max_attempts)
        super().__init__(store, names, Waits(store, what, session), Waiting(held, what, label), what)
        self._taking = Taking(held, what, {"label": label, "host": identity.host, "pid": identity.pid})

    def __repr__(self) -> str:
        return f"<WorkQueue {self.name!r}>"

    # Putting and removing

    def put_ops(self, partition: str, sort_key: str, items: Mapping[str, bytes]) -> list[Op]:
        """The writes that put items into a sort_key, for a transaction of yours. Does no I/O.

        One for each item, and one for the sort_key, which is the same each time: write it once in a transaction
        (``list(dict.fromkeys(ops))``).

        Args:
            partition: where to put them: takers name the partitions they take from.
            sort_key: where in the partition; items are taken by ``<sort_key>/<id>``, in order of text.
            items: values by id, which is unique in the sort_key; up to 4,096 bytes each, ``put`` takes larger ones.
        Raises:
            InvalidKey: a name is no segment of a key.
            ValueTooLarge, TypeError: of a value.
        """
        creates = []
        for item_id, value in items.items():
            check_place(partition, sort_key, item_id)
            check_inline(value, self._what)
            creates.append(self._create(partition, sort_key, QueueItem.made(item_id, value)))
        return [sort_key_op(self._names, partition, sort_key), *creates] if creates else []

    def create_claimed(
        self, partition: str, sort_key: str, item_id: str, value: bytes, *, session: Session
    ) -> CreateClaimed:
        """The writes that put an item which is taken by us at once, for a transaction of yours. Does no I/O.

        Args:
            partition: as for ``put_ops``.
            sort_key: likewise.
            item_id: likewise.
            value: up to 4,096 bytes.
            session: the session that the claim lives by.
        Raises:
            InvalidKey: a name is no segment of a key.
            ValueTooLarge, TypeError: of a value.
        """
        check_place(partition, sort_key, item_id)
        return self._taking.create_claimed(partition, sort_key, item_id, check_inline(value, self._what), session)

    def _create(self, partition: str, sort_key: str, item: QueueItem) -> Create:
        return Create(self._names.item(partition, sort_key, item.id), item.to_bytes())

    @driven
    async def put(
        self,
        partition: str,
        sort_key: str,
        item_id: str,
        value: bytes,
        *,
        checks: Sequence[Check] = (),
        ops: Sequence[Op] = (),
    ) -> None:
        """Put an item, in one transaction with writes of yours if you like. Waits for nobody.

        Args:
            partition: as for ``put_ops``.
            sort_key: likewise.
            item_id: likewise.
            value: up to 990,000 bytes; up to 4,096 are cheapest.
            checks: must hold too.
            ops: written in the same transaction.
        Raises:
            KeyExists: there is an item of this name; nothing was put.
            Conflict: one of your checks or writes did not hold; nothing was put.
            InvalidKey, ValueTooLarge, TypeError: before any I/O.
            OutcomeUnknown: it may be put, or be yet, or be taken and done already.
            Unavailable: nothing was put.
            Closed, ForkedProcess: the backlog cannot be used here.
        """
        check_place(partition, sort_key, item_id)
        check_payload(value, self._what)
        self._waits.check()
        number = new_number() if len(value) > INLINE_BYTES else ""
        item = QueueItem.made(item_id, value, number=number, nonce=new_number())
        create, mark = self._create(partition, sort_key, item), sort_key_op(self._names, partition, sort_key)
        data = [Create(self._names.data(number), value)] if number else []
        try:
            await ask(self._store.commit, checks, list(dict.fromkeys([mark, create, *data, *ops])))
        except Conflict as error:
            if any(getattr(each, "key", None) == create.key for each in error.failed):
                raise KeyExists(
                    f"{self._what} has an item {partition}/{sort_key}/{item_id} already; nothing was put"
                ) from error
            raise
        except OutcomeUnknown:
            found = await self._find(create.key)
            if found is None or found.nonce != item.nonce:
                raise

    def key(self, partition: str, sort_key: str, item_id: str) -> str:
        """The key of an item, for checks and writes of yours: ``Exists(key)``, ``Delete(key)``. Does no I/O."""
        check_place(partition, sort_key, item_id)
        return self._names.item(partition, sort_key, item_id)

    def removal(self, item: QueueItem, *, if_taken: bool = False) -> tuple[list[Check], list[Op]]:
        """``remove`` as checks and writes for a transaction of yours. Does no I/O."""
        checks: list[Check] = [item.check]
        if not if_taken:
            checks.append(Absent(self._names.claim_of(item)))
        data = [Delete(self._names.data(item.data_id))] if item.data_id else []
        return checks, [Delete(item.key), *data]

    @driven
    async def remove(
        self, item: QueueItem, checks: Sequence[Check] = (), ops: Sequence[Op] = (), *, if_taken: bool = False
    ) -> bool:
        """Remove an item that was found, in one transaction with writes of yours if you like.

        Args:
            item: as it was found; taken or given back since then it is another.
            checks: must hold too.
            ops: written in the same transaction.
            if_taken: also while somebody has it: who has it can end it no more, and is not told.
        Returns:
            False: it is gone, or not as it was, or somebody has it; nothing was changed.
        Raises:
            Conflict: one of your checks or writes did not hold; nothing was changed.
            Unavailable: nothing was changed.
            OutcomeUnknown: removed or not.
        """
        self._waits.check()
        held, writes = self.removal(item, if_taken=if_taken)
        try:
            await ask(self._store.commit, [*held, *checks], [*writes, *ops])
        except Conflict as error:
            if not any(each in held for each in error.failed):
                raise
            return False
        return True

    @driven
    async def bury(self, item: QueueItem, why: str = "", checks: Sequence[Check] = (), ops: Sequence[Op] = ()) -> bool:
        """Make a dead letter of an item that was found and that nobody has, with writes of yours if you like.

        Args:
            item: as it was found; taken or given back since then it is another.
            why: kept in the letter.
            checks: must hold too.
            ops: written in the same transaction.
        Returns:
            False: it is gone, or not as it was, or somebody has it, or one of your checks or writes did not hold;
            nothing was changed.
        Raises:
            Unavailable: nothing was changed.
            OutcomeUnknown: buried or not.
        """
        self._waits.check()
        return await self._taking.bury(item.given_back(check_text(why, "the reason")), lambda _: (checks, ops))

    # Taking

    @driven
    async def try_take(
        self,
        partitions: Sequence[str],
        *,
        limit: int = 1,
        accept: Accept | None = None,
        extra: Extra | None = None,
        extra_dead: Extra | None = None,
        on_refused: Callable[[QueueItem], object] | None = None,
        share: Callable[[str], Share] | None = None,
    ) -> list[QueueClaim]:
        """Take the first items that nobody has taken; wait for none.

        Many are taken in one transaction. Takers that come at the same time may get neighbouring items in any order.

        Args:
            partitions: where to look, one after the other.
            limit: so many at most.
            accept: called with an item that is free: whether it will do. That one is not always taken then.
            extra: called with an item that will do: checks and writes in the transaction that takes it. Items of one
                transaction share checks if they like; two that write the same key are taken one after the other.
            extra_dead: the same for the transaction that makes a dead letter of an item, whose attempts are used up and
                whose last taker died.
            on_refused: called with an item whose extra checks, or writes, did not hold; it is left where it is.
            share: called with a partition: which of its takers we are, of how many. Takers that know each other take
            items
                of their own share first, and so do not want the same ones; an item of another's share waits for 0.05 s
                at most, and one that comes before those that were read already for 0.25 s.
        Returns:
            Claims in the order in which they were made, may be empty. Each is ours until we end it, or our session
            ends. Trouble behind the first one is left to the next call.
        Raises:
            Unavailable: nothing is taken.
            OutcomeUnknown: what may be taken is given to the next call, or back after a second.
            SessionLost: our session has ended.
            Closed: the backlog, its session or its store was closed.
            ForkedProcess: it was made by the parent of this process.
        """
        check_partitions(partitions)
        if not check_whole(limit, "limit") >= 1:
            raise ValueError(f"limit must be at least 1, not {limit!r}")
        wish = Wish(
            tuple(dict.fromkeys(partitions)),
            limit,
            accept or everything,
            extra or nothing_more,
            extra_dead or nothing_more,
            on_refused,
            share or no_share,
        )
        return await self._take(partial(self._taking.try_take, wish))

    @driven
    async def take_items(
        self,
        items: Sequence[QueueItem],
        *,
        accept: Accept | None = None,
        extra: Extra | None = None,
        on_refused: Callable[[QueueItem], object] | None = None,
    ) -> list[QueueClaim]:
        """Take items as ``wait_items`` or a look returned them, without reading them again: one commit.

        An item that others have taken, removed or changed since then is left out; so is one whose attempts are used up,
        which the next ``try_take`` makes a dead letter.

        Args:
            items: as they were read, in the order in which they are to be taken.
            accept: as for ``try_take``.
            extra: likewise.
            on_refused: likewise.
        Returns:
            Claims in that order, may be empty.
        Raises:
            ValueError: an item is another backlog's, or a dead letter.
            Unavailable, OutcomeUnknown, SessionLost, Closed, ForkedProcess: as for ``try_take``.
        """
        for item in items:
            if item.key != self._names.item(item.partition, item.sort_key, item.id):
                raise ValueError(
                    f"{item.path} is no item of {self._what} that can be taken; it was read at {item.key!r}"
                )
        told = [item for item in items if item.attempts < self._taking.most]
        wish = Wish((), max(1, len(told)), accept or everything, extra or nothing_more, on_refused=on_refused)
        return await self._take(partial(self._taking.take_items, told, wish))

    async def _take(self, take: Callable[[Session], Steps[list[QueueClaim]]]) -> list[QueueClaim]:
        async with self._waits.begin(0.0) as (waiter, _):
            try:
                claims = await take(waiter.session)
            except LatchworkError as error:
                self._waits.refuse_closed(waiter, error)
                raise
        self._waiting.taken(claims)
        return claims

    @driven
    async def wait_free(self, partition: str, timeout_s: float | None = None, *, accept: Accept | None = None) -> bool:
        """Wait until an item of a partition is free. It is not taken: ``try_take`` then, and wait again if it has
        nothing.

        Those that wait are told one after the other, in the order in which they came; who waits writes nothing but a
        ticket at its start.

        Args:
            partition: where to look.
            timeout_s: seconds to wait; None waits for ever, 0 looks once.
            accept: as for ``try_take``.
        Returns:
            False: the time is over.
        Raises:
            SessionLost: our session ended while waiting.
            Unavailable, OutcomeUnknown: the server could not be reached in that time.
            Closed: the backlog, its session or its store was closed.
            ForkedProcess: it was made by the parent of this process.
            LatchworkError: this is a callback.
        """
        return await self._wait(partition, timeout_s, accept, self._waiting.wait) is not None

    @driven
    async def wait_items(
        self,
        partition: str,
        timeout_s: float | None = None,
        *,
        limit: int = 20,
        accept: Accept | None = None,
        stays: bool = False,
        on_ahead: Callable[[int], None] | None = None,
    ) -> list[QueueItem] | None:
        """Wait like ``wait_free``, and return what is free: ``take_items`` takes it without a look.

        Args:
            partition: where to look.
            timeout_s: as for ``wait_free``.
            limit: of more than so many items none is returned.
            accept: as for ``try_take``.
            stays: keep the place in the line, also when the time is over; the next such call, of one thread, tells what
                is new, by the ``accept`` of this one. Meanwhile nobody else is told: ``leave`` when you have enough.
            on_ahead: with ``stays``: called with how many are ahead in the line, whenever that is looked at. Who is
                dead or slow is told all the same: while somebody is ahead, ``try_take`` now and then.
        Returns:
            All items of the partition that were free, in order; empty when something is free, and has to be looked for
            with
            ``try_take``; None when the time is over.
        Raises:
            SessionLost, Unavailable, OutcomeUnknown, Closed, ForkedProcess, LatchworkError: as for ``wait_free``.
        """
        if not check_whole(limit, "limit") >= 1:
            raise ValueError(f"limit must be at least 1, not {limit!r}")
        wait = partial(self._waiting.stay, on_ahead=on_ahead) if stays else self._waiting.wait
        told = await self._wait(partition, timeout_s, accept, wait, self._waiting.kept(partition) if stays else None)
        return None if told is None else told.tell(limit)

    def leave(self, partition: str) -> None:
        """Give up the place in the line of a partition that ``wait_items`` kept, in the background; it may be none."""
        self._waiting.leave(partition)

    async def _wait(
        self, partition: str, timeout_s: float | None, accept: Accept | None, wait: Wait, kept: Waiter | None = None
    ) -> IsFree | None:
        check_member(partition, "partition")
        async with self._waits.begin(timeout_s, kept) as (waiter, patience):
            try:
                told = await wait(partition, waiter, patience, accept or everything)
            except (Unavailable, OutcomeUnknown) as error:
                self._waits.refuse_ended(waiter, error)
                raise
            if told is None:
                self._waits.refuse_ended(waiter)
            return told

    def close(self) -> None:
        """Call off who waits through this object. Claims stay with who has them. From any thread; twice is fine."""
        if self._waits.home.is_foreign:
            return
        self._waits.close()
        self._waiting.close()
