"""Results in the middle of a completed plan are deleted once its ``keep_results_s`` is over.

Of a plan that failed or was cancelled all are kept: a recover goes on from them. Workers do this, and a sweep; any
number of them at once: each transaction checks the plan, so that none meets another that was started under its id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from latchwork.errors import BadRecord
from latchwork.plans.place import Place
from latchwork.plans.records import PlanRecord, PlanState, read_result
from latchwork.plans.states import MOST_WRITES, Edit
from latchwork.store.steps import ask
from latchwork.tasks import BlobRef
from latchwork.types import At, Check, Delete, Entry, Op, Put

#: The names that tasks get which were given none.
_MADE = re.compile(r"t[0-9]{5,}")
#: So many results are read at a time.
_TOGETHER = 200


def due_ms(plan: PlanRecord) -> float | None:
    """When results of a plan go, since the epoch; None for never, or when they have gone."""
    if plan.state is not PlanState.COMPLETED or plan.keep_results_s is None or plan.are_results_gone:
        return None
    return plan.ended_ms + plan.keep_results_s * 1000.0


def next_due_ms(plans: Iterable[Entry]) -> float | None:
    """The first moment at which results of one of these go; None if there is none."""
    found: list[float] = []
    for entry in plans:
        try:
            due = due_ms(PlanRecord.of(entry.value))
        except BadRecord:
            continue
        if due is not None:
            found.append(due)
    return min(found, default=None)


class Retention:
    """Deletes results whose time is over. Safe to share between threads."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def trim_all(self, plans: Iterable[Entry], now_ms: int) -> int:
        """Of how many of these plans results were deleted."""
        count = 0
        for entry in plans:
            try:
                plan = PlanRecord.of(entry.value)
            except BadRecord:
                continue
            due = due_ms(plan)
            if due is not None and due <= now_ms:
                count += await self._trim(entry, plan)
        return count

    async def _trim(self, entry: Entry, plan: PlanRecord) -> bool:
        """Whether all of them went, and this is noted; another did it, or the plan is being removed, if not."""
        place, plan_id, check = self._place, entry.key.rpartition("/")[2], At(entry)
        middle = [
            each.name
            for each in await place.all_tasks(plan_id)
            if each.record.succ and each.name != plan.gives and _MADE.fullmatch(each.name)
        ]
        for at in range(0, len(middle), _TOGETHER):
            if not await self._delete(plan_id, middle[at : at + _TOGETHER], check):
                return False
        told = replace(plan, are_results_gone=True)
        return await place.commit(Edit([check], [Put(entry.key, told.to_bytes())]))

    async def _delete(self, plan_id: str, names: list[str], check: Check) -> bool:
        place = self._place
        ops: list[Op] = []
        for entry in await ask(place.store.get_many, [place.keys.result(plan_id, each) for each in names]):
            if entry is None:
                continue
            try:
                where = read_result(entry.value)
            except BadRecord:
                where = b""
            if isinstance(where, BlobRef):
                ops.extend(place.blobs.delete_ops(where))
            ops.append(Delete(entry.key))
        for at in range(0, len(ops), MOST_WRITES):
            if not await place.commit(Edit([check], ops[at : at + MOST_WRITES])):
                return False
        return True
