"""What ``${name}`` stands for in a task of an instance. Pure.

What is nearer to the run counts: what the start said, then the workflow's parameters, then outputs of tasks before,
then the environment, then parameters of the project, then those of everything. What is built in cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from latchwork.workflows.definitions.model import Definition, TaskSpec
from latchwork.workflows.definitions.templates import fill, references


@dataclass(frozen=True)
class Run:
    """One instance, as far as values follow from it.

    Attributes:
        definition: what is run.
        instance: its id.
        schedule_time: seconds since the epoch.
        params: what the start said.
        shared: parameters of everything and of the project, the project's over the others.
        environment: variables of the definition's environment.
    """

    definition: Definition
    instance: int
    schedule_time: float
    params: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

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
        ValueError: parameters refer to each other; the items of a map are no list.
    """
    if index >= 0:
        return _of_element(run, task, n, outputs, index)
    ours = built_in(run, task.name, n)
    known = {**run.shared, **run.environment, **_before(run, task, outputs)}
    params = {**run.definition.params, **run.params}
    known |= _resolved(params, run.definition.params.keys() - run.params.keys(), {**known, **ours}, run.moment)
    for name, value in task.params.items():
        if name not in known and isinstance(value, (str, int, float, bool)) and "${" not in str(value):
            known[name] = value
    return {**known, **_named(task, outputs), **ours}


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
    named = _referred([task.params, task.env])
    known = {name: value for name, value in known.items() if name in named or value is not items}
    item = items[index]
    if isinstance(item, Mapping):
        known |= {f"item.{key}": value for key, value in item.items()}
    return {**known, "item": item, "map_index": index}


def params_of(run: Run) -> dict[str, Any]:
    """The parameters of an instance as they are used; for people. Errors as for ``values_of``."""
    params = {**run.definition.params, **run.params}
    known = {**run.shared, **run.environment, **built_in(run, "", 0)}
    return _resolved(params, run.definition.params.keys() - run.params.keys(), known, run.moment)


def _before(run: Run, task: TaskSpec, outputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Outputs of all tasks before this one by their own names; those of nearer ones count."""
    found: dict[str, Any] = {}
    seen: set[str] = set()
    level = list(task.after) if outputs else []
    while level:
        for each in level:
            for name, value in outputs.get(each, {}).items():
                found.setdefault(name, value)
        seen.update(level)
        level = list(dict.fromkeys(name for each in level for name in run.tasks[each].after if name not in seen))
    return found


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
        for other in _referred(params[name]) & params.keys():
            resolve(other, (*above, name))
        found[name] = fill(params[name], {**known, **found}, moment)

    for name in params:
        resolve(name, ())
    return found


def _named(task: TaskSpec, outputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """``task.output`` of what the task refers to."""
    found: dict[str, Any] = {}
    for name in _referred([task.params, task.env, task.map]):
        owner, dot, output = name.rpartition(".")
        if dot and output in outputs.get(owner, {}):
            found[name] = outputs[owner][output]
    return found


def _referred(value: object) -> set[str]:
    if isinstance(value, str):
        return _names(value) if "${" in value else set()
    if isinstance(value, Mapping):
        return set().union(*map(_referred, value.values())) if value else set()
    if isinstance(value, (list, tuple)):
        return set().union(*map(_referred, value)) if value else set()
    return set()


def _names(text: str) -> set[str]:
    try:
        return {each.name for each in references(text) if each.name}
    except ValueError:  # a text of a language of its own, into which nothing is filled
        return set()
