"""The job manager: work items of jobs, shared out over the living nodes of a cluster."""

from latchwork.jobs.admin.control import Control, LockFree, UnknownNode
from latchwork.jobs.admin.inspect import ClusterState, JobState, LockView, NodeView, UnknownJob, inspect
from latchwork.jobs.admin.why import Reasons, why
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
from latchwork.jobs.stored.nodes import Member
from latchwork.jobs.stored.requests import AuditRecord, RunEnd, RunRequest, read_audit
from latchwork.jobs.stored.runs import Activity, JobOutcome, RunError
from latchwork.schedules import Cron, FixedDelay, FixedRate, Instant, Schedule

__all__ = [
    "Activity",
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
    "Job",
    "JobContext",
    "JobManager",
    "JobOutcome",
    "JobSettings",
    "JobState",
    "JobStats",
    "LockFree",
    "LockView",
    "Member",
    "NodeState",
    "NodeStats",
    "NodeView",
    "ObservedNode",
    "Observer",
    "PoolInfo",
    "Reasons",
    "RebalanceInfo",
    "RunEnd",
    "RunError",
    "RunInfo",
    "RunRequest",
    "Schedule",
    "Settings",
    "Threads",
    "UnknownJob",
    "UnknownNode",
    "WorkPoolFailed",
    "inspect",
    "read_audit",
    "why",
]
