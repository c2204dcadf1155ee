"""The definition of a workflow: fields, types and limits. Immutable. ``validate`` checks how the parts fit together.

The JSON form of ``Definition`` is stored with each version and used by the API. YAML has the same structure. Omitted
fields have their documented defaults, and defaults are omitted when written.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from latchwork_workflows.state import LOGICAL, AlertRule, OnFailure, OnTimeout, Plan, Rule
from latchwork_workflows.types.logical import rule_of

#: Names are used in keys of the store and on command lines.
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Priority = Literal["highest", "high", "medium", "low", "lowest"]
#: In the order in which workers take tasks.
PRIORITIES: tuple[Priority, ...] = ("highest", "high", "medium", "low", "lowest")
Seconds = Annotated[float, Field(ge=0, le=366 * 86_400)]
Text = Annotated[str, StringConstraints(max_length=10_000)]


class Part(BaseModel):
    """What all parts have in common: they do not change, and a field that nobody knows is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=False)


class ScheduleSpec(Part):
    """When a workflow starts by itself.

    Attributes:
        cron: five fields, or six with seconds first, or ``@daily`` and its like.
        tz: name of the time zone.
        start: no fire time before this moment.
        end: none after it.
        misfire: what becomes of fire times that nobody could start in time: ``once`` makes up for all with one start,
            ``all`` starts each, ``skip`` drops those that are late.
        max_lateness_s: seconds after which a fire time is not made up for any more.
    """

    cron: str
    tz: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    misfire: Literal["once", "all", "skip"] = "once"
    max_lateness_s: Seconds = 86_400.0


class AlertsSpec(Part):
    """Who is told of what.

    Attributes:
        on: which ends of a run are told: ``none``, ``success``, ``failure``, or ``all``, which has stops among it.
        channels: names of those that tell it.
        timeouts: tell that a task or the run takes longer than ``timeout_s``, where its ``on_timeout`` is ``warn`` or
            ``both``. What ``fail`` ends is a failure, and told as one.
        failover: tell that a worker died, so that an attempt runs again; and that a master did, so that another has
            the run.
    """

    on: Literal["none", "success", "failure", "all"] = "failure"
    channels: Annotated[tuple[Name, ...], Field(min_length=1, max_length=20)]
    timeouts: bool = True
    failover: bool = False


class TaskSpec(Part):
    """One task.

    Attributes:
        name: unique in its workflow.
        type: a task type, such as ``shell`` or ``python``.
        params: what the type takes.
        after: tasks that have to be done before.
        description: for people.
        retries: how often a failure is tried again by itself.
        retry_interval_s: seconds from a failure to the next try.
        timeout_s: seconds that an attempt may take; None: any.
        on_timeout: ``fail`` ends it, ``warn`` tells somebody, ``both`` does both.
        priority: among the tasks of its instance.
        delay_s: seconds to wait once it could start.
        max_queued_s: seconds in the queue after which an attempt has failed, if no worker took it; None: any.
        cache_s: seconds for which its outputs stand for those of any task of the project with the same type, values
            and code, which has them without running; None: it runs.
        worker_group: which workers take it; None: those of the workflow.
        pool: The pool of which it takes a slot while it runs. None: none.
        enabled: else it is skipped, which counts as success.
        environment: a named set of environment variables; None: that of the workflow.
        env: further environment variables of the task, over those.
        map: a list, or a reference to an output that is one: the task is done once for each item, as ``${item}``.
        map_parallel: so many of them at a time; None: as many as workers take.
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


class Definition(Part):
    """One version of a workflow.

    Attributes:
        name: unique in its project.
        project: what workflows are sorted, and people admitted, by.
        description: for people.
        schedule: when it starts by itself; None: by command only.
        params: values for ``${name}`` in the tasks, which a start may replace.
        priority: among the instances that wait for workers.
        on_failure: ``continue`` lets the others go on when a task failed for good, ``end`` ends them.
        timeout_s: seconds that a run may take; None: any.
        on_timeout: as that of a task, for the whole run.
        serial: what a start does while another instance runs: ``parallel`` runs too, ``wait`` comes after it,
            ``discard`` is dropped, ``priority`` ends the other.
        max_runs: so many instances run at a time; None: one if ``serial`` says so, else any. A start that is one too
            many does what ``serial`` says; with ``parallel`` it waits.
        worker_group: which workers take its tasks.
        tenant: the user of the machine that tasks run as; None: the worker's.
        environment: a named set of environment variables; None: none.
        alerts: who is told of what; None: nobody of anything.
        tasks: in the order in which people read them.
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
        """Return the task of this name. Raises KeyError if there is none."""
        return next(each for each in self.tasks if each.name == name)

    def to_json(self) -> str:
        """Return the canonical JSON: identical for equal definitions, without defaults."""
        return self.model_dump_json(exclude_defaults=True)

    @property
    def key(self) -> str:
        """``project.name``, which commands and other workflows use to name it."""
        return f"{self.project}.{self.name}"


def plan_of(definition: Definition, order: tuple[str, ...]) -> Plan:
    """Return the plan that ``advance`` needs. ``order`` contains the tasks in topological order."""
    by_name = {each.name: each for each in definition.tasks}
    return Plan(
        {name: _rule(by_name[name]) for name in order},
        on_failure=definition.on_failure,
        timeout_s=definition.timeout_s,
        on_timeout=definition.on_timeout,
        alerts=None if definition.alerts is None else _alerts(definition.alerts),
    )


def _alerts(spec: AlertsSpec) -> AlertRule:
    return AlertRule(spec.on, timeouts=spec.timeouts, failover=spec.failover)


def _rule(task: TaskSpec) -> Rule:
    plain = Rule(
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
    return replace(plain, **rule_of(task.type, task.params, plain)) if task.type in LOGICAL else plain
