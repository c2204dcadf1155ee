"""The values of ``${name}`` in a task of a run. Pure.

Precedence, highest first: parameters given at the start, parameters of the workflow, outputs of preceding tasks, values
of the task, its environment, parameters of the project, shared parameters. Built-in values cannot be replaced.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from latchwork_workflows.model.definition import Definition, TaskSpec
from latchwork_workflows.model.templates import (
    fill_references,
    find_environment_value_problem,
    format_environment_value,
    get_env_var_name,
    iter_names,
    iter_strings,
)

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class RunContext:
    """A run, with the data that determines its values.

    Attributes:
        definition: The definition.
        run_id: The ID of the run.
        schedule_time: Seconds since the epoch.
        params: The parameters given at the start.
        shared: The parameters of all projects and of this project, which take precedence.
        environments: Variables by the name of their environment, for those that the definition and its tasks name.
        connections: The stored connections that the definition names, by name: ``url``, and ``secret``, the name of the
            password.
    """

    definition: Definition
    run_id: int
    schedule_time: float
    params: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    connections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def get_environment(self, task: TaskSpec | None) -> Mapping[str, str]:
        """Return the variables of the environment that a task uses.

        Args:
            task: The task. If it is None or names no environment, use the environment of the definition.
        Raises:
            ValueError: There is no environment of this name.
        """
        name = (task.environment if task is not None else None) or self.definition.environment
        if name is None:
            return {}
        try:
            return self.environments[name]
        except KeyError:
            raise ValueError(f"there is no environment {name!r}; create it, or name another") from None

    @cached_property
    def tasks(self) -> Mapping[str, TaskSpec]:
        """The tasks by name."""
        return {each.name: each for each in self.definition.tasks}

    @property
    def tz(self) -> str:
        """The time zone of the schedule, in which times are formatted."""
        return self.definition.schedule.tz if self.definition.schedule is not None else "UTC"

    @property
    def schedule_datetime(self) -> datetime:
        """The schedule time of the run, in the time zone of the schedule."""
        return datetime.fromtimestamp(self.schedule_time, ZoneInfo(self.tz))


#: The additional built-in names of elements of a map.
OF_ELEMENTS = frozenset({"item", "map_index"})


def compute_values(
    run: RunContext, task: TaskSpec, n: int, outputs: Mapping[str, Mapping[str, Any]], *, index: int = -1
) -> dict[str, Any]:
    """Return the values that ``${name}`` can refer to in a task, by name.

    Args:
        run: The run.
        task: The task in the definition.
        n: The number of the attempt.
        outputs: The outputs of tasks that have ended, by name.
        index: The index of an element of a map task. -1 for other tasks.
    Raises:
        KeyError: A parameter refers to an unknown name. The argument is the name.
        ValueError: Parameters refer to each other, the items of a map task are not a list, or an environment does not
            exist.
    """
    if index >= 0:
        return _compute_element_values(run, task, n, outputs, index)
    ours, before = build_built_in_values(run, task.name, n), list(_iter_predecessors(run, task)) if outputs else []
    plain = (str, int, float, bool)
    own = {name: value for name, value in task.params.items() if isinstance(value, plain) and "${" not in str(value)}
    known = {
        **run.shared,
        **run.get_environment(task),
        **own,
        **_drop_large_outputs(run, task, _select_outputs(before, outputs)),
    }
    params = {**run.definition.params, **run.params}
    known |= _resolve_params(
        params, run.definition.params.keys() - run.params.keys(), {**known, **ours}, run.schedule_datetime
    )
    return {**known, **_select_qualified_outputs(task, before, outputs), **ours}


def compute_items(run: RunContext, task: TaskSpec, n: int, outputs: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Return the list whose items a map task runs for. Raises like ``compute_values``.

    Args:
        run: The run.
        task: The task in the definition.
        n: The number of the attempt.
        outputs: The outputs of tasks that have ended, by name.
    """
    items = fill_references(task.map, compute_values(run, task, n, outputs), run.schedule_datetime)
    if not isinstance(items, list):
        raise ValueError(f"the items of {task.name!r} must be a list, not {items!r:.100}")  # noqa: TRY004
    return items


