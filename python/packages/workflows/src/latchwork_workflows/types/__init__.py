"""Task types: the built-in ones, and the types that packages add by the entry point ``latchwork.workflow_tasks``."""

from latchwork_workflows.types.base import Command, ParamsModel, RunInfo, TaskType
from latchwork_workflows.types.registry import TaskTypes

__all__ = ["Command", "ParamsModel", "RunInfo", "TaskType", "TaskTypes"]
