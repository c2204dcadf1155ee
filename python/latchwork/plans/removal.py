"""Deletion of plans, and of intermediate results of completed plans when their retention time has passed.

The record is first set to "removing", so that nothing is built, started, added or claimed under its ID. Tasks are
deleted before their queue items, because each transaction that creates an item checks a task. The record is deleted
last. A worker that still runs a task of a removed plan finds the task gone and reports nothing.

Any client may delete a plan that is being removed, so no worker is needed. The child plans of a plan are deleted with
it. Their own ``keep_s`` has no effect, because the parent reads their results. Failed and canceled plans keep all
results until ``keep_s``, because a recovery needs them. Workers and sweeps may delete results at the same time: each
transaction checks the plan, so it never affects another plan that was started under the same ID.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from latchwork.errors import BadRecord
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import (
    CONTROL_SORT_KEY,
    MAX_CHILD_PREFIX,
    PARTITION,
    TASKS_PER_SORT_KEY,
    item_id,
    sort_key,
    split_item_id,
)
from latchwork.plans.plan_store import PlanStore, now_ms
from latchwork.plans.records import PlanRecord, PlanState, decode_result
from latchwork.plans.transitions import MAX_WRITES, StoredPlan, TxnPart
from latchwork.plans.wakeups import build_parent_wakeup, read_plan_or_none
from latchwork.store.steps import ask
from latchwork.tasks import BlobRef
from latchwork.types import At, Check, Delete, Entry, Op, Put

#: Generated names of unnamed tasks.
_MADE = re.compile(r"t[0-9]{5,}")
#: Number of results that are read together.
_TOGETHER = 200


async def delete_plan(plan_store: PlanStore, plan_id: str, check_held: Callable[[], object] = bool) -> bool:
    """Delete a plan that is marked for removal. Idempotent. Several clients may do it at the same time.

    Args:
        plan_store: Access to the stored plans.
        plan_id: ID of the plan.
        check_held: Called between the steps; an exception of it ends the deletion.
    Returns:
        Whether the plan is gone. False if another plan has its ID now.
    """
    try:
        entry, plan = await plan_store.read_plan(plan_id)
    except NoSuchPlan:
        return True
    if plan.state is not PlanState.REMOVING:
        return False
    await ask(plan_store.store.delete_tree, plan_store.keys.tasks_prefix(plan_id))
    await _delete_items(plan_store, plan_id, (entry, plan), check_held)
    await _remove_children(plan_store, plan_id, check_held)
    for prefix in plan_store.keys.list_prefixes(plan_id):
        check_held()
        now = await ask(plan_store.store.get, entry.key)  # deleting a tree has no checks
        if now is None or now.version != entry.version:
            return now is None
        await ask(plan_store.store.delete_tree, prefix)
    while True:
        wakeup = await build_parent_wakeup(plan_store, plan_id, plan)
        if await plan_store.commit(TxnPart([At(entry)], [Delete(entry.key)]).merge(wakeup)):
            return True
        now = await ask(plan_store.store.get, entry.key)
        if now is None or now.version != entry.version:
            return now is None


async def _remove_children(plan_store: PlanStore, plan_id: str, check_held: Callable[[], object]) -> None:
    """Delete the child plans of a plan. No other child plan can be started, because the plan's tasks are gone."""
    for entry in await ask(plan_store.store.list, plan_store.keys.plans):
        if plan_id.encode() not in entry.value:  # decoding many records is slow
            continue
        try:
            plan = PlanRecord.from_bytes(entry.value)
        except BadRecord:
            continue
        if plan.parent is not None and plan.parent[0] == plan_id:
            await _remove_child(plan_store, entry.key.rpartition("/")[2], check_held)


async def _remove_child(plan_store: PlanStore, child_id: str, check_held: Callable[[], object]) -> None:
    while (found := await read_plan_or_none(plan_store, child_id)) is not None and found[
        1
    ].state is not PlanState.REMOVING:
        part = plan_store.transitions.build_removal_start(child_id, *found)
        part.ops.append(Delete(plan_store.keys.draft_key(child_id)))
        await plan_store.commit(part)
    await finish_removal(plan_store, child_id, check_held)


async def finish_removal(plan_store: PlanStore, plan_id: str, check_held: Callable[[], object] = bool) -> bool:
    """Delete a plan that is marked for removal, and the queue item that requests its removal.

    Args:
        plan_store: Access to the stored plans.
        plan_id: ID of the plan.
        check_held: Called between the steps; an exception of it ends the deletion.
    Returns:
        Whether the plan is gone. False if another plan has its ID now.
    """
    found = await read_plan_or_none(plan_store, plan_id)
    if not await delete_plan(plan_store, plan_id, check_held):
        return False
    if found is not None:
        item = item_id(plan_id, f"@remove.{found[1].generation}")
        # a worker that holds the item finds the plan gone
        await ask(plan_store.store.delete, plan_store.queue.key(PARTITION, CONTROL_SORT_KEY, item))
    return True


