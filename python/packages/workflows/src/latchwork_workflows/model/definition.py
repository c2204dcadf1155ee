"""The definition of a workflow: its fields, their types and limits. Immutable. ``validate`` checks how the parts fit.

The JSON form of ``Definition`` is stored with each version and used by the API. YAML has the same structure. Omitted
fields have their documented defaults, and defaults are omitted when written.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from latchwork_workflows.state import LOGICAL, AlertRule, OnFailure, OnTimeout, TaskRule, WorkflowPlan
from latchwork_workflows.types.master_tasks import build_master_rule_fields

#: Names are used in keys of the store and on command lines.
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Priority = Literal["highest", "high", "medium", "low", "lowest"]
#: In the order in which workers take tasks.
PRIORITIES: tuple[Priority, ...] = ("highest", "high", "medium", "low", "lowest")
Seconds = Annotated[float, Field(ge=0, le=366 * 86_400)]
Text = Annotated[str, StringConstraints(max_length=10_000)]


class DefinitionModel(BaseModel):
    """The base class of all parts of a definition. Instances are immutable, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=False)


class ScheduleSpec(DefinitionModel):
    """The times at which a workflow starts.

    Attributes:
        cron: A cron expression with five fields, six with seconds first, or a name such as ``@daily``.
        tz: The name of the time zone.
        start: The earliest fire time. None: no limit.
        end: The latest fire time. None: no limit.
        misfire: Handling of fire times that were missed because no master was running: ``once`` starts one run for all
            of them, ``all`` one for each, ``skip`` none.
        max_lateness_s: Seconds after which a missed fire time is dropped.
    """

    cron: str
    tz: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    misfire: Literal["once", "all", "skip"] = "once"
    max_lateness_s: Seconds = 86_400.0


class AlertsSpec(DefinitionModel):
    """The events of a run that are sent as alerts, and the channels that send them.

    Attributes:
        on: The outcomes that cause an alert: ``none``, ``success``, ``failure``, or ``all``, which includes stops.
        channels: The names of the channels.
        timeouts: Alert when a task or the run takes longer than ``timeout_s``, if its ``on_timeout`` is ``warn`` or
            ``both``. With ``fail`` the timeout is a failure and causes the alert of a failure.
        failover: Alert when an attempt runs again because its worker was lost, and when another master takes over the
            run.
    """

    on: Literal["none", "success", "failure", "all"] = "failure"
    channels: Annotated[tuple[Name, ...], Field(min_length=1, max_length=20)]
    timeouts: bool = True
    failover: bool = False


class TaskSpec(DefinitionModel):
    """One task.

    Attributes:
        name: Unique in its workflow.
        type: A task type, such as ``shell`` or ``python``.
        params: The parameters of its type.
        after: The tasks that must be done before.
        description: Text for readers.
        retries: The number of automatic retries.
        retry_interval_s: Seconds from a failure to the next attempt.
        timeout_s: Seconds that an attempt may take. None: no limit.
        on_timeout: ``fail`` stops the attempt, ``warn`` sends an alert, ``both`` does both.
        priority: The priority among the tasks of its run.
        delay_s: Seconds to wait before the task is queued.
        max_queued_s: Seconds in the queue after which the attempt fails if no worker claimed it. None: no limit.
        cache_s: Seconds for which its outputs are reused by any task of the project with the same type, values and
            code. None: no caching.
        worker_group: The workers that run it. None: those of the workflow.
        pool: The pool of which it takes a slot while it runs. None: none.
        enabled: False skips it, which counts as success.
        environment: The name of a set of environment variables. None: that of the workflow.
        env: Further environment variables, which take precedence.
        map: A list, or a reference to an output that is a list. The task runs once for each item, as ``${item}``.
        map_parallel: The number of items that run at a time. None: no limit.
    """

    name: Name
    type: Name
    params: dict[str, Any] = Field(default_factory=dict)
    after: tuple[str, ...] = ()
    description: Text = ""
    retries: Annotated[int, Field(ge=0, le=1000)] = 0
    retry_interval_s: Seconds = 60.0
    timeout_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    on_timeout: OnTimeout = OnTimeout.FAIL
    priority: Priority = "medium"
    delay_s: Seconds = 0.0
    max_queued_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    cache_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    worker_group: Name | None = None
    pool: Name | None = None
    enabled: bool = True
    environment: Name | None = None
    env: dict[str, str] = Field(default_factory=dict)
    map: list[Any] | str | None = None
    map_parallel: Annotated[int, Field(ge=1, le=1000)] | None = None


