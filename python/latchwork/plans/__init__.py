"""Plans: durable graphs of function calls that workers anywhere run, without a server of latchwork.

A plan is built and started, and then needs no client. Workers take the tasks whose dependencies are done, and each
result is stored once.
"""

from latchwork.plans.builder import ChildPlan, PlanBuilder, Ref, child_plan
from latchwork.plans.errors import (
    ChildPlanFailed,
    DuplicateTask,
    ForeignRef,
    NoResult,
    NoSuchPlan,
    NoSuchTask,
    WrongState,
)
from latchwork.plans.handle import PlanHandle, PlanStatus
from latchwork.plans.plans import Plans, inspect
from latchwork.plans.records import PlanState, TaskState
from latchwork.plans.worker import PlanWorker

__all__ = [
    "ChildPlan",
    "ChildPlanFailed",
    "DuplicateTask",
    "ForeignRef",
    "NoResult",
    "NoSuchPlan",
    "NoSuchTask",
    "PlanBuilder",
    "PlanHandle",
    "PlanState",
    "PlanStatus",
    "PlanWorker",
    "Plans",
    "Ref",
    "TaskState",
    "WrongState",
    "child_plan",
    "inspect",
]
