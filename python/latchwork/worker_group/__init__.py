"""Groups of N processes that get a rank each, meet at barriers, and restart together when one of them is lost.

`submit` or the first worker creates a group. Each process is a `GroupWorker` with a rank from 0 that it keeps over
restarts.
"""

from latchwork.worker_group.admin import (
    GroupDetails,
    GroupOverview,
    inspect,
    inspect_group,
    list_events,
)
from latchwork.worker_group.errors import (
    EpochEnded,
    GroupAlreadyRunning,
    GroupFailed,
    GroupFull,
    GroupTerminated,
    RestartsExceeded,
    WorkerRemoved,
    WrongRun,
)
from latchwork.worker_group.master import GroupMaster, MasterInfo, find_master, wait_for_master
from latchwork.worker_group.records import GroupEvent, GroupRecord, WorkerInfo
from latchwork.worker_group.submission import GroupHandle, GroupStatus, find, submit
from latchwork.worker_group.sweeper import GroupSweeper, GroupSweepResult, sweep
from latchwork.worker_group.worker import GroupWorker

__all__ = [
    "EpochEnded",
    "GroupAlreadyRunning",
    "GroupDetails",
    "GroupEvent",
    "GroupFailed",
    "GroupFull",
    "GroupHandle",
    "GroupMaster",
    "GroupOverview",
    "GroupRecord",
    "GroupStatus",
    "GroupSweepResult",
    "GroupSweeper",
    "GroupTerminated",
    "GroupWorker",
    "MasterInfo",
    "RestartsExceeded",
    "WorkerInfo",
    "WorkerRemoved",
    "WrongRun",
    "find",
    "find_master",
    "inspect",
    "inspect_group",
    "list_events",
    "submit",
    "sweep",
    "wait_for_master",
]
