"""Explains why a task or a run is in its state and what would change it, from data of the database and the store.

Tasks that the master runs itself have a separate module.
"""

from latchwork_workflows.explain.master_task import MasterTaskFacts
from latchwork_workflows.explain.run import RunCause, RunFacts, explain_run
from latchwork_workflows.explain.task import (
    FullPool,
    GroupWorkers,
    QueuePosition,
    TaskFacts,
    explain_task,
    find_failed_upstream_tasks,
)

__all__ = [
    "FullPool",
    "GroupWorkers",
    "MasterTaskFacts",
    "QueuePosition",
    "RunCause",
    "RunFacts",
    "TaskFacts",
    "explain_run",
    "explain_task",
    "find_failed_upstream_tasks",
]
