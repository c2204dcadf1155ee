"""What is known of all plans at once, for people and programs that only look. Reads only."""

from __future__ import annotations

from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.handle import PlanStatus
from latchwork.plans.keys import NAME
from latchwork.plans.plans import Plans
from latchwork.plans.records import PlanState
from latchwork.store import Store


def inspect(store: Store, name: str = NAME) -> list[PlanStatus]:
    """How each plan is, the oldest first; drafts are none yet. Reads the tasks of all of them.

    Args:
        store: the store, or a namespace of it.
        name: of the plans.
    Raises:
        Unavailable: the plans could not be read.
    """
    plans = Plans(store, name)
    found = []
    for plan_id, record in plans.list():
        if record.state is not PlanState.DRAFT:
            try:
                found.append(plans.get(plan_id).status())
            except NoSuchPlan:  # removed meanwhile
                continue
    return found
