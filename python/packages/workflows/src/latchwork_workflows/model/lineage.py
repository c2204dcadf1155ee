"""The other workflows that a definition names: those it starts, and those whose runs it waits for. Pure."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import ValidationError

from latchwork_workflows.model.definition import Definition, TaskSpec
from latchwork_workflows.model.master_tasks import qualify_name
from latchwork_workflows.state.conditions import RunSucceeded, iter_leaves
from latchwork_workflows.types.master_tasks import DependentParams, SubProcessParams

#: Task types that name other workflows.
NAMING = ("sub_process", "dependent")


class WorkflowReference(NamedTuple):
    """A reference from a task to a workflow.

    Attributes:
        workflow: ``project.name`` of the named workflow, which need not exist.
        kind: ``sub_process`` if it is started, ``dependent`` if the task waits for it.
        task: The task that names it.
        window: For a dependent: the window of its runs. Empty for a sub-process.
        of_task: For a dependent: the task to wait for. Empty: the whole run. ``*``: all tasks.
    """

    workflow: str
    kind: str
    task: str
    window: str = ""
    of_task: str = ""


def list_references(definition: Definition) -> tuple[WorkflowReference, ...]:
    """Return the references of a definition to other workflows, in task order, without duplicates."""
    return tuple(dict.fromkeys(each for task in definition.tasks for each in list_references_of_task(task)))


def list_references_of_task(task: TaskSpec) -> list[WorkflowReference]:
    """Return the references of one task to other workflows."""
    try:
        if task.type == "sub_process":
            return [
                WorkflowReference(
                    qualify_name(SubProcessParams.model_validate(task.params).workflow), task.type, task.name
                )
            ]
        if task.type == "dependent":
            found = iter_leaves(DependentParams.model_validate(task.params).on.condition())
            others = [each for each in found if isinstance(each, RunSucceeded)]
            return [
                WorkflowReference(qualify_name(each.workflow), task.type, task.name, each.window, each.task)
                for each in others
            ]
    except ValidationError:  # written by a version with other rules
        return []
    return []
