"""Workflows as Python: a function is called once to find its tasks and the data flow between them.

    @task(retries=3)
    def extract(day: str) -> dict: ...

    @workflow(schedule=Cron("0 3 * * *"), params={"day": "${logical_date}"})
    def nightly(day: str):
        got = extract(day)
        load(got["rows"])

Inside the function, a task call returns a ``Node``, ``node["rows"]`` refers to an output, and a parameter refers to its
value at run time. They have no values while the workflow is built, so the function cannot compute with them. Outside,
tasks are plain functions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from latchwork_workflows.errors import DefinitionInvalid, Problem
from latchwork_workflows.model.defined import DEFINED
from latchwork_workflows.model.definition import AlertsSpec, Definition, DefinitionModel, ScheduleSpec, TaskSpec
from latchwork_workflows.model.validate import ValidDefinition, check_definition
from latchwork_workflows.types import TaskTypes

if TYPE_CHECKING:
    from latchwork_workflows.local_run import LocalRunResult

P = ParamSpec("P")
R = TypeVar("R")

_building: ContextVar[_WorkflowBuilder | None] = ContextVar("latchwork_workflow_building", default=None)


class Placeholder:
    """A placeholder for a value at run time: a parameter or an output. Thread-safe.

    Attributes:
        nodes: The tasks whose outputs it uses.
    """

    def __init__(self, text: str, nodes: tuple[str, ...] = ()) -> None:
        self._text = text
        self.nodes = nodes

    def __str__(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        raise TypeError(f"{self._text} has no value while the workflow is built; decide inside a task")

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Placeholder):
            return self is other
        raise TypeError(f"{self._text} has no value while the workflow is built; compare inside a task")

    def __iter__(self) -> Any:
        raise TypeError(f"{self._text} has no value while the workflow is built; iterate over it inside a task")


class Node:
    """A task of a workflow under construction.

    Attributes:
        building: The workflow.
        spec: The current spec of the task.
    """

    def __init__(self, building: _WorkflowBuilder, spec: TaskSpec) -> None:
        self.building = building
        self.spec = spec

    @property
    def name(self) -> str:
        """The name of the task, unique in its workflow."""
        return self.spec.name

    def after(self, *nodes: Node) -> Node:
        """Add tasks that must end before this one starts, and return this node."""
        self.building.update(
            self.spec, [*self.spec.after, *(self.building.get_task_name(each) for each in nodes)], self
        )
        return self

    def __rshift__(self, other: Node) -> Node:
        """``a >> b``: b waits for a. Return b."""
        return other.after(self)

    def map(
        self, fn: TaskFunction[..., Any] | Workflow, items: str = "result", *, parallel: int | None = None, **fixed: Any
    ) -> Node:
        """Return a task that runs once for each item of an output of this one. Its outputs are lists, in item order.

        Args:
            fn: The task, called with an item as its first argument, or a workflow, started with it.
            items: The name of the output, which must be a list.
            parallel: The maximum number at a time. None: as many as workers take.
            fixed: Further arguments, the same for all items.
        """
        options: dict[str, Any] = {"map": str(self[items]), "map_parallel": parallel}
        item = Placeholder("${item}")
        if isinstance(fn, Workflow):
            if not fn.definition.params:
                raise TypeError(f"{fn.name} has no parameter for an item")
            first = next(iter(fn.definition.params))
            given = {"workflow": fn.definition.key, "params": {first: item, **fixed}}
            return add_task("sub_process", given, after=[self], default_name=fn.name, **options)
        first = next(iter(inspect.signature(fn.__wrapped__).parameters))
        made: Node = fn.options(**options)(**{first: item, **fixed})
        return made.after(self)

    def __getitem__(self, output: str) -> Placeholder:
        """Return a reference to an output, for use in another task."""
        return Placeholder(f"${{{self.name}.{output}}}", (self.name,))


class _WorkflowBuilder:
    """A workflow that is being built, while its function is being called."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.specs: dict[str, TaskSpec] = {}

    def add(self, fields: dict[str, Any], name: str, *, named: bool, nodes: Iterable[str]) -> Node:
        """Add a task to the workflow.

        Args:
            fields: The fields of the task.
            name: The name of the task, or the prefix of its name.
            named: Whether the user gave the name. Otherwise a number is appended to make it unique.
            nodes: Names of the tasks whose outputs it uses.
        """
        if name in self.specs:
            if named:
                raise DefinitionInvalid([Problem("tasks", f"two tasks are called {name!r}; give one another name=")])
            name = next(each for each in (f"{name}-{count}" for count in range(2, 10_000)) if each not in self.specs)
        plain = {key: value for key, value in fields.items() if value is not None}
        spec = TaskSpec.model_construct(
            **{**TaskSpec.model_construct(name=name, type="").__dict__, **plain, "name": name}
        )
        node = Node(self, spec)
        self.update(spec, nodes, node)
        return node

    def update(self, spec: TaskSpec, after: Iterable[str], node: Node) -> None:
        """Replace the spec of a task after its dependencies have changed.

        Args:
            spec: The new spec.
            after: Names of further tasks that it depends on.
            node: The node of the task.
        """
        node.spec = self.specs[spec.name] = spec.model_copy(update={"after": tuple(dict.fromkeys(after))})

    def get_task_name(self, node: object) -> str:
        """Return the task name of a node.

        Raises:
            TypeError: The value is not a node of this workflow.
        """
        if not isinstance(node, Node):
            raise TypeError(f"after takes tasks of this workflow, not {node!r}")
        if node.building is not self:
            raise DefinitionInvalid(
                [Problem("tasks", f"task {node.name!r} is of another workflow, {node.building.name!r}")]
            )
        return node.name