async def _list_sort_keys(plan_store: PlanStore, plan_id: str, plan: PlanRecord) -> list[str]:
    """Return the sort keys that queue items of a plan may have, derived from the numbers of its tasks.

    If the start time of the plan is unknown, return all sort keys of the queue.
    """
    if not plan.started_ms:
        return list(
            await ask(
                plan_store.store.children,
                plan_store.get_item_prefix(CONTROL_SORT_KEY).removesuffix(f"/{CONTROL_SORT_KEY}"),
            )
        )
    count = plan.tasks + await plan_store.count_added_tasks(plan_id)
    return [sort_key(plan.priority, plan.started_ms, number) for number in range(0, count + 1, TASKS_PER_SORT_KEY)]


async def _delete_items(
    plan_store: PlanStore, plan_id: str, stored_plan: StoredPlan, check_held: Callable[[], object]
) -> None:
    """Delete the queue items of a plan, claimed or not, except the item that requests its removal.

    Stops if the record of the plan has changed: another plan has the ID then, and keeps its items.

    Args:
        plan_store: Access to the stored plans.
        plan_id: ID of the plan.
        stored_plan: Entry and record of the plan.
        check_held: Called between the steps; an exception of it ends the deletion.
    """
    entry, plan = stored_plan
    for key in await _list_sort_keys(plan_store, plan_id, plan):
        after: str | None = None
        while True:
            check_held()
            page = await ask(
                plan_store.store.list, plan_store.get_item_prefix(key), limit=MAX_WRITES, start_after=after
            )
            ours: list[Op] = [Delete(each.key) for each in page if _is_item_of(plan_id, each)]
            if ours and not await plan_store.commit(TxnPart([At(entry)], ours)):
                now = await ask(plan_store.store.get, entry.key)
                if now is None or now.version != entry.version:
                    return
                continue  # the answer was lost
            if len(page) < MAX_WRITES:
                break
            after = page[-1].key


def _is_item_of(plan_id: str, entry: Entry) -> bool:
    plan, task = split_item_id(entry.key.rpartition("/")[2])
    return plan == plan_id and not task.startswith("@remove.")


async def remove_damaged_plan(plan_store: PlanStore, plan_id: str) -> None:
    """Delete a plan whose record is unreadable. If a task of another plan waits for it, that task fails.

    Does nothing if the record is readable or no longer exists.
    """
    while True:
        entry = await ask(plan_store.store.get, plan_store.keys.plan_key(plan_id))
        if entry is None:
            return
        try:
            PlanRecord.from_bytes(entry.value)
        except BadRecord:
            unknown = PlanRecord(PlanState.REMOVING, now_ms(), parent=await _find_parent(plan_store, plan_id))
            if await delete_plan_now(plan_store, plan_id, entry, unknown):
                return
        else:
            return


async def _find_parent(plan_store: PlanStore, child_id: str) -> tuple[str, str] | None:
    """Find the plan and the task that wait for a child plan. None if no task does."""
    name = child_id.rpartition("-")[0]
    if not name:  # not the ID of a child plan
        return None
    is_cut = len(name) == MAX_CHILD_PREFIX
    for entry in await ask(plan_store.store.list, plan_store.keys.plans):
        plan_id = entry.key.rpartition("/")[2]
        for task in await (plan_store.read_all_tasks(plan_id) if is_cut else plan_store.read_tasks(plan_id, [name])):
            if task.record.child == child_id:
                return plan_id, task.name
    return None


async def delete_plan_now(plan_store: PlanStore, plan_id: str, entry: Entry | None, plan: PlanRecord) -> bool:
    """Delete a draft, or the leftover keys of a plan, at once. If the client dies meanwhile, a worker finishes the
    deletion.

    Args:
        plan_store: Access to the stored plans.
        plan_id: ID of the plan.
        entry: Entry of the plan's record as it was read; None if the record is missing and only other keys exist.
        plan: The decoded record.
    Returns:
        Whether this call deleted the plan. False if the plan has changed or another client deletes it.
    """
    if entry is None:
        part = plan_store.transitions.build_id_reservation(plan_id, plan)
    else:
        part = plan_store.transitions.build_removal_start(plan_id, entry, plan)
        part.ops.append(Delete(plan_store.keys.draft_key(plan_id)))
    return await plan_store.commit(part) and await finish_removal(plan_store, plan_id)


def plan_expiry_ms(plan: PlanRecord) -> float | None:
    """Return when a plan expires, in milliseconds since the epoch. None if it never does, or has not ended."""
    if plan.keep_s is None or plan.parent is not None or not plan.state.has_ended:
        return None
    return plan.ended_ms + plan.keep_s * 1000.0


