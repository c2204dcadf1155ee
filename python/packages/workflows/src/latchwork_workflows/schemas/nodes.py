"""Running workers."""

from __future__ import annotations

from latchwork_workflows.schemas.base import Document


class RunningTask(Document):
    """A task that a worker runs.

    Attributes:
        task: The ID of the task.
        name: The name of the task.
        workflow: ``project.name``.
        run: The ID of its run.
        since: When the worker took it. None: its master has not read that yet.
    """

    task: int
    name: str
    workflow: str
    run: int
    since: float | None


class Worker(Document):
    """A running worker, with the tasks that the account may see.


    Attributes:
        name: The name of the worker.
        host: The host on which it runs.
        groups: The worker groups whose tasks it takes.
        slots: How many tasks it runs at a time.
        busy: How many it runs.
        types: The task types that it knows.
        version: The version of latchwork.
        state: Such as ``running`` or ``draining``.
        tenants: The users of its host that tasks may name; ``-``: tasks may name none. Empty: not known.
        running: Its current tasks.
    """

    name: str
    host: str
    groups: list[str]
    slots: int
    busy: int
    types: list[str]
    version: str
    state: str
    tenants: list[str]
    running: list[RunningTask]