def gather_outputs(outputs: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Combine the outputs of a map task's elements into lists, in the order of the items. A missing output becomes
    None.
    """
    each = list(outputs)
    keys = dict.fromkeys(key for values in each for key in values)
    return {key: [values.get(key) for values in each] for key in keys}


def _compute_element_values(
    run: RunContext, task: TaskSpec, n: int, outputs: Mapping[str, Mapping[str, Any]], index: int
) -> dict[str, Any]:
    """Return the values of an element of a map task: those of the task and those of the item.

    The list of all items is left out to save space.

    Args:
        run: The run.
        task: The task in the definition.
        n: The number of the attempt.
        outputs: The outputs of tasks that have ended, by name.
        index: The index of the element.
    """
    known = compute_values(run, task, n, outputs)
    items = compute_items(run, task, n, outputs)
    named = set(iter_names([task.params, task.env]))
    known = {name: value for name, value in known.items() if name in named or value is not items}
    item = items[index]
    if isinstance(item, Mapping):
        known |= {f"item.{key}": value for key, value in item.items()}
    return {**known, "item": item, "map_index": index}


def compute_effective_params(run: RunContext) -> dict[str, Any]:
    """Return the parameters of a run with their references filled in, for display. Raises like ``compute_values``."""
    params = {**run.definition.params, **run.params}
    known = {**run.shared, **run.get_environment(None), **build_built_in_values(run, "", 0)}
    return _resolve_params(params, run.definition.params.keys() - run.params.keys(), known, run.schedule_datetime)


def _select_outputs(before: Iterable[str], outputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the outputs of preceding tasks by output name. If names are equal, the nearer task takes precedence.

    Args:
        before: The names of the preceding tasks, nearest first.
        outputs: The outputs of tasks that have ended, by task name.
    """
    found: dict[str, Any] = {}
    for each in before:
        for name, value in outputs.get(each, {}).items():
            found.setdefault(name, value)
    return found


def _drop_large_outputs(run: RunContext, task: TaskSpec, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without outputs that are too large for environment variables and that the task does not refer
    to.
    """
    large = [name for name, value in values.items() if find_environment_value_problem(format_environment_value(value))]
    if large:
        texts = iter_strings([run.definition.params, task.params, task.env, task.map])
        words = {word for text in texts for word in _WORD.findall(text)}
        for name in large:
            if get_env_var_name(name) not in words:
                del values[name]
    return values


def _iter_predecessors(run: RunContext, task: TaskSpec) -> Iterator[str]:
    """Yield the names of all direct and indirect predecessors of a task, nearest first."""
    seen: set[str] = set()
    level = list(task.after)
    while level:
        yield from level
        seen.update(level)
        level = list(dict.fromkeys(name for each in level for name in run.tasks[each].after if name not in seen))


def build_built_in_values(run: RunContext, task: str, n: int) -> dict[str, Any]:
    """Return the built-in values of a task, such as the run ID. Parameters cannot replace them.

    Args:
        run: The run.
        task: The name of the task.
        n: The number of the attempt.
    """
    return {
        "schedule_time": run.schedule_datetime.isoformat(),
        "logical_date": (run.schedule_datetime - timedelta(days=1)).date().isoformat(),
        "run_id": run.run_id,
        "task_name": task,
        "attempt": n,
        "workflow": run.definition.name,
        "project": run.definition.project,
    }


def _resolve_params(
    params: Mapping[str, Any], templates: frozenset[str] | set[str], known: Mapping[str, Any], scheduled_at: datetime
) -> dict[str, Any]:
    """Return parameters with their references filled in. Values given at the start of the run are not changed.

    Args:
        params: The parameters.
        templates: The names of the parameters that contain references.
        known: The values that references can use.
        scheduled_at: The schedule time of the run.
    """
    found: dict[str, Any] = {}

    def resolve(name: str, above: tuple[str, ...]) -> None:
        if name in found:
            return
        if name in above:
            raise ValueError(f"parameters refer to each other: {' -> '.join((*above, name))}")
        if name not in templates:
            found[name] = params[name]
            return
        for other in set(iter_names(params[name])) & params.keys():
            resolve(other, (*above, name))
        found[name] = fill_references(params[name], {**known, **found}, scheduled_at)

    for name in params:
        resolve(name, ())
    return found


def _select_qualified_outputs(
    task: TaskSpec, before: Collection[str], outputs: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return outputs by ``task.output``. Outputs that the task does not use are left out, because they may be large.

    A task uses an output by a reference, or by ``$task_output`` in its script.

    Args:
        task: The task.
        before: The names of all preceding tasks.
        outputs: The outputs of tasks that have ended, by task name.
    """
    found: dict[str, Any] = {}
    for name in set(iter_names([task.params, task.env, task.map])):
        owner, dot, output = name.rpartition(".")
        if dot and output in outputs.get(owner, {}):
            found[name] = outputs[owner][output]
    words = {word for text in iter_strings(task.params) for word in _WORD.findall(text)} if before else set()
    for owner in before:
        for output, value in outputs.get(owner, {}).items():
            if get_env_var_name(name := f"{owner}.{output}") in words:
                found[name] = value
    return found
