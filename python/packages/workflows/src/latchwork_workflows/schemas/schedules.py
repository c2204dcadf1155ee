"""Schedules of workflows."""

from __future__ import annotations

from latchwork_workflows.schemas.base import Document
from latchwork_workflows.state import RunState


class LastFire(Document):
    """The last fire time of a schedule, with the run that it started or the reason why it started none.


    Attributes:
        fire_time: The time.
        done_at: When a master started the run. None: not yet.
        run: The ID of the run.
        state: The state of the run.
        error: Why no run was started.
    """

    fire_time: float
    done_at: float | None
    run: int | None
    state: RunState | None
    error: str | None


class Schedule(Document):
    """The schedule of a workflow.

    Attributes:
        project: The project of the workflow.
        name: The name of the workflow.
        cron: When it fires.
        tz: The time zone of the cron expression.
        misfire: What happens to missed fire times.
        enabled: Whether it starts runs.
        online: Whether the workflow can be started.
        starts_at: It does not fire before this time.
        ends_at: It does not fire after this time.
        next_fires: The next times at which it starts runs. Empty: never, or it is disabled.
        last: The newest fire time. None: it has not fired yet.
    """

    project: str
    name: str
    cron: str
    tz: str
    misfire: str
    enabled: bool
    online: bool
    starts_at: float | None
    ends_at: float | None
    next_fires: list[float]
    last: LastFire | None

    @property
    def key(self) -> str:
        """The full name of the workflow, ``project.name``."""
        return f"{self.project}.{self.name}"


class ScheduleChange(Document):
    """Whether a schedule starts its workflow."""

    enabled: bool


class FireTimes(Document):
    """The next times at which a cron expression fires."""

    fires: list[float]