def results_expiry_ms(plan: PlanRecord) -> float | None:
    """Return when the intermediate results of a plan expire, in milliseconds since the epoch.

    None if they never do, the plan has not completed, or they were already deleted.
    """
    if plan.state is not PlanState.COMPLETED or plan.keep_results_s is None or plan.are_results_gone:
        return None
    return plan.ended_ms + plan.keep_results_s * 1000.0


def next_expiry_ms(plan: PlanRecord) -> float | None:
    """Return the earliest time at which a plan or its results expire, in milliseconds since the epoch; None for
    never.
    """
    found = [each for each in (plan_expiry_ms(plan), results_expiry_ms(plan)) if each is not None]
    return min(found, default=None)


class PlanRetention:
    """Deletes plans and results whose retention time has passed. Thread-safe."""

    def __init__(self, plan_store: PlanStore) -> None:
        self._plan_store = plan_store

    async def delete_expired(self, plans: Iterable[Entry], now_ms: float) -> int:
        """Delete expired plans, and expired results of other plans.

        Args:
            plans: Entries of the plans.
            now_ms: Current time in milliseconds since the epoch.
        Returns:
            The number of affected plans.
        """
        count = 0
        for entry in plans:
            try:
                plan = PlanRecord.from_bytes(entry.value)
            except BadRecord:
                continue
            ends_ms, results_ms = plan_expiry_ms(plan), results_expiry_ms(plan)
            if ends_ms is not None and ends_ms <= now_ms:
                count += await delete_plan_now(self._plan_store, entry.key.rpartition("/")[2], entry, plan)
            elif results_ms is not None and results_ms <= now_ms:
                count += await self._delete_results(entry, plan)
        return count

    async def _delete_results(self, entry: Entry, plan: PlanRecord) -> bool:
        """Delete all intermediate results of a plan, and record that in the plan.

        Returns:
            Whether all were deleted. False if the plan has changed meanwhile.
        """
        plan_store, plan_id, check = self._plan_store, entry.key.rpartition("/")[2], At(entry)
        middle = [
            each.name
            for each in await plan_store.read_all_tasks(plan_id)
            if each.record.successors and each.name != plan.result_task and _MADE.fullmatch(each.name)
        ]
        for at in range(0, len(middle), _TOGETHER):
            if not await self._delete_named_results(plan_id, middle[at : at + _TOGETHER], check):
                return False
        changed = replace(plan, are_results_gone=True)
        return await plan_store.commit(TxnPart([check], [Put(entry.key, changed.to_bytes())]))

    async def _delete_named_results(self, plan_id: str, names: list[str], check: Check) -> bool:
        plan_store = self._plan_store
        ops: list[Op] = []
        for entry in await ask(
            plan_store.store.get_many, [plan_store.keys.result_key(plan_id, each) for each in names]
        ):
            if entry is None:
                continue
            try:
                where = decode_result(entry.value)
            except BadRecord:
                where = b""
            if isinstance(where, BlobRef):
                ops.extend(plan_store.blobs.delete_ops(where))
            ops.append(Delete(entry.key))
        for at in range(0, len(ops), MAX_WRITES):
            if not await plan_store.commit(TxnPart([check], ops[at : at + MAX_WRITES])):
                return False
        return True


async def sweep_plans(plan_store: PlanStore, now_ms: float) -> int:
    """Remove drafts of dead builders, leftover keys of removed plans, expired plans and expired results.

    Args:
        plan_store: The store of the plans.
        now_ms: Current time in milliseconds since the epoch.
    Returns:
        The number of affected plans.
    """
    stored_ids = {each for prefix in plan_store.keys.roots for each in await ask(plan_store.store.children, prefix)}
    plans = {entry.key.rpartition("/")[2]: entry for entry in await ask(plan_store.store.list, plan_store.keys.plans)}
    count = 0
    for plan_id, entry in plans.items():
        try:
            record = PlanRecord.from_bytes(entry.value)
        except BadRecord:
            continue
        if record.state is PlanState.REMOVING:  # the client that removed it has died
            count += await finish_removal(plan_store, plan_id)
        draft = plan_store.keys.draft_key(plan_id)
        if record.state is PlanState.DRAFT and await ask(plan_store.store.get, draft) is None:  # its builder has died
            count += await delete_plan_now(plan_store, plan_id, entry, record)
    count += await PlanRetention(plan_store).delete_expired(plans.values(), now_ms)
    for plan_id in sorted(stored_ids - plans.keys()):  # left by builders and workers that continued after the removal
        count += await delete_plan_now(plan_store, plan_id, None, PlanRecord(PlanState.REMOVING))
    return count
