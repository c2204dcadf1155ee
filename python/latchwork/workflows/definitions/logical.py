"""What is wrong with logical tasks and maps of a definition, each by its place; and what a switch chooses. Pure."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from latchwork.workflows.definitions.model import Definition, TaskSpec
from latchwork.workflows.definitions.templates import CONNECTION, SECRET, references
from latchwork.workflows.errors import Problem
from latchwork.workflows.state import LOGICAL
from latchwork.workflows.state.conditions import Ended, leaves
from latchwork.workflows.types.logical import ConditionsParams, SubProcessParams, SwitchParams

M = TypeVar("M", bound=BaseModel)
#: Fields that are for workers: a task that no worker gets has none of them.
_OF_WORKERS = ("retries", "worker_group", "task_group", "environment", "env", "max_queued_s", "cache_s")
#: What an expression may call.
_FUNCTIONS = {"len": len, "int": int, "float": float, "str": str, "min": min, "max": max, "abs": abs}
_WRONG = (ArithmeticError, TypeError, ValueError, LookupError, AttributeError, SyntaxError, RecursionError)


def problems(definition: Definition) -> Iterator[Problem]:
    """Of all tasks, in their order."""
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


def _read(model: type[M], task: TaskSpec) -> M | None:
    """Its parameters; None where they are wrong, which was told."""
    try:
        return model.model_validate(task.params)
    except ValidationError:
        return None


def _map(task: TaskSpec, path: str) -> Iterator[Problem]:
    if task.map is None:
        if task.map_parallel is not None:
            yield Problem(f"{path}.map_parallel", "without 'map' there is nothing that it limits")
        return
    if task.type in LOGICAL - {"sub_process"}:
        yield Problem(f"{path}.map", f"a {task.type} decides once; map a task of a worker, or a sub_process")
    if isinstance(task.map, str) and not _is_reference(task.map):
        yield Problem(f"{path}.map", f"{task.map!r:.60} is no list; give one, or a reference such as ${{list.files}}")


def _is_reference(text: str) -> bool:
    try:
        found = list(references(text))
    except ValueError:
        return True  # which is told where references are looked at
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
        what = "a password is known to workers alone; name it in the tasks of that workflow"
        yield Problem(f"{path}.params.params", what)
    given = _read(SubProcessParams, task)
    if given is not None and full_name(given.workflow) == definition.key:
        yield Problem(f"{path}.params.workflow", f"{definition.key} would start itself, again and again")


def _conditions(task: TaskSpec, path: str, after: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    if not task.after:
        yield Problem(f"{path}.after", "conditions look at tasks before; name them")
    given = _read(ConditionsParams, task)
    if given is None:
        return
    for leaf in leaves(given.when.condition()) if given.when is not None else ():
        if isinstance(leaf, Ended) and leaf.task not in task.after:
            yield Problem(f"{path}.params.when", f"it looks at {leaf.task!r}, which is not in 'after'")
    for field in ("success", "failure"):
        yield from _heads(task, f"{path}.params.{field}", getattr(given, field), after)
    for each in sorted(set(given.success) & set(given.failure)):
        yield Problem(f"{path}.params.failure", f"{each!r} is in 'success' too; let it come after the conditions alone")


def _switch(task: TaskSpec, path: str, after: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    given = _read(SwitchParams, task)
    if given is None:
        return
    for index, case in enumerate(given.cases):
        wrong = _no_expression(case.when)
        if wrong:
            yield Problem(f"{path}.params.cases[{index}].when", wrong)
        yield from _heads(task, f"{path}.params.cases[{index}].then", case.then, after)
    yield from _heads(task, f"{path}.params.default", given.default, after)


def _heads(task: TaskSpec, path: str, names: Sequence[str], after: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    for index, name in enumerate(names):
        if name not in after:
            yield Problem(f"{path}[{index}]", f"there is no task {name!r}")
        elif task.name not in after[name]:
            yield Problem(f"{path}[{index}]", f"{name!r} does not come after {task.name!r}; add that to its 'after'")


def full_name(name: str) -> str:
    """``project.name`` of what may be a name of the project ``default``."""
    return name if "." in name else f"default.{name}"


# Expressions


def _no_expression(text: str) -> str:
    """What keeps a text from being an expression; empty: nothing."""
    if "${" in text:
        return "an expression has the names themselves: rows > 10, and not ${rows} > 10"
    try:
        ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{text!r:.60} is no expression: {error}"
    return ""


def chosen(params: Mapping[str, Any], values: Mapping[str, Any], outputs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The tasks that a switch lets go on.

    Args:
        params: of the switch.
        values: parameters and outputs by name.
        outputs: of all tasks that have ended, by name: ``extract.rows`` in an expression.
    Raises:
        ValueError: an expression names nothing that is there, or cannot be reckoned with what is.
    """
    given = SwitchParams.model_validate(params)
    names = {**outputs, **{name: value for name, value in values.items() if "." not in name}}
    for index, case in enumerate(given.cases):
        if _is_true(case.when, names, index):
            return list(case.then)
    return list(given.default)


def _is_true(text: str, names: Mapping[str, Any], index: int) -> bool:
    from simpleeval import InvalidExpression, SimpleEval

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(SimpleEval(names=dict(names), functions=dict(_FUNCTIONS)).eval(text.strip()))
    except (
        InvalidExpression,
        ArithmeticError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        SyntaxError,
    ) as error:
        raise ValueError(f"cases[{index}].when, {text!r:.100}: {type(error).__name__}: {error}") from None
