"""Logical tasks and maps as functions, for workflows in Python.

    ready = dependent(On("billing.close", window="today") & On("sales.load", task="facts"), wait_s=1800)
    got = extract(day).after(ready)
    switch(got, {"rows > 1000": big(), "rows > 0": small()}, default=noop(name="nothing"))
    conditions(got, success=[report], failure=[alarm])
    sub_process("billing.close", {"day": day})
    got.map(load, "files")

Tasks chosen by a condition or switch automatically run after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from latchwork_workflows.model.builder import Node, Workflow, add_task

Nodes: TypeAlias = Node | Sequence[Node]


class On:
    """A successful run of another workflow. ``&`` and ``|`` combine several. Immutable.

    Args:
        workflow: ``project.name``, or a name in the project ``default``.
        task: One of its tasks. ``*``: each of its tasks. None: the whole run.
        window: Selects runs by schedule time: ``today``, ``yesterday``, ``last_3_days`` (one for each day),
            ``this_hour``, ``last_24_hours``, ``this_week``, ``last_monday``, ``last_month`` and similar, relative to
            the schedule time of the waiting run. The newest run in the window counts.
    """

    def __init__(self, workflow: str | Workflow, *, task: str | None = None, window: str = "today") -> None:
        name = workflow.definition.key if isinstance(workflow, Workflow) else workflow
        self.plain: dict[str, Any] = {"workflow": name, "window": window, **({"task": task} if task else {})}

    def __and__(self, other: On) -> On:
        return _combine("all", self, other)

    def __or__(self, other: On) -> On:
        return _combine("any", self, other)

    def __bool__(self) -> bool:
        raise TypeError("a condition has no value while the workflow is built; combine them with & and |")

    def __repr__(self) -> str:
        return f"<On {self.plain}>"


def _combine(kind: str, *conditions: On) -> On:
    made = On.__new__(On)
    parts: list[Any] = []
    for each in conditions:
        parts += each.plain.get(kind, [each.plain])
    made.plain = {kind: parts}
    return made


def sub_process(
    workflow: Workflow | str,
    params: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    after: Iterable[Node] = (),
    **options: Any,
) -> Node:
    """Return a task that runs another workflow as a child run, and has its outputs.

    Args:
        workflow: The workflow. Its newest version at the start of the task is used.
        params: The parameters of the run.
        name: The name of the task. Default the name of the workflow, numbered.
        after: Tasks to wait for.
        options: As for ``task``. No worker runs the task, so ``retries``, ``timeout_s``, ``env`` and worker groups are
            not possible.
    """
    key = workflow.definition.key if isinstance(workflow, Workflow) else workflow
    given = {"workflow": key, **({"params": dict(params)} if params else {})}
    return add_task("sub_process", given, name=name, after=after, default_name=key.rpartition(".")[2], **options)


def dependent(
    condition: On,
    *,
    wait_s: float = 0.0,
    name: str | None = None,
    after: Iterable[Node] = (),
    **options: Any,
) -> Node:
    """Return a task that waits until other workflows have succeeded. Their outputs become the outputs of the task.

    It waits for missing and active runs, at most ``timeout_s`` seconds if given.

    Args:
        condition: The runs to wait for.
        wait_s: Seconds to wait until a failed run is repaired. 0: the task fails immediately.
        name: The name of the task. Default ``dependent``, numbered.
        after: Tasks to wait for first.
        options: ``timeout_s``, ``delay_s``, ``enabled``, ``description``.
    """
    given: dict[str, Any] = {"on": condition.plain}
    if wait_s > 0:
        given |= {"on_failure": "wait", "wait_s": wait_s}
    return add_task("dependent", given, name=name, after=after, **options)


def conditions(
    before: Nodes,
    success: Nodes = (),
    failure: Nodes = (),
    *,
    when: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Any,
) -> Node:
    """Return a task that chooses between two branches, depending on whether other tasks have succeeded.

    Failures of these other tasks do not fail the run.

    Args:
        before: The tasks to evaluate.
        success: The tasks that run if the condition is true.
        failure: The tasks that run if the condition is false.
        when: The condition as in YAML, such as ``{"any": ["a", {"task": "b", "failed": True}]}``. None: all tasks have
            succeeded.
        name: The name of the task. Default ``conditions``, numbered.
        options: ``delay_s``, ``description``.
    """
    good, bad = _as_list(success), _as_list(failure)
    given: dict[str, Any] = {"success": [each.name for each in good], "failure": [each.name for each in bad]}
    if when is not None:
        given["when"] = dict(when)
    made = add_task("conditions", given, name=name, after=_as_list(before), **options)
    for each in (*good, *bad):
        each.after(made)
    return made


def switch(
    before: Nodes, cases: Mapping[str, Nodes], default: Nodes = (), *, name: str | None = None, **options: Any
) -> Node:
    """Return a task that chooses the first branch whose expression is true.

    Args:
        before: The tasks to wait for.
        cases: The tasks of each branch, by an expression of parameters and outputs such as ``rows > 10 and country ==
            'de'``.
        default: The tasks that run if no expression is true.
        name: The name of the task. Default ``switch``, numbered.
        options: ``delay_s``, ``description``.
    """
    branches = {when: _as_list(then) for when, then in cases.items()}
    cases_ = [{"when": when, "then": [each.name for each in then]} for when, then in branches.items()]
    given: dict[str, Any] = {"cases": cases_}
    heads = [*(each for then in branches.values() for each in then), *_as_list(default)]
    if default:
        given["default"] = [each.name for each in _as_list(default)]
    made = add_task("switch", given, name=name, after=_as_list(before), **options)
    for each in dict.fromkeys(heads):
        each.after(made)
    return made


def _as_list(nodes: Nodes) -> list[Node]:
    return [nodes] if isinstance(nodes, Node) else list(nodes)
