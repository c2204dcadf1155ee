"""The known task types: built-in and from other packages. Imports a type when it is first needed."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.metadata import entry_points

from latchwork_workflows.types.base import TaskType
from latchwork_workflows.types.cluster import MapReduce, Spark
from latchwork_workflows.types.http import Http
from latchwork_workflows.types.master_tasks import Conditions, Dependent, SubProcess, Switch
from latchwork_workflows.types.noop import NoOp
from latchwork_workflows.types.python import Python
from latchwork_workflows.types.shell import Shell
from latchwork_workflows.types.sql import Connect, Sql, StoredProcedure

GROUP = "latchwork.workflow_tasks"


class UnknownType(LookupError):
    """There is no task type of this name here."""


class TaskTypes:
    """The task types of this process. Thread-safe.

    Args:
        more: Types in addition to the built-in and installed ones.
    """

    def __init__(self, more: Iterable[TaskType] = ()) -> None:
        databases: tuple[TaskType, ...] = (Sql(), StoredProcedure(), Connect())
        ours: tuple[TaskType, ...] = (Shell(), Python(), *databases, Http(), Spark(), MapReduce(), NoOp())
        logical: tuple[TaskType, ...] = (SubProcess(), Dependent(), Conditions(), Switch())
        self._types = {each.name: each for each in (*ours, *logical, *more)}
        self._entries = {each.name: each for each in entry_points(group=GROUP)}

    @property
    def names(self) -> list[str]:
        """The names of all task types, sorted."""
        return sorted({*self._types, *self._entries})

    @property
    def loaded(self) -> list[str]:
        """The names of the task types that are already imported, sorted."""
        return sorted(self._types)

    def get(self, name: str) -> TaskType:
        """Return the task type with this name.

        Raises:
            UnknownType: There is no such type. The message suggests similar names.
        """
        if name not in self._types and name in self._entries:
            self._types[name] = self._entries[name].load()()
        try:
            return self._types[name]
        except KeyError:
            near = get_close_matches(name, self.names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.names)}"
            raise UnknownType(f"no task type {name!r}; {hint}") from None
