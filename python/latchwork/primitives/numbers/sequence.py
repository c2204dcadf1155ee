"""Ids without gaps: an id is taken by the very transaction that writes its record.

Keys:  <name>   {"value", "writes", "recent"} as JSON, the value being the last id; see ``cell``
       and whatever records the takers write
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable

from latchwork.checks import check_store
from latchwork.primitives.numbers.cell import Cell
from latchwork.primitives.numbers.counter import TIMEOUT_S
from latchwork.primitives.waiting.common import check_name, check_whole
from latchwork.store.steps import driven
from latchwork.store.store import Store
from latchwork.types import Fence, Op

#: What an id is taken for: from the id to the writes that record it.
Ops = collections.abc.Sequence[Op]
Record = Callable[[int], Ops]


class Sequence:
    """The numbers 1, 2, 3 ...: every id up to the last one has its record, and nobody else's record has it.

    There is no gap, whoever dies at any moment: the id and its record are one transaction, all or nothing. For the same
    reason no id is given without a record in this store: a number that is only handed out is lost when its taker dies.
    Write a record of another system afterwards, from the record here.

    Construction does no I/O. Safe to share between threads and processes.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the key of the last id.
    """

    def __init__(self, store: Store, name: str) -> None:
        check_store(store, "a sequence")
        self.name = check_name(name, "sequence")
        self._cell = Cell(store, name, f"sequence {name!r}")

    def __repr__(self) -> str:
        return f"<Sequence {self.name!r}>"

    @driven
    async def last(self) -> int:
        """The last id taken, 0 if none was."""
        return (await self._cell.read()).value

    @driven
    async def take(
        self, record: Record, *, count: int = 1, fence: Fence | None = None, timeout_s: float = TIMEOUT_S
    ) -> range:
        """Take the next ids, in one transaction with their records.

        Args:
            record: given an id, what is to be written with it: at least one operation, on keys of your choice. Called
                again, with other ids, when others were faster.
            count: how many ids; all their records are one transaction, with its limits.
            fence: of an ownership; they are taken only under it.
            timeout_s: seconds to go on trying while others take ids too, or the server cannot be reached.
        Returns:
            The ids: ``range(first, last + 1)``.
        Raises:
            Conflict: none taken: the fence is broken, a key to be created exists, or others kept taking ids all the
                time.
            ValueError: an id got no record.
            TransactionTooLarge: too many ids for one transaction.
            Unavailable: none taken.
            OutcomeUnknown: taken, with their records, or not: look for the records.
        """
        if check_whole(count, "count") < 1:
            raise ValueError(f"count must be at least 1, not {count}")

        async def records(before: int, after: int) -> list[Op]:
            return [op for number in range(before + 1, after + 1) for op in _record(record, number)]

        checks = () if fence is None else (fence,)
        last = await self._cell.change(lambda now: now + count, checks=checks, ops=records, timeout_s=timeout_s)
        assert last is not None
        return range(last - count + 1, last + 1)


def _record(record: Record, number: int) -> Ops:
    ops = record(number)
    if not ops:
        raise ValueError(f"id {number} got no record; an id without one could be lost, and leave a gap")
    return ops
