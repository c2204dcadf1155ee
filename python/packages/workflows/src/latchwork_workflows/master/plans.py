"""The versions that a master's instances run, read once each: they do not change. Safe to share between threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from latchwork.spi import mutex
from latchwork_workflows.db import definitions
from latchwork_workflows.model.caching import cache_key_of
from latchwork_workflows.model.model import Definition, TaskSpec, plan_of
from latchwork_workflows.model.settings.naming import connections_of, environments_of
from latchwork_workflows.model.validate import in_order
from latchwork_workflows.model.values import Run
from latchwork_workflows.state import Plan
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.types.registry import UnknownType

_MOST = 500


@dataclass(frozen=True)
class Version:
    """One version of a workflow.

    Attributes:
        code: of the workflow.
        number: of the version.
        definition: what it says.
        plan: what ``advance`` has to know of it.
    """

    code: int
    number: int
    definition: Definition
    plan: Plan

    @cached_property
    def width(self) -> int:
        """How many of its tasks may be with workers side by side: the most that are equally deep; a map is one."""
        depth: dict[str, int] = {}
        count: dict[int, int] = {}
        for name, rule in self.plan.rules.items():
            depth[name] = max((depth[each] + 1 for each in rule.after), default=0)
            if not rule.kind:
                count[depth[name]] = count.get(depth[name], 0) + 1
        return max(count.values(), default=0)

    @cached_property
    def may_recall(self) -> bool:
        """Whether any of its tasks may have outputs that are known."""
        return any(each.cache_s is not None for each in self.definition.tasks)

    @cached_property
    def tasks(self) -> dict[str, TaskSpec]:
        """By name."""
        return {each.name: each for each in self.definition.tasks}

    @cached_property
    def environments(self) -> frozenset[str]:
        """The environments that it names."""
        return environments_of(self.definition)

    @cached_property
    def connections(self) -> frozenset[str] | None:
        """The stored connections that it names; None: any, as a value says it."""
        return connections_of(self.definition)


class Plans:
    """Versions by workflow and number.

    Args:
        types: the task types that this process knows.
    """

    def __init__(self, types: TaskTypes | None = None) -> None:
        self._mutex = mutex()
        self._types = types or TaskTypes()
        self._known: OrderedDict[tuple[int, int], Version] = OrderedDict()

    def get(self, connection: sa.Connection, code: int, number: int) -> Version:
        """A version.

        Raises:
            UnknownWorkflow: there is none.
            ValueError: this program cannot read it.
        """
        with self._mutex:
            found = self._known.get((code, number))
            if found is not None:
                self._known.move_to_end((code, number))
                return found
        definition = definitions.load(connection, code, number)
        order = in_order({each.name: each.after for each in definition.tasks})
        made = Version(code, number, definition, plan_of(definition, order))
        with self._mutex:
            self._known[code, number] = made
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
        return made

    def cache_key(
        self, run: Run, task: TaskSpec, n: int, outputs: Mapping[str, Mapping[str, Any]], *, index: int
    ) -> str | None:
        """By what the outputs of an attempt are kept; None: they are not, also where its values cannot be filled in."""
        if task.cache_s is None:
            return None
        try:
            quoted = self._types.get(task.type).quoted
        except UnknownType:
            quoted = frozenset(task.params)  # it may look at any value
        try:
            return cache_key_of(run, task, n, outputs, quoted=quoted, index=index)
        except (KeyError, ValueError):
            return None
