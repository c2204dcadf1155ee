"""Types that masters run without a worker: ``sub_process``, ``dependent``, ``conditions``, ``switch``."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from latchwork_workflows.state.conditions import AllOf, AnyOf, Condition, RunSucceeded, TaskEnded
from latchwork_workflows.state.records import TaskRule
from latchwork_workflows.state.related_runs import WINDOWS, join_window_names
from latchwork_workflows.types.base import Command, ParamsModel, RunInfo

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
WorkflowName = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$", max_length=201)]


class SubProcessParams(ParamsModel):
    """Attributes: ``workflow``, ``project.name`` or a name in ``default``. ``params``, the parameters of its run."""

    workflow: WorkflowName
    params: dict[str, Any] = Field(default_factory=dict)


class DependencyCondition(ParamsModel):
    """One of ``all``, ``any``, or ``workflow`` with ``task`` and ``window``. A plain text is a workflow."""

    all: tuple[DependencyCondition, ...] | None = None
    any: tuple[DependencyCondition, ...] | None = None
    workflow: WorkflowName | None = None
    task: str = ""
    window: str = "today"

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        return {"workflow": value} if isinstance(value, str) else value

    @field_validator("window")
    @classmethod
    def _known_window(cls, value: str) -> str:
        if value not in WINDOWS:
            raise ValueError(f"there is no such window; there are {join_window_names()}")
        return value

    @model_validator(mode="after")
    def _one_of_them(self) -> DependencyCondition:
        _check_one(self, "workflow")
        return self

    def condition(self) -> Condition:
        """Convert the parameters to a condition for ``evaluate``."""
        if self.workflow is not None:
            return RunSucceeded(self.workflow, self.task, self.window)
        return _build_condition(self)


class TaskCondition(ParamsModel):
    """One of ``all``, ``any``, or ``task`` with ``failed``. A plain text is a task that succeeded."""

    all: tuple[TaskCondition, ...] | None = None
    any: tuple[TaskCondition, ...] | None = None
    task: str | None = None
    failed: bool = False

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        return {"task": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_of_them(self) -> TaskCondition:
        _check_one(self, "task")
        return self

    def condition(self) -> Condition:
        """Convert the parameters to a condition for ``evaluate``."""
        return TaskEnded(self.task, self.failed) if self.task is not None else _build_condition(self)


def _check_one(model: DependencyCondition | TaskCondition, leaf: str) -> None:
    given = [name for name in ("all", "any", leaf) if getattr(model, name) is not None]
    if len(given) != 1:
        raise ValueError(f"give one of 'all', 'any' and {leaf!r}")
    if given[0] != leaf and not getattr(model, given[0]):
        raise ValueError(f"{given[0]!r} is empty")


def _build_condition(model: DependencyCondition | TaskCondition) -> Condition:
    if model.all is not None:
        return AllOf(tuple(each.condition() for each in model.all))
    return AnyOf(tuple(each.condition() for each in model.any or ()))


class DependentParams(ParamsModel):
    """Attributes: ``on``, the dependencies. ``on_failure``, ``fail`` or ``wait``. ``wait_s``, seconds to wait in that
    case.
    """

    on: DependencyCondition
    on_failure: Literal["fail", "wait"] = "fail"
    wait_s: Annotated[float, Field(ge=0, le=366 * 86_400)] = 0.0

    @model_validator(mode="after")
    def _wait_is_given(self) -> DependentParams:
        if (self.on_failure == "wait") is not (self.wait_s > 0):
            raise ValueError("wait_s is required with on_failure 'wait', and only allowed with it")
        return self


class ConditionsParams(ParamsModel):
    """Attributes: ``when``, default: all predecessors succeeded. ``success`` and ``failure``, the first tasks of each
    branch.
    """

    when: TaskCondition | None = None
    success: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()


class Case(ParamsModel):
    """Attributes: ``when``, an expression of parameters and outputs. ``then``, the first tasks of the branch."""

    when: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    then: tuple[str, ...]


class SwitchParams(ParamsModel):
    """Attributes: ``cases``, of which the first true one is chosen. ``default``, the first tasks if no case is true."""

    cases: Annotated[tuple[Case, ...], Field(min_length=1, max_length=100)]
    default: tuple[str, ...] = ()


class _MasterTaskType:
    """Base of the task types that the master runs itself."""

    is_logical: ClassVar[bool] = True

    def command(self, params: Any, run: RunInfo) -> Command:
        """Raise ValueError, because the master runs such a task itself and no worker needs a command for it."""
        raise ValueError(f"task {run.task} is decided by its master; workers do not run {type(params).__name__}")


class SubProcess(_MasterTaskType):
    """Runs another workflow. Its outputs become those of the task."""

    name: ClassVar[str] = "sub_process"
    params: ClassVar[type[ParamsModel]] = SubProcessParams
    quoted: ClassVar[frozenset[str]] = frozenset({"workflow"})


class Dependent(_MasterTaskType):
    """Waits for runs of other workflows."""

    name: ClassVar[str] = "dependent"
    params: ClassVar[type[ParamsModel]] = DependentParams
    quoted: ClassVar[frozenset[str]] = frozenset({"on", "on_failure", "wait_s"})


class Conditions(_MasterTaskType):
    """Chooses a branch by how its predecessors ended. Their failures do not fail the run."""

    name: ClassVar[str] = "conditions"
    params: ClassVar[type[ParamsModel]] = ConditionsParams
    quoted: ClassVar[frozenset[str]] = frozenset({"when", "success", "failure"})


class Switch(_MasterTaskType):
    """Chooses a branch by parameters and outputs."""

    name: ClassVar[str] = "switch"
    params: ClassVar[type[ParamsModel]] = SwitchParams
    quoted: ClassVar[frozenset[str]] = frozenset({"cases", "default"})


def build_master_rule_fields(type_: str, params: dict[str, Any], plain: TaskRule) -> dict[str, Any]:
    """Return the fields of ``TaskRule`` that only tasks without a worker have, such as the branches of a ``switch``.

    Args:
        type_: The task type. For types that workers run, the result is empty.
        params: The parameters of the task.
        plain: The rule of the task without these fields.
    """
    if type_ == "sub_process":
        return {"kind": type_}
    if type_ == "dependent":
        return {"kind": type_, "wait_s": DependentParams.model_validate(params).wait_s}
    if type_ == "conditions":
        given = ConditionsParams.model_validate(params)
        when = (
            given.when.condition() if given.when is not None else AllOf(tuple(TaskEnded(each) for each in plain.after))
        )
        return {
            "kind": type_,
            "when": when,
            "branches": (given.success, given.failure),
            "heads": (*given.success, *given.failure),
        }
    if type_ == "switch":
        return {
            "kind": type_,
            "heads": tuple(dict.fromkeys(list_first_branch_tasks(SwitchParams.model_validate(params)))),
        }
    return {}


def list_first_branch_tasks(params: SwitchParams) -> list[str]:
    """Return the first tasks of all branches of a ``switch`` task."""
    return [*(name for case in params.cases for name in case.then), *params.default]
