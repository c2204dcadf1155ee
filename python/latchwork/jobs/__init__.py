"""The job manager: work items of jobs, shared out over the living nodes of a cluster."""

from latchwork.jobs.context import JobContext
from latchwork.jobs.inspect import ClusterState, JobState, LockView, NodeView, UnknownJob, inspect
from latchwork.jobs.job import InvalidJob, Job, Threads, WorkPoolFailed
from latchwork.jobs.jobmanager import JobManager, NodeState, NodeStats
from latchwork.jobs.members import Member
from latchwork.jobs.runs import JobStats
from latchwork.jobs.schedule import Cron, FixedDelay, FixedRate, Instant, Schedule

__all__ = [
    "ClusterState",
    "Cron",
    "FixedDelay",
    "FixedRate",
    "Instant",
    "InvalidJob",
    "Job",
    "JobContext",
    "JobManager",
    "JobState",
    "JobStats",
    "LockView",
    "Member",
    "NodeState",
    "NodeStats",
    "NodeView",
    "Schedule",
    "Threads",
    "UnknownJob",
    "WorkPoolFailed",
    "inspect",
]