def _current_builder(what: str) -> _WorkflowBuilder:
    building = _building.get()
    if building is None:
        raise RuntimeError(f"{what} makes a task of a workflow: call it inside a function with @workflow")
    return building


def _convert_argument(value: object, nodes: set[str], place: str) -> Any:
    """Convert an argument to JSON, and add the tasks whose outputs it uses to ``nodes``.

    Args:
        value: The argument.
        nodes: Receives the names of the tasks.
        place: The location of the argument, for error messages.
    """
    if isinstance(value, Placeholder):
        nodes.update(value.nodes)
        return str(value)
    if isinstance(value, Node):
        return _convert_argument(value["result"], nodes, place)
    if isinstance(value, str):
        return value.replace("${", "$${")  # text in Python code is literal
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _convert_argument(each, nodes, place) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_convert_argument(each, nodes, place) for each in value]
    raise DefinitionInvalid(
        [Problem(place, f"{type(value).__name__} is not a plain value; use text, numbers, lists or mappings")]
    )


class TaskFunction(Generic[P, R]):
    """A function that can be used as a task. Outside of workflows, calling it calls the function."""

    def __init__(self, fn: Callable[P, R], name: str, options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, fn)
        self.__wrapped__ = fn
        self._name = name
        self._options = dict(options)

    def options(self, **changed: Any) -> TaskFunction[P, R]:
        """Return the same task with other options, as in ``extract.options(retries=5)(day)``."""
        return TaskFunction(self.__wrapped__, changed.pop("name", self._name), {**self._options, **changed})

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the result of the function, or a ``Node`` inside a workflow."""
        building = _building.get()
        if building is None:
            return self.__wrapped__(*args, **kwargs)
        bound = inspect.signature(self.__wrapped__).bind(*args, **kwargs)
        nodes: set[str] = set()
        given: dict[str, Any] = {}
        for name, parameter in inspect.signature(self.__wrapped__).parameters.items():
            if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL}:
                raise DefinitionInvalid(
                    [Problem(self._name, f"parameter {name!r} must be one that can be passed by name")]
                )
            if name in bound.arguments:
                value = _convert_argument(bound.arguments[name], nodes, f"{self._name}.{name}")
                given.update(value if parameter.kind is parameter.VAR_KEYWORD else {name: value})
        options = dict(self._options)
        after = [building.get_task_name(each) for each in options.pop("after", ())]
        function = f"{self.__wrapped__.__module__}:{self.__wrapped__.__qualname__}"
        fields = {"type": "python", "params": {"function": function, "args": given}, **options}
        return building.add(fields, self._name, named=False, nodes=[*after, *sorted(nodes)])


@overload
def task(fn: Callable[P, R], /) -> TaskFunction[P, R]: ...
@overload
def task(*, name: str | None = None, **options: Any) -> Callable[[Callable[P, R]], TaskFunction[P, R]]: ...
def task(fn: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Make a function usable as a task of workflows.

    Args:
        fn: A function at the top level of its module, with JSON values as arguments and result.
        name: The name of its tasks. Default the name of the function. Further calls in a workflow are numbered.
        options: Fields of ``TaskSpec``: ``retries``, ``retry_interval_s``, ``timeout_s``, ``on_timeout``, ``priority``,
            ``delay_s``, ``max_queued_s``, ``cache_s``, ``worker_group``, ``pool``, ``enabled``, ``environment``,
            ``env``, and ``after``.
    Raises:
        TypeError: An option is unknown, or the function is defined inside another one.
    """
    _check_options(options)

    def made(function: Callable[P, R]) -> TaskFunction[P, R]:
        if "<" in function.__qualname__:
            raise TypeError(
                f"task {function.__qualname__} is inside a function; workers import it, so define it at the top level "
                "of the module"
            )
        return TaskFunction(function, name or function.__name__, options)

    return made if fn is None else made(fn)


def shell(
    script: str,
    *,
    interpreter: Sequence[str] = (),
    name: str | None = None,
    after: Iterable[Node] = (),
    **options: Any,
) -> Node:
    """Return a task that runs a shell script. Parameters and outputs are available as environment variables.

    Args:
        script: The script.
        interpreter: The interpreter with its arguments, such as ``["python3"]``. Empty: ``sh -e``.
        name: The name of the task. Default ``shell``, numbered.
        after: Tasks to wait for.
        options: As for ``task``.
    """
    given = {"script": script, **({"interpreter": list(interpreter)} if interpreter else {})}
    return add_task("shell", given, name=name, after=after, **options)


