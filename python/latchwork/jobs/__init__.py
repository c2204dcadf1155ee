"""The job manager: distributes the work items of jobs over the running nodes of a cluster."""

from latchwork.jobs.admin.control import Control, LockNotHeld, UnknownNode
from latchwork.jobs.admin.explanation import ItemExplanation, explain_item
from latchwork.jobs.admin.inspect import ClusterState, JobState, LockView, NodeView, UnknownJob, inspect
from latchwork.jobs.job import Job, JobContext, WorkPoolFailed
from latchwork.jobs.node.node import JobManager
from latchwork.jobs.observer import (
    Health,
    JobStats,
    NodeState,
    NodeStats,
    ObservedNode,
    Observer,
    PoolInfo,
    RebalanceInfo,
    RunInfo,
)
from latchwork.jobs.options import InvalidJob, InvalidSetting, Threads
from latchwork.jobs.settings import ClusterSettings, JobSettings, Settings
from latchwork.jobs.stored.nodes import NodeRecord
from latchwork.jobs.stored.requests import AuditRecord, RunRequest, RunResult, read_audit
from latchwork.jobs.stored.runs import ActiveRuns, JobOutcome, RunError
from latchwork.schedules import Cron, FixedDelay, FixedRate, Instant, Schedule

__all__ = [
    "ActiveRuns",
    "AuditRecord",
    "ClusterSettings",
    "ClusterState",
    "Control",
    "Cron",
    "FixedDelay",
    "FixedRate",
    "Health",
    "Instant",
    "InvalidJob",
    "InvalidSetting",
    "ItemExplanation",
    "Job",
    "JobContext",
    "JobManager",
    "JobOutcome",
    "JobSettings",
    "JobState",
    "JobStats",
    "LockNotHeld",
    "LockView",
    "NodeRecord",
    "NodeState",
    "NodeStats",
    "NodeView",
    "ObservedNode",
    "Observer",
    "PoolInfo",
    "RebalanceInfo",
    "RunError",
    "RunInfo",
    "RunRequest",
    "RunResult",
    "Schedule",
    "Settings",
    "Threads",
    "UnknownJob",
    "UnknownNode",
    "WorkPoolFailed",
    "explain_item",
    "inspect",
    "read_audit",
]
