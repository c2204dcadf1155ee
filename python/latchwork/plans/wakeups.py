"""A plan that ends tells the task of another plan that waits for it; and the other way round."""

from __future__ import annotations

from collections.abc import Mapping

from latchwork.errors import BadRecord
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import LANE, Keys, item_id
from latchwork.plans.plan_store import PlanStore
from latchwork.plans.records import PlanRecord, PlanState, TaskState
from latchwork.plans.states import Edit
from latchwork.store.steps import ask
from latchwork.types import At, Entry, Exists

_ENDING = (PlanState.CANCELLING, PlanState.REMOVING)


def ends(plans: Mapping[str, Entry], keys: Keys, plan_id: str) -> bool:
    """Whether a plan, or one that it is a child of, is being cancelled or removed, or is gone; by what a mirror has."""
    while True:
        try:
            plan = PlanRecord.of(plans[keys.plan(plan_id)].value)
        except KeyError:
            return True
        except BadRecord:
            return False
        if plan.parent is None or plan.state in _ENDING:
            return plan.state in _ENDING
        plan_id = plan.parent[0]


async def read_child(place: PlanStore, plan_id: str) -> tuple[Entry, PlanRecord] | None:
    """A plan that may be gone."""
    try:
        return await place.plan(plan_id)
    except (NoSuchPlan, BadRecord):
        return None


async def wake(place: PlanStore, plan_id: str, plan: PlanRecord) -> Edit:
    """What tells the task that waits for this plan, for the transaction in which the plan ends or is deleted.

    Where none waits, a check that it does not begin to: a recover may have it wait again.
    """
    if plan.parent is None:
        return Edit([], [])
    parent_id, name = plan.parent
    parent = await read_child(place, parent_id)
    found = await place.tasks(parent_id, [name]) if parent is not None else []
    if parent is None or not found:
        return Edit([], [])
    task = found[0]
    edit = Edit([At(task.entry)], [])
    if task.record.state is TaskState.CHILD and task.record.child == plan_id:
        key = place.backlog.key(LANE, place.edges.shelf(parent[1], task.record), item_id(parent_id, name))
        if await ask(place.store.get, key) is not None:
            edit.checks.append(Exists(key))  # who has it looks again: it checks that this plan is as it saw it
        else:
            edit.ops.extend(place.edges.item(parent_id, parent[1], name, task.record))
    return edit
