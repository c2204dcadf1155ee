"""A clustered ``concurrent.futures.Executor``: any node submits a call, one node runs it, the submitter gets the value.

It keeps to itself how tasks are stored, found, taken back and swept. There is no scheduler: who takes a task runs it.
"""

from latchwork.executor.admin import (
    DeadTask,
    ExecutorState,
    ExecutorWorkerInfo,
    PartitionInfo,
    PendingTask,
    cancel_task,
    dead_tasks,
    drop_task,
    find_task,
    finished_tasks,
    forget_finished_tasks,
    forget_task,
    inspect,
    list_tasks,
    requeue_task,
)
from latchwork.executor.errors import AllFailed, NoSuchMember, NoSuchTask, SomeFailed, TaskDied, TaskExists
from latchwork.executor.executor import Call, Executor
from latchwork.executor.finished import FinishedTask
from latchwork.executor.futures import TaskFuture
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
from latchwork.executor.stored import TaskState
from latchwork.executor.targets import All, Key, Label, Member
from latchwork.executor.worker import ExecutorWorker

__all__ = [
    "All",
    "AllFailed",
    "Call",
    "DeadTask",
    "Executor",
    "ExecutorState",
    "ExecutorWorker",
    "ExecutorWorkerInfo",
    "FinishedTask",
    "Key",
    "Label",
    "LeastLoaded",
    "Load",
    "Member",
    "NoSuchMember",
    "NoSuchTask",
    "PartitionInfo",
    "PendingTask",
    "Picker",
    "Pull",
    "Random",
    "Rank",
    "Rendezvous",
    "RoundRobin",
    "SomeFailed",
    "TaskDied",
    "TaskExists",
    "TaskFuture",
    "TaskInfo",
    "TaskRef",
    "TaskState",
    "Weighted",
    "cancel_task",
    "dead_tasks",
    "drop_task",
    "find_task",
    "finished_tasks",
    "forget_finished_tasks",
    "forget_task",
    "inspect",
    "list_tasks",
    "requeue_task",
]