def add_task(
    type_: str,
    params: Mapping[str, Any],
    *,
    name: str | None = None,
    after: Iterable[Node] = (),
    default_name: str | None = None,
    **options: Any,
) -> Node:
    """Add a task of any type to the workflow that is being built, and return its node.

    Args:
        type_: The name of the type, as in YAML.
        params: The parameters of the type.
        name: The name of the task. None: ``default_name`` with a number.
        after: Tasks to wait for.
        default_name: The default name. None: the name of the type.
        options: As for ``task``.
    """
    building = _current_builder(f"{type_}()")
    _check_options(options)
    nodes: set[str] = set()
    plain = {
        key: value if isinstance(value, str) else _convert_argument(value, nodes, key) for key, value in params.items()
    }
    fields = {"type": type_, "params": plain, **options}
    named = [building.get_task_name(each) for each in after]
    return building.add(fields, name or default_name or type_, named=name is not None, nodes=[*named, *sorted(nodes)])


def _check_options(options: Mapping[str, Any]) -> None:
    known = TaskSpec.model_fields.keys() - {"name", "type", "params"}
    for name in options:
        if name not in known:
            raise TypeError(f"a task has no option {name!r}; it has {', '.join(sorted(known))}")


class Cron(ScheduleSpec):
    """The schedule of a workflow: ``Cron("0 3 * * *", tz="Europe/Berlin")``."""

    def __init__(self, cron: str, **fields: Any) -> None:
        super().__init__(cron=cron, **fields)


class Alerts(AlertsSpec):
    """The alerts of a workflow: ``Alerts("ops", on="all", failover=True)``."""

    def __init__(self, *channels: str, **fields: Any) -> None:
        super().__init__(**{"channels": channels, **fields})


class Workflow:
    """A workflow defined in Python. Immutable, thread-safe.

    Attributes:
        definition: The definition.
        order: The names of its tasks in topological order.
    """

    def __init__(self, built: ValidDefinition) -> None:
        self.definition = built.definition
        self.order = built.order
        DEFINED[self.definition.key] = self

    @property
    def name(self) -> str:
        """The name of the workflow, unique in its project."""
        return self.definition.name

    def __call__(self, **params: Any) -> Node:
        """Return a task of another workflow that runs this one with these parameters."""
        _current_builder(self.name)
        given = {"workflow": self.definition.key, **({"params": params} if params else {})}
        return add_task("sub_process", given, default_name=self.name)

    def test(self, *, schedule_time: float | None = None, **params: Any) -> LocalRunResult:
        """Run the workflow in this process, without a database or a store. Waiting times are skipped.

        Python tasks are called in this process, so a debugger can stop in them and a test can replace what they use.

        Args:
            schedule_time: The schedule time, in seconds since the epoch. None: now.
            params: Values that replace the parameters of the workflow.
        Returns:
            The results of the run and of each task. ``check()`` raises unless the run succeeded.
        Raises:
            LatchworkError: The workflow has no such parameter.
        """
        from latchwork_workflows.local_run import run_locally

        return run_locally(self.definition, self.order, params, schedule_time)

    def __repr__(self) -> str:
        return f"<Workflow {self.definition.key}, {len(self.order)} tasks>"


@overload
def workflow(fn: Callable[..., object], /) -> Workflow: ...
@overload
def workflow(*, name: str | None = None, **options: Any) -> Callable[[Callable[..., object]], Workflow]: ...
def workflow(fn: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Make a workflow from a function that calls tasks. Calls the function once.

    Args:
        fn: The function. Its parameters are those of the workflow, with values from its defaults or ``params``.
        name: The name of the workflow. Default the name of the function.
        options: Fields of ``Definition`` except ``tasks``.
    Raises:
        DefinitionInvalid: Contains every problem.
        TypeError: An option is unknown.
    """
    for option in options:
        if option not in Definition.model_fields.keys() - {"name", "tasks"}:
            raise TypeError(f"a workflow has no option {option!r}; see Definition for its options")

    def made(function: Callable[..., object]) -> Workflow:
        building = _WorkflowBuilder(name or function.__name__)
        params = {**_defaults(function), **options.get("params", {})}
        token = _building.set(building)
        try:
            function(**{each: Placeholder(f"${{{each}}}") for each in inspect.signature(function).parameters})
        finally:
            _building.reset(token)
        described = inspect.getdoc(function) or ""
        fields = {"description": described, **options, "name": building.name, "params": params}
        tasks = [each.model_dump(exclude_defaults=True) for each in building.specs.values()]
        plain = {key: each.model_dump() if isinstance(each, DefinitionModel) else each for key, each in fields.items()}
        return Workflow(check_definition({**plain, "tasks": tasks}, TaskTypes()))

    return made if fn is None else made(fn)


def _defaults(function: Callable[..., object]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}
