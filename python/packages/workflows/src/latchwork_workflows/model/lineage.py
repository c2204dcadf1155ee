"""Which other workflows a definition names: those it starts, and those whose runs it waits for. Pure."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import ValidationError

from latchwork_workflows.model.logical import full_name
from latchwork_workflows.model.model import Definition, TaskSpec
from latchwork_workflows.state.conditions import Other, leaves
from latchwork_workflows.types.logical import DependentParams, SubProcessParams

#: Types whose tasks name other workflows.
NAMING = ("sub_process", "dependent")


class Named(NamedTuple):
    """That a task names a workflow.

    Attributes:
        workflow: ``project.name`` of the one that is named; it need not be there.
        kind: ``sub_process``, it is started, or ``dependent``, it is waited for.
        task: which names it.
        window: of a dependent: the run of which time; empty for a sub-process.
        of_task: of a dependent: the task that counts; empty: the whole run, ``*``: all tasks.
    """

    workflow: str
    kind: str
    task: str
    window: str = ""
    of_task: str = ""


def named_by(definition: Definition) -> tuple[Named, ...]:
    """All that a definition names, in the order of its tasks, each once."""
    return tuple(dict.fromkeys(each for task in definition.tasks for each in named_in(task)))


def named_in(task: TaskSpec) -> list[Named]:
    """The workflows that one task names."""
    try:
        if task.type == "sub_process":
            return [Named(full_name(SubProcessParams.model_validate(task.params).workflow), task.type, task.name)]
        if task.type == "dependent":
            found = leaves(DependentParams.model_validate(task.params).on.condition())
            others = [each for each in found if isinstance(each, Other)]
            return [Named(full_name(each.workflow), task.type, task.name, each.window, each.task) for each in others]
    except ValidationError:  # of a version that this one would refuse
        return []
    return []
