"""Runs of workflows, the requests that start them, and the reasons of their states."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from latchwork_workflows.model.definition import Priority
from latchwork_workflows.schemas.base import Document
from latchwork_workflows.schemas.tasks import Task
from latchwork_workflows.schemas.values import NoCache, Plain, TaskNames, Time
from latchwork_workflows.state import OVER, RunState


class Run(Document):
    """One execution of a workflow.

    Attributes:
        id: The ID of the run.
        project: The project of the workflow.
        name: The name of the workflow.
        version: The version of the workflow.
        state: Such as ``running`` or ``success``.
        round: 1, and one more for each rerun.
        schedule_time: The time from which its parameters count.
        created_at: When a master created it.
        started_at: When it began. None: not yet.
        ended_at: When it ended. None: not yet.
        by: The account that started it, or the schedule.
        dry: Whether every task succeeds without running.
        params: Its parameters.
        parent_task: The ID of the task that started it. None: no task did.
        backfill: The ID of its backfill. None: it belongs to none.
    """

    id: int
    project: str
    name: str
    version: int
    state: RunState
    round: int
    schedule_time: float
    created_at: float
    started_at: float | None
    ended_at: float | None
    by: str
    dry: bool
    params: dict[str, Any]
    parent_task: int | None
    backfill: int | None

    @property
    def workflow(self) -> str:
        """The full name of the workflow, ``project.name``."""
        return f"{self.project}.{self.name}"

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended. It continues only if it is resumed, recovered or rerun."""
        return self.state in OVER


class RunDetail(Run):
    """A run with its tasks.

    Attributes:
        tasks: The tasks of its newest round, in the order of the definition.
        possible: The actions that its state allows, such as ``pause``.
    """

    tasks: list[Task]
    possible: list[str]

    @property
    def task_states(self) -> dict[str, str]:
        """The state of each task, by its name."""
        return {each.name: each.state.value for each in self.tasks}


class ChildRun(Document):
    """A run that a task started.

    Attributes:
        id: The ID of the run.
        project: The project of its workflow.
        name: The name of its workflow.
        state: The state of the run.
        started_at: When it began. None: not yet.
        ended_at: When it ended. None: not yet.
        task: The name of the task that started it.
        map_index: The index of the task in its map. -1: it is not part of a map.
        round: The round of the task's run.
    """

    id: int
    project: str
    name: str
    state: RunState
    started_at: float | None
    ended_at: float | None
    task: str
    map_index: int
    round: int


class StartRequest(Document):
    """The options of a new run.


    Attributes:
        params: Values that replace those of the definition.
        priority: Replaces the priority of the definition.
        start_from: The tasks to start with. Empty: all.
        scope: Which other tasks run: ``only`` these, those ``downstream`` of them, or ``upstream``.
        dry: Every task succeeds without running.
        no_cache: Every task runs, even if its outputs are cached.
        schedule_time: The time from which parameters count. None: now.
    """

    params: Plain = Field(default_factory=dict)
    priority: Priority | None = None
    start_from: TaskNames = Field(default_factory=list)
    scope: Literal["only", "downstream", "upstream"] = "downstream"
    dry: bool = False
    no_cache: NoCache = False
    schedule_time: Time | None = None


class RecoverRequest(Document):
    """The options of recovering or rerunning a run.


    Attributes:
        start_from: For ``recover``: further tasks to run again.
        no_cache: For ``rerun``: every task runs, even if its outputs are cached.
    """

    start_from: TaskNames = Field(default_factory=list)
    no_cache: NoCache = False


class Cause(Document):
    """One reason why a run waits or failed. An empty ``task`` means the run itself."""

    task: str
    why: str


class Explanation(Document):
    """Why a run waits or failed, and why each of its tasks is in its state.

    Attributes:
        cause: The reasons of the run. Empty while it makes progress.
        tasks: One sentence per task, by its name.
    """

    cause: list[Cause]
    tasks: dict[str, str]
