"""N processes of one job that find each other, number themselves, meet, fail and come back.

`submit` or the first worker creates a job; each process is a `Worker` with an id from 0 that it keeps over restarts.
"""

from latchwork.workers.errors import (
    JobAlreadyRunning,
    JobFailed,
    JobFaulty,
    JobFull,
    JobTerminated,
    Removed,
    RestartsExceeded,
    WrongRun,
)
from latchwork.workers.looking import JobState, WorkersState, inspect, inspect_job, list_events
from latchwork.workers.master import JobMaster, MasterInfo, master, wait_master
from latchwork.workers.records import Event, Head, WorkerInfo
from latchwork.workers.submitting import JobHandle, JobStatus, find, submit
from latchwork.workers.sweeping import Sweeper, Swept, sweep
from latchwork.workers.worker import Worker

__all__ = [
    "Event",
    "Head",
    "JobAlreadyRunning",
    "JobFailed",
    "JobFaulty",
    "JobFull",
    "JobHandle",
    "JobMaster",
    "JobState",
    "JobStatus",
    "JobTerminated",
    "MasterInfo",
    "Removed",
    "RestartsExceeded",
    "Sweeper",
    "Swept",
    "Worker",
    "WorkerInfo",
    "WorkersState",
    "WrongRun",
    "find",
    "inspect",
    "inspect_job",
    "list_events",
    "master",
    "submit",
    "sweep",
    "wait_master",
]
