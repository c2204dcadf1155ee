"""Finds all problems of a definition, each with its path. Pure, except for the checks of task types.

It checks the form (fields and types), then each task by its type, then how parts fit together: names, order,
references, the schedule. Each step only checks parts that passed the steps before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import Any, NamedTuple

from pydantic import ValidationError

from latchwork.schedules import Cron
from latchwork.spi import MAX_TIME_S
from latchwork_workflows.errors import DefinitionInvalid, Problem
from latchwork_workflows.model import master_tasks
from latchwork_workflows.model.cache_key import contains_secret_reference
from latchwork_workflows.model.definition import NAME_PATTERN, Definition, TaskSpec
from latchwork_workflows.model.json_values import find_storage_problems
from latchwork_workflows.model.settings import usage
from latchwork_workflows.model.settings.usage import StoredSettings
from latchwork_workflows.model.templates import CONNECTION, SECRET, Reference, iter_references
from latchwork_workflows.model.values import OF_ELEMENTS
from latchwork_workflows.model.yaml_format import parse_yaml
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.types.registry import UnknownType

MAX_TASKS = 5_000
#: The maximum number of items of a map.
MAX_ITEMS = 1_000
MAX_BYTES = 1_000_000
#: Names that every task may refer to.
BUILT_IN = frozenset({"schedule_time", "logical_date", "run_id", "task_name", "attempt", "workflow", "project"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def sort_topologically(after: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Sort tasks so that each comes after its predecessors. The given order is kept as far as possible.

    Args:
        after: The predecessors of each task, by task name.
    Raises:
        ValueError: The tasks form a cycle. The argument is the cycle, with the first task repeated at the end.
    """
    place = {name: index for index, name in enumerate(after)}
    sorter = TopologicalSorter(after)
    try:
        sorter.prepare()
    except CycleError as error:
        raise ValueError(tuple(reversed(error.args[1]))) from None
    found: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=place.__getitem__)
        found += ready
        sorter.done(*ready)
    return tuple(found)


