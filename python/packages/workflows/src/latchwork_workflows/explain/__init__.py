"""Explains why a task or a run is in its state and what would change it, from data of the database and the store.

Tasks that the master runs itself have a separate module.
"""

from latchwork_workflows.explain.held_task import HeldTaskFacts
from latchwork_workflows.explain.run import RunCause, RunFacts, explain_run
from latchwork_workflows.explain.task import (
    FullPool,
    GroupWorkers,
    QueuePosition,
    TaskFacts,
    explain_task,
    failed_upstream_tasks,
)

__all__ = [
    "FullPool",
    "GroupWorkers",
    "HeldTaskFacts",
    "QueuePosition",
    "RunCause",
    "RunFacts",
    "TaskFacts",
    "explain_run",
    "explain_task",
    "failed_upstream_tasks",
]
