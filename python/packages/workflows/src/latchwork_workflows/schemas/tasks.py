"""Tasks of runs, their attempts and logs."""

from __future__ import annotations

from typing import Any

from latchwork_workflows.schemas.base import Document
from latchwork_workflows.state import TaskState


class Task(Document):
    """A task of a run.

    Attributes:
        id: The ID of the task.
        run: The ID of its run.
        round: The round of the run that it belongs to.
        name: Its name. The element of a map has its index: ``load[3]``.
        map_index: Its index in a map. -1: it is not part of a map.
        state: Such as ``running`` or ``success``.
        n: The number of its newest attempt. 0: none yet.
        failures: How many attempts have failed.
        wake_at: When it is retried, or is no longer delayed.
        outputs: Its outputs.
        changed_at: When its state changed.
        in_master: Whether its master runs it, not a worker.
    """

    id: int
    run: int
    round: int
    name: str
    map_index: int
    state: TaskState
    n: int
    failures: int
    wake_at: float | None
    outputs: Any
    changed_at: float
    in_master: bool


class Attempt(Document):
    """An attempt of a task.

    Attributes:
        id: ``<task>.<n>.<claim>``, which names its log.
        task: The ID of the task.
        name: The name of the task.
        round: The round of the run that it belongs to.
        n: The number of the attempt, from 1.
        kind: The type of the task.
        worker: The worker that ran it.
        host: The host of the worker.
        pid: The process that ran it. None: not known.
        started_at: When it began.
        ended_at: When it ended. None: not yet.
        outcome: How it ended. None: not yet.
        exit_code: The exit code of its process.
        error: Why it failed.
        cached_from: The task whose cached outputs were used.
        has_log: Whether it has a log.
    """

    id: str
    task: int
    name: str
    round: int
    n: int
    kind: str
    worker: str
    host: str
    pid: int | None
    started_at: float
    ended_at: float | None
    outcome: str | None
    exit_code: int | None
    error: str | None
    cached_from: int | None
    has_log: bool


class AwaitedRun(Document):
    """A run, a task of it, or all its tasks (``*``), for which a dependent waits.

    Attributes:
        workflow: ``project.name``.
        task: The task. Empty: the run as a whole.
        window: The time of the run.
        there: Whether it is as wanted. None: not known yet.
    """

    workflow: str
    task: str
    window: str
    there: bool | None


class TaskDetail(Task):
    """A task with its attempts.

    Attributes:
        workflow: ``project.name``.
        why: Why it is in its state.
        child: The ID of the run that it started. None: it started none.
        awaited: The runs for which it waits.
        elements: Of a map: how many elements are in each state.
        attempts: The newest first.
    """

    workflow: str
    why: str
    child: int | None
    awaited: list[AwaitedRun]
    elements: dict[str, int]
    attempts: list[Attempt]


class LogText(Document):
    """A part of a log as text that is safe to show.

    Attributes:
        text: The text.
        offset: The offset of this part, in bytes.
        next: The offset of the next part, in bytes.
        ended: Whether nothing will follow.
    """

    text: str
    offset: int
    next: int
    ended: bool
