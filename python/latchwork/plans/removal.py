"""All of a plan is deleted, its record last; results in the middle of a completed plan once ``keep_results_s`` is over.

The record says "removing" before: so nothing is built, started, added or taken under its id. Tasks go first, since
whatever makes an item checks one; so no item comes after those that are removed then. A worker that goes on with a
removed plan finds its task gone, and reports nothing.

Of a plan that failed or was cancelled all results are kept: a recover goes on from them. Workers delete results, and a
sweep does; any number of them at once: each transaction checks the plan, so that none meets another that was started
under its id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from latchwork.errors import BadRecord
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import CONTROL_SHELF, LANE, MOST_CHILD_NAME, SHELF_TASKS, item_id, shelf_of, split_id
from latchwork.plans.plan_store import PlanStore, now_ms
from latchwork.plans.records import PlanRecord, PlanState, read_result
from latchwork.plans.states import MOST_WRITES, Edit, Seen
from latchwork.plans.wakeups import read_child, wake
from latchwork.store.steps import ask
from latchwork.tasks import BlobRef
from latchwork.types import At, Check, Delete, Entry, Op, Put

#: The names that tasks get which were given none.
_MADE = re.compile(r"t[0-9]{5,}")
#: So many results are read at a time.
_TOGETHER = 200


async def delete_plan(place: PlanStore, plan_id: str, go_on: Callable[[], object] = bool) -> bool:
    """Delete a plan that is being removed. By any number at once, and again.

    Args:
        place: where it is.
        plan_id: which.
        go_on: called between the steps; what it raises ends this.
    Returns:
        Whether it is gone; False when another plan has its id by now.
    """
    try:
        entry, plan = await place.plan(plan_id)
    except NoSuchPlan:
        return True
    if plan.state is not PlanState.REMOVING:
        return False
    await ask(place.store.delete_tree, place.keys.tasks(plan_id))
    await _delete_items(place, plan_id, (entry, plan), go_on)
    await _remove_children(place, plan_id)
    for prefix in place.keys.everything(plan_id):
        go_on()
        now = await ask(place.store.get, entry.key)  # a deletion of a tree checks nothing by itself
        if now is None or now.version != entry.version:
            return now is None
        await ask(place.store.delete_tree, prefix)
    while True:
        woken = await wake(place, plan_id, plan)
        if await place.commit(Edit([At(entry)], [Delete(entry.key)]).and_also(woken)):
            return True
        now = await ask(place.store.get, entry.key)
        if now is None or now.version != entry.version:
            return now is None


async def _remove_children(place: PlanStore, plan_id: str) -> None:
    """The plans that tasks of it have started: each by a worker. None comes after its tasks are gone."""
    for entry in await ask(place.store.list, place.keys.plans):
        if plan_id.encode() not in entry.value:  # reading each record of many plans takes long
            continue
        try:
            plan = PlanRecord.of(entry.value)
        except BadRecord:
            continue
        if plan.parent is not None and plan.parent[0] == plan_id:
            await _remove_child(place, entry.key.rpartition("/")[2])


async def _remove_child(place: PlanStore, child_id: str) -> None:
    while (found := await read_child(place, child_id)) is not None and found[1].state is not PlanState.REMOVING:
        edit = place.edges.removing(child_id, *found)
        edit.ops.append(Delete(place.keys.draft(child_id)))
        await place.commit(edit)


async def _shelves(place: PlanStore, plan_id: str, plan: PlanRecord) -> list[str]:
    """Return the shelves that may have items of a plan.

    The numbers of its tasks name them. All shelves, if the record does not say when the plan was started.
    """
    if not plan.started_ms:
        return list(await ask(place.store.children, place.items_of(CONTROL_SHELF).removesuffix(f"/{CONTROL_SHELF}")))
    count = plan.tasks + await place.added(plan_id)
    return [shelf_of(plan.priority, plan.started_ms, number) for number in range(0, count + 1, SHELF_TASKS)]


async def _delete_items(place: PlanStore, plan_id: str, seen: Seen, go_on: Callable[[], object]) -> None:
    """Delete the items of a plan, claimed or not, except the one that asks for its removal.

    Stop when the record is not the one that was seen: another plan has the ID, and keeps its items.
    """
    entry, plan = seen
    for shelf in await _shelves(place, plan_id, plan):
        after: str | None = None
        while True:
            go_on()
            page = await ask(place.store.list, place.items_of(shelf), limit=MOST_WRITES, start_after=after)
            ours: list[Op] = [Delete(each.key) for each in page if _is_of(plan_id, each)]
            if ours and not await place.commit(Edit([At(entry)], ours)):
                now = await ask(place.store.get, entry.key)
                if now is None or now.version != entry.version:
                    return
                continue  # the answer was lost
            if len(page) < MOST_WRITES:
                break
            after = page[-1].key


def _is_of(plan_id: str, entry: Entry) -> bool:
    plan, task = split_id(entry.key.rpartition("/")[2])
    return plan == plan_id and not task.startswith("@remove.")


async def remove_damaged(place: PlanStore, plan_id: str) -> None:
    """Delete a plan whose record cannot be read. A task of another plan that waits for it fails.

    Do nothing if the record can be read by now, or is gone: someone else has removed the plan.
    """
    while True:
        entry = await ask(place.store.get, place.keys.plan(plan_id))
        if entry is None:
            return
        try:
            PlanRecord.of(entry.value)
        except BadRecord:
            unknown = PlanRecord(PlanState.REMOVING, now_ms(), parent=await _parent_of(place, plan_id))
            if await remove_now(place, plan_id, entry, unknown):
                return
        else:
            return


async def _parent_of(place: PlanStore, child_id: str) -> tuple[str, str] | None:
    """Return the plan and the task that wait for a child plan; None if no task does."""
    name = child_id.rpartition("-")[0]
    if not name:  # not the id of a child
        return None
    is_cut = len(name) == MOST_CHILD_NAME
    for entry in await ask(place.store.list, place.keys.plans):
        plan_id = entry.key.rpartition("/")[2]
        for task in await (place.all_tasks(plan_id) if is_cut else place.tasks(plan_id, [name])):
            if task.record.child == child_id:
                return plan_id, task.name
    return None


async def remove_now(place: PlanStore, plan_id: str, entry: Entry | None, plan: PlanRecord) -> bool:
    """Delete what is no plan any more, or not yet, at once; a worker goes on where this ends in the middle.

    Args:
        place: where it is.
        plan_id: which.
        entry: its record as it was read; None where there is none, and only other keys of it are there.
        plan: the same.
    Returns:
        False: it is not as it was, or another does it.
    """
    turn = plan.turn + 1
    if entry is None:
        edit = place.edges.blocked(plan_id, plan)
    else:
        edit = place.edges.removing(plan_id, entry, plan)
        edit.ops.append(Delete(place.keys.draft(plan_id)))
    if not await place.commit(edit):
        return False
    if not await delete_plan(place, plan_id):
        return False
    key = place.backlog.key(LANE, CONTROL_SHELF, item_id(plan_id, f"@remove.{turn}"))
    await ask(place.store.delete, key)  # who has taken it finds that it is gone
    return True


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

    def __init__(self, place: PlanStore) -> None:
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