class Definition(DefinitionModel):
    """One version of a workflow.

    Attributes:
        name: Unique in its project.
        project: The project, which groups workflows and grants access to them.
        description: Text for readers.
        schedule: The times at which it starts. None: only on demand.
        params: Values for ``${name}`` in the tasks, which a start may replace.
        priority: The priority among the runs that wait for workers.
        on_failure: After a task has finally failed, ``continue`` runs the tasks that do not depend on it, ``end`` stops
            all others.
        timeout_s: Seconds that a run may take. None: no limit.
        on_timeout: As that of a task, for the whole run.
        serial: The concurrency policy, which applies when ``max_runs`` is reached: ``wait`` starts the new run later,
            ``discard`` drops it, ``priority`` stops an active run. ``parallel`` sets no limit by itself.
        max_runs: The number of runs that may be active at a time. None: one, or with ``parallel`` no limit. With
            ``parallel`` a further run waits.
        worker_group: The workers that run its tasks.
        tenant: The user of the machine that tasks run as. None: that of the worker.
        environment: The name of a set of environment variables. None: none.
        alerts: The alerts of its runs. None: none.
        tasks: In the order in which they are shown.
    """

    name: Name
    project: Name = "default"
    description: Text = ""
    schedule: ScheduleSpec | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    priority: Priority = "medium"
    on_failure: OnFailure = OnFailure.CONTINUE
    timeout_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    on_timeout: OnTimeout = OnTimeout.WARN
    serial: Literal["parallel", "wait", "discard", "priority"] = "parallel"
    max_runs: Annotated[int, Field(ge=1, le=10_000)] | None = None
    worker_group: Name = "default"
    tenant: Name | None = None
    environment: Name | None = None
    alerts: AlertsSpec | None = None
    tasks: tuple[TaskSpec, ...]

    def task(self, name: str) -> TaskSpec:
        """Return the task of this name.

        Raises:
            KeyError: The definition has no such task.
        """
        return next(each for each in self.tasks if each.name == name)

    def to_json(self) -> str:
        """Return the definition as canonical JSON without defaults. Equal definitions have identical JSON."""
        return self.model_dump_json(exclude_defaults=True)

    @property
    def key(self) -> str:
        """The full name ``project.name``, by which commands and other workflows refer to the workflow."""
        return f"{self.project}.{self.name}"


def build_plan(definition: Definition, order: tuple[str, ...]) -> WorkflowPlan:
    """Convert a definition to the plan that the state machine of runs needs.

    Args:
        definition: The definition.
        order: The names of its tasks in topological order.
    """
    by_name = {each.name: each for each in definition.tasks}
    return WorkflowPlan(
        {name: _rule(by_name[name]) for name in order},
        on_failure=definition.on_failure,
        timeout_s=definition.timeout_s,
        on_timeout=definition.on_timeout,
        alerts=None if definition.alerts is None else _alerts(definition.alerts),
    )


def _alerts(spec: AlertsSpec) -> AlertRule:
    return AlertRule(spec.on, timeouts=spec.timeouts, failover=spec.failover)


def _rule(task: TaskSpec) -> TaskRule:
    plain = TaskRule(
        after=task.after,
        retries=task.retries,
        retry_interval_s=task.retry_interval_s,
        delay_s=task.delay_s,
        timeout_s=task.timeout_s,
        on_timeout=task.on_timeout,
        enabled=task.enabled,
        maps=task.map is not None,
        map_parallel=task.map_parallel,
        max_queued_s=task.max_queued_s,
    )
    return replace(plain, **build_master_rule_fields(task.type, task.params, plain)) if task.type in LOGICAL else plain
