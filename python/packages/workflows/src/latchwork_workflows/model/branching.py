"""Logical tasks and maps as functions, for workflows in Python.

    ready = dependent(On("billing.close", window="today") & On("sales.load", task="facts"), wait_s=1800)
    got = extract(day).after(ready)
    switch(got, {"rows > 1000": big(), "rows > 0": small()}, default=noop(name="nothing"))
    conditions(got, success=[report], failure=[alarm])
    sub_process("billing.close", {"day": day})
    got.map(load, "files")

What a condition lets go on is made to come after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from latchwork_workflows.model.builder import Node, Workflow, add

Nodes: TypeAlias = Node | Sequence[Node]


class On:
    """A run of another workflow that has succeeded; ``&`` and ``|`` join several. Immutable.

    Args:
        workflow: ``project.name``, or a name of the project ``default``.
        task: one of its tasks; ``*``: each of them; None: the run as a whole.
        window: which runs: those whose schedule time is in ``today``, ``yesterday``, ``last_3_days`` (one for each
            day), ``this_hour``, ``last_24_hours``, ``this_week``, ``last_monday``, ``last_month`` and their like,
            counted from the schedule time of the run that waits. The newest in it counts.
    """

    def __init__(self, workflow: str | Workflow, *, task: str | None = None, window: str = "today") -> None:
        name = workflow.definition.key if isinstance(workflow, Workflow) else workflow
        self.plain: dict[str, Any] = {"workflow": name, "window": window, **({"task": task} if task else {})}

    def __and__(self, other: On) -> On:
        return _joined("all", self, other)

    def __or__(self, other: On) -> On:
        return _joined("any", self, other)

    def __bool__(self) -> bool:
        raise TypeError("a condition has no value while the workflow is built; join them by & and |")

    def __repr__(self) -> str:
        return f"<On {self.plain}>"


def _joined(kind: str, *conditions: On) -> On:
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
    """A run of another workflow; its outputs are those of this task.

    Args:
        workflow: which, by its newest version when the task starts.
        params: what it is started with.
        name: of the task; the workflow's, numbered, by default.
        after: tasks to wait for.
        options: as for ``task``, but for what only workers heed: ``retries``, ``timeout_s``, groups, ``env``.
    """
    key = workflow.definition.key if isinstance(workflow, Workflow) else workflow
    given = {"workflow": key, **({"params": dict(params)} if params else {})}
    return add("sub_process", given, name=name, after=after, default_name=key.rpartition(".")[2], **options)


def dependent(
    condition: On,
    *,
    wait_s: float = 0.0,
    name: str | None = None,
    after: Iterable[Node] = (),
    **options: Any,
) -> Node:
    """Wait until other workflows have succeeded; their outputs are those of this task.

    What is missing or runs is waited for, for ``timeout_s`` at most if that is given.

    Args:
        condition: what is waited for.
        wait_s: seconds for which a failure may be mended; 0: it is a failure of this task at once.
        name: of the task; ``dependent``, numbered, by default.
        after: tasks to wait for before.
        options: ``timeout_s``, ``delay_s``, ``enabled``, ``description``.
    """
    given: dict[str, Any] = {"on": condition.plain}
    if wait_s > 0:
        given |= {"on_failure": "wait", "wait_s": wait_s}
    return add("dependent", given, name=name, after=after, **options)


def conditions(
    before: Nodes,
    success: Nodes = (),
    failure: Nodes = (),
    *,
    when: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Any,
) -> Node:
    """Let a branch go on by how tasks have ended. A failure that is looked at here is none of the run.

    Args:
        before: the tasks that are looked at.
        success: what goes on if ``when`` is true.
        failure: what goes on if not.
        when: as in YAML, such as ``{"any": ["a", {"task": "b", "failed": True}]}``; None: all have succeeded.
        name: of the task; ``conditions``, numbered, by default.
        options: ``delay_s``, ``description``.
    """
    good, bad = _listed(success), _listed(failure)
    given: dict[str, Any] = {"success": [each.name for each in good], "failure": [each.name for each in bad]}
    if when is not None:
        given["when"] = dict(when)
    made = add("conditions", given, name=name, after=_listed(before), **options)
    for each in (*good, *bad):
        each.after(made)
    return made


def switch(
    before: Nodes, cases: Mapping[str, Nodes], default: Nodes = (), *, name: str | None = None, **options: Any
) -> Node:
    """Let the first branch go on whose expression is true.

    Args:
        before: the tasks that come before.
        cases: by an expression of parameters and outputs, such as ``rows > 10 and country == 'de'``; what goes on.
        default: what goes on if none is true.
        name: of the task; ``switch``, numbered, by default.
        options: ``delay_s``, ``description``.
    """
    branches = {when: _listed(then) for when, then in cases.items()}
    cases_ = [{"when": when, "then": [each.name for each in then]} for when, then in branches.items()]
    given: dict[str, Any] = {"cases": cases_}
    heads = [*(each for then in branches.values() for each in then), *_listed(default)]
    if default:
        given["default"] = [each.name for each in _listed(default)]
    made = add("switch", given, name=name, after=_listed(before), **options)
    for each in dict.fromkeys(heads):
        each.after(made)
    return made


def _listed(nodes: Nodes) -> list[Node]:
    return [nodes] if isinstance(nodes, Node) else list(nodes)
