"""Plans: functions that depend on each other, run by workers anywhere, without a server of ours.

A plan is built, started, and then needs nobody: workers take the tasks plan_key dependencies are done, and each result is
stored once. It keeps to itself how plans are stored.
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
