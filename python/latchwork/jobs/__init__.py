"""The job manager: work items of jobs, shared out over the living nodes of a cluster."""

from latchwork.jobs.activity import Activity
from latchwork.jobs.audit import AuditRecord, read_audit
from latchwork.jobs.context import JobContext
from latchwork.jobs.control import Control, LockFree, UnknownNode
from latchwork.jobs.inspect import ClusterState, JobState, LockView, NodeView, UnknownJob, inspect
from latchwork.jobs.job import InvalidJob, Job, Threads, WorkPoolFailed
from latchwork.jobs.jobmanager import JobManager
from latchwork.jobs.members import Member
from latchwork.jobs.node_records import Health, NodeState, NodeStats
from latchwork.jobs.observer import Observer, PoolInfo, RebalanceInfo, RunInfo
from latchwork.jobs.runs import JobStats
from latchwork.jobs.schedule import Cron, FixedDelay, FixedRate, Instant, Schedule
from latchwork.jobs.settings import ClusterSettings, InvalidSetting, JobSettings, Settings
from latchwork.jobs.why import Reasons, why

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
    "JobSettings",
    "JobState",
    "JobStats",
    "LockFree",
    "LockView",
    "Member",
    "NodeState",
    "NodeStats",
    "NodeView",
    "Observer",
    "PoolInfo",
    "Reasons",
    "RebalanceInfo",
    "RunInfo",
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
