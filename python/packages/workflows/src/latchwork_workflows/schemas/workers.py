"""Tasks of workers and pools."""

from __future__ import annotations

from latchwork_workflows.schemas.base import Document


class ActiveTask(Document):
    """A task that holds a slot or waits for one.


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
