"""IDs without gaps: an ID is taken by the transaction that writes its record.

Keys:  <name>   {"value", "writes", "recent"} as JSON, the value being the last ID; see ``shared_number``
       and the records that the takers write
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable

from latchwork._base.validation import check_store
from latchwork.primitives.numbers.counter import TIMEOUT_S
from latchwork.primitives.numbers.shared_number import SharedNumber
from latchwork.primitives.waiting.arguments import check_integer, check_name
from latchwork.store.steps import blocking
from latchwork.store.store import Store
from latchwork.types import Fence, Op

#: Given an ID, returns the writes that record it.
Ops = collections.abc.Sequence[Op]
Record = Callable[[int], Ops]


class Sequence:
    """The IDs 1, 2, 3 ... without gaps: every ID up to the last one has a record.

    There is no gap, even after a crash, because an ID and its record are written in one transaction. So no ID is issued
    without a record in this store. Write records in other systems afterwards, from the record here.

    Construction does no I/O. Thread-safe, and shared by processes.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key of the last ID.
    """

    def __init__(self, store: Store, name: str) -> None:
        check_store(store, "a sequence")
        self.name = check_name(name, "sequence")
        self._cell = SharedNumber(store, name, f"sequence {name!r}")

    def __repr__(self) -> str:
        return f"<Sequence {self.name!r}>"

    @blocking
    async def last(self) -> int:
        """Read the last ID that was taken. Return 0 if none was."""
        return (await self._cell.read()).value

    @blocking
    async def take(
        self, record: Record, *, count: int = 1, fence: Fence | None = None, timeout_s: float = TIMEOUT_S
    ) -> range:
        """Take the next IDs, and write their records in the same transaction.

        Args:
            record: Called with each ID. Returns at least one operation, which writes the record of the ID. Called again
                with other IDs if another client takes the same IDs first.
            count: The number of IDs. All records are written in one transaction, with its limits.
            fence: The fence of an ownership. If the ownership is lost, no IDs are taken.
            timeout_s: Seconds for retries while other clients take IDs or the server cannot be reached.
        Returns:
            The IDs: ``range(first, last + 1)``.
        Raises:
            Conflict: None taken: the fence is no longer valid, a key to create exists, or other clients took IDs until
                the timeout.
            ValueError: ``record`` returned no operation for an ID.
            TransactionTooLarge: Too many IDs for one transaction.
            Unavailable: None taken.
            OutcomeUnknown: They may have been taken, with their records: look for the records.
        """
        if check_integer(count, "count") < 1:
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
        raise ValueError(f"id {number} got no record; an ID without a record could be lost and leave a gap")
    return ops
