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

from latchwork_workflows.model.model import Definition, TaskSpec
from latchwork_workflows.model.templates import (
    fill,
    names_in,
    texts_in,
    variable_of,
    variable_problem,
    variable_text,
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

    def environment_of(self, task: TaskSpec | None) -> Mapping[str, str]:
        """Return the variables of the environment that a task uses, or the definition if the task is None or uses none.

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


def values_of(
    run: RunContext, task: TaskSpec, n: int, outputs: Mapping[str, Mapping[str, Any]], *, index: int = -1
) -> dict[str, Any]:
    """Return the values to which ``${name}`` can refer in a task, by name.

    Args:
        run: The run.
        task: The task in the definition.
        n: The number of the attempt.
        outputs: The outputs of ended tasks, by name.
        index: The index of an element of a map. -1 for other tasks.
    Raises:
        KeyError: A parameter refers to an unknown name. The argument is the name.
        ValueError: Parameters refer to each other, the items of a map are not a list, or an environment does not exist.
    """
    if index >= 0:
        return _element_values(run, task, n, outputs, index)
    ours, before = built_in_values(run, task.name, n), list(_tasks_before(run, task)) if outputs else []
    plain = (str, int, float, bool)
    own = {name: value for name, value in task.params.items() if isinstance(value, plain) and "${" not in str(value)}
    known = {
        **run.shared,
        **run.environment_of(task),
        **own,
        **_without_large(run, task, _outputs_by_name(before, outputs)),
    }
    params = {**run.definition.params, **run.params}
    known |= _resolve_params(
        params, run.definition.params.keys() - run.params.keys(), {**known, **ours}, run.schedule_datetime
    )
    return {**known, **_qualified_outputs(task, before, outputs), **ours}


def items_of(run: RunContext, task: TaskSpec, n: int, outputs: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Return the list of items over which a map task runs. Raises like ``values_of``."""
    items = fill(task.map, values_of(run, task, n, outputs), run.schedule_datetime)
    if not isinstance(items, list):
        raise ValueError(f"the items of {task.name!r} must be a list, not {items!r:.100}")  # noqa: TRY004
    return items


def gather_outputs(outputs: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Combine the outputs of a map's elements into lists, in the order of the items.

    A missing output becomes None.
    """
    each = list(outputs)
    keys = dict.fromkeys(key for values in each for key in values)
    return {key: [values.get(key) for values in each] for key in keys}


def _element_values(
    run: RunContext, task: TaskSpec, n: int, outputs: Mapping[str, Mapping[str, Any]], index: int
) -> dict[str, Any]:
    """Return the values of a map's element: those of its task and its item.

    The list of all items is left out to save space.
    """
    known = values_of(run, task, n, outputs)
    items = items_of(run, task, n, outputs)
    named = set(names_in([task.params, task.env]))
    known = {name: value for name, value in known.items() if name in named or value is not items}
    item = items[index]
    if isinstance(item, Mapping):
        known |= {f"item.{key}": value for key, value in item.items()}
    return {**known, "item": item, "map_index": index}


def effective_params(run: RunContext) -> dict[str, Any]:
    """Return the parameters of a run with their references filled in, for display. Raises like ``values_of``."""
    params = {**run.definition.params, **run.params}
    known = {**run.shared, **run.environment_of(None), **built_in_values(run, "", 0)}
    return _resolve_params(params, run.definition.params.keys() - run.params.keys(), known, run.schedule_datetime)


def _outputs_by_name(before: Iterable[str], outputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the outputs of all preceding tasks by output name.

    If names are equal, nearer tasks take precedence.
    """
    found: dict[str, Any] = {}
    for each in before:
        for name, value in outputs.get(each, {}).items():
            found.setdefault(name, value)
    return found


def _without_large(run: RunContext, task: TaskSpec, found: dict[str, Any]) -> dict[str, Any]:
    """Leave out outputs that are too large for environment variables, unless the task refers to them."""
    large = [name for name, value in found.items() if variable_problem(variable_text(value))]
    if large:
        texts = texts_in([run.definition.params, task.params, task.env, task.map])
        words = {word for text in texts for word in _WORD.findall(text)}
        for name in large:
            if variable_of(name) not in words:
                del found[name]
    return found


def _tasks_before(run: RunContext, task: TaskSpec) -> Iterator[str]:
    """Yield the names of all preceding tasks, nearest first."""
    seen: set[str] = set()
    level = list(task.after)
    while level:
        yield from level
        seen.update(level)
        level = list(dict.fromkeys(name for each in level for name in run.tasks[each].after if name not in seen))


def built_in_values(run: RunContext, task: str, n: int) -> dict[str, Any]:
    """Return the built-in values of a task, such as the run ID, which parameters cannot replace."""
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
    """Return the parameters with their references filled in. Values given at the start of the run are literal."""
    found: dict[str, Any] = {}

    def resolve(name: str, above: tuple[str, ...]) -> None:
        if name in found:
            return
        if name in above:
            raise ValueError(f"parameters refer to each other: {' -> '.join((*above, name))}")
        if name not in templates:
            found[name] = params[name]
            return
        for other in set(names_in(params[name])) & params.keys():
            resolve(other, (*above, name))
        found[name] = fill(params[name], {**known, **found}, scheduled_at)

    for name in params:
        resolve(name, ())
    return found


def _qualified_outputs(
    task: TaskSpec, before: Collection[str], outputs: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return outputs by ``task.output``: those to which the task refers, or that its script may read as
    ``$task_output``.

    Outputs of other preceding tasks are left out, because they may be large.
    """
    found: dict[str, Any] = {}
    for name in set(names_in([task.params, task.env, task.map])):
        owner, dot, output = name.rpartition(".")
        if dot and output in outputs.get(owner, {}):
            found[name] = outputs[owner][output]
    words = {word for text in texts_in(task.params) for word in _WORD.findall(text)} if before else set()
    for owner in before:
        for output, value in outputs.get(owner, {}).items():
            if variable_of(name := f"{owner}.{output}") in words:
                found[name] = value
    return found
