"""The workflows that this process has defined, by name. Test runs find sub-processes here."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakValueDictionary

from latchwork_workflows.model.definition import Definition


class DefinedWorkflow(Protocol):
    """The interface of ``Workflow``.

    Attributes:
        definition: The definition.
        order: The names of its tasks in topological order.
    """

    definition: Definition
    order: tuple[str, ...]


#: Workflows that are still referenced. A later one replaces an earlier one of the same name.
DEFINED: WeakValueDictionary[str, DefinedWorkflow] = WeakValueDictionary()
