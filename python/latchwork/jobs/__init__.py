"""The job manager: work items of jobs, shared out over the living nodes of a cluster."""

from latchwork.jobs.job.context import JobContext
from latchwork.jobs.job.job import Job, WorkPoolFailed
from latchwork.jobs.node.node import JobManager
from latchwork.jobs.observe.observer import ObservedNode, Observer, PoolInfo, RebalanceInfo, RunInfo
from latchwork.jobs.observe.records import Health, JobStats, NodeState, NodeStats
from latchwork.jobs.options.kinds import InvalidJob, InvalidSetting, Threads
from latchwork.jobs.options.settings import ClusterSettings, JobSettings, Settings
from latchwork.jobs.outside.control import Control, LockFree, UnknownNode
from latchwork.jobs.outside.inspect import ClusterState, JobState, LockView, NodeView, UnknownJob, inspect
from latchwork.jobs.outside.why import Reasons, why
from latchwork.jobs.stored.activity import Activity
from latchwork.jobs.stored.audit import AuditRecord, read_audit
from latchwork.jobs.stored.members import Member
from latchwork.jobs.stored.outcomes import JobOutcome, RunError
from latchwork.jobs.stored.requests import RunEnd, RunRequest
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
