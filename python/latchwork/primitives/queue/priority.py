"""A queue whose items are taken by priority, 0 before 9, and by arrival within each.

Keys:   see ``queue_items``: the priority is the first digit of an item's id
"""

from __future__ import annotations

from collections.abc import Iterable

from latchwork.primitives.queue.queue import Queue
from latchwork.store.steps import driven

#: What an item has unless it is told otherwise.
DEFAULT_PRIORITY = 5


class PriorityQueue(Queue):
    """A ``Queue`` with priorities: ``queue.put(b"...", priority=0)`` is taken before all others.

    An item of low priority waits as long as others come: nothing ages. All else is as for ``Queue``, and both kinds of
    object may share a name: a plain queue puts with priority 5.
    """

    @driven
    async def put(self, value: bytes, *, priority: int = DEFAULT_PRIORITY, timeout_s: float | None = None) -> str:
        """Put an item behind those of the same priority, 0 (first) to 9 (last). All else as for ``Queue.put``."""
        return (await self._putting.put([value], _check_priority(priority), timeout_s))[0]

    @driven
    async def put_many(
        self, values: Iterable[bytes], *, priority: int = DEFAULT_PRIORITY, timeout_s: float | None = None
    ) -> list[str]:
        """Put items of one priority, in order, many in one transaction; not all in one."""
        return await self._putting.put(list(values), _check_priority(priority), timeout_s)


def _check_priority(priority: int) -> int:
    if priority not in range(10):
        raise ValueError(f"priority must be a whole number from 0 to 9, not {priority!r}")
    return int(priority)
