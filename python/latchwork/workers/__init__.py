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
from latchwork.workers.records import Event, WorkerInfo
from latchwork.workers.submitting import JobHandle, JobStatus, find, submit
from latchwork.workers.worker import Worker

__all__ = [
    "Event",
    "JobAlreadyRunning",
    "JobFailed",
    "JobFaulty",
    "JobFull",
    "JobHandle",
    "JobStatus",
    "JobTerminated",
    "Removed",
    "RestartsExceeded",
    "Worker",
    "WorkerInfo",
    "WrongRun",
    "find",
    "submit",
]
