"""What ``${name}`` stands for in a task of an instance. Pure.

What is nearer to the run counts: what the start said, then the workflow's parameters, then outputs of tasks before,
then what the task itself is given, then its environment, then parameters of the project, then those of everything. What
is built in cannot be replaced.
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
    not_a_variable,
    texts_in,
    variable_of,
    variable_text,
)

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Run:
    """One instance, as far as values follow from it.

    Attributes:
        definition: what is run.
        instance: its id.
        schedule_time: seconds since the epoch.
        params: what the start said.
        shared: parameters of everything and of the project, the project's over the others.
        environments: variables by the name of their environment: those that the definition and its tasks name.
        connections: stored connections by name, as far as the definition names them: ``url``, and ``secret``, the name
            of the password.
    """

    definition: Definition
    instance: int
    schedule_time: float
    params: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    connections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def environment_of(self, task: TaskSpec | None) -> Mapping[str, str]:
        """The variables of a task's environment, or of the definition's where the task names none, or is None.

        Raises:
            ValueError: there is no environment of that name.
        """
        name = (task.environment if task is not None else None) or self.definition.environment
        if name is None:
            return {}
        try:
            return self.environments[name]
        except KeyError:
            raise ValueError(f"there is no environment {name!r}; make it, or name another") from None

    @cached_property
    def tasks(self) -> Mapping[str, TaskSpec]:
        """The tasks by name."""
        return {each.name: each for each in self.definition.tasks}

    @property
    def tz(self) -> str:
        """The time zone that times are told in: the schedule's."""
        return self.definition.schedule.tz if self.definition.schedule is not None else "UTC"

    @property
    def moment(self) -> datetime:
        """The schedule time."""
        return datetime.fromtimestamp(self.schedule_time, ZoneInfo(self.tz))


#: What elements of a map have besides what all tasks have.
OF_ELEMENTS = frozenset({"item", "map_index"})


def values_of(
    run: Run, task: TaskSpec, n: int, outputs: Mapping[str, Mapping[str, Any]], *, index: int = -1
) -> dict[str, Any]:
    """What ``${name}`` stands for in a task.

    Args:
        run: the instance.
        task: of its definition.
        n: number of the attempt.
        outputs: of the tasks that have ended, by name.
        index: of an element of a map; -1 of any other task.
    Raises:
        KeyError: a parameter refers to a name that nothing has; its argument is the name.
        ValueError: parameters refer to each other; the items of a map are no list; there is no such environment.
    """
    if index >= 0:
        return _of_element(run, task, n, outputs, index)
    ours, before = built_in(run, task.name, n), list(_tasks_before(run, task)) if outputs else []
    plain = (str, int, float, bool)
    own = {name: value for name, value in task.params.items() if isinstance(value, plain) and "${" not in str(value)}
    known = {**run.shared, **run.environment_of(task), **own, **_without_large(run, task, _plain(before, outputs))}
    params = {**run.definition.params, **run.params}
    known |= _resolved(params, run.definition.params.keys() - run.params.keys(), {**known, **ours}, run.moment)
    return {**known, **_named(task, before, outputs), **ours}


def items_of(run: Run, task: TaskSpec, n: int, outputs: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """The items of a map. Errors as for ``values_of``."""
    items = fill(task.map, values_of(run, task, n, outputs), run.moment)
    if not isinstance(items, list):
        raise ValueError(f"the items of {task.name!r} are to be a list, not {items!r:.100}")  # noqa: TRY004
    return items


def gathered(outputs: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The outputs of a map: lists of those of its elements, in their order; None where one has none."""
    each = list(outputs)
    keys = dict.fromkeys(key for values in each for key in values)
    return {key: [values.get(key) for values in each] for key in keys}


def _of_element(
    run: Run, task: TaskSpec, n: int, outputs: Mapping[str, Mapping[str, Any]], index: int
) -> dict[str, Any]:
    """Those of its task, the item, and without the list of all: that would be sent once for each of them."""
    known = values_of(run, task, n, outputs)
    items = items_of(run, task, n, outputs)
    named = set(names_in([task.params, task.env]))
    known = {name: value for name, value in known.items() if name in named or value is not items}
    item = items[index]
    if isinstance(item, Mapping):
        known |= {f"item.{key}": value for key, value in item.items()}
    return {**known, "item": item, "map_index": index}


def params_of(run: Run) -> dict[str, Any]:
    """The parameters of an instance as they are used; for people. Errors as for ``values_of``."""
    params = {**run.definition.params, **run.params}
    known = {**run.shared, **run.environment_of(None), **built_in(run, "", 0)}
    return _resolved(params, run.definition.params.keys() - run.params.keys(), known, run.moment)


def _plain(before: Iterable[str], outputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Outputs of all tasks before this one by their own names; those of nearer ones count."""
    found: dict[str, Any] = {}
    for each in before:
        for name, value in outputs.get(each, {}).items():
            found.setdefault(name, value)
    return found


def _without_large(run: Run, task: TaskSpec, found: dict[str, Any]) -> dict[str, Any]:
    """Leave out outputs that are no variables, unless the task has their names: those of a map may be large."""
    large = [name for name, value in found.items() if not_a_variable(variable_text(value))]
    if large:
        texts = texts_in([run.definition.params, task.params, task.env, task.map])
        words = {word for text in texts for word in _WORD.findall(text)}
        for name in large:
            if variable_of(name) not in words:
                del found[name]
    return found


def _tasks_before(run: Run, task: TaskSpec) -> Iterator[str]:
    """The names of all tasks before this one, near ones first."""
    seen: set[str] = set()
    level = list(task.after)
    while level:
        yield from level
        seen.update(level)
        level = list(dict.fromkeys(name for each in level for name in run.tasks[each].after if name not in seen))


def built_in(run: Run, task: str, n: int) -> dict[str, Any]:
    """What every task has, whatever anybody says."""
    return {
        "schedule_time": run.moment.isoformat(),
        "business_date": (run.moment - timedelta(days=1)).date().isoformat(),
        "instance_id": run.instance,
        "task_name": task,
        "attempt": n,
        "workflow": run.definition.name,
        "project": run.definition.project,
    }


def _resolved(
    params: Mapping[str, Any], templates: frozenset[str] | set[str], known: Mapping[str, Any], moment: datetime
) -> dict[str, Any]:
    """Parameters with their references filled in. What a start says is a value as it stands."""
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
        found[name] = fill(params[name], {**known, **found}, moment)

    for name in params:
        resolve(name, ())
    return found


def _named(task: TaskSpec, before: Collection[str], outputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """``task.output`` of what the task refers to, and of what a script of it may mean by ``$task_output``.

    Not of all tasks before it: a thousand of them have up to 64 kB each.
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
