"""The job manager: work items of jobs, shared out over the living nodes of a cluster."""

from latchwork.jobs.context import JobContext
from latchwork.jobs.control import Control, UnknownNode
from latchwork.jobs.inspect import ClusterState, JobState, LockView, NodeView, UnknownJob, inspect
from latchwork.jobs.job import InvalidJob, Job, Threads, WorkPoolFailed
from latchwork.jobs.jobmanager import Health, JobManager, NodeState, NodeStats
from latchwork.jobs.members import Member
from latchwork.jobs.observer import Observer, PoolInfo, RebalanceInfo, RunInfo
from latchwork.jobs.runs import JobStats
from latchwork.jobs.schedule import Cron, FixedDelay, FixedRate, Instant, Schedule
from latchwork.jobs.settings import ClusterSettings, InvalidSetting, JobSettings, Settings

__all__ = [
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
    "LockView",
    "Member",
    "NodeState",
    "NodeStats",
    "NodeView",
    "Observer",
    "PoolInfo",
    "RebalanceInfo",
    "RunInfo",
    "Schedule",
    "Settings",
    "Threads",
    "UnknownJob",
    "UnknownNode",
    "WorkPoolFailed",
    "inspect",
]
