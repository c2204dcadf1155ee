"""What a task can do: shell, Python, and what other packages add by the entry point ``latchwork.workflow_tasks``."""

from latchwork.workflows.types.base import Command, ParamsModel, RunInfo, TaskType
from latchwork.workflows.types.registry import TaskTypes

__all__ = ["Command", "ParamsModel", "RunInfo", "TaskType", "TaskTypes"]
