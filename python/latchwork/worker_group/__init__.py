"""N processes of one job that find each other, number themselves, meet, fail and come back.

`submit` or the first worker creates a job; each process is a `Worker` with an id from 0 that it keeps over restarts.
"""

from latchwork.worker_group.admin import (
    GroupSweeper,
    JobState,
    Swept,
    WorkersState,
    inspect,
    inspect_job,
    list_events,
    sweep,
)
from latchwork.worker_group.errors import (
    JobAlreadyRunning,
    JobFailed,
    JobFaulty,
    JobFull,
    JobTerminated,
    Removed,
    RestartsExceeded,
    WrongRun,
)
from latchwork.worker_group.master import JobMaster, MasterInfo, master, wait_master
from latchwork.worker_group.records import Event, GroupHead, WorkerInfo
from latchwork.worker_group.submission import JobHandle, JobStatus, find, submit
from latchwork.worker_group.worker import Worker

__all__ = [
    "Event",
    "GroupHead",
    "GroupSweeper",
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
