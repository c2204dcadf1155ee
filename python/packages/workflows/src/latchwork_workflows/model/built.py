"""The workflows that this process has described, by name: what one that starts another finds when it is tried out."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakValueDictionary

from latchwork_workflows.model.model import Definition


class Described(Protocol):
    """A workflow, as ``Workflow`` is one.

    Attributes:
        definition: what it says.
        order: its tasks, each after those that it waits for.
    """

    definition: Definition
    order: tuple[str, ...]


#: Those that somebody has still; the newest of a name.
BUILT: WeakValueDictionary[str, Described] = WeakValueDictionary()
