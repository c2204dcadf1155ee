"""Tasks that workers have, or are to get."""

from __future__ import annotations

from latchwork_workflows.schemas.base import Document


class ActiveTask(Document):
    """A task that a worker has, or that waits for one.

    All but ``since`` is empty if the reader may not see its project.

    Attributes:
        task: The ID of the task. None: the reader may not see it, or it is not one of our tasks.
        name: The task's name.
        workflow: ``project.name``.
        run: The ID of its run.
        worker: The worker that has it. Empty: none.
        since: The time since which it runs or waits. None: not known.
    """

    task: int | None = None
    name: str = ""
    workflow: str = ""
    run: int | None = None
    worker: str = ""
    since: float | None = None
