"""Validates tasks that the master runs itself and map tasks, and chooses the branch of a ``switch`` task. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from latchwork_workflows.errors import Problem
from latchwork_workflows.model.definition import Definition, TaskSpec
from latchwork_workflows.model.expressions import Budget, Expression, ExpressionError
from latchwork_workflows.model.templates import CONNECTION, SECRET, iter_references
from latchwork_workflows.state import LOGICAL
from latchwork_workflows.state.conditions import TaskEnded, iter_leaves
from latchwork_workflows.types.master_tasks import ConditionsParams, SubProcessParams, SwitchParams

M = TypeVar("M", bound=BaseModel)
#: Fields for workers. Logical tasks, which do not run on workers, cannot have them.
_OF_WORKERS = ("retries", "worker_group", "pool", "environment", "env", "max_queued_s", "cache_s")


def find_master_task_problems(definition: Definition) -> Iterator[Problem]:
    """Yield the problems of the tasks that the master runs itself and of the map tasks, in task order."""
    after = {each.name: each.after for each in definition.tasks}
    for index, task in enumerate(definition.tasks):
        path = f"tasks[{index}]"
        yield from _map(task, path)
        if task.type not in LOGICAL:
            continue
        yield from _options(task, path)
        if task.type == "sub_process":
            yield from _sub_process(definition, task, path)
        elif task.type == "conditions":
            yield from _conditions(task, path, after)
        elif task.type == "switch":
            yield from _switch(task, path, after)


def _parse_params(model: type[M], task: TaskSpec) -> M | None:
    """Parse the parameters of a task that the master runs itself. Return None if they are invalid, which is reported
    elsewhere.
    """
    try:
        return model.model_validate(task.params)
    except ValidationError:
        return None


def _map(task: TaskSpec, path: str) -> Iterator[Problem]:
    if task.map is None:
        if task.map_parallel is not None:
            yield Problem(f"{path}.map_parallel", "without 'map' it has no effect")
        return
    if task.type in LOGICAL - {"sub_process"}:
        yield Problem(f"{path}.map", f"a {task.type} decides once; map a task of a worker, or a sub_process")
    if isinstance(task.map, str) and not _is_reference(task.map):
        yield Problem(
            f"{path}.map", f"{task.map!r:.60} is not a list; give one, or a reference such as ${{list.files}}"
        )


def _is_reference(text: str) -> bool:
    try:
        found = list(iter_references(text))
    except ValueError:
        return True  # reported by the check of references
    return len(found) == 1 and text == f"${{{found[0].name}}}"


def _options(task: TaskSpec, path: str) -> Iterator[Problem]:
    plain = TaskSpec.model_construct(name=task.name, type=task.type)
    for field in _OF_WORKERS:
        if getattr(task, field) != getattr(plain, field):
            yield Problem(f"{path}.{field}", f"a {task.type} is decided by its master; this is for tasks of workers")
    if task.timeout_s is not None and task.type != "dependent":
        what = "give the workflow that it starts one" if task.type == "sub_process" else "it decides at once"
        yield Problem(f"{path}.timeout_s", f"a {task.type} has none; {what}")


def _sub_process(definition: Definition, task: TaskSpec, path: str) -> Iterator[Problem]:
    if any(f"${{{each}" in str(task.params.get("params", "")) for each in (SECRET, CONNECTION)):
        what = "only workers know secrets; refer to them in the tasks of that workflow"
        yield Problem(f"{path}.params.params", what)
    given = _parse_params(SubProcessParams, task)
    if given is not None and qualify_name(given.workflow) == definition.key:
        yield Problem(f"{path}.params.workflow", f"{definition.key} would start itself endlessly")


def _conditions(task: TaskSpec, path: str, after: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    if not task.after:
        yield Problem(f"{path}.after", "conditions evaluate earlier tasks; name them")
    given = _parse_params(ConditionsParams, task)
    if given is None:
        return
    for leaf in iter_leaves(given.when.condition()) if given.when is not None else ():
        if isinstance(leaf, TaskEnded) and leaf.task not in task.after:
            yield Problem(f"{path}.params.when", f"it looks at {leaf.task!r}, which is not in 'after'")
    for field in ("success", "failure"):
        yield from _heads(task, f"{path}.params.{field}", getattr(given, field), after)
    for each in sorted(set(given.success) & set(given.failure)):
        yield Problem(f"{path}.params.failure", f"{each!r} is also in 'success'; a task can be in one of them")


def _switch(task: TaskSpec, path: str, after: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    given = _parse_params(SwitchParams, task)
    if given is None:
        return
    for index, case in enumerate(given.cases):
        try:
            Expression(case.when)
        except ExpressionError as error:
            yield Problem(f"{path}.params.cases[{index}].when", str(error))
        yield from _heads(task, f"{path}.params.cases[{index}].then", case.then, after)
    yield from _heads(task, f"{path}.params.default", given.default, after)


def find_names_in_cases(task: TaskSpec, tasks: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each name that the expressions of a ``switch`` task read, with its path.

    Args:
        task: The task.
        tasks: The names of all tasks. An output of one of them has the form ``list.files``.
    """
    given = _parse_params(SwitchParams, task) if task.type == "switch" else None
    for index, case in enumerate(given.cases if given is not None else ()):
        with suppress(ExpressionError):
            for name in Expression(case.when).names:
                owner = name.partition(".")[0]
                yield f"params.cases[{index}].when", name if owner in tasks else owner


def _heads(task: TaskSpec, path: str, names: Sequence[str], after: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    for index, name in enumerate(names):
        if name not in after:
            yield Problem(f"{path}[{index}]", f"there is no task {name!r}")
        elif task.name not in after[name]:
            yield Problem(f"{path}[{index}]", f"{name!r} does not come after {task.name!r}; add that to its 'after'")


def qualify_name(name: str) -> str:
    """Return a workflow name in the form ``project.name``. A name without a project belongs to the project
    ``default``.
    """
    return name if "." in name else f"default.{name}"


def choose_branch(task: TaskSpec, values: Mapping[str, Any], outputs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Evaluate the expressions of a ``switch`` task, and return the first tasks of the chosen branch.

    Args:
        task: The task.
        values: Parameters and outputs by name.
        outputs: The outputs of all tasks that have ended, by task name, for expressions such as ``extract.rows``.
    Raises:
        ValueError: An expression has no value. The message names the task, the field and the expression.
    """
    given = SwitchParams.model_validate(task.params)
    names = {**outputs, **{name: value for name, value in values.items() if "." not in name}}
    budget = Budget()
    for index, case in enumerate(given.cases):
        try:
            if Expression(case.when).is_true(names, budget):
                return list(case.then)
        except ExpressionError as error:
            place = f"task {task.name!r}, params.cases[{index}].when"
            raise ValueError(f"{place}, {case.when!r:.100}: {error}") from None
    return list(given.default)