def find_ancestors(after: Mapping[str, Sequence[str]], order: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return all direct and indirect predecessors of each task, by task name.

    Args:
        after: The direct predecessors of each task, by task name.
        order: The names of the tasks in topological order.
    """
    found: dict[str, frozenset[str]] = {}
    for name in order:
        found[name] = frozenset(after[name]).union(*(found[before] for before in after[name]))
    return found


class ValidDefinition(NamedTuple):
    """A valid definition.

    Attributes:
        definition: The definition.
        order: The names of its tasks in topological order.
    """

    definition: Definition
    order: tuple[str, ...]


def check_definition(definition: object, types: TaskTypes, settings: StoredSettings | None = None) -> ValidDefinition:
    """Validate a workflow definition and return it.

    Args:
        definition: Values from JSON or YAML, or a ``Definition``.
        types: The available task types.
        settings: The stored settings of its project. None: unknown, so a plain name may refer to one.
    Raises:
        DefinitionInvalid: Contains every problem found.
    """
    try:
        definition = definition if isinstance(definition, Definition) else Definition.model_validate(definition)
    except ValidationError as error:
        raise DefinitionInvalid([_convert_problem(each) for each in error.errors()]) from None
    if unstorable := list(_find_storage_problems(definition)):
        raise DefinitionInvalid(unstorable)
    names = list(_name_problems(definition))
    problems = [*_size_problems(definition), *names, *_variable_problems(definition)]
    for index, task in enumerate(definition.tasks):
        problems += [Problem(_join(f"tasks[{index}]", path), why) for path, why in _find_param_problems(task, types)]
        if task.cache_s is not None and contains_secret_reference([task.params, task.env]):
            what = "outputs of a task with secrets are not cached; remove it, or the secret"
            problems.append(Problem(f"tasks[{index}].cache_s", what))
    problems += [*_schedule_problems(definition), *_find_alert_problems(definition)]
    order: tuple[str, ...] = ()
    if not names:
        try:
            order = sort_topologically({each.name: each.after for each in definition.tasks})
        except ValueError as error:
            problems.append(
                Problem("tasks", f"these tasks wait for each other: {' -> '.join(error.args[0])}; remove one 'after'")
            )
        else:
            problems += _find_reference_problems(definition, order, types, settings)
            problems += master_tasks.find_master_task_problems(definition)
    problems += usage.find_missing_settings(definition, settings) if settings is not None else ()
    if problems:
        raise DefinitionInvalid(problems)
    return ValidDefinition(definition, order)


def find_problems(definition: object, types: TaskTypes, settings: StoredSettings | None = None) -> list[Problem]:
    """Return every problem of a workflow definition, in order. The arguments are those of ``check_definition``."""
    try:
        check_definition(definition, types, settings)
    except DefinitionInvalid as error:
        return error.problems
    return []


def find_problems_in_text(text: str, types: TaskTypes) -> list[Problem]:
    """Return every problem of a YAML or JSON text, including syntax errors. Empty if it is valid."""
    try:
        return find_problems(parse_yaml(text), types)
    except DefinitionInvalid as error:
        return error.problems


def report_used_settings(text: str, types: TaskTypes) -> list[Problem]:
    """Return the settings that must exist in the project so that the tasks of a definition can succeed.

    Args:
        text: The definition as YAML or JSON.
        types: The available task types.
    Returns:
        A problem with its path for each connection, each environment, and each name that is not a parameter.
    Raises:
        DefinitionInvalid: The definition is invalid. It contains every problem.
    """
    found = check_definition(parse_yaml(text), types)
    nothing = StoredSettings()
    if found.definition.environment is None:  # otherwise any name may be a variable of the environment
        values = list(_find_reference_problems(found.definition, found.order, types, nothing))
    else:
        values = []
    return [*values, *usage.report_used_settings(found.definition)]


def _convert_problem(error: Mapping[str, Any]) -> Problem:
    path = ""
    for each in error["loc"]:
        path = f"{path}[{each}]" if isinstance(each, int) else _join(path, str(each))
    given = error.get("input")
    shown = (
        f", not {given!r:.60}"
        if isinstance(given, (str, int, float, bool)) and error["type"] != "extra_forbidden"
        else ""
    )
    if error["type"] == "string_pattern_mismatch" and error["ctx"]["pattern"] == NAME_PATTERN:
        return Problem(path, f"{given!r:.60} is not a valid name; use up to 100 letters, digits, '_', '-' and '.'")
    message = {"extra_forbidden": "there is no such field", "missing": "this is required"}.get(
        error["type"], error["msg"][0].lower() + error["msg"][1:]
    )
    return Problem(path, message + shown)


def _join(path: str, more: str) -> str:
    return f"{path}.{more}" if path and more and not more.startswith("[") else path + more


def _find_storage_problems(definition: Definition) -> Iterator[Problem]:
    """Yield a problem for each value that is not valid JSON or that databases or processes cannot store."""
    yield from (Problem(*each) for each in find_storage_problems(definition.params, "params"))
    for index, task in enumerate(definition.tasks):
        for part in ("params", "env", "map"):
            yield from (Problem(*each) for each in find_storage_problems(getattr(task, part), f"tasks[{index}].{part}"))


def _size_problems(definition: Definition) -> Iterator[Problem]:
    if not definition.tasks:
        yield Problem("tasks", "a workflow needs at least one task")
    if len(definition.tasks) > MAX_TASKS:
        yield Problem("tasks", f"there are {len(definition.tasks):,}; a workflow has at most {MAX_TASKS:,}")
    for index, task in enumerate(definition.tasks):
        if isinstance(task.map, list) and len(task.map) > MAX_ITEMS:
            yield Problem(f"tasks[{index}].map", f"it has {len(task.map):,} items; a map has at most {MAX_ITEMS:,}")
    size = len(definition.to_json())
    if size > MAX_BYTES:
        yield Problem("", f"it takes {size:,} bytes; at most {MAX_BYTES:,}: move long scripts into files of a bundle")


def _name_problems(definition: Definition) -> Iterator[Problem]:
    counts = Counter(each.name for each in definition.tasks)
    for index, task in enumerate(definition.tasks):
        if counts[task.name] > 1:
            yield Problem(
                f"tasks[{index}].name", f"{counts[task.name]} tasks are called {task.name!r}; names are unique"
            )
        for place, before in enumerate(task.after):
            if before not in counts:
                yield Problem(f"tasks[{index}].after[{place}]", f"there is no task {before!r}")


def _variable_problems(definition: Definition) -> Iterator[Problem]:
    for index, task in enumerate(definition.tasks):
        yield from (
            Problem(f"tasks[{index}].env.{name}", _no_variable(name)) for name in task.env if not _variable(name)
        )
    yield from (Problem(f"params.{name}", _no_variable(name)) for name in definition.params if not _variable(name))


def _variable(name: str) -> bool:
    return bool(_VARIABLE.fullmatch(name))


def _no_variable(name: str) -> str:
    return f"{name!r} is not a valid variable name; use letters, digits and underscores"


def _find_param_problems(task: TaskSpec, types: TaskTypes) -> Iterator[Problem]:
    """Yield the problems that the task type finds in the parameters of a task.

    Parameters with references ``${...}`` are checked when the references are filled in.
    """
    try:
        kind = types.get(task.type)
    except UnknownType as error:
        yield Problem("type", str(error))
        return
    try:
        kind.params.model_validate(task.params)
    except ValidationError as error:
        for each in error.errors():
            owner = each["loc"][0] if each["loc"] else ""
            is_filled_in = each["type"] != "extra_forbidden" and owner not in kind.quoted
            if not (is_filled_in and isinstance(each.get("input"), str) and "${" in each["input"]):
                yield _convert_problem({**each, "loc": ("params", *each["loc"])})


def _schedule_problems(definition: Definition) -> Iterator[Problem]:
    spec = definition.schedule
    if spec is None:
        return
    try:
        cron = Cron(spec.cron, tz=spec.tz)
    except ValueError as error:
        yield Problem("schedule.tz" if "time zone" in str(error) else "schedule.cron", str(error))
        return
    for field in ("start", "end"):
        given = getattr(spec, field)
        if given is not None and not 0 <= _seconds(given) <= MAX_TIME_S:
            yield Problem(f"schedule.{field}", f"{given} is too far away; give a time between 1970 and 2970")
            return
    start = spec.start or datetime.now(UTC)
    if spec.start and spec.end and _seconds(spec.end) <= _seconds(spec.start):
        yield Problem("schedule.end", "it is not after schedule.start; schedule.end must be later")
        return
    try:
        first = cron.fire_after(_seconds(start))
    except ValueError as error:
        yield Problem("schedule.cron", str(error))
        return
    if spec.end and first > _seconds(spec.end):
        yield Problem("schedule", "it never fires between its start and its end")


def _find_alert_problems(definition: Definition) -> Iterator[Problem]:
    """Yield the problems of the alert settings. Channels need not exist yet, and the command ``doctor`` reports missing
    ones.
    """
    spec = definition.alerts
    if spec is None:
        return
    for index, name in enumerate(spec.channels):
        if name in spec.channels[:index]:
            yield Problem(f"alerts.channels[{index}]", f"{name!r} is listed twice")
    if spec.on == "none" and not spec.timeouts and not spec.failover:
        yield Problem("alerts", "no alert would ever be sent; omit 'alerts'")


def _seconds(value: datetime) -> float:
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


def _find_reference_problems(
    definition: Definition, order: tuple[str, ...], types: TaskTypes, settings: StoredSettings | None
) -> Iterator[Problem]:
    """Yield the problems of references to parameters and outputs. A task must come before the tasks that use its
    outputs.

    A name without a task may be an output that is only known at run time.

    Args:
        definition: The definition.
        order: The names of its tasks in topological order.
        types: The available task types.
        settings: The stored settings of its project. None: unknown.
    """
    before = find_ancestors({each.name: each.after for each in definition.tasks}, order)
    names = {each.name for each in definition.tasks}
    for name, value in definition.params.items():
        for path, found in _iter_references(value, f"params.{name}"):
            if isinstance(found, str):
                yield Problem(path, found)
            elif wrong := _find_unknown_name_problem(found.name, definition, settings):
                yield Problem(path, wrong)
    for index, task in enumerate(definition.tasks):
        quoted = types.get(task.type).quoted if task.type in types.names else frozenset()
        given = {key: value for key, value in task.params.items() if key not in quoted}
        yield from _script_secret_problems(task, quoted, f"tasks[{index}].params")
        parts = {"params": given, "env": task.env, "map": task.map}
        for path, found in chain(*(_iter_references(each, f"tasks[{index}].{part}") for part, each in parts.items())):
            if isinstance(found, str):
                yield Problem(path, found)
            elif found.name and (
                wrong := _misplaced_name_problem(found.name, task, before[task.name], names, definition, settings)
            ):
                yield Problem(path, wrong)
        for path, name in master_tasks.find_names_in_cases(task, names):
            wrong = _misplaced_name_problem(name, task, before[task.name], names, definition, settings)
            yield from [Problem(f"tasks[{index}].{path}", wrong.replace(f"${{{name}}}", name))] if wrong else ()


def _find_unknown_name_problem(name: str, definition: Definition, settings: StoredSettings | None) -> str:
    """Return the problem of a name in a parameter of the workflow, or an empty text if the name is known.

    Args:
        name: The name.
        definition: The definition.
        settings: The stored settings of its project. None: unknown.
    """
    if name.startswith((SECRET, CONNECTION)):
        return f"'${{{name}}}' is known to workers only; refer to it in the tasks"
    known = BUILT_IN | definition.params.keys()
    if not name or name in known or (settings is None and "." not in name):
        return ""
    if settings is not None and name in settings.list_names_for(definition, None):
        return ""
    return f"'${{{name}}}' is neither a parameter, nor stored, nor built in ({', '.join(sorted(BUILT_IN))})"


def _script_secret_problems(task: TaskSpec, quoted: frozenset[str], path: str) -> Iterator[Problem]:
    for name in sorted(quoted & task.params.keys()):
        if any(f"${{{each}" in str(task.params[name]) for each in (SECRET, CONNECTION)):
            what = "it cannot contain a secret; put the secret into 'env', and read that variable"
            yield Problem(f"{path}.{name}", what)


def _misplaced_name_problem(  # noqa: PLR0917 - one caller
    name: str,
    task: TaskSpec,
    before: frozenset[str],
    names: set[str],
    definition: Definition,
    settings: StoredSettings | None,
) -> str:
    owner, dot, _ = name.rpartition(".")
    if name.startswith((SECRET, CONNECTION)) or (task.map is not None and (owner == "item" or name in OF_ELEMENTS)):
        return ""
    if dot:
        if owner not in names:
            return f"'${{{name}}}' names no task; there is no {owner!r}"
        return "" if owner in before else f"'${{{name}}}' is of {owner!r}, which is not upstream; add it to 'after'"
    known = settings is None or name in settings.list_names_for(definition, task)
    known = known or name in definition.params or name in BUILT_IN or name in task.params
    return "" if known or before else f"'${{{name}}}' is not a parameter, and no task precedes {task.name!r}"


def _iter_references(value: object, path: str) -> Iterator[tuple[str, Reference | str]]:
    """Yield each reference in a value with its path. For text that cannot be parsed, yield a problem instead."""
    if isinstance(value, str):
        try:
            found: list[Reference | str] = list(iter_references(value))
        except ValueError as error:
            found = [str(error)]
        yield from ((path, each) for each in found)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _iter_references(each, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _iter_references(each, f"{path}[{index}]")
