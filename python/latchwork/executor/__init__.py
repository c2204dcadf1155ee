"""A clustered ``concurrent.futures.Executor``: any node submits a call, one node runs it, the submitter gets the value.

It keeps to itself how tasks are stored, found, taken back and swept. There is no scheduler: who takes a task runs it.
"""

from latchwork.executor.errors import AllFailed, NoSuchMember, NoSuchTask, SomeFailed, TaskDied, TaskExists
from latchwork.executor.executor import Executor
from latchwork.executor.futures import TaskFuture
from latchwork.executor.placing.pickers import (
    LeastLoaded,
    Load,
    Picker,
    Pull,
    Random,
    Rank,
    Rendezvous,
    RoundRobin,
    TaskInfo,
    Weighted,
)
from latchwork.executor.placing.targets import All, Key, Label, Member
from latchwork.executor.refs import TaskRef
from latchwork.executor.running.runner import Runner, RunnerHealth, RunnerStats
from latchwork.executor.stored import TaskState
from latchwork.executor.submitting.options import Call

__all__ = [
    "All",
    "AllFailed",
    "Call",
    "Executor",
    "Key",
    "Label",
    "LeastLoaded",
    "Load",
    "Member",
    "NoSuchMember",
    "NoSuchTask",
    "Picker",
    "Pull",
    "Random",
    "Rank",
    "Rendezvous",
    "RoundRobin",
    "Runner",
    "RunnerHealth",
    "RunnerStats",
    "SomeFailed",
    "TaskDied",
    "TaskExists",
    "TaskFuture",
    "TaskInfo",
    "TaskRef",
    "TaskState",
    "Weighted",
]
