"""A clustered ``concurrent.futures.Executor``: any node submits a call, one node runs it, the submitter gets the value.

It keeps to itself how tasks are stored, found, taken back and swept. There is no scheduler: who takes a task runs it.
"""

from latchwork.executor.errors import AllFailed, NoSuchMember, NoSuchTask, SomeFailed, TaskDied, TaskExists
from latchwork.executor.executor import Executor
from latchwork.executor.futures import TaskFuture
from latchwork.executor.options import Call
from latchwork.executor.pickers import (
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
from latchwork.executor.refs import TaskRef
from latchwork.executor.runner import Runner, RunnerHealth, RunnerStats
from latchwork.executor.stored import TaskState
from latchwork.executor.targets import All, Key, Label, Member

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
