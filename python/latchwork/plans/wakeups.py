"""Wake-ups of tasks that wait for a child plan to end."""

from __future__ import annotations

from collections.abc import Mapping

from latchwork.errors import BadRecord
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import PARTITION, Keys, item_id
from latchwork.plans.plan_store import PlanStore
from latchwork.plans.records import PlanRecord, PlanState, TaskState
from latchwork.plans.transitions import TxnPart
from latchwork.store.steps import ask
from latchwork.types import At, Entry, Exists

_ENDING = (PlanState.CANCELLING, PlanState.REMOVING)


def is_plan_ending(plans: Mapping[str, Entry], keys: Keys, plan_id: str) -> bool:
    """Return whether a plan, or a plan that it is a child of, is being canceled or removed, or does not exist.

    Args:
        plans: The stored entries of all plans, by key.
        keys: Builds the keys of the plans.
        plan_id: ID of the plan.
    """
    while True:
        try:
            plan = PlanRecord.from_bytes(plans[keys.plan_key(plan_id)].value)
        except KeyError:
            return True
        except BadRecord:
            return False
        if plan.parent is None or plan.state in _ENDING:
            return plan.state in _ENDING
        plan_id = plan.parent[0]


async def read_plan_or_none(plan_store: PlanStore, plan_id: str) -> tuple[Entry, PlanRecord] | None:
    """Read a plan. Return its entry and its record, or None if it does not exist or is unreadable."""
    try:
        return await plan_store.read_plan(plan_id)
    except (NoSuchPlan, BadRecord):
        return None


async def build_parent_wakeup(plan_store: PlanStore, plan_id: str, plan: PlanRecord) -> TxnPart:
    """Return the checks and writes that wake the parent task when its child plan ends or is deleted.

    If the parent task is not waiting for the child plan, there are no writes, only a check that the task has not
    changed: a recovery may make it wait again.

    Args:
        plan_store: Access to the stored plans.
        plan_id: ID of the child plan.
        plan: Record of the child plan.
    """
    if plan.parent is None:
        return TxnPart([], [])
    parent_id, name = plan.parent
    parent = await read_plan_or_none(plan_store, parent_id)
    found = await plan_store.read_tasks(parent_id, [name]) if parent is not None else []
    if parent is None or not found:
        return TxnPart([], [])
    task = found[0]
    part = TxnPart([At(task.entry)], [])
    if task.record.state is TaskState.CHILD and task.record.child == plan_id:
        key = plan_store.queue.key(
            PARTITION, plan_store.transitions.get_sort_key(parent[1], task.record), item_id(parent_id, name)
        )
        if await ask(plan_store.store.get, key) is not None:
            part.checks.append(Exists(key))  # the worker that holds it checks this plan and will retry
        else:
            part.ops.extend(plan_store.transitions.build_item_ops(parent_id, parent[1], name, task.record))
    return part
