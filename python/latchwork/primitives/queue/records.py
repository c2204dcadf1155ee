"""What a work queue holds, for those who look and for operators: items, claims, and dead letters.

Nothing here takes an item.
"""

from __future__ import annotations

from collections.abc import Sequence

from latchwork.errors import Conflict, KeyExists
from latchwork.primitives.fair.tickets import Ticket
from latchwork.primitives.queue.items import Names, QueueItem, check_place, place_of, shown, sort_key_op
from latchwork.primitives.queue.pages import tidy
from latchwork.primitives.queue.waiting import Waiting
from latchwork.primitives.waiting.common import Closes
from latchwork.primitives.waiting.waits import Waits, check_member
from latchwork.store.steps import ask, driven
from latchwork.store.store import Store
from latchwork.types import At, Check, Create, Delete, Entry, Op


class Records(Closes):
    """The records of one backlog. Safe to share between threads."""

    def __init__(self, store: Store, names: Names, waits: Waits, waiting: Waiting, what: str) -> None:
        self._store = store
        self._names = names
        self._waits = waits
        self._waiting = waiting
        self._what = what

    # Looking around

    @driven
    async def partitions(self) -> list[str]:
        """The partitions that have items, or had some and were not looked at since then; sorted."""
        self._waits.check()
        return list(await ask(self._store.children, self._names.partitions))

    @driven
    async def find(self, partition: str, sort_key: str, item_id: str) -> QueueItem | None:
        """An item, taken or not, without a large value; None when there is none of this name."""
        check_place(partition, sort_key, item_id)
        self._waits.check()
        return await self._find(self._names.item(partition, sort_key, item_id))

    async def _find(self, key: str) -> QueueItem | None:
        entry = await ask(self._store.get, key)
        return None if entry is None else shown(entry)

    @driven
    async def items(self, partition: str | None = None, limit: int = 100) -> list[QueueItem]:
        """The first items of a partition, or of all partitions in order of their names; taken ones too, without large
        values.
        """
        found: list[QueueItem] = []
        for each in await self._partitions(partition):
            for mark in await ask(self._store.list, self._names.sort_keys(each)):
                if len(found) >= limit:
                    return found
                sort_key = f"{self._names.items(each)}{mark.key[mark.key.rindex('/') :]}"
                found += [shown(entry) for entry in await ask(self._store.list, sort_key, limit=limit - len(found))]
        return found

    @driven
    async def claims(self, partition: str | None = None, limit: int = 1000) -> dict[str, Ticket]:
        """Who has taken which item, by ``<partition>/<sort_key>/<id>``, sorted; the first so many."""
        found: dict[str, Ticket] = {}
        for each in await self._partitions(partition):
            prefix = self._names.claims(each)
            entries = await self._list(prefix, limit - len(found))
            found.update({f"{each}{entry.key[len(prefix) :]}": Ticket.of(entry) for entry in entries})
        return found

    @driven
    async def holder(self, item: QueueItem) -> Ticket | None:
        """Who has taken an item; None when nobody has."""
        self._waits.check()
        entry = await ask(self._store.get, self._names.claim_of(item))
        return None if entry is None else Ticket.of(entry)

    @driven
    async def find_all(self, keys: Sequence[str]) -> list[QueueItem | None]:
        """Return the items of these keys, see ``WorkQueue.key``, without large values; None where there is none."""
        self._waits.check()
        return [None if entry is None else shown(entry) for entry in await ask(self._store.get_many, keys)]

    @driven
    async def holders(self, items: Sequence[QueueItem]) -> list[Ticket | None]:
        """Return who has taken each of these items; None where nobody has."""
        self._waits.check()
        keys = [self._names.claim_of(item) for item in items]
        return [None if entry is None else Ticket.of(entry) for entry in await ask(self._store.get_many, keys)]

    @driven
    async def size(self, partition: str | None = None) -> int:
        """How many items a partition has, or all; taken ones too. Reads all their names, sort_key by sort_key."""
        count = 0
        for each in await self._partitions(partition):
            for mark in await ask(self._store.list, self._names.sort_keys(each)):
                sort_key = f"{self._names.items(each)}{mark.key[mark.key.rindex('/') :]}"
                count += len(await ask(self._store.children, sort_key))
        return count

    @driven
    async def takers(self, partition: str) -> list[Ticket]:
        """Who waits for a partition, in order."""
        check_member(partition, "partition")
        self._waits.check()
        return await self._waiting.line(partition).tickets()

    @driven
    async def tidy(self, partition: str) -> bool:
        """Forget the empty sort_keys of a partition. Takers do it as they look: this is for a partition that nobody
        takes from.

        Items that were removed, or deleted in a transaction of yours, leave their sort_key behind.

        Returns:
            Whether the partition has no sort_key any more.
        Raises:
            Unavailable: some sort_keys may be forgotten.
            Closed, ForkedProcess: the backlog cannot be used here.
        """
        check_member(partition, "partition")
        self._waits.check()
        return await tidy(self._store, self._names, partition)

    async def _partitions(self, partition: str | None) -> Sequence[str]:
        self._waits.check()
        return (
            await ask(self._store.children, self._names.partitions)
            if partition is None
            else [check_member(partition, "partition")]
        )

    async def _list(self, prefix: str, limit: int) -> list[Entry]:
        """Items or claims below a prefix; without keys that can be neither."""
        found: list[Entry] = []
        after: str | None = None
        while (left := limit - len(found)) > 0:
            page = await ask(self._store.list, prefix, recursive=True, limit=left, start_after=after)
            found += [entry for entry in page if place_of(entry.key, prefix) is not None]
            if len(page) < left:
                break
            after = page[-1].key
        return found

    # Dead letters

    @driven
    async def dead_letters(self, limit: int = 100) -> list[QueueItem]:
        """Items that were given up, with the reason, by the names of their letters; without large values."""
        self._waits.check()
        return [shown(entry) for entry in await ask(self._store.list, self._names.dead, limit=limit)]

    @driven
    async def revive(
        self, letter: str, *, partition: str | None = None, checks: Sequence[Check] = (), ops: Sequence[Op] = ()
    ) -> QueueItem:
        """Put a dead letter back where it was, with all its attempts before it.

        Args:
            letter: ``item.letter`` of one of ``dead_letters``: the id of the item, or like it.
            partition: to this partition instead.
            checks: must hold too.
            ops: written in the same transaction.
        Returns:
            The item.
        Raises:
            KeyExists: there is another item of its name.
            Conflict: there is no such letter, somebody else was faster, or one of your checks or writes did not hold.
            BadRecord: its key had been written by something else; drop it.
        """
        entry = await self._letter(letter)
        dead = QueueItem.letter_of(entry)
        where = dead.partition if partition is None else check_member(partition, "partition")
        key = self._names.item(where, dead.sort_key, dead.id)
        writes: list[Op] = [
            Create(key, dead.revived().to_bytes()),
            sort_key_op(self._names, where, dead.sort_key),
            Delete(entry.key),
        ]
        try:
            done = await ask(self._store.commit, [At(entry), *checks], list(dict.fromkeys([*writes, *ops])))
        except Conflict as error:
            if any(getattr(each, "key", None) == key for each in error.failed):
                raise KeyExists(
                    f"{self._what} has an item {where}/{dead.sort_key}/{dead.id}; nothing was changed"
                ) from error
            raise
        return QueueItem.of(done.entries[0])

    @driven
    async def drop(self, letter: str, *, checks: Sequence[Check] = (), ops: Sequence[Op] = ()) -> None:
        """Delete a dead letter for good, in one transaction with writes of yours if you like.

        Raises:
            Conflict: there is no such letter, or one of your checks or writes did not hold.
        """
        entry = await self._letter(letter)
        number = shown(entry).data_id
        data = [Delete(self._names.data(number))] if number else []
        await ask(self._store.commit, [At(entry), *checks], [Delete(entry.key), *data, *ops])

    async def _letter(self, letter: str) -> Entry:
        self._waits.check()
        check_member(letter, "letter")
        entry = await ask(self._store.get, self._names.letter(letter))
        if entry is None:
            raise Conflict(f"{self._what} has no dead letter {letter!r}; list them with dead_letters()")
        return entry
