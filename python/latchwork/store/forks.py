"""Which process an object belongs to: a child of a fork must not use what its parent made.

Nothing here touches the network.
"""

from __future__ import annotations

import os
from weakref import WeakSet

from latchwork.errors import ForkedProcess
from latchwork.store.steps import Signal

_guards: WeakSet[ForkGuard] = WeakSet()


def _mark_foreign() -> None:
    """Mark all guards, in a child of a fork."""
    for guard in list(_guards):
        guard.is_foreign = True
    _guards.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_foreign)


def lost_by_fork() -> Signal:
    """The event that a child of a fork sees for an ownership of its parent: set, because the child holds nothing."""
    lost = Signal()
    lost.set()
    return lost


class ForkGuard:
    """The process that made an object; a child of it must not use the object. Thread-safe, also with children.

    Attributes:
        is_foreign: True in a child. It costs nothing to ask in the process that made the object.

    Args:
        what: the object, as the error's message begins.
        made: the verb for it.
        remedy: what to do in the child.
    """

    __slots__ = ("__weakref__", "_pid", "_remedy", "_what", "is_foreign")

    def __init__(
        self, what: str, *, made: str = "made", remedy: str = "connect again in the child, make another"
    ) -> None:
        self._what = f"{what} was {made}"
        self._remedy = remedy
        self._pid = os.getpid()
        self.is_foreign = False
        _guards.add(self)

    def check(self) -> None:
        """Raise ``ForkedProcess`` in a child of the process that made the object."""
        if self.is_foreign:
            raise self.error()

    def error(self) -> ForkedProcess:
        """Return the error for a use in a child."""
        return ForkedProcess(f"{self._what} by process {self._pid} before a fork; {self._remedy}")
